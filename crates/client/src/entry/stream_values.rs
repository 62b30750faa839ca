//! Stream memory operations: writing values and waiting for them, one by one and in batches.
//!
//! The executor holds a waiting stream's later work in software; see `policy/holds.rs` of the server.

use super::not_null;
use crate::client::{Client, run};
use crate::graph::{NodeKind, WriteWork};
use crate::session::Result;
use crate::stream::{self, Target};
use cuda_abi::types::*;
use link::wire::command::{Opcode, StreamWriteValue};

/// Most operations of one batch.
const MOST_OPERATIONS: u32 = 256;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: what remote devices write is visible at once here.
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
        Ok(Self::Wait(word.check(client, device, FLUSH | 3)?))
    }

    fn read(client: &Client, device: CUdevice, asked: &CUstreamBatchMemOpParams) -> Result<Self> {
        use CUstreamBatchMemOpType as Type;
        // SAFETY: every member begins with the operation, which says which one the caller filled in; all are plain numbers.
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

    /// Posts it, or makes it a node of the graph that the stream is captured into: waits in graphs are absent.
    fn submit(self, client: &Client, target: &Target) -> Result {
        match self {
            Self::Write(Word { address, value_bytes, value, flags }) => {
                let work = WriteWork { address, value_bytes, value, flags };
                if target.capture(client, || Ok(NodeKind::WriteValue(work)))? {
                    return Ok(());
                }
            }
            Self::Wait(_) => target.refuse_capture(client)?,
            Self::Barrier => {}
        }
        let (opcode, word) = match self {
            Self::Write(word) => (Opcode::StreamWriteValue, word),
            Self::Wait(word) => (Opcode::StreamWaitValue, word),
            Self::Barrier => return Ok(()),
        };
        let body = StreamWriteValue {
            stream: target.slot,
            value_bytes: word.value_bytes,
            address: word.address,
            value: word.value,
            flags: word.flags,
            reserved: 0,
        };
        match opcode {
            Opcode::StreamWaitValue => target.post_wait(&body),
            _ => target.post(opcode, &body).map(drop),
        }
    }
}

/// Declares the functions of one operation, by their newest name and by the first one, which differs in nothing that matters here.
macro_rules! single_operations {
    ($($newest:ident / $first:ident($value:ty) = $operation:path;)*) => {$(
        pub(crate) unsafe fn $newest(
            stream: CUstream,
            addr: CUdeviceptr,
            value: $value,
            flags: u32,
        ) -> CUresult {
            let value_bytes = size_of::<$value>() as u32;
            let word = Word { address: addr, value_bytes, value: value.into(), flags };
            run(|client| {
                let target = stream::target(client, stream)?;
                $operation(client, target.context.device, word)?.submit(client, &target)
            })
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
    cuStreamWriteValue32_v2 / cuStreamWriteValue32(cuuint32_t) = Operation::write;
    cuStreamWriteValue64_v2 / cuStreamWriteValue64(cuuint64_t) = Operation::write;
    cuStreamWaitValue32_v2 / cuStreamWaitValue32(cuuint32_t) = Operation::wait;
    cuStreamWaitValue64_v2 / cuStreamWaitValue64(cuuint64_t) = Operation::wait;
}

pub(crate) unsafe fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    paramArray: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> CUresult {
    run(|client| {
        let target = stream::target(client, stream)?;
        if flags != 0 || count > MOST_OPERATIONS {
            return Err(INVALID);
        }
        let mut operations = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            not_null(paramArray)?;
            // SAFETY: inside the caller's array.
            let asked = unsafe { paramArray.add(i).read() };
            operations.push(Operation::read(client, target.context.device, &asked)?);
        }
        operations.into_iter().try_for_each(|operation| operation.submit(client, &target))
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
