//! `abs neg copysign`, `min max` with `.NaN` and `.xorsign.abs`, `testp`.

use super::{Float, Subnormals};
use crate::exec::alu::op::op;

/// What `min` and `max` do with NaN.
pub trait NanRule: 'static {
    /// Whether one NaN makes the result NaN.
    const PROPAGATE: bool;
}

/// Without `.NaN`: the other operand.
#[derive(Debug, Clone, Copy)]
pub struct NanLoses;
impl NanRule for NanLoses {
    const PROPAGATE: bool = false;
}

/// `.NaN`: NaN.
#[derive(Debug, Clone, Copy)]
pub struct NanWins;
impl NanRule for NanWins {
    const PROPAGATE: bool = true;
}

/// Whose sign the result of `min` and `max` has.
pub trait SignRule: 'static {
    /// Whether magnitudes are compared and the signs multiplied.
    const XOR: bool;
}

/// Without `.xorsign.abs`.
#[derive(Debug, Clone, Copy)]
pub struct OwnSign;
impl SignRule for OwnSign {
    const XOR: bool = false;
}

/// `.xorsign.abs`
#[derive(Debug, Clone, Copy)]
pub struct XorSign;
impl SignRule for XorSign {
    const XOR: bool = true;
}

/// A kind of number that `testp` asks for.
pub trait Property: 'static {
    /// Whether `x` is of the kind.
    fn holds<T: Float>(x: T) -> bool;
}

macro_rules! properties {
    ($($(#[$m:meta])* $name:ident = |$x:ident| $holds:expr;)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl Property for $name {
            #[inline(always)]
            fn holds<T: Float>($x: T) -> bool {
                $holds
            }
        }
    )*};
}

properties! {
    /// `testp.finite`
    Finite = |x| !x.is_nan() && !x.is_infinite();
    /// `testp.infinite`
    Infinite = |x| x.is_infinite();
    /// `testp.number`
    Number = |x| !x.is_nan();
    /// `testp.notanumber`
    NotANumber = |x| x.is_nan();
    /// `testp.normal`: neither NaN, infinite nor subnormal; zero is normal
    Normal = |x| !x.is_nan() && !x.is_infinite() && !x.is_subnormal();
    /// `testp.subnormal`
    Subnormal = |x| x.is_subnormal();
}

op! {
    /// `abs{.ftz}.type`
    unary Abs<T: Float, Z: Subnormals>(a: T) -> T { if a.is_nan() { a.quiet().canonical() } else { Z::apply(a).magnitude() } }
    /// `neg{.ftz}.type`
    unary Neg<T: Float, Z: Subnormals>(a: T) -> T { if a.is_nan() { a.quiet().canonical() } else { Z::apply(a).negated() } }
    /// `copysign.type`: the magnitude of `b` with the sign of `a`
    binary CopySign<T: Float>(a: T, b: T) -> T { b.with_sign(a) }
    /// `min{.ftz}{.NaN}{.xorsign.abs}.type`; -0 is less than +0
    binary Min<T: Float, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T) -> T {
        smaller::<T, N, X>(Z::apply(a), Z::apply(b))
    }
    /// `max{.ftz}{.NaN}{.xorsign.abs}.type`; -0 is less than +0
    binary Max<T: Float, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T) -> T {
        larger::<T, N, X>(Z::apply(a), Z::apply(b))
    }
    /// `min` of three
    ternary Min3<T: Float, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T, c: T) -> T {
        smaller::<T, N, X>(smaller::<T, N, X>(Z::apply(a), Z::apply(b)), Z::apply(c))
    }
    /// `max` of three
    ternary Max3<T: Float, Z: Subnormals, N: NanRule, X: SignRule>(a: T, b: T, c: T) -> T {
        larger::<T, N, X>(larger::<T, N, X>(Z::apply(a), Z::apply(b)), Z::apply(c))
    }
}

/// `testp.property.type`
#[derive(Debug, Clone, Copy)]
pub struct TestProperty<T, P>(core::marker::PhantomData<(T, P)>);

impl<T: Float, P: Property> crate::exec::alu::Test for TestProperty<T, P> {
    type A = T;
    #[inline(always)]
    fn lane(a: T) -> bool {
        P::holds(a)
    }
}

/// `min` of values already flushed.
#[inline(always)]
pub(crate) fn smaller<T: Float, N: NanRule, X: SignRule>(a: T, b: T) -> T {
    choose::<T, N, X>(a, b, |a, b| if a == b { a.is_negative() } else { a < b })
}

/// `max` of values already flushed.
#[inline(always)]
pub(crate) fn larger<T: Float, N: NanRule, X: SignRule>(a: T, b: T) -> T {
    choose::<T, N, X>(a, b, |a, b| if a == b { b.is_negative() } else { a > b })
}

#[inline(always)]
fn choose<T: Float, N: NanRule, X: SignRule>(a: T, b: T, first: impl Fn(T, T) -> bool) -> T {
    let (x, y) = if X::XOR { (a.magnitude(), b.magnitude()) } else { (a, b) };
    let chosen = if first(x, y) || y.is_nan() { x } else { y };
    let chosen =
        if X::XOR && a.is_negative() != b.is_negative() { chosen.negated() } else { chosen };
    let nan = if N::PROPAGATE { a.is_nan() || b.is_nan() } else { a.is_nan() && b.is_nan() };
    T::select_nan(nan, chosen)
}
