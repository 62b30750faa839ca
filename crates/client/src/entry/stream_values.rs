//! Stream memory operations: writing values and waiting for them, one by one and in batches.
//!
//! The executor holds a waiting stream's later work in software; see `policy/src/turns/holds.rs` of
//! the server.

use super::arguments::not_null;
use crate::client::{Client, run};
use crate::graph::kinds::{BatchWork, NodeKind};
use crate::result::Result;
use crate::stream::{Target, targets};
use cuda_abi::graph::params::{wait_of, write_of};
use cuda_abi::types::*;
use link::wire::command::{Opcode, StreamWriteValue};
use zerocopy::IntoBytes;

/// Most operations of one batch.
const MOST_OPERATIONS: u32 = 256;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: absent.
const FLUSH: u32 = 1 << 30;
const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// One checked operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write(Word),
    Wait(Word),
    /// Work of one stream is in order anyway.
    Barrier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    address: u64,
    value_bytes: u32,
    value: u64,
    flags: u32,
}

impl Word {
    fn check(self, client: &Client, device: CUdevice, known_flags: u32) -> Result<Self> {
        let size_bytes = u64::from(self.value_bytes);
        if self.flags & !known_flags != 0 || !self.address.is_multiple_of(size_bytes) {
            return Err(INVALID);
        }
        if client.memory.device_reach(self.address, size_bytes)?.device != device {
            return Err(INVALID);
        }
        let mask = if self.value_bytes == 4 { u64::from(u32::MAX) } else { u64::MAX };
        Ok(Self { value: self.value & mask, ..self })
    }
}

impl Operation {
    fn write(client: &Client, device: CUdevice, word: Word) -> Result<Self> {
        Ok(Self::Write(word.check(client, device, 1)?))
    }

    fn wait(client: &Client, device: CUdevice, word: Word) -> Result<Self> {
        if word.flags & FLUSH != 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Ok(Self::Wait(word.check(client, device, 3)?))
    }

    fn read(client: &Client, device: CUdevice, asked: &CUstreamBatchMemOpParams) -> Result<Self> {
        use CUstreamBatchMemOpType as Type;
        // SAFETY: every member begins with the operation, which says which one the caller filled
        // in; all are plain numbers.
        unsafe {
            let value_bytes = match asked.operation {
                Type::WAIT_VALUE_64 | Type::WRITE_VALUE_64 => 8,
                _ => 4,
            };
            match asked.operation {
                Type::WRITE_VALUE_32 | Type::WRITE_VALUE_64 => {
                    let CUstreamMemOpWriteValueParams_st { address, anonymous, flags, .. } =
                        asked.writeValue;
                    let value = anonymous.value64;
                    Self::write(client, device, Word { address, value_bytes, value, flags })
                }
                Type::WAIT_VALUE_32 | Type::WAIT_VALUE_64 => {
                    let CUstreamMemOpWaitValueParams_st { address, anonymous, flags, .. } =
                        asked.waitValue;
                    let value = anonymous.value64;
                    Self::wait(client, device, Word { address, value_bytes, value, flags })
                }
                Type::BARRIER if asked.memoryBarrier.flags <= 1 => Ok(Self::Barrier),
                Type::FLUSH_REMOTE_WRITES => Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => Err(INVALID),
            }
        }
    }

    /// As the executor has it; a barrier has no bytes.
    fn word(self, slot: u32) -> StreamWriteValue {
        match self {
            Self::Write(word) | Self::Wait(word) => StreamWriteValue {
                stream: slot,
                value_bytes: word.value_bytes,
                address: word.address,
                value: word.value,
                flags: word.flags,
                reserved: 0,
            },
            Self::Barrier => StreamWriteValue { stream: slot, ..Default::default() },
        }
    }

    fn post(self, target: &Target) -> Result {
        let word = self.word(target.slot);
        match self {
            Self::Write(_) => target.post(Opcode::StreamWriteValue, &word).map(drop),
            Self::Wait(_) => target.post_wait(Opcode::StreamWaitValue, word.as_bytes()),
            Self::Barrier => Ok(()),
        }
    }
}

/// Checks the operations of a batch.
fn read_all(
    client: &Client,
    device: CUdevice,
    asked: &[CUstreamBatchMemOpParams],
) -> Result<Vec<Operation>> {
    asked.iter().map(|one| Operation::read(client, device, one)).collect()
}

/// Reads the array of a batch.
///
/// # Safety
/// The array has `count` elements.
unsafe fn array(
    asked: *const CUstreamBatchMemOpParams,
    count: u32,
    flags: u32,
) -> Result<Vec<CUstreamBatchMemOpParams>> {
    if flags != 0 || count > MOST_OPERATIONS {
        return Err(INVALID);
    }
    if count > 0 {
        not_null(asked)?;
    }
    // SAFETY: inside the caller's array.
    Ok((0..count as usize).map(|place| unsafe { asked.add(place).read() }).collect())
}

/// A graph's node of checked operations: waits for values are absent (801).
fn node(
    context: CUcontext,
    asked: &[CUstreamBatchMemOpParams],
    operations: &[Operation],
) -> Result<NodeKind> {
    if operations.iter().any(|operation| matches!(operation, Operation::Wait(_))) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let words = operations.iter().map(|operation| operation.word(0)).collect();
    Ok(NodeKind::BatchMemOp(BatchWork { asked: asked.into(), words, context }))
}

/// A graph's node, from the parameters of one; see [`node`].
///
/// # Safety
/// `asked.paramArray` has `asked.count` elements.
pub(crate) unsafe fn batch_node(
    client: &Client,
    asked: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Result<NodeKind> {
    let context = client.context(asked.ctx.0).map_err(|_| INVALID)?;
    // SAFETY: by the caller's promise.
    let array = unsafe { array(asked.paramArray, asked.count, asked.flags) }?;
    let operations = read_all(client, context.device, &array)?;
    node(context.handle(), &array, &operations)
}

/// Posts operations in order, or makes them a node of the graph that the stream is captured into.
fn submit(
    client: &Client,
    target: &Target,
    asked: &[CUstreamBatchMemOpParams],
    operations: &[Operation],
) -> Result {
    if operations.iter().any(|operation| matches!(operation, Operation::Wait(_))) {
        target.refuse_capture(client)?;
    }
    if target.capture(client, || node(target.context.handle(), asked, operations))? {
        return Ok(());
    }
    operations.iter().try_for_each(|operation| operation.post(target))
}

fn one(hStream: CUstream, asked: CUstreamBatchMemOpParams) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        let operations = read_all(client, target.context.device, &[asked])?;
        submit(client, &target, &[asked], &operations)
    })
}

/// Declares the functions of one operation, by their newest name and by the first one, which
/// differs in nothing that matters here.
macro_rules! single_operations {
    ($($newest:ident / $first:ident($value:ty) = $make:path, $operation:ident;)*) => {$(
        pub(crate) unsafe fn $newest(
            stream: CUstream,
            addr: CUdeviceptr,
            value: $value,
            flags: u32,
        ) -> CUresult {
            one(stream, $make(CUstreamBatchMemOpType::$operation, addr, value.into(), flags))
        }

        pub(crate) unsafe fn $first(
            stream: CUstream,
            addr: CUdeviceptr,
            value: $value,
            flags: u32,
        ) -> CUresult {
            // SAFETY: the same function by its newer name.
            unsafe { $newest(stream, addr, value, flags) }
        }
    )*};
}

single_operations! {
    cuStreamWriteValue32_v2 / cuStreamWriteValue32(cuuint32_t) = write_of, WRITE_VALUE_32;
    cuStreamWriteValue64_v2 / cuStreamWriteValue64(cuuint64_t) = write_of, WRITE_VALUE_64;
    cuStreamWaitValue32_v2 / cuStreamWaitValue32(cuuint32_t) = wait_of, WAIT_VALUE_32;
    cuStreamWaitValue64_v2 / cuStreamWaitValue64(cuuint64_t) = wait_of, WAIT_VALUE_64;
}

pub(crate) unsafe fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> CUresult {
    run(|client| {
        let target = targets::target(client, stream)?;
        // SAFETY: the caller's array.
        let asked = unsafe { array(paramArray, count, flags) }?;
        let operations = read_all(client, target.context.device, &asked)?;
        submit(client, &target, &asked, &operations)
    })
}

pub(crate) unsafe fn cuStreamBatchMemOp(
    stream: CUstream,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuStreamBatchMemOp_v2(stream, count, paramArray, flags) }
}
