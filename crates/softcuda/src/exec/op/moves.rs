//! Handlers that move bits: width changes, packing and unpacking of vectors, predicate logic.

use std::marker::PhantomData;

use super::alu::{chunks, store_chunk};
use crate::exec::alu::{LANES, Register, mask_of};
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fill::cluster_rank;
use crate::exec::lanes::{CHUNK, Vectors};
use crate::exec::simd::Body;
use crate::exec::window;

/// Copies a register of words `R`.
pub(in crate::exec) struct Copy<R>(PhantomData<R>);

impl<R: Register> Body for Copy<R> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands are registers of `R`, by the emitter.
            unsafe {
                let a = frame.at::<R>(ins.a).add(first).cast::<[R; CHUNK]>().read();
                store_chunk(frame.at::<R>(ins.d).add(first), a, part);
            }
        }
        Flow::Next
    }
}

macro_rules! convert_handlers {
    ($($(#[$m:meta])* $name:ident: $from:ty => $to:ty, |$a:ident| $value:expr;)*) => {$(
        $(#[$m])*
        pub(in crate::exec) struct $name;
        impl Body for $name {
            #[inline(always)]
            unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
                for (first, part) in chunks(mask) {
if part == 0 {
continue;
}
                    // SAFETY: operands are registers of these words, by the emitter.
                    unsafe {
                        let a = frame.at::<$from>(ins.a).add(first).cast::<[$from; CHUNK]>().read();
                        let mut r = [<$to>::default(); CHUNK];
                        for i in 0..CHUNK {
                            let $a = a[i];
                            r[i] = $value;
                        }
                        store_chunk(frame.at::<$to>(ins.d).add(first), r, part);
                    }
                }
                Flow::Next
            }
        }
    )*};
}

convert_handlers! {
    /// Low word of a 64-bit register.
    Truncate: u64 => u32, |a| a as u32;
    /// High word of a 64-bit register.
    HighWord: u64 => u32, |a| (a >> 32) as u32;
    /// Zero extension.
    ZeroExtend: u32 => u64, |a| u64::from(a);
    /// Sign extension.
    SignExtend: u32 => u64, |a| a as i32 as i64 as u64;
}

/// Bits `x >> 8` wide from bit `x & 255` of a word.
pub(in crate::exec) struct ExtractBits;

impl Body for ExtractBits {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let (shift, keep) = (ins.x & 31, bit_mask(ins.x >> 8));
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands are 32-bit registers, by the emitter.
            unsafe {
                let mut a = frame.at::<u32>(ins.a).add(first).cast::<[u32; CHUNK]>().read();
                for a in &mut a {
                    *a = *a >> shift & keep;
                }
                store_chunk(frame.at::<u32>(ins.d).add(first), a, part);
            }
        }
        Flow::Next
    }
}

/// As [`ExtractBits`], sign-extended.
pub(in crate::exec) struct SignExtendBits;

impl Body for SignExtendBits {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let (shift, unused) = (ins.x & 31, 32 - (ins.x >> 8).clamp(1, 32));
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands are 32-bit registers, by the emitter.
            unsafe {
                let mut a = frame.at::<u32>(ins.a).add(first).cast::<[u32; CHUNK]>().read();
                for a in &mut a {
                    *a = ((*a >> shift << unused) as i32 >> unused) as u32;
                }
                store_chunk(frame.at::<u32>(ins.d).add(first), a, part);
            }
        }
        Flow::Next
    }
}

/// `isspacep`: whether the window tag of `a` is `x` (0: device memory).
pub(in crate::exec) struct IsSpace;

impl Body for IsSpace {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: `a` is a 64-bit register and `d` a predicate, by the emitter.
        unsafe {
            let a = &*frame.at::<[u64; LANES]>(ins.a);
            let wanted = u64::from(ins.x);
            let bits = mask_of::<V>(|i| match a[i] {
                device if device < window::WINDOWS_START => wanted == 0,
                window => window >> window::TAG_SHIFT == wanted,
            });
            frame.set_predicate(ins.d, bits, mask);
        }
        Flow::Next
    }
}

/// `isspacep.shared::cta`: whether `a` lies in the shared window, in the part of the own block.
pub(in crate::exec) struct IsOwnShared;

impl Body for IsOwnShared {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let own = cluster_rank(cx.launch.cluster.map(|n| n.max(1)), cx.block_index) + 1;
        // SAFETY: `a` is a 64-bit register and `d` a predicate, by the emitter.
        unsafe {
            let a = &*frame.at::<[u64; LANES]>(ins.a);
            let mut bits = 0;
            for (i, &a) in a.iter().enumerate() {
                let rank = (a >> window::CLUSTER_RANK_SHIFT & 0xff) as u32;
                let is_own =
                    a >> window::TAG_SHIFT == window::SHARED_TAG && [0, own].contains(&rank);
                bits |= u32::from(is_own) << i;
            }
            frame.set_predicate(ins.d, bits, mask);
        }
        Flow::Next
    }
}

/// `d = a` with `x >> 8` bits from bit `x & 255` on replaced by the low bits of `b`.
pub(in crate::exec) struct InsertBits;

impl Body for InsertBits {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let (shift, keep) = (ins.x & 31, bit_mask(ins.x >> 8));
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands are 32-bit registers, by the emitter.
            unsafe {
                let mut a = frame.at::<u32>(ins.a).add(first).cast::<[u32; CHUNK]>().read();
                let b = frame.at::<u32>(ins.b).add(first).cast::<[u32; CHUNK]>().read();
                for i in 0..CHUNK {
                    a[i] = a[i] & !(keep << shift) | (b[i] & keep) << shift;
                }
                store_chunk(frame.at::<u32>(ins.d).add(first), a, part);
            }
        }
        Flow::Next
    }
}

fn bit_mask(bits: u32) -> u32 {
    if bits >= 32 { u32::MAX } else { (1 << bits) - 1 }
}

/// A 64-bit register from low (`a`) and high (`b`) words.
pub(in crate::exec) struct Join;

impl Body for Join {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands are registers of these words, by the emitter.
            unsafe {
                let a = frame.at::<u32>(ins.a).add(first).cast::<[u32; CHUNK]>().read();
                let b = frame.at::<u32>(ins.b).add(first).cast::<[u32; CHUNK]>().read();
                let mut r = [0u64; CHUNK];
                for i in 0..CHUNK {
                    r[i] = u64::from(a[i]) | u64::from(b[i]) << 32;
                }
                store_chunk(frame.at::<u64>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

macro_rules! predicate_handlers {
    ($($(#[$m:meta])* $name:ident: |$a:ident, $b:ident| $value:expr;)*) => {$(
        $(#[$m])*
        pub(in crate::exec) struct $name;
        impl Body for $name {
            #[inline(always)]
            unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
                // SAFETY: operands are predicates, by the emitter; unused ones are the always-true
                // predicate.
                unsafe {
                    let ($a, $b) = (frame.predicate(ins.a), frame.predicate(ins.b));
                    let _ = $b;
                    frame.set_predicate(ins.d, $value, mask);
                }
                Flow::Next
            }
        }
    )*};
}

predicate_handlers! {
    /// `and.pred`
    PredicateAnd: |a, b| a & b;
    /// `or.pred`
    PredicateOr: |a, b| a | b;
    /// `xor.pred`
    PredicateXor: |a, b| a ^ b;
    /// `not.pred`
    PredicateNot: |a, b| !a;
    /// `mov.pred`
    PredicateCopy: |a, b| a;
}

/// `d = (a != 0)` per lane: a predicate from a word.
pub(in crate::exec) struct PredicateFromWord;

impl Body for PredicateFromWord {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: `a` is a 32-bit register and `d` a predicate, by the emitter.
        unsafe {
            let a = &*frame.at::<[u32; LANES]>(ins.a);
            let bits = mask_of::<V>(|i| a[i] != 0);
            frame.set_predicate(ins.d, bits, mask);
        }
        Flow::Next
    }
}

/// `d = a ? 1 : 0` per lane: a word from a predicate.
pub(in crate::exec) struct WordFromPredicate;

impl Body for WordFromPredicate {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: `a` is a predicate and `d` a 32-bit register, by the emitter.
        unsafe {
            let a = frame.predicate(ins.a);
            for (first, part) in chunks(mask) {
                if part == 0 {
                    continue;
                }
                let mut r = [0u32; CHUNK];
                for (i, r) in r.iter_mut().enumerate() {
                    *r = a >> (first + i) & 1;
                }
                store_chunk(frame.at::<u32>(ins.d).add(first), r, part);
            }
        }
        Flow::Next
    }
}

/// What [`ReadClock`] reads, as `ins.x` holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum Counter {
    Clock,
    GlobalTimer,
    ActiveMask,
    SmId,
    ClockHigh,
    GlobalTimerHigh,
    Zero,
}

/// A counter or mask that changes while the warp runs: 64 bits if `D` is `u64`.
pub(in crate::exec) struct ReadClock<D>(PhantomData<D>);

impl<D: Register + TryFrom<u64>> Body for ReadClock<D> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let value = match ins.x {
            x if x == Counter::Clock as u32 => cx.machine.clock(cx.executed),
            x if x == Counter::ClockHigh as u32 => cx.machine.clock(cx.executed) >> 32,
            x if x == Counter::GlobalTimer as u32 => cx.machine.globaltimer_ns(),
            x if x == Counter::GlobalTimerHigh as u32 => cx.machine.globaltimer_ns() >> 32,
            x if x == Counter::ActiveMask as u32 => u64::from(mask),
            x if x == Counter::SmId as u32 => u64::from(cx.machine.smid()),
            _ => 0,
        };
        let value = if D::BITS == 32 { value & u64::from(u32::MAX) } else { value };
        let value = D::try_from(value).unwrap_or_default();
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: `d` is a register of `D`, by the emitter.
            unsafe { store_chunk(frame.at::<D>(ins.d).add(first), [value; CHUNK], part) }
        }
        Flow::Next
    }
}
