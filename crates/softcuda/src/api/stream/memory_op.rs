//! One memory operation of a stream: a value written or waited for.

use cuda_abi::types::{CUresult, CUstreamBatchMemOpParams, CUstreamBatchMemOpType as Type};

use crate::api::answer::Answer;
use crate::device::memory::AddressSpace;
use crate::device::ops::{Condition, Op, Width};

/// CU_STREAM_WAIT_VALUE_FLUSH: for devices that say they can
/// (CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES).
const FLUSH: u32 = 1 << 30;

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
    pub(crate) fn new(space: &AddressSpace, asked: &CUstreamBatchMemOpParams) -> Answer<Self> {
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
                    check(space, write.address, width, write.flags & !1)?;
                    let value = value_of(write.anonymous.value64, width);
                    Ok(MemoryOp::Write { address: write.address, value, width })
                }
                Type::WAIT_VALUE_32 | Type::WAIT_VALUE_64 => {
                    let wait = asked.waitValue;
                    if wait.flags & FLUSH != 0 {
                        return Err(CUresult::ERROR_NOT_SUPPORTED);
                    }
                    check(space, wait.address, width, wait.flags & !3)?;
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

/// The value's member of 32 bits is the low half.
fn value_of(value: u64, width: Width) -> u64 {
    match width {
        Width::Bits32 => value & 0xffff_ffff,
        Width::Bits64 => value,
    }
}

fn check(space: &AddressSpace, address: u64, width: Width, unknown_flags: u32) -> Answer {
    let size_bytes = match width {
        Width::Bits32 => 4,
        Width::Bits64 => 8,
    };
    let is_valid = unknown_flags == 0
        && address.is_multiple_of(size_bytes)
        && space.accessible().snapshot().covers(address, size_bytes);
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
