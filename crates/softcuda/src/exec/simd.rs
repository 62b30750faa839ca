//! Vector levels: every instruction handler is compiled for three instruction sets, one is chosen
//! at run time.
//!
//! Handlers are plain loops over lanes, marked `#[inline(always)]`; inlined into a function with
//! target features they are vectorised for it. A debug build has the baseline alone, which is three
//! times as fast to compile, unless its environment says `OPENMPS_SOFT_LEVELS=all` (see
//! `build.rs`). The crate's unit tests always pick the baseline: what compares the levels is in
//! `tests`, outside of this folder.

use super::code::{Flow, Frame, Ins, OpFn};
use super::context::Context;
#[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Portable, Vectors};

/// Instruction set that handlers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SimdLevel {
    /// What every CPU of the architecture has.
    Baseline,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL.
    Avx512,
}

impl SimdLevel {
    /// The best level of this CPU.
    pub fn detect() -> Self {
        Self::Avx512.min_available()
    }

    /// This level, or the best one below it that the CPU has.
    pub fn min_available(self) -> Self {
        #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512cd")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let best = match (avx512, avx2) {
                (true, _) => Self::Avx512,
                (false, true) => Self::Avx2,
                _ => Self::Baseline,
            };
            self.min(best)
        }
        #[cfg(not(all(target_arch = "x86_64", softcuda_all_levels)))]
        {
            Self::Baseline
        }
    }
}

/// An instruction handler.
pub(super) trait Body {
    /// Whether it is worth compiling for every vector level.
    const VECTOR: bool = true;

    /// Executes `ins` for the lanes in `mask` (never empty), with the instructions of `V` where it
    /// asks for some by name.
    ///
    /// # Safety
    /// `frame` is the register frame that `ins` was emitted for; `cx` describes the warp that owns
    /// it; the CPU has `V`'s instruction set.
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow;
}

/// A handler compiled for each instruction set. Never inlined, so that a handler can leave its rare
/// cases to another one.
///
/// These are methods, not functions: the compiler puts a method into the unit of its type's module,
/// but all instances of a function into that of the function, which one processor would then
/// compile alone.
pub(super) trait Compiled: Body {
    /// For every CPU.
    ///
    /// # Safety
    /// As [`Body::run`].
    unsafe fn baseline(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow;
    /// For [`SimdLevel::Avx2`].
    ///
    /// # Safety
    /// As [`Body::run`].
    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    unsafe fn avx2(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow;
    /// For [`SimdLevel::Avx512`].
    ///
    /// # Safety
    /// As [`Body::run`].
    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    unsafe fn avx512(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow;
}

impl<B: Body> Compiled for B {
    #[inline(never)]
    unsafe fn baseline(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract is `Body::run`'s.
        unsafe { B::run::<Portable>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    #[inline(never)]
    unsafe fn avx2(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract is `Body::run`'s.
        unsafe { B::run::<Avx2>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
    )]
    #[inline(never)]
    unsafe fn avx512(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract is `Body::run`'s.
        unsafe { B::run::<Avx512>(cx, ins, frame, mask) }
    }
}

/// The handler `B` compiled for `level`, which must be available on this CPU.
pub(super) fn pick<B: Body>(level: SimdLevel) -> OpFn {
    if !B::VECTOR {
        return B::baseline;
    }
    match level {
        #[cfg(all(target_arch = "x86_64", softcuda_all_levels, not(test)))]
        SimdLevel::Avx512 => B::avx512,
        #[cfg(all(target_arch = "x86_64", softcuda_all_levels, not(test)))]
        SimdLevel::Avx2 => B::avx2,
        _ => B::baseline,
    }
}

/// The handler `B` without vector variants, for what has no loop worth it.
pub(super) fn plain<B: Body>() -> OpFn {
    B::baseline
}
