//! Asynchronous copies, done at once: what waits for them finds them complete.

use super::address::{Generic, Space};
use super::mbarrier::complete_bytes;
use super::tensor_copy::{blocks_of, in_block};
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::{Access, FaultKind};
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// `cp.async [a], [b], x, c`: copies `c` bytes and fills up to `x` with zeros. `ins.imm` holds the
/// two immediates (destination low, source high).
pub(in crate::exec) struct CopyAsync;

impl Body for CopyAsync {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let size = u64::from(ins.x);
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter; pointers are checked for `size` bytes.
            unsafe {
                let to = (*frame.at::<u64>(ins.a).add(at))
                    .wrapping_add_signed(i64::from(ins.imm as i32));
                let from = (*frame.at::<u64>(ins.b).add(at)).wrapping_add_signed(ins.imm >> 32);
                let count = u64::from(*frame.at::<u32>(ins.c).add(at)).min(size);
                let mut bytes = [0u8; 16];
                if count > 0 {
                    let Some(p) = Generic::lane(cx, ins, from, lane, size, Access::Read) else {
                        return Flow::Fault;
                    };
                    p.copy_to_nonoverlapping(bytes.as_mut_ptr(), count as usize);
                }
                let Some(p) = Generic::lane(cx, ins, to, lane, size, Access::Write) else {
                    return Flow::Fault;
                };
                p.copy_from_nonoverlapping(bytes.as_ptr(), size as usize);
            }
        }
        Flow::Next
    }
}

/// `ins.x` flag of [`CopyBulk`]: an mbarrier is told.
pub(in crate::exec) const BULK_COMPLETES: u32 = 1;
/// `ins.x` flag of [`CopyBulk`]: to several blocks of the cluster.
pub(in crate::exec) const BULK_MULTICAST: u32 = 2;

/// `cp.async.bulk`: operand list of to, from, size, barrier and the mask of blocks.
pub(in crate::exec) struct CopyBulk;

impl Body for CopyBulk {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter.
            let (to, from, size, barrier, blocks) = unsafe {
                (
                    *frame.at::<u64>(ins.a).add(at),
                    *frame.at::<u64>(ins.b).add(at),
                    *frame.at::<u32>(ins.c).add(at),
                    *frame.at::<u64>(cx.extra(ins.e, 3)).add(at),
                    *frame.at::<u32>(cx.extra(ins.e, 4)).add(at),
                )
            };
            let copied = if ins.x & BULK_MULTICAST == 0 {
                copy_block(cx, ins, lane, [to, from, barrier], size)
            } else {
                blocks_of(cx, lane, blocks).and_then(|blocks| {
                    blocks.into_iter().try_for_each(|block| {
                        let ends = [in_block(to, block), from, in_block(barrier, block)];
                        copy_block(cx, ins, lane, ends, size)
                    })
                })
            };
            if copied.is_none() {
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}

/// Copies a block and tells its barrier. `None`: a fault is recorded.
fn copy_block(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    [to, from, barrier]: [u64; 3],
    size: u32,
) -> Option<()> {
    // One end is in shared memory, which bounds the time that this takes.
    if !size.is_multiple_of(16) || size > cx.shared_bytes {
        let what = format!("a bulk copy of {size} bytes");
        cx.raise(FaultKind::IllegalInstruction, lane, what);
        return None;
    }
    for done in (0..u64::from(size)).step_by(16) {
        let source = Generic::lane(cx, ins, from.wrapping_add(done), lane, 16, Access::Read)?;
        let target = Generic::lane(cx, ins, to.wrapping_add(done), lane, 16, Access::Write)?;
        // SAFETY: both are checked for 16 bytes.
        unsafe { source.copy_to(target, 16) };
    }
    let completes = ins.x & BULK_COMPLETES != 0;
    (!completes || complete_bytes(cx, ins, barrier, lane, i64::from(size))).then_some(())
}
