//! Integer arithmetic: `add sub mul mad mul24 mad24 sad div rem abs neg min max`.

use super::{Int, Widening};
use crate::exec::alu::op::op;

op! {
    /// `add.type`
    binary Add<T: Int>(a: T, b: T) -> T { a.add(b) }
    /// `sub.type`
    binary Sub<T: Int>(a: T, b: T) -> T { a.sub(b) }
    /// `add.sat.s32`
    binary AddSat<T: Int>(a: T, b: T) -> T { a.add_sat(b) }
    /// `sub.sat.s32`
    binary SubSat<T: Int>(a: T, b: T) -> T { a.sub_sat(b) }
    /// `mul.lo.type`
    binary MulLo<T: Int>(a: T, b: T) -> T { a.mul_lo(b) }
    /// `mul.hi.type`
    binary MulHi<T: Int>(a: T, b: T) -> T { a.mul_hi(b) }
    /// `mul.wide.type`
    binary MulWide<T: Widening>(a: T, b: T) -> T::Wide { a.widen().mul_lo(b.widen()) }
    /// `mad.lo.type`
    ternary MadLo<T: Int>(a: T, b: T, c: T) -> T { a.mul_lo(b).add(c) }
    /// `mad.hi.type`
    ternary MadHi<T: Int>(a: T, b: T, c: T) -> T { a.mul_hi(b).add(c) }
    /// `mad.hi.sat.s32`
    ternary MadHiSat<T: Int>(a: T, b: T, c: T) -> T { a.mul_hi(b).add_sat(c) }
    /// `mad.wide.type`
    ternary MadWide<T: Widening>(a: T, b: T, c: T::Wide) -> T::Wide { a.widen().mul_lo(b.widen()).add(c) }
    /// `mul24.lo.type`: low 32 bits of the 48-bit product of the low 24 bits
    binary Mul24Lo<T: Int>(a: T, b: T) -> T { T::truncate(product24(a, b)) }
    /// `mul24.hi.type`: high 32 bits of the 48-bit product of the low 24 bits
    binary Mul24Hi<T: Int>(a: T, b: T) -> T { T::truncate(product24(a, b) >> 16) }
    /// `mad24.lo.type`
    ternary Mad24Lo<T: Int>(a: T, b: T, c: T) -> T { T::truncate(product24(a, b)).add(c) }
    /// `mad24.hi.type`
    ternary Mad24Hi<T: Int>(a: T, b: T, c: T) -> T { T::truncate(product24(a, b) >> 16).add(c) }
    /// `mad24.hi.sat.s32`
    ternary Mad24HiSat<T: Int>(a: T, b: T, c: T) -> T { T::truncate(product24(a, b) >> 16).add_sat(c) }
    /// `sad.type`: `c + |a - b|`
    ternary Sad<T: Int>(a: T, b: T, c: T) -> T { a.abs_diff(b).add(c) }
    /// `div.type`
    binary Div<T: Int>(a: T, b: T) -> T { a.div(b) }
    /// `rem.type`
    binary Rem<T: Int>(a: T, b: T) -> T { a.rem(b) }
    /// `abs.type`: the most negative value stays
    unary Abs<T: Int>(a: T) -> T { if a < T::truncate(0) { T::truncate(0).sub(a) } else { a } }
    /// `neg.type`
    unary Neg<T: Int>(a: T) -> T { T::truncate(0).sub(a) }
    /// `min.type`
    binary Min<T: Int>(a: T, b: T) -> T { a.min(b) }
    /// `max.type`
    binary Max<T: Int>(a: T, b: T) -> T { a.max(b) }
    /// `min.relu.s32`
    binary MinRelu<T: Int>(a: T, b: T) -> T { a.min(b).max(T::truncate(0)) }
    /// `max.relu.s32`
    binary MaxRelu<T: Int>(a: T, b: T) -> T { a.max(b).max(T::truncate(0)) }
}

/// The product of the low 24 bits of both, zero- or sign-extended.
#[inline(always)]
fn product24<T: Int>(a: T, b: T) -> u64 {
    let low = |x: T| {
        let top = x.extend() << 40;
        if T::SIGNED { (top as i64 >> 40) as u64 } else { top >> 40 }
    };
    low(a).wrapping_mul(low(b))
}
