//! Rounding, subnormal and range modifiers as zero-sized types.

use super::Float;

/// A rounding mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// `.rn`: to nearest, ties to even.
    Nearest,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards negative infinity.
    Down,
    /// `.rp`: towards positive infinity.
    Up,
    /// `.rna`: to nearest, ties away from zero.
    NearestAway,
}

/// A rounding modifier.
pub trait Rounding: 'static {
    /// The mode.
    const MODE: Round;
    /// Whether it is another than to nearest, ties to even.
    const IS_DIRECTED: bool = !matches!(Self::MODE, Round::Nearest);
}

macro_rules! rounding {
    ($($(#[$m:meta])* $name:ident = $mode:ident;)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl Rounding for $name {
            const MODE: Round = Round::$mode;
        }
    )*};
}

rounding! {
    /// `.rn`, `.rni`
    Rn = Nearest;
    /// `.rz`, `.rzi`
    Rz = Zero;
    /// `.rm`, `.rmi`
    Rm = Down;
    /// `.rp`, `.rpi`
    Rp = Up;
    /// `.rna`
    Rna = NearestAway;
}

/// What happens to subnormal sources and results.
pub trait Subnormals: 'static {
    /// Whether they become zeros of the same sign.
    const FLUSH: bool;
    /// The value as the operation sees it, or as it leaves it.
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        if Self::FLUSH { x.flushed() } else { x }
    }
}

/// Without `.ftz`.
#[derive(Debug, Clone, Copy)]
pub struct Keep;
impl Subnormals for Keep {
    const FLUSH: bool = false;
}

/// `.ftz`
#[derive(Debug, Clone, Copy)]
pub struct Ftz;
impl Subnormals for Ftz {
    const FLUSH: bool = true;
}

/// What happens to results outside [0, 1].
pub trait Range: 'static {
    /// Whether it changes any.
    const CLAMPS: bool;
    /// The value as the operation leaves it.
    fn apply<T: Float>(x: T) -> T;
}

/// Without `.sat`.
#[derive(Debug, Clone, Copy)]
pub struct Full;
impl Range for Full {
    const CLAMPS: bool = false;
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        x
    }
}

/// `.sat`: clamped to [0.0, 1.0]; NaN and negative zero become +0.0.
#[derive(Debug, Clone, Copy)]
pub struct Sat;
impl Range for Sat {
    const CLAMPS: bool = true;
    #[inline(always)]
    fn apply<T: Float>(x: T) -> T {
        if x > T::ZERO { if x < T::ONE { x } else { T::ONE } } else { T::ZERO }
    }
}
