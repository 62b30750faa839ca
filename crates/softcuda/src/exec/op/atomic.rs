//! Handlers of `atom` and `red`: host atomics on the addressed memory, lane by lane in lane order.
//!
//! All of them are sequentially consistent, which covers every `.sem` and `.scope` that PTX has.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::address::{AddressWord, Space};
use super::alu::chunks;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// Operations, in bits 8 to 15 of `ins.x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

impl AtomicOp {
    const ALL: [Self; 10] = [
        Self::Add,
        Self::Min,
        Self::Max,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::Exchange,
        Self::CompareExchange,
        Self::Increment,
        Self::Decrement,
    ];

    /// The operation of a number, whatever it is.
    pub(super) fn from_number(number: u32) -> Self {
        Self::ALL[number as usize % Self::ALL.len()]
    }
}

/// Types, in bits 16 to 23 of `ins.x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum AtomicType {
    Bits,
    Signed,
    Float,
    Half,
    HalfPair,
    Brain,
    BrainPair,
}

impl AtomicType {
    const ALL: [Self; 7] = [
        Self::Bits,
        Self::Signed,
        Self::Float,
        Self::Half,
        Self::HalfPair,
        Self::Brain,
        Self::BrainPair,
    ];

    /// The type of a number, whatever it is.
    pub(super) fn from_number(number: u32) -> Self {
        Self::ALL[number as usize % Self::ALL.len()]
    }
}

/// `ins.x` of an atomic; bit 24 says that the old value is not wanted.
pub(in crate::exec) fn encode(slot: u32, op: AtomicOp, ty: AtomicType, keep_old: bool) -> u32 {
    slot & 0xff | (op as u32) << 8 | (ty as u32) << 16 | u32::from(!keep_old) << 24
}

/// A memory word with host atomics.
pub(in crate::exec) trait Cell: Copy + 'static {
    /// Lane word of its registers.
    type Reg: Copy + 'static;
    fn from_reg(reg: Self::Reg) -> Self;
    fn into_reg(self) -> Self::Reg;
    /// Applies `op` and returns the old value.
    ///
    /// # Safety
    /// `p` is valid, aligned memory that is only accessed by the host as it allows for atomics.
    unsafe fn apply(p: *mut u8, op: AtomicOp, ty: AtomicType, b: Self, c: Self) -> Self;
}

macro_rules! cell {
    ($word:ty, $signed:ty, $reg:ty, $atomic:ty, |$ty:ident, $x:ident, $y:ident| $add:expr, $min:expr, $max:expr) => {
        impl Cell for $word {
            type Reg = $reg;

            #[inline(always)]
            fn from_reg(reg: $reg) -> Self {
                reg as $word
            }

            #[inline(always)]
            fn into_reg(self) -> $reg {
                <$reg>::from(self)
            }

            unsafe fn apply(p: *mut u8, op: AtomicOp, $ty: AtomicType, b: Self, c: Self) -> Self {
                // SAFETY: by the caller's contract. Pairs with other blocks' atomics on the same
                // word.
                let cell = unsafe { <$atomic>::from_ptr(p.cast()) };
                let update = |f: &dyn Fn($word, $word) -> $word| {
                    let mut old = cell.load(SeqCst);
                    loop {
                        match cell.compare_exchange_weak(old, f(old, b), SeqCst, SeqCst) {
                            Ok(old) => return old,
                            Err(now) => old = now,
                        }
                    }
                };
                let integer = matches!($ty, AtomicType::Bits | AtomicType::Signed);
                match op {
                    AtomicOp::Add if integer => cell.fetch_add(b, SeqCst),
                    AtomicOp::Add => update(&|$x, $y| $add),
                    AtomicOp::Min if $ty == AtomicType::Bits => cell.fetch_min(b, SeqCst),
                    AtomicOp::Max if $ty == AtomicType::Bits => cell.fetch_max(b, SeqCst),
                    AtomicOp::Min if $ty == AtomicType::Signed => {
                        update(&|x, y| (x as $signed).min(y as $signed) as $word)
                    }
                    AtomicOp::Max if $ty == AtomicType::Signed => {
                        update(&|x, y| (x as $signed).max(y as $signed) as $word)
                    }
                    AtomicOp::Min => update(&|$x, $y| $min),
                    AtomicOp::Max => update(&|$x, $y| $max),
                    AtomicOp::And => cell.fetch_and(b, SeqCst),
                    AtomicOp::Or => cell.fetch_or(b, SeqCst),
                    AtomicOp::Xor => cell.fetch_xor(b, SeqCst),
                    AtomicOp::Exchange => cell.swap(b, SeqCst),
                    AtomicOp::CompareExchange => {
                        match cell.compare_exchange(b, c, SeqCst, SeqCst) {
                            Ok(old) | Err(old) => old,
                        }
                    }
                    AtomicOp::Increment => update(&|x, y| if x >= y { 0 } else { x + 1 }),
                    AtomicOp::Decrement => update(&|x, y| if x == 0 || x > y { y } else { x - 1 }),
                }
            }
        }
    };
}

cell!(
    u16,
    i16,
    u32,
    AtomicU16,
    |ty, x, y| half::binary(ty, x, y, |a, b| a + b),
    half::binary(ty, x, y, f32::min),
    half::binary(ty, x, y, f32::max)
);
cell!(
    u32,
    i32,
    u32,
    AtomicU32,
    |ty, x, y| float32(ty, x, y, |a, b| a + b),
    float32(ty, x, y, f32::min),
    float32(ty, x, y, f32::max)
);
cell!(
    u64,
    i64,
    u64,
    AtomicU64,
    |ty, x, y| (f64::from_bits(x) + f64::from_bits(y)).to_bits(),
    f64::from_bits(x).min(f64::from_bits(y)).to_bits(),
    f64::from_bits(x).max(f64::from_bits(y)).to_bits()
);

/// A word as one float or as a pair of half floats.
fn float32(ty: AtomicType, x: u32, y: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    if ty == AtomicType::Float {
        return f(f32::from_bits(x), f32::from_bits(y)).to_bits();
    }
    let low = half::binary(ty, x as u16, y as u16, &f);
    let high = half::binary(ty, (x >> 16) as u16, (y >> 16) as u16, &f);
    u32::from(low) | u32::from(high) << 16
}

/// Half-precision arithmetic by way of `f32`, which is exact for one operation.
mod half {
    use super::AtomicType;
    use crate::exec::op::half_bits::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

    pub(super) fn binary(ty: AtomicType, x: u16, y: u16, f: impl Fn(f32, f32) -> f32) -> u16 {
        if matches!(ty, AtomicType::Brain | AtomicType::BrainPair) {
            bf16_from_f32(f(bf16_to_f32(x), bf16_to_f32(y)))
        } else {
            f16_from_f32(f(f16_to_f32(x), f16_to_f32(y)))
        }
    }
}

/// `atom d, [a], b{, c}` on cells `C` in space `S`.
pub(in crate::exec) struct Atomic<S, C>(PhantomData<(S, C)>);

impl<S: Space, C: Cell> Body for Atomic<S, C> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let op = AtomicOp::from_number(ins.x >> 8 & 0xff);
        let ty = AtomicType::from_number(ins.x >> 16 & 0xff);
        let size = size_of::<C>() as u64;
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands by the emitter; the pointer was checked by the space.
            unsafe {
                let addr = S::addresses(frame, ins.a, first, ins.imm);
                let bias = S::all::<V>(cx, ins, &addr, part, size);
                for (i, addr) in addr.iter().enumerate() {
                    if part >> i & 1 == 0 {
                        continue;
                    }
                    let lane = first + i;
                    let p = match bias {
                        Some(bias) => (addr.widen() as usize).wrapping_add(bias) as *mut u8,
                        None => {
                            match S::lane(cx, ins, addr.widen(), lane as u32, size, Access::Atomic)
                            {
                                Some(p) => p,
                                None => {
                                    return Flow::Fault;
                                }
                            }
                        }
                    };
                    let b = C::from_reg(*frame.at::<C::Reg>(ins.b).add(lane));
                    let c = if op == AtomicOp::CompareExchange {
                        C::from_reg(*frame.at::<C::Reg>(ins.c).add(lane))
                    } else {
                        b
                    };
                    let old = C::apply(p, op, ty, b, c);
                    if ins.x >> 24 & 1 == 0 {
                        *frame.at::<C::Reg>(ins.d).add(lane) = old.into_reg();
                    }
                }
            }
        }
        Flow::Next
    }
}
