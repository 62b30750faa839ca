//! Between `.f32`, `.f64` and integers.

use crate::exec::alu::float::{Float, Range, Round, Rounding, Subnormals, soft};
use crate::exec::alu::int::Int;
use crate::exec::alu::op::op;

/// Rounding to an integral value.
pub trait Integral: Float {
    /// The nearest integral value in the given direction; the sign of zero results is that of the
    /// source.
    fn integral<R: Rounding>(self) -> Self;
    /// The integral value as a signed integer, clamped.
    fn to_i64(self) -> i64;
    /// The integral value as an unsigned integer, clamped.
    fn to_u64(self) -> u64;
    /// The integral value as a signed integer, clamped.
    fn to_i32(self) -> i32;
    /// The integral value as an unsigned integer, clamped.
    fn to_u32(self) -> u32;
    /// Whether NaN becomes zero in integers of up to 32 bits.
    const NAN_IS_ZERO: bool;
}

macro_rules! integral {
    ($t:ty, $nan_is_zero:expr) => {
        impl Integral for $t {
            const NAN_IS_ZERO: bool = $nan_is_zero;
            #[inline(always)]
            fn integral<R: Rounding>(self) -> Self {
                match R::MODE {
                    Round::Nearest => self.round_ties_even(),
                    Round::Zero => self.trunc(),
                    Round::Down => self.floor(),
                    Round::Up => self.ceil(),
                    Round::NearestAway => self.round(),
                }
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn to_i32(self) -> i32 {
                self as i32
            }
            #[inline(always)]
            fn to_u32(self) -> u32 {
                self as u32
            }
        }
    };
}

integral!(f32, true);
integral!(f64, false);

op! {
    /// `cvt.rXi{.ftz}.int.float`: clamped to the destination; NaN is zero from `.f32` to up to 32
    /// bits, else only the top bit
    unary(rare if matches!(R::MODE, Round::Up) || D::BITS < 32 && !matches!(R::MODE, Round::Zero)) FloatToInt<D: Int, S: Integral, R: Rounding, Z: Subnormals>(a: S) -> D {
        let a = Z::apply(a).integral::<R>();
        let word = match (D::BITS, D::SIGNED) {
            (64, true) => a.to_i64() as u64,
            (64, false) => a.to_u64(),
            (bits, true) => a.to_i32().clamp(((-1i64) << (bits - 1)) as i32, ((1i64 << (bits - 1)) - 1) as i32) as u64,
            (bits, false) => u64::from(a.to_u32().min(((1u64 << bits) - 1) as u32)),
        };
        let nan = if D::BITS < 64 && S::NAN_IS_ZERO { 0 } else { 1 << (D::BITS - 1) };
        D::truncate(if a.is_nan() { nan } else { word })
    }
    /// `cvt.rXi{.ftz}{.sat}.fN.fN`: to an integral value of the same type
    unary(rare if C::CLAMPS) RoundToIntegral<T: Integral, R: Rounding, Z: Subnormals, C: Range>(a: T) -> T {
        C::apply(Z::apply(a).quiet().integral::<R>().canonical())
    }
    /// `cvt{.ftz}{.sat}.f64.f32`
    unary Widen<Z: Subnormals, C: Range>(a: f32) -> f64 {
        C::apply(f64::from(if Z::FLUSH { Z::apply(a).canonical() } else { a }))
    }
    /// `cvt.rX{.ftz}{.sat}.f32.f64`
    unary(rare if R::IS_DIRECTED || C::CLAMPS) Narrow<R: Rounding, Z: Subnormals, C: Range>(a: f64) -> f32 { C::apply(Z::apply(soft::narrow::<R>(a))) }
    /// `cvt{.ftz}{.sat}.fN.fN` without rounding
    unary Same<T: Float, Z: Subnormals, C: Range>(a: T) -> T { C::apply(if Z::FLUSH { Z::apply(a).canonical() } else { a }) }
    /// `cvt.rX{.sat}.float.int`
    unary(rare if R::IS_DIRECTED || C::CLAMPS) IntToFloat<D: FromInt, S: Int, R: Rounding, C: Range>(a: S) -> D {
        C::apply(if S::SIGNED { D::from_signed::<R>(a.extend() as i64, S::BITS) } else { D::from_unsigned::<R>(a.extend(), S::BITS) })
    }
}

/// Conversion from integers, correctly rounded.
pub trait FromInt: Float {
    /// From a signed value of `bits` significant bits.
    fn from_signed<R: Rounding>(x: i64, bits: u32) -> Self;
    /// From an unsigned value of `bits` significant bits.
    fn from_unsigned<R: Rounding>(x: u64, bits: u32) -> Self;
}

impl FromInt for f32 {
    #[inline(always)]
    fn from_signed<R: Rounding>(x: i64, bits: u32) -> f32 {
        if R::MODE == Round::Nearest {
            if bits <= 32 { x as i32 as f32 } else { x as f32 }
        } else if bits <= 32 {
            soft::narrow::<R>(f64::from(x as i32))
        } else {
            soft::narrow_integer::<R>(x < 0, x.unsigned_abs())
        }
    }

    #[inline(always)]
    fn from_unsigned<R: Rounding>(x: u64, bits: u32) -> f32 {
        if R::MODE == Round::Nearest {
            if bits <= 32 { x as u32 as f32 } else { x as f32 }
        } else if bits <= 32 {
            soft::narrow::<R>(f64::from(x as u32))
        } else {
            soft::narrow_integer::<R>(false, x)
        }
    }
}

impl FromInt for f64 {
    #[inline(always)]
    fn from_signed<R: Rounding>(x: i64, bits: u32) -> f64 {
        if bits <= 32 {
            f64::from(x as i32)
        } else if R::MODE == Round::Nearest {
            x as f64
        } else {
            soft::round_f64(x < 0, u128::from(x.unsigned_abs()), 0, R::MODE)
        }
    }

    #[inline(always)]
    fn from_unsigned<R: Rounding>(x: u64, bits: u32) -> f64 {
        if bits <= 32 {
            f64::from(x as u32)
        } else if R::MODE == Round::Nearest {
            x as f64
        } else {
            soft::round_f64(false, u128::from(x), 0, R::MODE)
        }
    }
}
