//! Exact arithmetic on integers, rounded once to a binary format: the general path behind directed
//! `.f64` rounding, half-precision fma and the narrow conversions.

use super::{Round, Rounding};

/// A binary floating-point format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Stored fraction bits.
    pub(crate) fraction_bits: u32,
    /// Exponent of the unit in the last place of subnormals.
    pub(crate) least_exponent: i32,
    /// Bits of positive infinity, or one more than the largest finite value's where there is none.
    pub(crate) infinity: u64,
}

pub(crate) const F64: Format =
    Format { fraction_bits: 52, least_exponent: -1074, infinity: 0x7ff << 52 };

/// What the rounding of a magnitude gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounded {
    /// The bits below the sign.
    Finite(u64),
    /// Beyond the largest finite value, rounded away from it.
    Overflow,
}

/// Rounds the magnitude `sig * 2^exponent` of a value whose sign is `negative`. The lowest bit of
/// `sig` may be sticky if `sig` has at least two more bits than the format's significand.
#[inline]
pub(crate) fn round(
    format: &Format,
    negative: bool,
    sig: u128,
    exponent: i32,
    mode: Round,
) -> Rounded {
    if sig == 0 {
        return Rounded::Finite(0);
    }
    let leading = exponent + 127 - sig.leading_zeros() as i32;
    let unit = (leading - format.fraction_bits as i32).max(format.least_exponent);
    let shift = unit - exponent;
    let (mut whole, up) = if shift <= 0 {
        (sig << -shift, false)
    } else {
        let (whole, rest, half) = if shift < 128 {
            (sig >> shift, sig & ((1 << shift) - 1), 1u128 << (shift - 1))
        } else {
            (0, 1, 2)
        };
        let up = match mode {
            Round::Nearest => rest > half || rest == half && whole & 1 == 1,
            Round::NearestAway => rest >= half,
            Round::Zero => false,
            Round::Down => negative && rest != 0,
            Round::Up => !negative && rest != 0,
        };
        (whole, up)
    };
    whole += u128::from(up);
    // The implicit bit adds one to the exponent field, and so does a carry out of the fraction.
    let bits = (((unit - format.least_exponent) as u64) << format.fraction_bits) + whole as u64;
    if bits < format.infinity {
        return Rounded::Finite(bits);
    }
    let away = match mode {
        Round::Nearest | Round::NearestAway => true,
        Round::Zero => false,
        Round::Down => negative,
        Round::Up => !negative,
    };
    if away { Rounded::Overflow } else { Rounded::Finite(format.infinity - 1) }
}

/// `sig * 2^exponent` as an `.f64`.
#[inline]
pub(crate) fn round_f64(negative: bool, sig: u128, exponent: i32, mode: Round) -> f64 {
    let bits = match round(&F64, negative, sig, exponent, mode) {
        Rounded::Finite(bits) => bits,
        Rounded::Overflow => F64.infinity,
    };
    f64::from_bits(bits | u64::from(negative) << 63)
}

/// Sign, significand and exponent of a finite value.
#[inline]
pub(crate) fn unpack(x: f64) -> (bool, u64, i32) {
    let bits = x.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let sig = if field == 0 { fraction } else { fraction | 1 << 52 };
    (x.is_sign_negative(), sig, field.max(1) - 1075)
}

/// `a * b`.
#[inline]
pub(crate) fn mul(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a * b;
    }
    let ((an, am, ae), (bn, bm, be)) = (unpack(a), unpack(b));
    round_f64(an != bn, u128::from(am) * u128::from(bm), ae + be, mode)
}

/// `a * b + c`.
#[inline]
pub(crate) fn fma(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return a.mul_add(b, c);
    }
    let ((an, am, ae), (bn, bm, be), (cn, cm, ce)) = (unpack(a), unpack(b), unpack(c));
    let product = u128::from(am) * u128::from(bm);
    let pn = an != bn;
    if product == 0 || cm == 0 {
        return match (product, cm) {
            (0, 0) if pn == cn => c,
            (0, 0) => {
                if mode == Round::Down {
                    -0.0
                } else {
                    0.0
                }
            }
            (0, _) => c,
            _ => round_f64(pn, product, ae + be, mode),
        };
    }
    // Both magnitudes are moved to the top, two bits free for carry and sticky, then the smaller
    // one is aligned.
    let top = |sig: u128, exponent: i32| {
        let shift = sig.leading_zeros() as i32 - 2;
        (sig << shift, exponent - shift)
    };
    let (mut p, pe) = top(product, ae + be);
    let (mut q, qe) = top(u128::from(cm), ce);
    let exponent = pe.max(qe);
    p = shift_sticky(p, exponent - pe);
    q = shift_sticky(q, exponent - qe);
    if pn == cn {
        return round_f64(pn, p + q, exponent, mode);
    }
    match p.cmp(&q) {
        core::cmp::Ordering::Greater => round_f64(pn, p - q, exponent, mode),
        core::cmp::Ordering::Less => round_f64(cn, q - p, exponent, mode),
        core::cmp::Ordering::Equal => {
            if mode == Round::Down {
                -0.0
            } else {
                0.0
            }
        }
    }
}

/// `a / b`.
#[inline]
pub(crate) fn div(a: f64, b: f64, mode: Round) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let ((an, am, ae), (bn, bm, be)) = (unpack(a), unpack(b));
    // At least 64 bits of quotient, and a sticky bit for the remainder.
    let shift = am.leading_zeros() as i32 + 63;
    let (dividend, divisor) = (u128::from(am) << shift, u128::from(bm));
    let quotient = ((dividend / divisor) << 1) | u128::from(dividend % divisor != 0);
    round_f64(an != bn, quotient, ae - shift - be - 1, mode)
}

/// Square root.
#[inline]
pub(crate) fn sqrt(a: f64, mode: Round) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return a.sqrt();
    }
    let (_, sig, exponent) = unpack(a);
    // An even exponent and some 60 bits of root.
    let shift = ((sig.leading_zeros() as i32 + 60) & !1) + (exponent & 1);
    let square = u128::from(sig) << shift;
    let root = square.isqrt();
    round_f64(
        false,
        root << 1 | u128::from(root * root != square),
        (exponent - shift) / 2 - 1,
        mode,
    )
}

/// `sig >> shift`, with the lowest bit set if any bit was lost.
#[inline]
pub(crate) fn shift_sticky(sig: u128, shift: i32) -> u128 {
    if shift <= 0 {
        sig
    } else if shift > 127 {
        u128::from(sig != 0)
    } else {
        sig >> shift | u128::from(sig & ((1 << shift) - 1) != 0)
    }
}

/// An `.f64` as an `.f32`.
#[inline(always)]
pub(crate) fn narrow<R: Rounding>(x: f64) -> f32 {
    super::directed::narrow(x, 0.0, R::MODE)
}

/// An integer of up to 64 bits as an `.f32`.
#[inline]
pub(crate) fn narrow_integer<R: Rounding>(negative: bool, magnitude: u64) -> f32 {
    // The low bits only matter as a whole: a sticky bit keeps what a double can hold.
    let sticky = magnitude >> 11 | u64::from(magnitude & 0x7ff != 0);
    let scaled = if magnitude >> 53 == 0 { magnitude as f64 } else { sticky as f64 * 2048.0 };
    narrow::<R>(if negative { -scaled } else { scaled })
}
