//! `add sub mul fma` with every rounding mode, `.ftz` and `.sat`.

use super::{Float, Range, Rounding, Subnormals};
use crate::exec::alu::op::op;

/// The modifiers of a result: canonical NaN, `.ftz`, `.sat`.
#[inline(always)]
pub(super) fn finish<T: Float, Z: Subnormals, S: Range>(x: T) -> T {
    S::apply(Z::apply(x.canonical()))
}

op! {
    /// `add{.rnd}{.ftz}{.sat}.type`
    binary Add<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).add::<R>(Z::apply(b)))
    }
    /// `sub{.rnd}{.ftz}{.sat}.type`
    binary Sub<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).add::<R>(Z::apply(b).negated()))
    }
    /// `mul{.rnd}{.ftz}{.sat}.type`
    binary Mul<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).mul::<R>(Z::apply(b)))
    }
    /// `fma{.rnd}{.ftz}{.sat}.type`, and `mad` of the same types
    ternary Fma<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T, c: T) -> T {
        finish::<T, Z, S>(Z::apply(a).fma::<R>(Z::apply(b), Z::apply(c)))
    }
}
