//! `abs neg copysign`, `min max` with `.NaN` and `.xorsign.abs`, `testp`.

use super::{Float, Subnormals};
use crate::exec::alu::op::op;

op! {
    /// `abs{.ftz}.type`
    unary Abs<T: Float, Z: Subnormals>(a: T) -> T { Z::apply(a).magnitude() }
    /// `neg{.ftz}.type`
    unary Neg<T: Float, Z: Subnormals>(a: T) -> T { Z::apply(a).negated() }
    /// `copysign.type`: the magnitude of `b` with the sign of `a`
    binary CopySign<T: Float>(a: T, b: T) -> T { b.with_sign(a) }
    /// `min{.ftz}.type`: the other operand if one is NaN; -0 is less than +0
    binary Min<T: Float, Z: Subnormals>(a: T, b: T) -> T { minimum(Z::apply(a), Z::apply(b)) }
    /// `max{.ftz}.type`: the other operand if one is NaN; -0 is less than +0
    binary Max<T: Float, Z: Subnormals>(a: T, b: T) -> T { maximum(Z::apply(a), Z::apply(b)) }
}

/// The smaller; the other operand if one is NaN, the canonical NaN if both are.
#[inline(always)]
pub(super) fn minimum<T: Float>(a: T, b: T) -> T {
    let less = if a == b { a.is_negative() } else { a < b };
    if a.is_nan() {
        if b.is_nan() { T::NAN } else { b }
    } else if less || b.is_nan() {
        a
    } else {
        b
    }
}

/// The larger; the other operand if one is NaN, the canonical NaN if both are.
#[inline(always)]
pub(super) fn maximum<T: Float>(a: T, b: T) -> T {
    let greater = if a == b { b.is_negative() } else { a > b };
    if a.is_nan() {
        if b.is_nan() { T::NAN } else { b }
    } else if greater || b.is_nan() {
        a
    } else {
        b
    }
}
