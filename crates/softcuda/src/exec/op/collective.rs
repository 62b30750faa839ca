//! Handlers of warp collectives. Source `a` is always the member mask. A collective executes once
//! exactly the live lanes that the mask names are together; until then the interpreter parks the
//! lanes ([`Flow::Collective`]).

use crate::exec::alu::LANES;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// Whether `mask` is exactly the live part of the member mask that all its lanes name.
///
/// # Safety
/// `ins.a` is a 32-bit register of `frame`.
#[inline(always)]
unsafe fn gathered(cx: &Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> bool {
    // SAFETY: by the caller's contract.
    let members = unsafe { &*frame.at::<[u32; LANES]>(ins.a) };
    let first = members[mask.trailing_zeros() as usize];
    let mut differ = 0;
    for (lane, &member) in members.iter().enumerate() {
        differ |= if mask >> lane & 1 != 0 { member ^ first } else { 0 };
    }
    // A thread that names a mask without itself takes part alone with those present.
    differ == 0 && (first & cx.live) | mask == mask && (first & mask == mask || first & mask == 0)
}

/// Lanes of a set bits mask.
#[inline(always)]
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// `bar.warp.sync`
pub(in crate::exec) struct WarpSync;

impl Body for WarpSync {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: `a` is the member mask, by the emitter.
        if unsafe { gathered(cx, ins, frame, mask) } { Flow::Next } else { Flow::Collective }
    }
}

/// Modes of `shfl` in the low bits of `ins.x`; bit 8: there is a predicate destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `ins.x` flag: the instruction has a predicate destination.
pub(in crate::exec) const WITH_PREDICATE: u32 = 1 << 8;

/// `shfl.sync d{|p}, a, b, c`: sources member mask, a, b, c in the operand list.
pub(in crate::exec) struct Shuffle;

impl Body for Shuffle {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter; the list holds destinations, then four sources.
        unsafe {
            if !gathered(cx, ins, frame, mask) {
                return Flow::Collective;
            }
            let sources = if ins.x & WITH_PREDICATE != 0 { 2 } else { 1 };
            let a = frame.at::<[u32; LANES]>(ins.b).read();
            let b = frame.at::<[u32; LANES]>(ins.c).read();
            let c = frame.at::<[u32; LANES]>(cx.extra(ins.e, sources + 3)).read();
            let mut result = [0u32; LANES];
            let mut valid = [0u32; LANES];
            let mode = ins.x & 0xff;
            for lane in 0..LANES {
                let (lane32, b, c) = (lane as u32, b[lane] & 31, c[lane]);
                let segment = c >> 8 & 31;
                let limit = lane32 & segment | c & 31 & !segment;
                let (from, ok) = match mode {
                    0 => (lane32.wrapping_sub(b), lane32 as i32 - b as i32 >= limit as i32),
                    1 => (lane32 + b, lane32 + b <= limit),
                    2 => (lane32 ^ b, lane32 ^ b <= limit),
                    _ => {
                        let from = lane32 & segment | b & !segment;
                        (from, from <= limit)
                    }
                };
                valid[lane] = u32::from(ok);
                result[lane] = a[if ok { from as usize & 31 } else { lane }];
            }
            let d = &mut *frame.at::<[u32; LANES]>(ins.d);
            for lane in 0..LANES {
                d[lane] = if mask >> lane & 1 != 0 { result[lane] } else { d[lane] };
            }
            if sources == 2 {
                let mut bits = 0;
                for (lane, &valid) in valid.iter().enumerate() {
                    bits |= valid << lane;
                }
                frame.set_predicate(cx.extra(ins.e, 1), bits, mask);
            }
        }
        Flow::Next
    }
}

/// Modes of `vote` in `ins.x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// `vote.sync`: sources member mask, predicate.
pub(in crate::exec) struct Vote;

impl Body for Vote {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            if !gathered(cx, ins, frame, mask) {
                return Flow::Collective;
            }
            let votes = frame.predicate(ins.b) & mask;
            let holds = match ins.x {
                x if x == VoteMode::All as u32 => votes == mask,
                x if x == VoteMode::Any as u32 => votes != 0,
                x if x == VoteMode::Uniform as u32 => votes == 0 || votes == mask,
                _ => {
                    let d = &mut *frame.at::<[u32; LANES]>(ins.d);
                    for (lane, d) in d.iter_mut().enumerate() {
                        *d = if mask >> lane & 1 != 0 { votes } else { *d };
                    }
                    return Flow::Next;
                }
            };
            frame.set_predicate(ins.d, if holds { u32::MAX } else { 0 }, mask);
        }
        Flow::Next
    }
}

/// `ins.x` flags of [`Match`].
pub(in crate::exec) const MATCH_ALL: u32 = 1;
/// The compared value has 64 bits.
pub(in crate::exec) const MATCH_WIDE: u32 = 2;

/// `match.sync`: sources member mask, value.
pub(in crate::exec) struct Match;

impl Body for Match {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            if !gathered(cx, ins, frame, mask) {
                return Flow::Collective;
            }
            let mut value = [0u64; LANES];
            for (lane, value) in value.iter_mut().enumerate() {
                *value = if ins.x & MATCH_WIDE != 0 {
                    *frame.at::<u64>(ins.b).add(lane)
                } else {
                    u64::from(*frame.at::<u32>(ins.b).add(lane))
                };
            }
            for lane in lanes(mask) {
                let same =
                    lanes(mask).filter(|&l| value[l] == value[lane]).fold(0u32, |m, l| m | 1 << l);
                let result = if ins.x & MATCH_ALL == 0 || same == mask { same } else { 0 };
                *frame.at::<u32>(ins.d).add(lane) = result;
                if ins.x & WITH_PREDICATE != 0 {
                    frame.set_predicate(
                        cx.extra(ins.e, 1),
                        if same == mask { u32::MAX } else { 0 },
                        1 << lane,
                    );
                }
            }
        }
        Flow::Next
    }
}

/// Operations of `redux.sync` in `ins.x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum ReduceOp {
    Add,
    MinSigned,
    MaxSigned,
    MinUnsigned,
    MaxUnsigned,
    And,
    Or,
    Xor,
    MinFloat,
    MaxFloat,
}

/// `redux.sync`: sources member mask, value.
pub(in crate::exec) struct Reduce;

impl Body for Reduce {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter.
        unsafe {
            if !gathered(cx, ins, frame, mask) {
                return Flow::Collective;
            }
            let a = &*frame.at::<[u32; LANES]>(ins.b);
            let values = lanes(mask).map(|lane| a[lane]);
            let result = match ins.x {
                x if x == ReduceOp::Add as u32 => values.fold(0, u32::wrapping_add),
                x if x == ReduceOp::MinSigned as u32 => {
                    values.fold(i32::MAX, |m, v| m.min(v as i32)) as u32
                }
                x if x == ReduceOp::MaxSigned as u32 => {
                    values.fold(i32::MIN, |m, v| m.max(v as i32)) as u32
                }
                x if x == ReduceOp::MinUnsigned as u32 => values.fold(u32::MAX, u32::min),
                x if x == ReduceOp::MaxUnsigned as u32 => values.fold(0, u32::max),
                x if x == ReduceOp::And as u32 => values.fold(u32::MAX, |m, v| m & v),
                x if x == ReduceOp::Or as u32 => values.fold(0, |m, v| m | v),
                x if x == ReduceOp::Xor as u32 => values.fold(0, |m, v| m ^ v),
                x if x == ReduceOp::MinFloat as u32 => {
                    values.map(f32::from_bits).fold(f32::NAN, f32::min).to_bits()
                }
                _ => values.map(f32::from_bits).fold(f32::NAN, f32::max).to_bits(),
            };
            for lane in lanes(mask) {
                *frame.at::<u32>(ins.d).add(lane) = result;
            }
        }
        Flow::Next
    }
}

/// `elect.sync d|p, membermask`: the lowest lane is elected.
pub(in crate::exec) struct Elect;

impl Body for Elect {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: operands by the emitter: two destinations in the list.
        unsafe {
            if !gathered(cx, ins, frame, mask) {
                return Flow::Collective;
            }
            let leader = mask.trailing_zeros();
            for lane in lanes(mask) {
                *frame.at::<u32>(ins.d).add(lane) = leader;
            }
            frame.set_predicate(cx.extra(ins.e, 1), 1 << leader, mask);
        }
        Flow::Next
    }
}
