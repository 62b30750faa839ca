//! Floating-point arithmetic with plain integers: every operation is computed exactly and rounded
//! once.
//!
//! Slow on purpose, and without the host's floating-point unit, so that it shares no rounding,
//! flushing or NaN rule with what it judges. Source: PTX ISA, "Floating Point Instructions"; NaN
//! results are the canonical ones of the ISA.

use std::cmp::Ordering;

use crate::wide::Wide;

/// A binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    exponent_bits: u32,
    pub(crate) fraction_bits: u32,
    /// The NaN that instructions return.
    pub(crate) nan: u64,
}

pub(crate) const F16: Format = Format { exponent_bits: 5, fraction_bits: 10, nan: 0x7fff };
pub(crate) const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7, nan: 0x7fff };
pub(crate) const F32: Format = Format { exponent_bits: 8, fraction_bits: 23, nan: 0x7fff_ffff };
/// As the high 19 bits of a word.
pub(crate) const TF32: Format = Format { exponent_bits: 8, fraction_bits: 10, nan: 0x3_ffff };
/// Its NaN is the one that generated programs put in place of every NaN: the ISA leaves the bits
/// open.
pub(crate) const F64: Format =
    Format { exponent_bits: 11, fraction_bits: 52, nan: 0x7ff8_0000_0000_0000 };

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    NearestEven,
    NearestAway,
    Zero,
    Down,
    Up,
}

/// What happens to subnormal operands and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subnormals {
    Keep,
    /// `.ftz`
    Flush,
}

/// `mantissa * 2^exponent`, negated or not; a mantissa of 0 is a signed zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exact {
    pub(crate) negative: bool,
    pub(crate) mantissa: Wide,
    pub(crate) exponent: i32,
}

/// A decoded number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Nan,
    Infinite { negative: bool },
    Finite(Exact),
}

impl Format {
    pub(crate) fn bits(self) -> u32 {
        1 + self.exponent_bits + self.fraction_bits
    }

    pub(crate) fn sign_bit(self) -> u64 {
        1 << (self.bits() - 1)
    }

    pub(crate) fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// 1.0
    pub(crate) fn one(self) -> u64 {
        ((1 << (self.exponent_bits - 1)) - 1) << self.fraction_bits
    }

    fn least_exponent(self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    pub(crate) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign_bit() - 1) > self.infinity()
    }

    pub(crate) fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign_bit() - 1);
        magnitude != 0 && magnitude >> self.fraction_bits == 0
    }

    /// Subnormal numbers become zeros of their sign.
    pub(crate) fn flushed(self, bits: u64, subnormals: Subnormals) -> u64 {
        if subnormals == Subnormals::Flush && self.is_subnormal(bits) {
            bits & self.sign_bit()
        } else {
            bits
        }
    }

    pub(crate) fn decode(self, bits: u64) -> Number {
        let negative = bits & self.sign_bit() != 0;
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let biased = bits >> self.fraction_bits & ((1 << self.exponent_bits) - 1);
        if biased == (1 << self.exponent_bits) - 1 {
            return if fraction == 0 { Number::Infinite { negative } } else { Number::Nan };
        }
        let implicit = if biased == 0 { 0 } else { 1 << self.fraction_bits };
        let exponent = self.least_exponent() + biased.max(1) as i32 - 1 - self.fraction_bits as i32;
        let mantissa = Wide::new(u128::from(fraction | implicit));
        Number::Finite(Exact { negative, mantissa, exponent })
    }

    /// The nearest number of this format in the given direction.
    pub(crate) fn round(self, exact: Exact, mode: Round) -> u64 {
        let sign = if exact.negative { self.sign_bit() } else { 0 };
        let Exact { mantissa, exponent, negative } = exact;
        if mantissa == Wide::ZERO {
            return sign;
        }
        let top = mantissa.bits() as i32 - 1 + exponent;
        let scale = top.max(self.least_exponent());
        let dropped = scale - self.fraction_bits as i32 - exponent;
        let quotient = if dropped <= 0 {
            mantissa.shifted_left(-dropped as u32).low_after_shift(0)
        } else {
            let dropped = dropped as u32;
            let kept = mantissa.low_after_shift(dropped);
            let half = mantissa.bit(dropped - 1);
            let below = mantissa.any_below(dropped - 1);
            let up = match mode {
                Round::NearestEven => half && (below || kept & 1 == 1),
                Round::NearestAway => half,
                Round::Zero => false,
                Round::Down => negative && (half || below),
                Round::Up => !negative && (half || below),
            };
            kept + u64::from(up)
        };
        // The implicit bit of a normal number adds the missing 1 to the exponent field.
        let magnitude = (((scale - self.least_exponent()) as u64) << self.fraction_bits) + quotient;
        if scale - self.least_exponent() >= (1 << self.exponent_bits) - 2
            || magnitude >= self.infinity()
        {
            return sign | self.overflow(negative, mode);
        }
        sign | magnitude
    }

    fn overflow(self, negative: bool, mode: Round) -> u64 {
        let largest = match mode {
            Round::NearestEven | Round::NearestAway => false,
            Round::Zero => true,
            Round::Down => !negative,
            Round::Up => negative,
        };
        self.infinity() - u64::from(largest)
    }

    fn finish(self, exact: Exact, mode: Round, subnormals: Subnormals) -> u64 {
        self.flushed(self.round(exact, mode), subnormals)
    }

    fn signed_infinity(self, negative: bool) -> u64 {
        self.infinity() | if negative { self.sign_bit() } else { 0 }
    }

    /// `a + b`
    pub(crate) fn add(self, a: u64, b: u64, mode: Round, subnormals: Subnormals) -> u64 {
        let (a, b) = (self.flushed(a, subnormals), self.flushed(b, subnormals));
        self.sum(self.decode(a), self.decode(b), mode, subnormals)
    }

    /// `a * b`
    pub(crate) fn multiply(self, a: u64, b: u64, mode: Round, subnormals: Subnormals) -> u64 {
        let (a, b) = (self.flushed(a, subnormals), self.flushed(b, subnormals));
        match product(self.decode(a), self.decode(b)) {
            Number::Nan => self.nan,
            Number::Infinite { negative } => self.signed_infinity(negative),
            Number::Finite(exact) => self.finish(exact, mode, subnormals),
        }
    }

    /// `a * b + c`, rounded once
    pub(crate) fn fused(self, abc: [u64; 3], mode: Round, subnormals: Subnormals) -> u64 {
        let [a, b, c] = abc.map(|bits| self.decode(self.flushed(bits, subnormals)));
        self.sum(product(a, b), c, mode, subnormals)
    }

    fn sum(self, a: Number, b: Number, mode: Round, subnormals: Subnormals) -> u64 {
        match (a, b) {
            (Number::Nan, _) | (_, Number::Nan) => self.nan,
            (Number::Infinite { negative: x }, Number::Infinite { negative: y }) if x != y => {
                self.nan
            }
            (Number::Infinite { negative }, _) | (_, Number::Infinite { negative }) => {
                self.signed_infinity(negative)
            }
            (Number::Finite(x), Number::Finite(y)) => {
                self.finish(exact_sum(x, y, mode), mode, subnormals)
            }
        }
    }

    /// `a / b`
    pub(crate) fn divide(self, a: u64, b: u64, mode: Round, subnormals: Subnormals) -> u64 {
        let (a, b) = (self.flushed(a, subnormals), self.flushed(b, subnormals));
        let negative = (a ^ b) & self.sign_bit() != 0;
        match (self.decode(a), self.decode(b)) {
            (Number::Nan, _)
            | (_, Number::Nan)
            | (Number::Infinite { .. }, Number::Infinite { .. }) => self.nan,
            (Number::Infinite { .. }, _) => self.signed_infinity(negative),
            (_, Number::Infinite { .. }) => self.signed_infinity(negative) & self.sign_bit(),
            (Number::Finite(x), Number::Finite(y)) => {
                if y.mantissa == Wide::ZERO {
                    if x.mantissa == Wide::ZERO {
                        return self.nan;
                    }
                    return self.signed_infinity(negative);
                }
                let shift = 120 - x.mantissa.bits();
                let numerator = u128::from(x.mantissa.low_after_shift(0)) << shift;
                let denominator = u128::from(y.mantissa.low_after_shift(0));
                let inexact = u128::from(numerator % denominator != 0);
                // One more bit below the quotient says that there is a remainder.
                let mantissa = Wide::new(((numerator / denominator) << 1) | inexact);
                let exponent = x.exponent - y.exponent - shift as i32 - 1;
                self.finish(Exact { negative, mantissa, exponent }, mode, subnormals)
            }
        }
    }

    /// The square root.
    pub(crate) fn square_root(self, a: u64, mode: Round, subnormals: Subnormals) -> u64 {
        let a = self.flushed(a, subnormals);
        match self.decode(a) {
            Number::Nan | Number::Infinite { negative: true } => self.nan,
            Number::Infinite { .. } => a,
            Number::Finite(x) if x.mantissa == Wide::ZERO => a,
            Number::Finite(x) if x.negative => self.nan,
            Number::Finite(x) => {
                let mut shift = 118 - x.mantissa.bits();
                shift += u32::from((x.exponent - shift as i32) % 2 != 0);
                let radicand = u128::from(x.mantissa.low_after_shift(0)) << shift;
                let root = integer_root(radicand);
                let inexact = u128::from(root * root != radicand);
                let mantissa = Wide::new(root << 1 | inexact);
                let exponent = (x.exponent - shift as i32) / 2 - 1;
                self.finish(Exact { negative: false, mantissa, exponent }, mode, subnormals)
            }
        }
    }

    /// The order of two numbers; `None` when one is NaN.
    pub(crate) fn compare(self, a: u64, b: u64, subnormals: Subnormals) -> Option<Ordering> {
        let (a, b) = (self.flushed(a, subnormals), self.flushed(b, subnormals));
        if self.is_nan(a) || self.is_nan(b) {
            return None;
        }
        Some(self.key(a).cmp(&self.key(b)))
    }

    /// Sign and magnitude as one number; both zeros are 0.
    fn key(self, bits: u64) -> i128 {
        let magnitude = i128::from(bits & (self.sign_bit() - 1));
        if bits & self.sign_bit() != 0 { -magnitude } else { magnitude }
    }

    /// A number of format `from` in this one.
    pub(crate) fn convert(self, bits: u64, from: Format, mode: Round) -> u64 {
        match from.decode(bits) {
            Number::Nan => self.nan,
            Number::Infinite { negative } => self.signed_infinity(negative),
            Number::Finite(exact) => self.round(exact, mode),
        }
    }

    /// Clamped to [0, 1]; NaN becomes 0.
    pub(crate) fn saturated(self, bits: u64) -> u64 {
        if self.is_nan(bits) || bits & self.sign_bit() != 0 { 0 } else { bits.min(self.one()) }
    }

    /// Negative numbers become 0.
    pub(crate) fn rectified(self, bits: u64) -> u64 {
        if self.is_nan(bits) {
            self.nan
        } else if bits & self.sign_bit() != 0 {
            0
        } else {
            bits
        }
    }
}

fn product(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Infinite { negative: x }, Number::Infinite { negative: y }) => {
            Number::Infinite { negative: x != y }
        }
        (Number::Infinite { negative }, Number::Finite(other))
        | (Number::Finite(other), Number::Infinite { negative }) => {
            if other.mantissa == Wide::ZERO {
                Number::Nan
            } else {
                Number::Infinite { negative: negative != other.negative }
            }
        }
        (Number::Finite(x), Number::Finite(y)) => {
            let mantissa = u128::from(x.mantissa.low_after_shift(0))
                * u128::from(y.mantissa.low_after_shift(0));
            Number::Finite(Exact {
                negative: x.negative != y.negative,
                mantissa: Wide::new(mantissa),
                exponent: x.exponent + y.exponent,
            })
        }
    }
}

/// The sum, exact except that an addend more than 64 bits below the other's lowest bit counts as a
/// tiny amount of its sign.
fn exact_sum(a: Exact, b: Exact, mode: Round) -> Exact {
    let zero = |x: &Exact| x.mantissa == Wide::ZERO;
    match (zero(&a), zero(&b)) {
        (true, true) => {
            let negative = if a.negative == b.negative { a.negative } else { mode == Round::Down };
            return Exact { negative, ..a };
        }
        (true, false) => return b,
        (false, true) => return a,
        (false, false) => {}
    }
    let top = |x: &Exact| x.exponent + x.mantissa.bits() as i32;
    let (large, mut small) = if top(&a) >= top(&b) { (a, b) } else { (b, a) };
    if top(&small) < large.exponent - 64 {
        small = Exact { mantissa: Wide::new(1), exponent: large.exponent - 65, ..small };
    }
    let exponent = large.exponent.min(small.exponent);
    let x = large.mantissa.shifted_left((large.exponent - exponent) as u32);
    let y = small.mantissa.shifted_left((small.exponent - exponent) as u32);
    if large.negative == small.negative {
        return Exact { negative: large.negative, mantissa: x.plus(y), exponent };
    }
    if x == y {
        return Exact { negative: mode == Round::Down, mantissa: Wide::ZERO, exponent };
    }
    if x.is_less(y) {
        Exact { negative: small.negative, mantissa: y.minus(x), exponent }
    } else {
        Exact { negative: large.negative, mantissa: x.minus(y), exponent }
    }
}

fn integer_root(radicand: u128) -> u128 {
    let mut root = 0u128;
    for bit in (0..64).rev() {
        let trial = root | 1 << bit;
        if trial * trial <= radicand {
            root = trial;
        }
    }
    root
}

#[cfg(test)]
mod tests {
    use super::{F16, F32, F64, Round, Subnormals};
    use crate::random::Random;

    /// The host's own arithmetic rounds to nearest even: an independent check of the most used
    /// mode.
    #[test]
    fn nearest_even_agrees_with_the_host() {
        let mut random = Random::new(1);
        let keep = Subnormals::Keep;
        let nearest = Round::NearestEven;
        for _ in 0..200_000 {
            let mut number = || {
                let bits = random.bits();
                if random.chance(50) {
                    bits
                } else {
                    bits & 0x801f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000
                }
            };
            let (a, b, c) = (number(), number(), number());
            let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
            let canonical = |value: f64| if value.is_nan() { F64.nan } else { value.to_bits() };
            assert_eq!(F64.add(a, b, nearest, keep), canonical(x + y), "{x:e} + {y:e}");
            assert_eq!(F64.multiply(a, b, nearest, keep), canonical(x * y), "{x:e} * {y:e}");
            assert_eq!(F64.divide(a, b, nearest, keep), canonical(x / y), "{x:e} / {y:e}");
            assert_eq!(F64.square_root(a, nearest, keep), canonical(x.sqrt()), "sqrt {x:e}");
            let fused = F64.fused([a, b, c], nearest, keep);
            assert_eq!(fused, canonical(x.mul_add(y, z)), "{x:e} * {y:e} + {z:e}");
            let (p, q) = (a >> 32, b >> 32);
            let (x, y) = (f32::from_bits(p as u32), f32::from_bits(q as u32));
            let canonical =
                |value: f32| if value.is_nan() { F32.nan } else { value.to_bits().into() };
            assert_eq!(F32.add(p, q, nearest, keep), canonical(x + y), "{x:e} + {y:e}");
            assert_eq!(F32.convert(a, F64, nearest), canonical(f64::from_bits(a) as f32));
        }
    }

    #[test]
    fn directed_modes_enclose_the_exact_value() {
        let one = F32.one();
        let three = 0x4040_0000;
        let third = |mode| F32.divide(one, three, mode, Subnormals::Keep);
        assert_eq!(third(Round::Up), third(Round::Down) + 1);
        assert_eq!(third(Round::Zero), third(Round::Down));
        // 65520 lies half way between the largest half and infinity.
        let edge = 0x477f_f000;
        assert_eq!(F16.convert(edge, F32, Round::NearestEven), F16.infinity());
        assert_eq!(F16.convert(edge, F32, Round::Zero), F16.infinity() - 1);
    }
}
