//! `cvt` between halves and the other types.

use super::{Half, HalfRange, to_odd};
use crate::exec::alu::cvt::Integral;
use crate::exec::alu::float::soft::{self, Format, Rounded};
use crate::exec::alu::float::{Range, Round, Rounding, Subnormals};
use crate::exec::alu::int::Int;
use crate::exec::alu::lane::{Bf16, Bf16x2, F16, F16x2};
use crate::exec::alu::op::op;
use crate::exec::alu::{Lane, Unary};

/// A half with its format for the general rounding.
pub trait HalfFormat: Half {
    /// Stored fraction bits, exponent of the subnormals' unit, bits of infinity.
    const FORMAT: (u32, i32, u16);

    /// `x` (whose last bit may be sticky) rounded as `R` says; NaN becomes canonical.
    #[inline(always)]
    fn rounded<R: Rounding>(x: f32) -> Self {
        if R::MODE == Round::Nearest {
            return Self::nearest(x);
        }
        if x.is_nan() {
            return Self::from_bits(0x7fff);
        }
        let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
        if x.is_infinite() {
            return Self::from_bits(Self::FORMAT.2 | sign);
        }
        let (negative, sig, exponent) = soft::unpack(f64::from(x));
        Self::from_bits(round_half::<Self>(negative, sig, exponent, R::MODE) | sign)
    }
}

impl HalfFormat for F16 {
    const FORMAT: (u32, i32, u16) = (10, -24, 0x7c00);
}

impl HalfFormat for Bf16 {
    const FORMAT: (u32, i32, u16) = (7, -133, 0x7f80);
}

/// The bits below the sign.
fn round_half<H: HalfFormat>(negative: bool, sig: u64, exponent: i32, mode: Round) -> u16 {
    let (fraction_bits, least_exponent, infinity) = H::FORMAT;
    let format = Format { fraction_bits, least_exponent, infinity: u64::from(infinity) };
    match soft::round(&format, negative, u128::from(sig), exponent, mode) {
        Rounded::Finite(bits) => bits as u16,
        Rounded::Overflow => infinity,
    }
}

/// A source of conversions to half: its value as an `.f32` whose last bit is sticky.
pub trait ToHalf: Lane {
    /// The value.
    fn sticky(self) -> f32;
    /// The bits of a half with `fraction_bits` for a NaN.
    #[inline(always)]
    fn nan(self, fraction_bits: u32) -> u16 {
        let _ = fraction_bits;
        0x7fff
    }
}

impl ToHalf for f32 {
    #[inline(always)]
    fn sticky(self) -> f32 {
        self
    }
}

impl ToHalf for f64 {
    #[inline(always)]
    fn sticky(self) -> f32 {
        to_odd(self, 0.0)
    }
    #[inline(always)]
    fn nan(self, fraction_bits: u32) -> u16 {
        // Sign and upper fraction bits stay, made quiet.
        let bits = self.to_bits();
        (bits >> 48 & 0x8000
            | 0x7fff << (fraction_bits - 1) & 0x7fff
            | bits >> (52 - fraction_bits) & ((1 << fraction_bits) - 1)) as u16
    }
}

impl ToHalf for F16 {
    #[inline(always)]
    fn sticky(self) -> f32 {
        self.to_f32()
    }
}

impl ToHalf for Bf16 {
    #[inline(always)]
    fn sticky(self) -> f32 {
        self.to_f32()
    }
}

/// Whether overflow gives infinity or the largest finite value.
pub trait Overflow: 'static {
    /// Whether results must be finite.
    const FINITE: bool;
}

/// Without `.satfinite`.
#[derive(Debug, Clone, Copy)]
pub struct Infinite;
impl Overflow for Infinite {
    const FINITE: bool = false;
}

/// `.satfinite`
#[derive(Debug, Clone, Copy)]
pub struct SatFinite;
impl Overflow for SatFinite {
    const FINITE: bool = true;
}

/// Rounds to a half with all modifiers.
#[inline(always)]
fn narrow<H: HalfFormat, R: Rounding, C: HalfRange, V: Overflow>(x: f32) -> H {
    let h = H::rounded::<R>(C::clamp(x));
    if V::FINITE && h.to_bits() & 0x7fff == H::FORMAT.2 { H::from_bits(h.to_bits() - 1) } else { h }
}

op! {
    /// `cvt.rnd{.relu,.sat}{.satfinite}.half.float`
    unary(rare if R::IS_DIRECTED || size_of::<S>() != 4) ToHalfFrom<H: HalfFormat, S: ToHalf, R: Rounding, C: HalfRange, V: Overflow>(a: S) -> H {
        let x = a.sticky();
        let h = narrow::<H, R, C, V>(x);
        if x.is_nan() && h.to_f32().is_nan() { H::from_bits(a.nan(H::FORMAT.0)) } else { h }
    }
    /// `cvt.rnd{.relu}{.satfinite}.f16x2.f32 d, high, low`
    binary(rare if R::IS_DIRECTED) ToF16x2<R: Rounding, C: HalfRange, V: Overflow>(high: f32, low: f32) -> F16x2 {
        F16x2::join(narrow::<F16, R, C, V>(low), narrow::<F16, R, C, V>(high))
    }
    /// `cvt.rnd{.relu}{.satfinite}.bf16x2.f32 d, high, low`
    binary(rare if R::IS_DIRECTED) ToBf16x2<R: Rounding, C: HalfRange, V: Overflow>(high: f32, low: f32) -> Bf16x2 {
        Bf16x2::join(narrow::<Bf16, R, C, V>(low), narrow::<Bf16, R, C, V>(high))
    }
    /// `cvt{.ftz}{.sat}.f32.half`
    unary HalfToF32<H: Half, Z: Subnormals, C: Range>(a: H) -> f32 { C::apply(Z::apply(a.widened())) }
    /// `cvt{.sat}.f64.half`
    unary HalfToF64<H: Half, C: Range>(a: H) -> f64 { C::apply(f64::from(a.to_f32())) }
    /// `cvt.rXi.int.half`
    unary(rare if !matches!(R::MODE, Round::Zero) || D::BITS != 32) HalfToInt<D: Int, H: Half, R: Rounding>(a: H) -> D {
        <crate::exec::alu::cvt::FloatToInt<D, f32, R, crate::exec::alu::float::Keep> as Unary>::lane(a.to_f32())
    }
    /// `cvt.rnd.half.int`
    unary(rare if R::IS_DIRECTED || S::BITS != 32) IntToHalf<H: HalfFormat, S: Int, R: Rounding>(a: S) -> H {
        if S::BITS <= 32 {
            // Exact in a double.
            let x = if S::SIGNED { f64::from(a.extend() as i32) } else { f64::from(a.extend() as u32) };
            H::rounded::<R>(to_odd(x, 0.0))
        } else {
            let negative = S::SIGNED && (a.extend() as i64) < 0;
            let magnitude = if negative { a.extend().wrapping_neg() } else { a.extend() };
            H::from_bits(round_half::<H>(negative, magnitude, 0, R::MODE) | u16::from(negative) << 15)
        }
    }
    /// `cvt.rnd.sat.half.int`: no integer lies between 0 and 1
    unary(rare if true) IntToHalfSat<H: Half, S: Int>(a: S) -> H {
        let a = a.extend();
        H::nearest(if a == 0 || S::SIGNED && (a as i64) < 0 { 0.0 } else { 1.0 })
    }
    /// `cvt.rXi{.sat}.half.half`: to an integral value
    unary(rare if R::IS_DIRECTED) HalfToIntegral<H: Half, R: Rounding, C: HalfRange>(a: H) -> H { H::nearest(C::clamp(a.to_f32().integral::<R>())) }
}
