//! Asynchronous copies, done at once: what waits for them finds them complete.

use super::address::{Generic, Space};
use super::mbarrier::complete_bytes;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::{Access, FaultKind};
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// `cp.async [a], [b], x, c`: copies `c` bytes and fills up to `x` with zeros. `ins.imm` holds the two immediates
/// (destination low, source high).
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

/// `cp.async.bulk [a], [b], size{, [mbarrier]}`: operand list of four sources; `x` = 1 with a barrier.
pub(in crate::exec) struct CopyBulk;

impl Body for CopyBulk {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter; pointers are checked for each piece.
            unsafe {
                let (to, from) = (*frame.at::<u64>(ins.a).add(at), *frame.at::<u64>(ins.b).add(at));
                let size = u64::from(*frame.at::<u32>(ins.c).add(at));
                let barrier = *frame.at::<u64>(cx.extra(ins.e, 3)).add(at);
                if size % 16 != 0 {
                    let what = format!("a bulk copy of {size} bytes, which are no multiple of 16");
                    cx.raise(FaultKind::IllegalInstruction, lane, what);
                    return Flow::Fault;
                }
                let mut done = 0;
                while done < size {
                    let Some(source) =
                        Generic::lane(cx, ins, from.wrapping_add(done), lane, 16, Access::Read)
                    else {
                        return Flow::Fault;
                    };
                    let Some(target) =
                        Generic::lane(cx, ins, to.wrapping_add(done), lane, 16, Access::Write)
                    else {
                        return Flow::Fault;
                    };
                    source.copy_to(target, 16);
                    done += 16;
                }
                if ins.x == 1 && !complete_bytes(cx, ins, barrier, lane, size as i64) {
                    return Flow::Fault;
                }
            }
        }
        Flow::Next
    }
}
