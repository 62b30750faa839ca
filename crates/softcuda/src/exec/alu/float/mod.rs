//! `.f32` and `.f64` instructions.

mod approx;
mod arith;
mod directed;
mod div;
mod modifiers;
mod sign;
pub(crate) mod soft;

pub use approx::*;
pub use arith::*;
pub use div::*;
pub use modifiers::*;
pub use sign::*;

use crate::exec::alu::Lane;

/// A type of the floating-point instructions: `f32` or `f64`.
pub trait Float: Lane + PartialOrd {
    /// Positive zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The quiet NaN that the hardware produces.
    const NAN: Self;
    /// `a + b`, rounded as `R` says.
    fn add<R: Rounding>(self, b: Self) -> Self;
    /// `a * b`, rounded as `R` says.
    fn mul<R: Rounding>(self, b: Self) -> Self;
    /// `a * b + c` with one rounding, as `R` says.
    fn fma<R: Rounding>(self, b: Self, c: Self) -> Self;
    /// `a - b`, rounded as `R` says; a NaN keeps its sign.
    fn sub<R: Rounding>(self, b: Self) -> Self;
    /// `a / b`, rounded as `R` says.
    fn div<R: Rounding>(self, b: Self) -> Self;
    /// The square root, rounded as `R` says.
    fn sqrt<R: Rounding>(self) -> Self;
    /// The value with its sign changed, NaN included.
    fn negated(self) -> Self;
    /// The value with its sign cleared, NaN included.
    fn magnitude(self) -> Self;
    /// The value with the sign of `sign`.
    fn with_sign(self, sign: Self) -> Self;
    /// Whether the sign bit is set.
    fn is_negative(self) -> bool;
    /// Subnormals become zero of the same sign.
    fn flushed(self) -> Self;
    /// NaN becomes the type's canonical NaN where the hardware does so.
    fn canonical(self) -> Self;
    /// [`canonical`](Self::canonical) for a square root.
    fn canonical_root(self) -> Self;
    /// A signalling NaN made quiet; other values unchanged.
    fn quiet(self) -> Self;
    /// The canonical NaN if `nan`, else `x`; never another NaN.
    fn select_nan(nan: bool, x: Self) -> Self;
    /// Whether the value is infinite.
    fn is_infinite(self) -> bool;
    /// Whether the value is subnormal (zero is not).
    fn is_subnormal(self) -> bool;
    /// Whether the value is NaN.
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

macro_rules! float {
    ($t:ty, $bits:ty, $nan:expr, canonical: |$x:ident| $canonical:expr, root: |$y:ident| $root:expr) => {
        impl Float for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NAN: Self = <$t>::from_bits($nan);
            #[inline(always)]
            fn add<R: Rounding>(self, b: Self) -> Self {
                match R::MODE {
                    Round::Nearest => self + b,
                    mode => directed::Directed::add(self, b, mode),
                }
            }
            #[inline(always)]
            fn mul<R: Rounding>(self, b: Self) -> Self {
                match R::MODE {
                    Round::Nearest => self * b,
                    mode => directed::Directed::mul(self, b, mode),
                }
            }
            #[inline(always)]
            fn fma<R: Rounding>(self, b: Self, c: Self) -> Self {
                match R::MODE {
                    Round::Nearest => self.mul_add(b, c),
                    mode => directed::Directed::fma(self, b, c, mode),
                }
            }
            #[inline(always)]
            fn sub<R: Rounding>(self, b: Self) -> Self {
                match R::MODE {
                    Round::Nearest => self - b,
                    mode => directed::Directed::add(self, if b.is_nan() { b } else { -b }, mode),
                }
            }
            #[inline(always)]
            fn div<R: Rounding>(self, b: Self) -> Self {
                match R::MODE {
                    Round::Nearest => self / b,
                    mode => directed::Directed::div(self, b, mode),
                }
            }
            #[inline(always)]
            fn sqrt<R: Rounding>(self) -> Self {
                match R::MODE {
                    Round::Nearest => <$t>::sqrt(self),
                    mode => directed::Directed::sqrt(self, mode),
                }
            }
            #[inline(always)]
            fn negated(self) -> Self {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn with_sign(self, sign: Self) -> Self {
                self.copysign(sign)
            }
            #[inline(always)]
            fn is_negative(self) -> bool {
                self.is_sign_negative()
            }
            #[inline(always)]
            fn flushed(self) -> Self {
                if self.abs() < <$t>::MIN_POSITIVE { (0.0 as $t).copysign(self) } else { self }
            }
            #[inline(always)]
            fn select_nan(nan: bool, x: Self) -> Self {
                <$t>::from_bits(if nan { $nan } else { x.to_bits() })
            }
            #[inline(always)]
            fn quiet(self) -> Self {
                if self.is_nan() {
                    <$t>::from_bits(self.to_bits() | 1 << (<$t>::MANTISSA_DIGITS - 2))
                } else {
                    self
                }
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                let $x = self;
                $canonical
            }
            #[inline(always)]
            fn canonical_root(self) -> Self {
                let $y = self;
                $root
            }
            #[inline(always)]
            fn is_infinite(self) -> bool {
                self.abs() == <$t>::INFINITY
            }
            #[inline(always)]
            fn is_subnormal(self) -> bool {
                self.abs() < <$t>::MIN_POSITIVE && self != 0.0
            }
        }
    };
}

// The hardware gives one NaN for every .f32 result that is NaN; .f64 carries the payload of an
// operand. The choice is made between integers: the compiler may take one NaN for another. Of a
// square root, optimised builds drop even that choice (seen with LLVM 22), so its bits are what is
// compared there.
float!(
    f32, u32, 0x7fff_ffff,
    canonical: |x| f32::from_bits(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }),
    root: |x| f32::from_bits(if x.to_bits() & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { x.to_bits() })
);
float!(f64, u64, 0xfff8_0000_0000_0000, canonical: |x| x, root: |x| x);
