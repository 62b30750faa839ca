//! Stream memory operations: writing values and waiting for them.

use cuda_abi::types::{CUdeviceptr, CUresult, CUstream, cuuint32_t, cuuint64_t};

use super::Answer;
use super::stream::find;
use crate::device::ops::{Condition, Op, Width};

api! {
    fn cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) {
        write(stream, addr, value.into(), Width::Bits32, flags)
    }
    fn cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) {
        write(stream, addr, value, Width::Bits64, flags)
    }
    fn cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) {
        wait(stream, addr, value.into(), Width::Bits32, flags)
    }
    fn cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) {
        wait(stream, addr, value, Width::Bits64, flags)
    }
}

alias! {
    cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) = cuStreamWriteValue32_v2;
    cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) = cuStreamWriteValue64_v2;
    cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) = cuStreamWaitValue32_v2;
    cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) = cuStreamWaitValue64_v2;
}

fn write(stream: CUstream, address: u64, value: u64, width: Width, flags: u32) -> Answer {
    let (driver, _, stream) = find(stream)?;
    // Flag 1 drops the memory barrier; keeping it is always right.
    check(driver, address, width, flags & !1)?;
    Ok(driver.engine.enqueue(stream.id, Op::WriteValue { address, value, width })?)
}

fn wait(stream: CUstream, address: u64, value: u64, width: Width, flags: u32) -> Answer {
    /// CU_STREAM_WAIT_VALUE_FLUSH: remote writes are visible at once here.
    const FLUSH: u32 = 1 << 30;
    let (driver, _, stream) = find(stream)?;
    check(driver, address, width, flags & !(FLUSH | 3))?;
    let condition = match flags & 3 {
        0 => Condition::GreaterOrEqual,
        1 => Condition::Equal,
        2 => Condition::And,
        _ => Condition::Nor,
    };
    Ok(driver.engine.enqueue(stream.id, Op::WaitValue { address, value, width, condition })?)
}

fn check(driver: &super::driver::Driver, address: u64, width: Width, unknown_flags: u32) -> Answer {
    let size_bytes = match width {
        Width::Bits32 => 4,
        Width::Bits64 => 8,
    };
    let is_valid = unknown_flags == 0
        && address.is_multiple_of(size_bytes)
        && driver.space.accessible().snapshot().covers(address, size_bytes);
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
