//! `div rcp sqrt` with every rounding mode.

use super::arith::finish;
use super::{Float, Full, Rounding, Subnormals};
use crate::exec::alu::op::op;

op! {
    /// `div.rnd{.ftz}.type`; `div.full` and `div.approx` are met by the exactly rounded quotient
    binary Div<T: Float, R: Rounding, Z: Subnormals>(a: T, b: T) -> T {
        finish::<T, Z, Full>(Z::apply(a).div::<R>(Z::apply(b)))
    }
    /// `rcp.rnd{.ftz}.type`
    unary Rcp<T: Float, R: Rounding, Z: Subnormals>(a: T) -> T { finish::<T, Z, Full>(T::ONE.div::<R>(Z::apply(a))) }
    /// `sqrt.rnd{.ftz}.type`
    unary Sqrt<T: Float, R: Rounding, Z: Subnormals>(a: T) -> T { Z::apply(Z::apply(a).sqrt::<R>()).canonical_root() }
}
