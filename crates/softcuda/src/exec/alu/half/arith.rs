//! Half-precision `add sub mul fma abs neg min max`, comparisons' operands, `ex2` and `tanh`.

use super::{Half, HalfRange, Halves, to_odd};
use crate::exec::alu::float::{NanRule, SignRule, Subnormals, exp2, larger, smaller, tanh};
use crate::exec::alu::op::op;

/// The value as the operation sees it.
#[inline(always)]
fn source<H: Half, Z: Subnormals>(x: H) -> f32 {
    if Z::FLUSH { x.flushed().to_f32() } else { x.to_f32() }
}

/// The value as the operation leaves it.
#[inline(always)]
fn result<H: Half, Z: Subnormals, S: HalfRange>(x: f32) -> H {
    let x = H::nearest(S::clamp(x));
    if Z::FLUSH { x.flushed() } else { x }
}

/// The exact `a * b + c`, made sticky.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let high = p + c;
    let c_part = high - p;
    let low = (p - (high - c_part)) + (c - c_part);
    to_odd(high, low)
}

op! {
    /// `add{.rn}{.ftz}{.sat}.type`
    binary Add<T: Halves, Z: Subnormals, S: HalfRange>(a: T, b: T) -> T {
        a.map2(b, |a, b| result::<_, Z, S>(source::<_, Z>(a) + source::<_, Z>(b)))
    }
    /// `sub{.rn}{.ftz}{.sat}.type`
    binary Sub<T: Halves, Z: Subnormals, S: HalfRange>(a: T, b: T) -> T {
        a.map2(b, |a, b| result::<_, Z, S>(source::<_, Z>(a) - source::<_, Z>(b)))
    }
    /// `mul{.rn}{.ftz}{.sat}.type`
    binary Mul<T: Halves, Z: Subnormals, S: HalfRange>(a: T, b: T) -> T {
        a.map2(b, |a, b| result::<_, Z, S>(T::Part::product(source::<_, Z>(a), source::<_, Z>(b))))
    }
    /// `fma.rn{.ftz}{.sat,.relu}.type`
    ternary Fma<T: Halves, Z: Subnormals, S: HalfRange>(a: T, b: T, c: T) -> T {
        a.map3(b, c, |a, b, c| result::<_, Z, S>(fused(source::<_, Z>(a), source::<_, Z>(b), source::<_, Z>(c))))
    }
    /// `abs{.ftz}.type`
    unary Abs<T: Halves, Z: Subnormals>(a: T) -> T { a.map(|a| sign_only::<_, Z>(a, |bits| bits & 0x7fff)) }
    /// `neg{.ftz}.type`
    unary Neg<T: Halves, Z: Subnormals>(a: T) -> T { a.map(|a| sign_only::<_, Z>(a, |bits| bits ^ 0x8000)) }
    /// `min{.ftz}{.NaN}{.xorsign.abs}.type`
    binary Min<T: Halves, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T) -> T {
        a.map2(b, |a, b| T::Part::nearest(smaller::<f32, N, X>(source::<_, Z>(a), source::<_, Z>(b))))
    }
    /// `max{.ftz}{.NaN}{.xorsign.abs}.type`
    binary Max<T: Halves, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T) -> T {
        a.map2(b, |a, b| T::Part::nearest(larger::<f32, N, X>(source::<_, Z>(a), source::<_, Z>(b))))
    }
    /// `ex2.approx{.ftz}.type`
    unary Ex2<T: Halves, Z: Subnormals>(a: T) -> T { a.map(|a| result::<_, Z, crate::exec::alu::float::Full>(exp2(source::<_, Z>(a)))) }
    /// `tanh.approx.type`
    unary Tanh<T: Halves>(a: T) -> T { a.map(|a| T::Part::nearest(tanh(a.to_f32()))) }
}

/// Changes the sign bit; NaN becomes canonical.
#[inline(always)]
fn sign_only<H: Half, Z: Subnormals>(x: H, f: impl Fn(u16) -> u16) -> H {
    let x = if Z::FLUSH { x.flushed() } else { x };
    if x.to_f32().is_nan() { H::from_bits(0x7fff) } else { H::from_bits(f(x.to_bits())) }
}
