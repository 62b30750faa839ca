//! Stream memory operations: writing values and waiting for them, one by one and in batches.

use cuda_abi::graph::params::{wait_of, write_of};
use cuda_abi::types::{
    CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Type,
    cuuint32_t, cuuint64_t,
};

use super::submit::submit;
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::graph::{MemoryOpsWork, NodeKind};
use crate::api::out;
use crate::api::stream::find;
use crate::device::ops::{Condition, Op, Width};

/// Most operations of one batch.
const BATCH_OPS: usize = 256;
/// CU_STREAM_WAIT_VALUE_FLUSH: for devices that say they can
/// (CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES).
const FLUSH: u32 = 1 << 30;

api! {
    fn cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) {
        one(stream, write_of(Type::WRITE_VALUE_32, addr, value.into(), flags))
    }
    fn cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) {
        one(stream, write_of(Type::WRITE_VALUE_64, addr, value, flags))
    }
    fn cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) {
        one(stream, wait_of(Type::WAIT_VALUE_32, addr, value.into(), flags))
    }
    fn cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) {
        one(stream, wait_of(Type::WAIT_VALUE_64, addr, value, flags))
    }

    fn cuStreamBatchMemOp_v2(stream: CUstream, count: u32, paramArray: *mut CUstreamBatchMemOpParams, flags: u32) {
        let (driver, context, stream) = find(stream)?;
        // SAFETY: the caller's array of `count`.
        let work = unsafe { work(driver, context.handle, paramArray, count, flags)? };
        submit(driver, &stream, NodeKind::BatchMemOp(work))
    }
}

alias! {
    cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) = cuStreamWriteValue32_v2;
    cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) = cuStreamWriteValue64_v2;
    cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: u32) = cuStreamWaitValue32_v2;
    cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: u32) = cuStreamWaitValue64_v2;
    cuStreamBatchMemOp(stream: CUstream, count: u32, paramArray: *mut CUstreamBatchMemOpParams, flags: u32) = cuStreamBatchMemOp_v2;
}

/// One checked operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryOp {
    Write {
        address: u64,
        value: u64,
        width: Width,
    },
    Wait {
        address: u64,
        value: u64,
        width: Width,
        condition: Condition,
    },
    /// Earlier writes become visible: they are at once.
    Barrier,
}

impl MemoryOp {
    /// Checks an operation of a batch: CUDA_ERROR_INVALID_VALUE for unknown operations, flags and
    /// addresses.
    pub(crate) fn new(driver: &Driver, asked: &CUstreamBatchMemOpParams) -> Answer<Self> {
        // SAFETY: every member begins with the operation; all are plain numbers.
        let operation = unsafe { asked.operation };
        let width = match operation {
            Type::WAIT_VALUE_64 | Type::WRITE_VALUE_64 => Width::Bits64,
            _ => Width::Bits32,
        };
        // SAFETY: the operation says which member the caller filled in; all are plain numbers.
        unsafe {
            match operation {
                Type::WRITE_VALUE_32 | Type::WRITE_VALUE_64 => {
                    let write = asked.writeValue;
                    // Flag 1 drops the memory barrier; keeping it is always right.
                    check(driver, write.address, width, write.flags & !1)?;
                    let value = value_of(write.anonymous.value64, width);
                    Ok(MemoryOp::Write { address: write.address, value, width })
                }
                Type::WAIT_VALUE_32 | Type::WAIT_VALUE_64 => {
                    let wait = asked.waitValue;
                    if wait.flags & FLUSH != 0 {
                        return Err(CUresult::ERROR_NOT_SUPPORTED);
                    }
                    check(driver, wait.address, width, wait.flags & !3)?;
                    let condition = match wait.flags & 3 {
                        0 => Condition::GreaterOrEqual,
                        1 => Condition::Equal,
                        2 => Condition::And,
                        _ => Condition::Nor,
                    };
                    let value = value_of(wait.anonymous.value64, width);
                    Ok(MemoryOp::Wait { address: wait.address, value, width, condition })
                }
                Type::BARRIER if asked.memoryBarrier.flags <= 1 => Ok(MemoryOp::Barrier),
                Type::FLUSH_REMOTE_WRITES => Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => Err(CUresult::ERROR_INVALID_VALUE),
            }
        }
    }

    /// The operation of a stream, if it needs one.
    pub(crate) fn op(&self) -> Option<Op> {
        match *self {
            MemoryOp::Write { address, value, width } => {
                Some(Op::WriteValue { address, value, width })
            }
            MemoryOp::Wait { address, value, width, condition } => {
                Some(Op::WaitValue { address, value, width, condition })
            }
            MemoryOp::Barrier => None,
        }
    }
}

/// Checks a batch.
///
/// # Safety
/// `operations` has `count` elements.
pub(crate) unsafe fn work(
    driver: &Driver,
    context: cuda_abi::types::CUcontext,
    operations: *const CUstreamBatchMemOpParams,
    count: u32,
    flags: u32,
) -> Answer<MemoryOpsWork> {
    if flags != 0 || count as usize > BATCH_OPS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    let asked = unsafe { out::read_array(operations, count as usize)? };
    let ops = asked.iter().map(|one| MemoryOp::new(driver, one)).collect::<Answer<Vec<_>>>()?;
    Ok(MemoryOpsWork { ops: ops.into(), asked: asked.into(), flags, context })
}

fn one(stream: CUstream, asked: CUstreamBatchMemOpParams) -> Answer {
    let (driver, context, stream) = find(stream)?;
    let op = MemoryOp::new(driver, &asked)?;
    let work = MemoryOpsWork {
        ops: [op].into(),
        asked: [asked].into(),
        flags: 0,
        context: context.handle,
    };
    submit(driver, &stream, NodeKind::BatchMemOp(work))
}

/// The value's member of 32 bits is the low half.
fn value_of(value: u64, width: Width) -> u64 {
    match width {
        Width::Bits32 => value & 0xffff_ffff,
        Width::Bits64 => value,
    }
}

fn check(driver: &Driver, address: u64, width: Width, unknown_flags: u32) -> Answer {
    let size_bytes = match width {
        Width::Bits32 => 4,
        Width::Bits64 => 8,
    };
    let is_valid = unknown_flags == 0
        && address.is_multiple_of(size_bytes)
        && driver.space.accessible().snapshot().covers(address, size_bytes);
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
