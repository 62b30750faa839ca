//! Exact binary floating-point arithmetic, rounded once: the reference for every rounding mode and
//! format.
//!
//! A value is a sign, a 128-bit integer and a power of two, so sums and products of nearby numbers
//! are exact, and quotients and roots carry a last bit that says whether anything was cut off.

/// A binary format of IEEE 754's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent_bits: u32,
    pub(crate) fraction_bits: u32,
}

pub(crate) const F16: Format = Format { exponent_bits: 5, fraction_bits: 10 };
pub(crate) const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7 };
pub(crate) const F32: Format = Format { exponent_bits: 8, fraction_bits: 23 };
pub(crate) const F64: Format = Format { exponent_bits: 11, fraction_bits: 52 };
/// The upper 19 bits of an `f32`.
pub(crate) const TF32: Format = Format { exponent_bits: 8, fraction_bits: 10 };

impl Format {
    /// The format of float type `ty`; of its halves for a pair.
    pub(crate) fn of(ty: &str) -> Self {
        match ty {
            "f16" | "f16x2" => F16,
            "bf16" | "bf16x2" => BF16,
            "f32" => F32,
            "tf32" => TF32,
            "f64" => F64,
            other => panic!("no float type: {other}"),
        }
    }

    pub(crate) fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn sign_bit(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// Whether the bits are a subnormal number.
    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        magnitude != 0 && magnitude >> self.fraction_bits == 0
    }

    /// Subnormal numbers become zeros of their sign.
    pub(crate) fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign_bit() } else { bits }
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign_bit() - 1) > self.infinity()
    }
}

/// Rounding modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    NearestEven,
    NearestAway,
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// The mode that a modifier such as `rn`, `rzi` names.
    pub(crate) fn of(modifier: &str) -> Self {
        match modifier.trim_end_matches('i') {
            "rna" => Self::NearestAway,
            "rz" => Self::Zero,
            "rm" => Self::Down,
            "rp" => Self::Up,
            _ => Self::NearestEven,
        }
    }

    /// Whether a number of this sign goes away from zero, whose last kept bit and rest (against
    /// half of it) are these.
    fn away(self, negative: bool, odd: bool, rest: u128, half: u128) -> bool {
        match self {
            Self::NearestEven => rest > half || rest == half && odd && rest != 0,
            Self::NearestAway => rest >= half && rest != 0,
            Self::Zero => false,
            Self::Down => rest != 0 && negative,
            Self::Up => rest != 0 && !negative,
        }
    }
}

/// A number, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nan,
    Infinity {
        negative: bool,
    },
    /// `magnitude * 2^exponent`
    Number {
        negative: bool,
        magnitude: u128,
        exponent: i32,
    },
}

use Value::{Infinity, Nan, Number};

impl Value {
    pub(crate) fn decode(bits: u64, format: Format) -> Self {
        let negative = bits & format.sign_bit() != 0;
        let magnitude = bits & (format.sign_bit() - 1);
        let fraction = u128::from(magnitude & ((1 << format.fraction_bits) - 1));
        let field = (magnitude >> format.fraction_bits) as i32;
        let lowest = 1 - format.bias() - format.fraction_bits as i32;
        if magnitude > format.infinity() {
            Nan
        } else if magnitude == format.infinity() {
            Infinity { negative }
        } else if field == 0 {
            Number { negative, magnitude: fraction, exponent: lowest }
        } else {
            let magnitude = fraction | 1 << format.fraction_bits;
            Number { negative, magnitude, exponent: lowest + field - 1 }
        }
    }

    pub(crate) fn integer(value: i128) -> Self {
        Number { negative: value < 0, magnitude: value.unsigned_abs(), exponent: 0 }
    }

    /// The bits in `format`, `None` for NaN.
    pub(crate) fn encode(self, format: Format, mode: Rounding) -> Option<u64> {
        let sign = |negative| if negative { format.sign_bit() } else { 0 };
        let (negative, magnitude, exponent) = match self {
            Nan => return None,
            Infinity { negative } => return Some(sign(negative) | format.infinity()),
            Number { negative, magnitude: 0, .. } => return Some(sign(negative)),
            Number { negative, magnitude, exponent } => (negative, magnitude, exponent),
        };
        let fraction_bits = format.fraction_bits as i32;
        let top = exponent + 127 - magnitude.leading_zeros() as i32;
        let unit = top.max(1 - format.bias()) - fraction_bits;
        let (mut kept, rest, half) = cut(magnitude, unit - exponent);
        kept += u128::from(mode.away(negative, kept & 1 == 1, rest, half));
        // A carry out of the fraction goes into the exponent field by itself.
        let field =
            if kept >> fraction_bits == 0 { 0 } else { unit + fraction_bits + format.bias() };
        let bits = if field == 0 {
            kept as u64
        } else {
            ((field as u64 - 1) << fraction_bits).wrapping_add(kept as u64)
        };
        if bits < format.infinity() {
            return Some(sign(negative) | bits);
        }
        let to_infinity = match mode {
            Rounding::NearestEven | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        Some(sign(negative) | (format.infinity() - u64::from(!to_infinity)))
    }

    /// Rounded to an integer.
    pub(crate) fn to_integral(self, mode: Rounding) -> Self {
        match self {
            Number { negative, magnitude, exponent } if exponent < 0 => {
                let (kept, rest, half) = cut(magnitude, -exponent);
                let up = u128::from(mode.away(negative, kept & 1 == 1, rest, half));
                Number { negative, magnitude: kept + up, exponent: 0 }
            }
            other => other,
        }
    }

    pub(crate) fn negate(self) -> Self {
        match self {
            Nan => Nan,
            Infinity { negative } => Infinity { negative: !negative },
            Number { negative, magnitude, exponent } => {
                Number { negative: !negative, magnitude, exponent }
            }
        }
    }

    /// The sum; `mode` decides the sign of an exact zero.
    pub(crate) fn add(self, other: Self, mode: Rounding) -> Self {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinity { negative: a }, Infinity { negative: b }) if a != b => Nan,
            (Infinity { .. }, _) => self,
            (_, Infinity { .. }) => other,
            (
                Number { negative: n1, magnitude: m1, exponent: e1 },
                Number { negative: n2, magnitude: m2, exponent: e2 },
            ) => {
                let exponent = match (m1, m2) {
                    (0, _) => e2,
                    (_, 0) => e1,
                    _ => e1.min(e2),
                };
                let aligned = |negative: bool, m: u128, e: i32| {
                    let m = if m == 0 { 0 } else { m << (e - exponent) };
                    let m = i128::try_from(m).expect("operands of similar size");
                    if negative { -m } else { m }
                };
                let sum = aligned(n1, m1, e1) + aligned(n2, m2, e2);
                let zero_sign = if n1 == n2 { n1 } else { mode == Rounding::Down };
                let negative = if sum == 0 { zero_sign } else { sum < 0 };
                Number { negative, magnitude: sum.unsigned_abs(), exponent }
            }
        }
    }

    pub(crate) fn multiply(self, other: Self) -> Self {
        let sign = self.negative() != other.negative();
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinity { .. }, Number { magnitude: 0, .. })
            | (Number { magnitude: 0, .. }, Infinity { .. }) => Nan,
            (Infinity { .. }, _) | (_, Infinity { .. }) => Infinity { negative: sign },
            (
                Number { magnitude: m1, exponent: e1, .. },
                Number { magnitude: m2, exponent: e2, .. },
            ) => Number { negative: sign, magnitude: m1 * m2, exponent: e1 + e2 },
        }
    }

    /// The quotient to 60 bits or more, with a last bit for the remainder.
    pub(crate) fn divide(self, other: Self) -> Self {
        let sign = self.negative() != other.negative();
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinity { .. }, Infinity { .. }) => Nan,
            (Number { magnitude: 0, .. }, Number { magnitude: 0, .. }) => Nan,
            (Infinity { .. }, _) | (_, Number { magnitude: 0, .. }) => Infinity { negative: sign },
            (_, Infinity { .. }) => Number { negative: sign, magnitude: 0, exponent: 0 },
            (
                Number { magnitude: m1, exponent: e1, .. },
                Number { magnitude: m2, exponent: e2, .. },
            ) => {
                let shift = if m1 == 0 { 0 } else { m1.leading_zeros() as i32 - 4 };
                let numerator = m1 << shift;
                let magnitude = (numerator / m2) << 1 | u128::from(numerator % m2 != 0);
                Number { negative: sign, magnitude, exponent: e1 - shift - e2 - 1 }
            }
        }
    }

    /// The square root to 58 bits or more, with a last bit for the remainder.
    pub(crate) fn square_root(self) -> Self {
        match self {
            Nan | Infinity { negative: true } => Nan,
            Number { magnitude: 0, .. } | Infinity { .. } => self,
            Number { negative: true, .. } => Nan,
            Number { magnitude, exponent, .. } => {
                let mut shift = magnitude.leading_zeros() as i32 - 4;
                shift -= (exponent - shift) & 1;
                let square = magnitude << shift;
                let root = square.isqrt();
                let magnitude = root << 1 | u128::from(root * root != square);
                Number { negative: false, magnitude, exponent: (exponent - shift) / 2 - 1 }
            }
        }
    }

    fn negative(self) -> bool {
        matches!(self, Infinity { negative: true } | Number { negative: true, .. })
    }
}

/// `magnitude >> shift`, what falls off, and half of the unit that it is measured by.
fn cut(magnitude: u128, shift: i32) -> (u128, u128, u128) {
    match shift {
        ..=0 => (magnitude << -shift, 0, 1),
        1..=127 => (magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << (shift - 1)),
        // All of it is less than half.
        _ => (0, u128::from(magnitude != 0), u128::MAX),
    }
}

/// The reference itself, against the host's arithmetic.
#[test]
fn the_reference_agrees_with_the_host() {
    for i in 0..20_000u64 {
        let word = |j| crate::operands::mix(i * 4 + j);
        let (a, b) = (f32::from_bits(word(0) as u32), f32::from_bits(word(1) as u32));
        let value = |x: f32| Value::decode(u64::from(x.to_bits()), F32);
        let check = |got: Value, want: f32| {
            let bits = got.encode(F32, Rounding::NearestEven);
            assert_eq!(bits, (!want.is_nan()).then_some(u64::from(want.to_bits())), "{a:e} {b:e}");
        };
        check(value(a).multiply(value(b)), a * b);
        check(value(a).divide(value(b)), a / b);
        check(value(a).square_root(), a.sqrt());
        check(Value::decode(word(2), F64), f64::from_bits(word(2)) as f32);
        if (a.to_bits() >> 23 & 255).abs_diff(b.to_bits() >> 23 & 255) < 90 {
            check(value(a).add(value(b), Rounding::NearestEven), a + b);
        }
    }
}
