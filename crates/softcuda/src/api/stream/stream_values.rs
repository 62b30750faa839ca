//! Stream memory operations: writing values and waiting for them, one by one and in batches.

use cuda_abi::graph::params::{wait_of, write_of};
use cuda_abi::types::{
    CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Type,
    cuuint32_t, cuuint64_t,
};

use super::memory_op::MemoryOp;
use super::submit::submit;
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::graph::{MemoryOpsWork, NodeKind};
use crate::api::out;
use crate::api::stream::find;

/// Most operations of one batch.
const BATCH_OPS: usize = 256;
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
    let ops =
        asked.iter().map(|one| MemoryOp::new(&driver.space, one)).collect::<Answer<Vec<_>>>()?;
    Ok(MemoryOpsWork { ops: ops.into(), asked: asked.into(), flags, context })
}

fn one(stream: CUstream, asked: CUstreamBatchMemOpParams) -> Answer {
    let (driver, context, stream) = find(stream)?;
    let op = MemoryOp::new(&driver.space, &asked)?;
    let work = MemoryOpsWork {
        ops: [op].into(),
        asked: [asked].into(),
        flags: 0,
        context: context.handle,
    };
    submit(driver, &stream, NodeKind::BatchMemOp(work))
}
