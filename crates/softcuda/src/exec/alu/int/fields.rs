//! Bit counting, searching and fields: `popc clz bfind fns brev bfe bfi szext bmsk`.

use super::Int;
use crate::exec::alu::op::op;

/// How a count of more bits than there are is understood.
pub trait Excess: 'static {
    /// The count that is used instead.
    fn count(count: u32) -> u32;
}

/// `.clamp`: at most 32.
#[derive(Debug, Clone, Copy)]
pub struct Clamp;
impl Excess for Clamp {
    #[inline(always)]
    fn count(count: u32) -> u32 {
        count.min(32)
    }
}

/// `.wrap`: modulo 32.
#[derive(Debug, Clone, Copy)]
pub struct Wrap;
impl Excess for Wrap {
    #[inline(always)]
    fn count(count: u32) -> u32 {
        count & 31
    }
}

/// Whether `bfind` gives a position or the shift that brings the bit to the top.
pub trait Found: 'static {
    /// Whether the result is a shift.
    const SHIFT: bool;
}

/// Without `.shiftamt`.
#[derive(Debug, Clone, Copy)]
pub struct Position;
impl Found for Position {
    const SHIFT: bool = false;
}

/// `.shiftamt`
#[derive(Debug, Clone, Copy)]
pub struct ShiftAmount;
impl Found for ShiftAmount {
    const SHIFT: bool = true;
}

/// `count` ones in the low bits of a word of `T`'s width.
#[inline(always)]
fn low_ones(count: u32) -> u64 {
    if count >= 64 { !0 } else { (1 << count) - 1 }
}

/// A position or length of a field: 32-bit instructions read the low byte, 64-bit ones the whole
/// operand.
#[inline(always)]
fn field_count<T: Int>(count: u32) -> u32 {
    if T::BITS == 64 { count } else { count & 0xff }
}

/// The word zero-extended, whatever the type's signedness.
#[inline(always)]
fn word<T: Int>(x: T) -> u64 {
    x.extend() & low_ones(T::BITS)
}

op! {
    /// `popc.bN`
    unary PopCount<T: Int>(a: T) -> u32 { word(a).count_ones() }
    /// `clz.bN`
    unary LeadingZeros<T: Int>(a: T) -> u32 { word(a).leading_zeros() + T::BITS - 64 }
    /// `brev.bN`
    unary Reverse<T: Int>(a: T) -> T { T::truncate(word(a).reverse_bits() >> (64 - T::BITS)) }
    /// `bfind{.shiftamt}.type`: the highest bit that differs from the sign (set, if unsigned); all
    /// ones if none
    unary Find<T: Int, F: Found>(a: T) -> u32 {
        let bits = if a < T::truncate(0) { word(a) ^ low_ones(T::BITS) } else { word(a) };
        let shift = bits.leading_zeros() + T::BITS - 64;
        if bits == 0 {
            !0
        } else if F::SHIFT {
            shift
        } else {
            T::BITS - 1 - shift
        }
    }
    /// `fns.b32 d, mask, base, offset`: the `offset`-th set bit from `base` on, upwards or, if
    /// negative, downwards
    ternary FindNth<>(mask: u32, base: u32, offset: i32) -> u32 { find_nth(mask, base, offset) }
    /// `bfe.type d, a, position, length`: zero- or sign-extended from the field's top bit (or the
    /// word's, if nearer)
    ternary Extract<T: Int>(a: T, position: u32, length: u32) -> T {
        let (position, length) = (field_count::<T>(position), field_count::<T>(length));
        let top = position.saturating_add(length).saturating_sub(1).min(T::BITS - 1);
        let negative = T::SIGNED && length != 0 && word(a) >> top & 1 != 0;
        let available = length.min(T::BITS.saturating_sub(position));
        let field = if position < T::BITS { word(a) >> position & low_ones(available) } else { 0 };
        T::truncate(if negative { field | !low_ones(available) } else { field })
    }
    /// `szext.mode.type d, a, n`: the low `n` bits zero- or sign-extended
    binary ExtendFrom<T: Int, M: Excess>(a: T, n: u32) -> T {
        let n = M::count(n);
        let field = word(a) & low_ones(n);
        let negative = T::SIGNED && n != 0 && field >> (n.max(1) - 1) & 1 != 0;
        T::truncate(if negative { field | !low_ones(n) } else { field })
    }
    /// `bmsk.mode.b32 d, position, width`
    binary Mask<M: Excess>(position: u32, width: u32) -> u32 {
        (low_ones(M::count(width)) << M::count(position)) as u32
    }
    /// `shf.l.mode.b32 d, low, high, count`: the upper word of the 64-bit value shifted left
    ternary FunnelLeft<M: Excess>(low: u32, high: u32, count: u32) -> u32 {
        ((u64::from(high) << 32 | u64::from(low)) << M::count(count) >> 32) as u32
    }
    /// `shf.r.mode.b32 d, low, high, count`: the lower word of the 64-bit value shifted right
    ternary FunnelRight<M: Excess>(low: u32, high: u32, count: u32) -> u32 {
        ((u64::from(high) << 32 | u64::from(low)) >> M::count(count)) as u32
    }
    /// `bfi.bN f, field, base, position, length`: `field`'s low bits put into `base`
    quaternary Insert<T: Int>(field: T, base: T, position: u32, length: u32) -> T {
        let (position, length) = (field_count::<T>(position), field_count::<T>(length));
        let mask = if position < T::BITS { low_ones(length) << position } else { 0 };
        let shifted = if position < T::BITS { word(field) << position } else { 0 };
        T::truncate(shifted & mask | word(base) & !mask)
    }
}

fn find_nth(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return !0;
    }
    let ordered = if offset < 0 { (mask << (31 - base)).reverse_bits() } else { mask >> base };
    if offset == 0 {
        return if ordered & 1 != 0 { base } else { !0 };
    }
    let mut rest = ordered;
    for _ in 1..offset.unsigned_abs().min(33) {
        rest &= rest.wrapping_sub(1);
    }
    if rest == 0 {
        return !0;
    }
    let distance = rest.trailing_zeros();
    if offset < 0 { base - distance } else { base + distance }
}
