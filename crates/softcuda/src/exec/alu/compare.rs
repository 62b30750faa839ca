//! Comparisons of `setp` and `set`, and `slct`.

use super::Lane;
use super::float::{Float, Subnormals};
use super::half::Half;
use super::int::Int;
use super::lane::{Bf16, F16};
use super::op::op;

/// A floating-point type that can be compared.
pub trait Comparable: Lane {
    /// The type that it is compared in.
    type Value: Float;
    /// The value, subnormals of the type flushed if `Z` says so.
    fn value<Z: Subnormals>(self) -> Self::Value;
}

impl Comparable for f32 {
    type Value = f32;
    #[inline(always)]
    fn value<Z: Subnormals>(self) -> f32 {
        Z::apply(self)
    }
}

impl Comparable for f64 {
    type Value = f64;
    #[inline(always)]
    fn value<Z: Subnormals>(self) -> f64 {
        Z::apply(self)
    }
}

impl Comparable for F16 {
    type Value = f32;
    #[inline(always)]
    fn value<Z: Subnormals>(self) -> f32 {
        if Z::FLUSH { self.flushed().to_f32() } else { self.to_f32() }
    }
}

impl Comparable for Bf16 {
    type Value = f32;
    #[inline(always)]
    fn value<Z: Subnormals>(self) -> f32 {
        if Z::FLUSH { self.flushed().to_f32() } else { self.to_f32() }
    }
}

// The others follow from these by exchanging the sources and negating the result, see
// `super::forms::predicate`.
op! {
    /// `setp.eq`
    compare Eq<T: Int>(a: T, b) { a == b }
    /// `setp.lt`, `setp.lo`
    compare Lt<T: Int>(a: T, b) { a < b }

    /// `setp.eq.f*`: false if either is NaN
    compare FEq<T: Comparable, Z: Subnormals>(a: T, b) { a.value::<Z>() == b.value::<Z>() }
    /// `setp.ne.f*`: false if either is NaN
    compare FNe<T: Comparable, Z: Subnormals>(a: T, b) { !a.value::<Z>().is_nan() && !b.value::<Z>().is_nan() && a.value::<Z>() != b.value::<Z>() }
    /// `setp.lt.f*`: false if either is NaN
    compare FLt<T: Comparable, Z: Subnormals>(a: T, b) { a.value::<Z>() < b.value::<Z>() }
    /// `setp.le.f*`: false if either is NaN
    compare FLe<T: Comparable, Z: Subnormals>(a: T, b) { a.value::<Z>() <= b.value::<Z>() }
    /// `setp.num`: neither is NaN
    compare FNum<T: Comparable, Z: Subnormals>(a: T, b) { !a.value::<Z>().is_nan() && !b.value::<Z>().is_nan() }
}

op! {
    /// `slct.type.s32`: `a` if `c >= 0`, else `b`
    ternary SelectInt<T: Lane>(a: T, b: T, c: i32) -> T { if c >= 0 { a } else { b } }
    /// `slct{.ftz}.type.f32`: `a` if `c >= 0` (so for -0), else `b` (so for NaN)
    ternary SelectFloat<T: Lane, Z: Subnormals>(a: T, b: T, c: f32) -> T { if Z::apply(c) >= 0.0 { a } else { b } }
}
