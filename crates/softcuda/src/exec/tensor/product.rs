//! Products of dense matrices.
//!
//! Floating-point sums are formed as an H200 forms them: all products of a row and a column and the
//! accumulator's element are aligned to the largest exponent with 25 fraction bits, cut off there,
//! added exactly, and the sum is cut to `.f32`. `.f64` is a chain of fused multiply-adds in the
//! order of `k`.

use super::{Element, Multiply};
use crate::exec::alu::float::{Round, soft};
use crate::exec::alu::half::Half;
use crate::exec::alu::lane::F16;

/// Largest extent of a matrix besides `k`.
pub(in crate::exec) const EXTENT: usize = 32;
/// Most words of a row of A or a column of B.
pub(in crate::exec) const WORDS: usize = 8;
/// Most elements of a row of A or a column of B that are no integers.
const DEPTH: usize = 32;

/// Rows of A or columns of B as words of elements along `k`.
pub(in crate::exec) type Words = [[u32; WORDS]; EXTENT];
/// C or D: `.f32` bits, or integers.
pub(in crate::exec) type Accumulator = [[u32; EXTENT]; EXTENT];

/// Fraction bits of a multiplicand's significand.
const FRACTION: i32 = 12;
/// Fraction bits of aligned terms.
const ALIGNED: i32 = 25;
/// Exponent of zero: below all others, also in sums.
const ZERO_EXPONENT: i32 = -20_000;
/// The NaN that the hardware produces.
const NAN: u32 = 0x7fff_ffff;

/// One row of A or one column of B, taken apart.
struct Vector {
    /// Signed significands with [`FRACTION`] fraction bits.
    significand: [i32; DEPTH],
    exponent: [i32; DEPTH],
    /// Whether all elements are finite.
    is_finite: bool,
    value: [f32; DEPTH],
}

/// Exponent and fraction bits of a floating-point type, and where it lies in its container.
fn layout(element: Element) -> (u32, u32, u32) {
    match element {
        Element::F16 => (5, 10, 0),
        Element::Bf16 => (8, 7, 0),
        // The lower bits of the register are ignored.
        Element::Tf32 => (8, 10, 13),
        Element::E4m3 => (4, 3, 0),
        _ => (5, 2, 0),
    }
}

fn split(element: Element, bits: u32) -> (i32, i32, f32) {
    let (exponent_bits, fraction_bits, shift) = layout(element);
    let bits = bits >> shift;
    let fraction = (bits & ((1 << fraction_bits) - 1)) as i32;
    let field = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
    let negative = bits >> (fraction_bits + exponent_bits) & 1 != 0;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let magnitude = if field == 0 { fraction } else { fraction | 1 << fraction_bits };
    let significand = magnitude << (FRACTION - fraction_bits as i32);
    let significand = if negative { -significand } else { significand };
    let exponent = if magnitude == 0 { ZERO_EXPONENT } else { field.max(1) - bias };
    let largest = field == (1 << exponent_bits) - 1;
    let is_nan = largest && if element == Element::E4m3 { fraction == 7 } else { fraction != 0 };
    let is_infinite = largest && element != Element::E4m3;
    // Finite values matter by their sign and by being zero or not, beside others that are not
    // finite.
    let value = match (is_nan, is_infinite) {
        (true, _) => f32::NAN,
        (_, true) if negative => f32::NEG_INFINITY,
        (_, true) => f32::INFINITY,
        _ => significand.signum() as f32,
    };
    (significand, exponent, value)
}

impl Vector {
    fn new(element: Element, words: &[u32; WORDS], k: usize) -> Self {
        let mut vector = Vector {
            significand: [0; DEPTH],
            exponent: [ZERO_EXPONENT; DEPTH],
            is_finite: true,
            value: [0.0; DEPTH],
        };
        let bits = element.bits();
        let per_word = 32 / bits;
        for index in 0..k.min(DEPTH) {
            let word = words[index / per_word] >> (index % per_word * bits);
            let word = if bits == 32 { word } else { word & ((1 << bits) - 1) };
            let (significand, exponent, value) = split(element, word);
            vector.significand[index] = significand;
            vector.exponent[index] = exponent;
            vector.value[index] = value;
            vector.is_finite &= value.is_finite();
        }
        vector
    }
}

/// `a . b + c` of the first `K` elements.
// Elements of several arrays are walked in step.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn dot<const K: usize>(a: &Vector, b: &Vector, c: u32) -> u32 {
    let field = (c >> 23 & 0xff) as i32;
    if !a.is_finite || !b.is_finite || field == 0xff {
        return special_dot(a, b, c);
    }
    let fraction = c & 0x7f_ffff;
    let magnitude = if field == 0 { fraction } else { fraction | 1 << 23 };
    let c_exponent = if magnitude == 0 { ZERO_EXPONENT } else { field.max(1) - 127 };
    let mut exponent = [0; K];
    let mut largest = c_exponent;
    for k in 0..K {
        exponent[k] = a.exponent[k] + b.exponent[k];
        largest = largest.max(exponent[k]);
    }
    if largest < ZERO_EXPONENT / 2 {
        return 0;
    }
    let mut sum = 0i64;
    for k in 0..K {
        let product = a.significand[k] * b.significand[k];
        let sign = product >> 31;
        let magnitude = (product ^ sign) - sign;
        let magnitude = (magnitude << (ALIGNED - 2 * FRACTION)) as u32;
        let aligned = (magnitude >> (largest - exponent[k]).min(31)) as i32;
        sum += i64::from((aligned ^ sign) - sign);
    }
    let aligned = i64::from((magnitude << (ALIGNED - 23)) >> (largest - c_exponent).min(31));
    sum += if c >> 31 != 0 { -aligned } else { aligned };
    cut(sum, largest - ALIGNED)
}

/// `sum * 2^exponent` as `.f32` bits, rounded towards zero.
#[inline(always)]
fn cut(sum: i64, exponent: i32) -> u32 {
    if sum == 0 {
        return 0;
    }
    let sign = if sum < 0 { 1 << 31 } else { 0 };
    let magnitude = sum.unsigned_abs();
    let top = 63 - magnitude.leading_zeros() as i32;
    let field = exponent + top + 127;
    if field >= 255 {
        return sign | 0x7f80_0000;
    }
    // Position of the last kept bit: that of the subnormals at least.
    let shift = top - 23 + (1 - field).max(0);
    let kept = if shift >= 0 {
        magnitude.checked_shr(shift as u32).unwrap_or(0)
    } else {
        magnitude << -shift
    };
    let fraction = kept as u32 & 0x7f_ffff;
    if field <= 0 { sign | kept as u32 } else { sign | (field as u32) << 23 | fraction }
}

/// With infinities or NaN among the elements.
#[cold]
fn special_dot(a: &Vector, b: &Vector, c: u32) -> u32 {
    let products = a.value.iter().zip(&b.value).map(|(a, b)| a * b);
    let c = f32::from_bits(c);
    let sum = products.sum::<f32>() + if c.is_finite() { 0.0 } else { c };
    if sum.is_nan() { NAN } else { sum.to_bits() }
}

/// `.satfinite` of a floating-point result.
fn finite(bits: u32, largest: f32) -> u32 {
    let x = f32::from_bits(bits);
    if x.is_nan() { 0 } else { x.clamp(-largest, largest).to_bits() }
}

/// D of products whose accumulators are `.f32` or `.f16` (given and returned as `.f32` bits).
#[inline(always)]
pub(in crate::exec) fn float(form: Multiply, a: &Words, b: &Words, c: &mut Accumulator) {
    let shape = form.shape;
    let mut columns: [Vector; EXTENT] =
        std::array::from_fn(|_| Vector::new(form.b, &[0; WORDS], 0));
    for (vector, words) in columns.iter_mut().zip(b).take(shape.n) {
        *vector = Vector::new(form.b, words, shape.k);
    }
    for (words, row) in a.iter().zip(c).take(shape.m) {
        let vector = Vector::new(form.a, words, shape.k);
        for (column, d) in columns.iter().zip(row).take(shape.n) {
            *d = match shape.k {
                ..=8 => dot::<8>(&vector, column, *d),
                16 => dot::<16>(&vector, column, *d),
                _ => dot::<DEPTH>(&vector, column, *d),
            };
            if form.manner.saturates {
                let largest = if form.d == Element::F16 { 65504.0 } else { f32::MAX };
                *d = finite(*d, largest);
            }
        }
    }
}

/// An `.f16` as `.f32` bits.
pub(in crate::exec) fn widen(half: u16) -> u32 {
    F16(half).to_f32().to_bits()
}

/// `.f32` bits as the nearest `.f16`.
pub(in crate::exec) fn narrow(bits: u32) -> u16 {
    F16::nearest(f32::from_bits(bits)).0
}

/// D of products of integers and bits.
#[inline(always)]
pub(in crate::exec) fn integer(form: Multiply, a: &Words, b: &Words, c: &mut Accumulator) {
    let (shape, bits) = (form.shape, form.a.bits());
    let words = shape.k * bits / 32;
    let (a_signed, b_signed) = (is_signed(form.a), is_signed(form.b));
    for (a, row) in a.iter().zip(c).take(shape.m) {
        for (b, d) in b.iter().zip(row).take(shape.n) {
            let mut sum = i64::from(*d as i32);
            for (&a, &b) in a[..words].iter().zip(&b[..words]) {
                sum += match bits {
                    1 => i64::from(if form.manner.exclusive { a ^ b } else { a & b }.count_ones()),
                    4 => word_dot::<4>(a, b, a_signed, b_signed),
                    _ => word_dot::<8>(a, b, a_signed, b_signed),
                };
            }
            *d = if form.manner.saturates {
                sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
            } else {
                sum as u32
            };
        }
    }
}

fn is_signed(element: Element) -> bool {
    matches!(element, Element::S8 | Element::S4)
}

/// The sum of products of the `BITS`-wide integers of two words.
#[inline(always)]
fn word_dot<const BITS: u32>(a: u32, b: u32, a_signed: bool, b_signed: bool) -> i64 {
    let part = |word: u32, at: u32, signed: bool| {
        let top = word << (32 - BITS - at);
        if signed { top as i32 >> (32 - BITS) } else { (top >> (32 - BITS)) as i32 }
    };
    let mut sum = 0;
    for index in 0..32 / BITS {
        sum += part(a, index * BITS, a_signed) * part(b, index * BITS, b_signed);
    }
    i64::from(sum)
}

/// Rows of A or columns of B, C or D of `.f64`.
pub(in crate::exec) type Doubles = [[f64; 16]; 16];

/// D of products of `.f64`.
pub(in crate::exec) fn double(form: Multiply, a: &Doubles, b: &Doubles, c: &mut Doubles) {
    let mode = match form.manner.rounding {
        0 => Round::Nearest,
        1 => Round::Zero,
        2 => Round::Down,
        _ => Round::Up,
    };
    for (a, row) in a.iter().zip(c).take(form.shape.m) {
        for (b, d) in b.iter().zip(row).take(form.shape.n) {
            for (&a, &b) in a[..form.shape.k].iter().zip(b) {
                *d = match mode {
                    Round::Nearest => a.mul_add(b, *d),
                    mode => soft::fma(a, b, *d, mode),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::tensor::{Manner, Shape};

    fn single(element: Element, a: u32, b: u32, c: f32) -> f32 {
        let shape = if element == Element::Tf32 { "m16n8k8" } else { "m16n8k16" };
        let form = Multiply {
            shape: Shape::from_modifier(shape).unwrap(),
            a: element,
            b: element,
            c: Element::F32,
            d: Element::F32,
            manner: Manner::default(),
        };
        let (mut rows, mut columns) = ([[0; WORDS]; EXTENT], [[0; WORDS]; EXTENT]);
        rows[0][0] = a;
        columns[0][0] = b;
        let mut d = [[0; EXTENT]; EXTENT];
        d[0][0] = c.to_bits();
        float(form, &rows, &columns, &mut d);
        f32::from_bits(d[0][0])
    }

    #[test]
    fn special_values_follow_ieee() {
        let (one, infinity, nan, tiny) = (0x3c00, 0x7c00, 0x7e00, 0x0001);
        assert_eq!(single(Element::F16, one, one, 0.5), 1.5);
        assert_eq!(single(Element::F16, infinity, one, 1.0), f32::INFINITY);
        assert_eq!(single(Element::F16, infinity, 0xbc00, 1.0), f32::NEG_INFINITY);
        assert_eq!(single(Element::F16, infinity, 0, 1.0).to_bits(), NAN);
        assert_eq!(single(Element::F16, nan, one, 1.0).to_bits(), NAN);
        assert_eq!(single(Element::F16, infinity, one, f32::NEG_INFINITY).to_bits(), NAN);
        assert_eq!(single(Element::F16, one, one, f32::INFINITY), f32::INFINITY);
        assert_eq!(single(Element::F16, tiny, one, 0.0), 2f32.powi(-24), "subnormals count");
        assert_eq!(single(Element::E4m3, 0x7f, 0x38, 0.0).to_bits(), NAN, "its only NaN");
        assert_eq!(single(Element::E4m3, 0x78, 0x38, 0.0), 256.0, "no infinity");
        assert_eq!(single(Element::Bf16, 0x0080, 0x3f00, 0.0), f32::MIN_POSITIVE / 2.0);
    }

    #[test]
    fn sums_are_cut_off_not_rounded() {
        // One and three quarters of its last bit.
        let c = 1.0;
        let part = single(Element::Tf32, 2f32.powi(-12).to_bits(), 1.75f32.to_bits(), c);
        assert_eq!(part, 1.0 + 1.75 * 2f32.powi(-12));
        let lost = single(Element::Tf32, 2f32.powi(-24).to_bits(), 1.75f32.to_bits(), c);
        assert_eq!(lost, 1.0);
    }

    #[test]
    fn doubles_are_rounded_as_asked() {
        let sum = |rounding| {
            let form = Multiply {
                shape: Shape::from_modifier("m8n8k4").unwrap(),
                a: Element::F64,
                b: Element::F64,
                c: Element::F64,
                d: Element::F64,
                manner: Manner { rounding, ..Manner::default() },
            };
            let (mut a, mut b, mut c) = ([[0.0; 16]; 16], [[0.0; 16]; 16], [[0.0; 16]; 16]);
            (a[0][0], b[0][0], c[0][0]) = (1.0, -(2f64.powi(-80)), 1.0);
            double(form, &a, &b, &mut c);
            c[0][0]
        };
        assert_eq!([0, 1, 2, 3].map(sum), [1.0, 1f64.next_down(), 1f64.next_down(), 1.0]);
    }
}
