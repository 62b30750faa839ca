//! Narrow formats: `.tf32`, `.e4m3x2`, `.e5m2x2`, and `cvt.pack`.

use crate::exec::alu::float::soft::{self, Format, Rounded};
use crate::exec::alu::float::{Round, Rounding};
use crate::exec::alu::half::{Half, HalfRange, Overflow};
use crate::exec::alu::lane::{F16, F16x2};
use crate::exec::alu::op::op;

/// An eight-bit floating-point format.
pub trait ByteFormat: 'static {
    /// Stored fraction bits.
    const FRACTION_BITS: u32;
    /// Exponent of the subnormals' unit.
    const LEAST_EXPONENT: i32;
    /// Bits of the largest finite value.
    const LARGEST: u8;
    /// The value; infinities and NaN included.
    fn decode(bits: u8) -> f32;
}

/// `.e4m3`: no infinities, one NaN of each sign
#[derive(Debug, Clone, Copy)]
pub struct E4m3;
impl ByteFormat for E4m3 {
    const FRACTION_BITS: u32 = 3;
    const LEAST_EXPONENT: i32 = -9;
    const LARGEST: u8 = 0x7e;
    #[inline(always)]
    fn decode(bits: u8) -> f32 {
        let magnitude = bits & 0x7f;
        let (exponent, fraction) = (magnitude >> 3, f32::from(magnitude & 7));
        let scale = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
        let x = if exponent == 0 {
            fraction * scale(-9)
        } else {
            (8.0 + fraction) * scale(i32::from(exponent) - 10)
        };
        let x = if magnitude == 0x7f { f32::NAN } else { x };
        if bits & 0x80 != 0 { -x } else { x }
    }
}

/// `.e5m2`: the upper byte of a binary16
#[derive(Debug, Clone, Copy)]
pub struct E5m2;
impl ByteFormat for E5m2 {
    const FRACTION_BITS: u32 = 2;
    const LEAST_EXPONENT: i32 = -16;
    const LARGEST: u8 = 0x7b;
    #[inline(always)]
    fn decode(bits: u8) -> f32 {
        F16(u16::from(bits) << 8).to_f32()
    }
}

/// Rounds to nearest, clamped to the largest finite value; NaN becomes 0x7f.
#[inline]
fn encode<E: ByteFormat, C: HalfRange>(x: f32) -> u8 {
    let x = C::clamp(x);
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    if x.is_infinite() {
        return E::LARGEST | sign;
    }
    let (negative, sig, exponent) = soft::unpack(f64::from(x));
    let format = Format {
        fraction_bits: E::FRACTION_BITS,
        least_exponent: E::LEAST_EXPONENT,
        infinity: u64::from(E::LARGEST) + 1,
    };
    sign | match soft::round(&format, negative, u128::from(sig), exponent, Round::Nearest) {
        Rounded::Finite(bits) => bits as u8,
        Rounded::Overflow => E::LARGEST,
    }
}

op! {
    /// `cvt.rn.satfinite{.relu}.e4m3x2.f32 d, high, low` and `.e5m2x2`
    binary ToBytePair<E: ByteFormat, C: HalfRange>(high: f32, low: f32) -> u16 {
        u16::from(encode::<E, C>(high)) << 8 | u16::from(encode::<E, C>(low))
    }
    /// `cvt.rn.satfinite{.relu}.e4m3x2.f16x2` and `.e5m2x2`
    unary ToBytePairFromF16x2<E: ByteFormat, C: HalfRange>(a: F16x2) -> u16 {
        u16::from(encode::<E, C>(a.high().to_f32())) << 8 | u16::from(encode::<E, C>(a.low().to_f32()))
    }
    /// `cvt.rn{.relu}.f16x2.e4m3x2` and `.e5m2x2`
    unary FromBytePair<E: ByteFormat, C: HalfRange>(a: u16) -> F16x2 {
        let half = |bits: u16| F16::nearest(C::clamp(E::decode(bits as u8)));
        F16x2::join(half(a), half(a >> 8))
    }
    /// `cvt.rnd{.relu}{.satfinite}.tf32.f32`
    unary ToTf32<R: Rounding, C: HalfRange, V: Overflow>(a: f32) -> u32 {
        let bits = C::clamp(a).to_bits();
        let increment = match R::MODE {
            Round::NearestAway => 0x1000,
            Round::Nearest => 0xfff + (bits >> 13 & 1),
            _ => 0,
        };
        let special = bits & 0x7f80_0000 == 0x7f80_0000;
        let rounded = if special { bits } else { bits + increment } & !0x1fff;
        let overflowed = rounded & 0x7f80_0000 == 0x7f80_0000;
        if a.is_nan() && R::MODE != Round::NearestAway {
            0x7fff_e000
        } else if V::FINITE && overflowed {
            rounded - 0x2000
        } else {
            rounded
        }
    }
    /// `cvt.pack.sat.type.s32 d, high, low`
    binary Pack<D: PackFormat>(high: i32, low: i32) -> u32 { packed::<D>(high, low) }
    /// `cvt.pack.sat.type.s32.b32 d, high, low, c`: `c` moves up to make room
    ternary PackInto<D: PackFormat>(high: i32, low: i32, c: u32) -> u32 {
        packed::<D>(high, low) | c.checked_shl(2 * D::BITS).unwrap_or(0)
    }
}

/// An element type of `cvt.pack`.
pub trait PackFormat: 'static {
    /// Width in bits.
    const BITS: u32;
    /// Smallest value.
    const LEAST: i32;
    /// Largest value.
    const LARGEST: i32;
}

macro_rules! pack_formats {
    ($($(#[$m:meta])* $name:ident = $bits:expr, $least:expr, $largest:expr;)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl PackFormat for $name {
            const BITS: u32 = $bits;
            const LEAST: i32 = $least;
            const LARGEST: i32 = $largest;
        }
    )*};
}

pack_formats! {
    /// `.u16`
    PackU16 = 16, 0, 0xffff;
    /// `.s16`
    PackS16 = 16, -0x8000, 0x7fff;
    /// `.u8`
    PackU8 = 8, 0, 0xff;
    /// `.s8`
    PackS8 = 8, -0x80, 0x7f;
    /// `.u4`
    PackU4 = 4, 0, 0xf;
    /// `.s4`
    PackS4 = 4, -8, 7;
    /// `.u2`
    PackU2 = 2, 0, 3;
    /// `.s2`
    PackS2 = 2, -2, 1;
}

#[inline(always)]
fn packed<D: PackFormat>(high: i32, low: i32) -> u32 {
    let mask = (1u32 << D::BITS) - 1;
    let element = |x: i32| x.clamp(D::LEAST, D::LARGEST) as u32 & mask;
    element(high) << D::BITS | element(low)
}
