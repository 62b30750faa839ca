//! `.f16`, `.bf16` and their packed pairs.
//!
//! Every operation computes in a wider type so that one final rounding gives the correctly rounded
//! result: either the wider type is wide enough for double rounding to be harmless, or its last bit
//! is made sticky ("round to odd").

mod arith;
mod convert;

pub use arith::*;
pub use convert::*;

use super::Lane;
use super::float::{Float, Full, Range, Sat};
use super::lane::{Bf16, Bf16x2, F16, F16x2};

/// A half-precision format.
pub trait Half: Lane<Reg = u32> {
    /// The value, exactly. NaN keeps its upper fraction bits.
    fn to_f32(self) -> f32;
    /// The value as `cvt.f32` gives it: NaN becomes canonical from `.f16` and keeps its bits from
    /// `.bf16`.
    fn widened(self) -> f32;
    /// The nearest value, ties to even; NaN becomes the canonical one.
    fn nearest(x: f32) -> Self;
    /// Subnormals become zero of the same sign.
    fn flushed(self) -> Self;
    /// `a * b` in a form whose nearest half is that of the exact product.
    fn product(a: f32, b: f32) -> f32;
    /// From bits.
    fn from_bits(bits: u16) -> Self;
    /// To bits.
    fn to_bits(self) -> u16;
}

/// `high + low`, where `high` is the nearest double of that sum, as an `.f32` whose last bit is
/// sticky.
#[inline(always)]
pub(crate) fn to_odd(high: f64, low: f64) -> f32 {
    let nearest = high as f32;
    let rest = high - f64::from(nearest);
    // NaN (from infinities) compares false.
    let above = if rest == 0.0 { low } else { rest };
    let inward = if nearest.is_sign_negative() { above > 0.0 } else { above < 0.0 };
    let inexact = above != 0.0 && !above.is_nan();
    // One step towards zero is one less in the magnitude's bits.
    f32::from_bits((nearest.to_bits() - u32::from(inward)) | u32::from(inexact))
}

impl Half for F16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        // The factor moves the exponent from bias 15 to 127 and makes subnormals normal.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23)).to_bits();
        let bits = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { scaled };
        f32::from_bits(bits | u32::from(self.0 & 0x8000) << 16)
    }

    #[inline(always)]
    fn widened(self) -> f32 {
        self.to_f32().canonical()
    }

    #[inline(always)]
    fn nearest(x: f32) -> F16 {
        let sign = (x.to_bits() >> 16 & 0x8000) as u16;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        let normal = rounded.wrapping_sub(112 << 23) >> 13;
        // Adding one half leaves exactly the subnormal's bits at the end of the sum.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        let bits = if magnitude > 0x7f80_0000 {
            return F16(0x7fff);
        } else if magnitude >= 0x477f_f000 {
            0x7c00
        } else {
            finite as u16
        };
        F16(bits | sign)
    }

    #[inline(always)]
    fn flushed(self) -> F16 {
        if self.0 & 0x7c00 == 0 { F16(self.0 & 0x8000) } else { self }
    }

    #[inline(always)]
    fn product(a: f32, b: f32) -> f32 {
        a * b
    }

    #[inline(always)]
    fn from_bits(bits: u16) -> F16 {
        F16(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u16 {
        self.0
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn widened(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn nearest(x: f32) -> Bf16 {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        Bf16(if x.is_nan() { 0x7fff } else { rounded })
    }

    #[inline(always)]
    fn flushed(self) -> Bf16 {
        if self.0 & 0x7f80 == 0 { Bf16(self.0 & 0x8000) } else { self }
    }

    #[inline(always)]
    fn product(a: f32, b: f32) -> f32 {
        // Exact in a double; in an .f32 it could lose bits below the subnormals'.
        to_odd(f64::from(a) * f64::from(b), 0.0)
    }

    #[inline(always)]
    fn from_bits(bits: u16) -> Bf16 {
        Bf16(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u16 {
        self.0
    }
}

/// One half or a pair of them.
pub trait Halves: Lane<Reg = u32> {
    /// The type of each.
    type Part: Half;
    /// Applies `f` to each half.
    fn map(self, f: impl Fn(Self::Part) -> Self::Part) -> Self;
    /// Applies `f` to the halves at the same place.
    fn map2(self, b: Self, f: impl Fn(Self::Part, Self::Part) -> Self::Part) -> Self;
    /// Applies `f` to the halves at the same place.
    fn map3(
        self,
        b: Self,
        c: Self,
        f: impl Fn(Self::Part, Self::Part, Self::Part) -> Self::Part,
    ) -> Self;
}

macro_rules! single {
    ($($name:ident)*) => {$(
        impl Halves for $name {
            type Part = $name;
            #[inline(always)]
            fn map(self, f: impl Fn($name) -> $name) -> Self {
                f(self)
            }
            #[inline(always)]
            fn map2(self, b: Self, f: impl Fn($name, $name) -> $name) -> Self {
                f(self, b)
            }
            #[inline(always)]
            fn map3(self, b: Self, c: Self, f: impl Fn($name, $name, $name) -> $name) -> Self {
                f(self, b, c)
            }
        }
    )*};
}

macro_rules! pair {
    ($($name:ident of $part:ident;)*) => {$(
        impl $name {
            /// The half in the low bits.
            #[inline(always)]
            pub fn low(self) -> $part {
                $part(self.0 as u16)
            }
            /// The half in the high bits.
            #[inline(always)]
            pub fn high(self) -> $part {
                $part((self.0 >> 16) as u16)
            }
            /// Joins two halves.
            #[inline(always)]
            pub fn join(low: $part, high: $part) -> Self {
                $name(u32::from(high.0) << 16 | u32::from(low.0))
            }
        }
        impl Halves for $name {
            type Part = $part;
            #[inline(always)]
            fn map(self, f: impl Fn($part) -> $part) -> Self {
                Self::join(f(self.low()), f(self.high()))
            }
            #[inline(always)]
            fn map2(self, b: Self, f: impl Fn($part, $part) -> $part) -> Self {
                Self::join(f(self.low(), b.low()), f(self.high(), b.high()))
            }
            #[inline(always)]
            fn map3(self, b: Self, c: Self, f: impl Fn($part, $part, $part) -> $part) -> Self {
                Self::join(f(self.low(), b.low(), c.low()), f(self.high(), b.high(), c.high()))
            }
        }
    )*};
}

single! { F16 Bf16 }
pair! {
    F16x2 of F16;
    Bf16x2 of Bf16;
}

/// `.relu`: negative results become +0; NaN stays.
#[derive(Debug, Clone, Copy)]
pub struct Relu;

/// What happens to half-precision results outside a range: [`Full`], [`Sat`] or [`Relu`].
pub trait HalfRange: 'static {
    /// Applied to the result before its last rounding, which is monotonic.
    fn clamp(x: f32) -> f32;
}

impl HalfRange for Full {
    #[inline(always)]
    fn clamp(x: f32) -> f32 {
        x
    }
}

impl HalfRange for Sat {
    #[inline(always)]
    fn clamp(x: f32) -> f32 {
        Sat::apply(x)
    }
}

impl HalfRange for Relu {
    #[inline(always)]
    fn clamp(x: f32) -> f32 {
        if x > 0.0 || Float::is_nan(x) { x } else { 0.0 }
    }
}
