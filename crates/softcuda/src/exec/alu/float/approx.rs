//! The `.approx` functions: `rcp sqrt rsqrt sin cos lg2 ex2 tanh`, and the gross ones of `.f64`.
//!
//! Polynomials without branches, so that the loops vectorise, and without fused operations, which
//! hosts may lack. The error of each is stated at its definition and lies within what the PTX ISA
//! allows.

use super::arith::finish;
use super::{Float, Full, Subnormals};
use crate::exec::alu::op::op;

op! {
    /// `rsqrt.approx{.ftz}.f32`: relative error at most 2^-22.9
    unary Rsqrt<Z: Subnormals>(a: f32) -> f32 { finish::<f32, Z, Full>(1.0 / Z::apply(a).sqrt()) }
    /// `rsqrt.approx.f64`: correctly rounded root and quotient
    unary RsqrtDouble<>(a: f64) -> f64 { 1.0 / a.sqrt() }
    /// `rcp.approx.ftz.f64`: from the upper word, to the upper word
    unary RcpGross<>(a: f64) -> f64 { gross(a, |x| 1.0 / x) }
    /// `rsqrt.approx.ftz.f64`: from the upper word, to the upper word
    unary RsqrtGross<>(a: f64) -> f64 { gross(a, |x| 1.0 / x.sqrt()) }
    /// `sin.approx{.ftz}.f32`: absolute error at most 2^-20.5 in [-2pi, 2pi]
    unary Sin<Z: Subnormals>(a: f32) -> f32 { finish::<f32, Z, Full>(sin(Z::apply(a))) }
    /// `cos.approx{.ftz}.f32`: absolute error at most 2^-20.5 in [-2pi, 2pi]
    unary Cos<Z: Subnormals>(a: f32) -> f32 { finish::<f32, Z, Full>(cos(Z::apply(a))) }
    /// `lg2.approx{.ftz}.f32`: error at most 2^-22, absolute where the result is below 1, else
    /// relative
    unary Lg2<Z: Subnormals>(a: f32) -> f32 { finish::<f32, Z, Full>(log2(Z::apply(a))) }
    /// `ex2.approx{.ftz}.f32`: at most 2 units in the last place
    unary Ex2<Z: Subnormals>(a: f32) -> f32 { finish::<f32, Z, Full>(exp2(Z::apply(a))) }
    /// `tanh.approx.f32`: relative error at most 2^-11
    unary Tanh<>(a: f32) -> f32 { tanh(a).canonical() }
}

/// `f` of `a`'s upper word, rounded to an upper word, subnormals flushed.
#[inline(always)]
fn gross(a: f64, f: impl Fn(f64) -> f64) -> f64 {
    let upper = |bits: u64| f64::from_bits(bits & !0xffff_ffff).flushed();
    let r = f(upper(a.to_bits()));
    // Half a unit of the upper word; infinities have a zero fraction and keep it.
    let rounded = upper(r.to_bits());
    if r.is_nan() { f64::from_bits(0x7fff_ffff_0000_0000) } else { rounded }
}

/// 2^x, relative error about 2^-23.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = if x.is_nan() { x } else { x.clamp(-160.0, 160.0) };
    let whole = x.round_ties_even();
    let t = f64::from(x - whole);
    // Taylor series of 2^t in [-1/2, 1/2]: the first term left out is 1.2e-10.
    let mut p = 1.525_273_380_405_984e-5;
    for c in [
        1.540_353_039_338_161e-4,
        1.333_355_814_642_844_3e-3,
        9.618_129_107_628_477e-3,
        5.550_410_866_482_158e-2,
        2.402_265_069_591_007e-1,
        core::f64::consts::LN_2,
        1.0,
    ] {
        p = p * t + c;
    }
    let scale = f64::from_bits(((whole as i32 + 1023) as u64) << 52);
    let r = (p * scale) as f32;
    if x.is_nan() { x } else { r }
}

/// Logarithm to base 2; exact at powers of two.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    // A double holds every subnormal as a normal number.
    let bits = f64::from(x).to_bits();
    // The exponent is chosen so that the fraction lies in [sqrt(1/2), sqrt(2)).
    let offset = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let exponent = (offset as i64 >> 52) as i32;
    let m = f64::from_bits(bits.wrapping_sub((i64::from(exponent) << 52) as u64));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    // 2 artanh(s) / ln 2, |s| < 0.172: the first term left out is 1e-11.
    let mut p = 2.0 / 13.0;
    for c in [2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
        p = p * z + c;
    }
    let r = (f64::from(exponent) + p * s * core::f64::consts::LOG2_E) as f32;
    if x > 0.0 && x < f32::INFINITY {
        r
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// The angle less the nearest multiple of pi, and whether that multiple is odd; NaN for infinities.
#[inline(always)]
fn reduce(x: f64) -> (f64, bool) {
    // Beyond this the result is of no use, as on the hardware, but stays a sine of something.
    let n = (x * core::f64::consts::FRAC_1_PI).round_ties_even();
    let r = x - n * core::f64::consts::PI - n * 1.224_646_799_147_353_2e-16;
    let half = n * 0.5;
    (
        if r.abs() <= 2.0 {
            r
        } else if x.is_finite() {
            0.0
        } else {
            f64::NAN
        },
        half != half.round_ties_even(),
    )
}

#[inline(always)]
fn sin(x: f32) -> f32 {
    let (r, odd) = reduce(f64::from(x));
    let z = r * r;
    // Taylor series in [-pi/2, pi/2]: the first term left out is 6e-8.
    let mut p = -2.505_210_838_544_172e-8;
    for c in [
        2.755_731_922_398_589e-6,
        -1.984_126_984_126_984e-4,
        8.333_333_333_333_333e-3,
        -1.666_666_666_666_666_6e-1,
    ] {
        p = p * z + c;
    }
    let s = (r + r * z * p) as f32;
    let s = if odd { -s } else { s };
    // Keeps the sign of zero.
    if x == 0.0 { x } else { s }
}

#[inline(always)]
fn cos(x: f32) -> f32 {
    let (r, odd) = reduce(f64::from(x));
    let z = r * r;
    // Taylor series in [-pi/2, pi/2]: the first term left out is 7e-9.
    let mut p = 2.087_675_698_786_81e-9;
    for c in [
        -2.755_731_922_398_589e-7,
        2.480_158_730_158_73e-5,
        -1.388_888_888_888_889e-3,
        4.166_666_666_666_666_4e-2,
        -0.5,
        1.0,
    ] {
        p = p * z + c;
    }
    let c = p as f32;
    if odd { -c } else { c }
}

/// Hyperbolic tangent, relative error below 2^-20.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs().min(16.0);
    let t = exp2(a * (2.0 * core::f32::consts::LOG2_E));
    let large = 1.0 - 2.0 / (t + 1.0);
    // Near zero the difference above cancels; the series' first term left out is 3e-7 of the
    // result.
    let z = a * a;
    let small =
        a * (1.0 + z * (-1.0 / 3.0 + z * (2.0 / 15.0 + z * (-17.0 / 315.0 + z * (62.0 / 2835.0)))));
    let r = if a < 0.25 { small } else { large };
    if x.is_nan() { x } else { r.copysign(x) }
}
