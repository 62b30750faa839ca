//! Addition, multiplication and fma in the rounding modes that the host does not use.
//!
//! `.f32`: the host's double precision gives the exact result as a leading part and a remainder;
//! the nearest `.f32` is then moved by one step where the exact value lies on the other side. This
//! vectorises. `.f64`: exact integers ([`soft`]).

use super::{Round, soft};

/// Operations in a directed mode.
pub(super) trait Directed: Sized {
    /// `self + b`
    fn add(self, b: Self, mode: Round) -> Self;
    /// `self * b`
    fn mul(self, b: Self, mode: Round) -> Self;
    /// `self * b + c`, rounded once
    fn fma(self, b: Self, c: Self, mode: Round) -> Self;
    /// `self / b`
    fn div(self, b: Self, mode: Round) -> Self;
    /// Square root
    fn sqrt(self, mode: Round) -> Self;
}

impl Directed for f32 {
    #[inline(always)]
    fn add(self, b: f32, mode: Round) -> f32 {
        sum(f64::from(self), f64::from(b), mode)
    }

    #[inline(always)]
    fn mul(self, b: f32, mode: Round) -> f32 {
        narrow(f64::from(self) * f64::from(b), 0.0, mode)
    }

    #[inline(always)]
    fn fma(self, b: f32, c: f32, mode: Round) -> f32 {
        sum(f64::from(self) * f64::from(b), f64::from(c), mode)
    }

    #[inline(always)]
    fn div(self, b: f32, mode: Round) -> f32 {
        let nearest = self / b;
        // The product is exact, so the difference has the right sign even where it is rounded.
        let rest = f64::from(self) - f64::from(nearest) * f64::from(b);
        step(nearest, if b.is_sign_negative() { -rest } else { rest }, mode)
    }

    #[inline(always)]
    fn sqrt(self, mode: Round) -> f32 {
        let nearest = self.sqrt();
        step(nearest, f64::from(self) - f64::from(nearest) * f64::from(nearest), mode)
    }
}

/// The exact sum of two doubles in the exponent range of products of `.f32`, rounded to `.f32`.
#[inline(always)]
fn sum(a: f64, b: f64, mode: Round) -> f32 {
    let high = a + b;
    let b_part = high - a;
    let low = (a - (high - b_part)) + (b - b_part);
    let r = narrow(high, low, mode);
    // An exact zero of unlike signs is -0 in this mode only.
    let negative_zero =
        mode == Round::Down && high == 0.0 && (a.is_sign_negative() || b.is_sign_negative());
    if negative_zero { -0.0 } else { r }
}

/// `high + low` rounded to `.f32`, where `high` is the nearest double of that sum.
#[inline(always)]
pub(super) fn narrow(high: f64, low: f64, mode: Round) -> f32 {
    let nearest = high as f32;
    let rest = high - f64::from(nearest);
    // A remainder of NaN (infinite or NaN results) compares false below.
    let above = if rest == 0.0 { low } else { rest };
    step(nearest, above, mode)
}

/// `nearest`, moved by one if the exact value, which lies on the side that the sign of `above`
/// tells, asks for it.
#[inline(always)]
pub(super) fn step(nearest: f32, above: f64, mode: Round) -> f32 {
    let negative = nearest.is_sign_negative();
    let (up, down) = match mode {
        Round::Nearest | Round::NearestAway => (false, false),
        Round::Zero => (negative && above > 0.0, !negative && above < 0.0),
        Round::Down => (false, above < 0.0),
        Round::Up => (above > 0.0, false),
    };
    if up {
        nearest.next_up()
    } else if down {
        nearest.next_down()
    } else {
        nearest
    }
}

impl Directed for f64 {
    #[inline(always)]
    fn add(self, b: f64, mode: Round) -> f64 {
        soft::fma(self, 1.0, b, mode)
    }

    #[inline(always)]
    fn mul(self, b: f64, mode: Round) -> f64 {
        soft::mul(self, b, mode)
    }

    #[inline(always)]
    fn fma(self, b: f64, c: f64, mode: Round) -> f64 {
        soft::fma(self, b, c, mode)
    }

    #[inline(always)]
    fn div(self, b: f64, mode: Round) -> f64 {
        soft::div(self, b, mode)
    }

    #[inline(always)]
    fn sqrt(self, mode: Round) -> f64 {
        soft::sqrt(self, mode)
    }
}
