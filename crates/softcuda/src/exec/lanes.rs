//! Questions about sixteen lanes whose answer is a lane mask: which addresses are where they are
//! expected to be (what decides how a load or store is carried out), and which comparisons hold.
//!
//! Compilers make dozens of shuffles of such a question, the instruction sets answer it in two or
//! three instructions; so each has its own version, chosen with the handler (see `exec::simd`). All
//! answers are lane masks.

use super::code::{Flow, Frame, Ins};
use super::context::Context;
use super::simd::{Body, Compiled};

/// Lanes handled at a time.
pub(super) const CHUNK: usize = 16;

/// The questions, for addresses of 32 and of 64 bits.
pub(super) trait Vectors {
    /// Lanes `i` whose address is not `first + i * stride`.
    fn apart32(addr: &[u32; CHUNK], first: u32, stride: u32) -> u32;
    /// The same for 64 bits.
    fn apart64(addr: &[u64; CHUNK], first: u64, stride: u64) -> u32;
    /// Lanes whose address is less than `start`, more than `limit` beyond it, or has bits of
    /// `unaligned`.
    fn outside32(addr: &[u32; CHUNK], start: u32, limit: u32, unaligned: u32) -> u32;
    /// The same for 64 bits.
    fn outside64(addr: &[u64; CHUNK], start: u64, limit: u64, unaligned: u64) -> u32;
    /// Lanes whose flag is all ones; the others are zero.
    fn set(flags: &[u32; CHUNK]) -> u32;
    /// Hands the instruction over to the handler `B` for the same instruction set.
    ///
    /// # Safety
    /// As [`Body::run`].
    unsafe fn hand_over<B: Body>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow;
}

/// For every CPU.
pub(super) struct Portable;

/// The lanes that satisfy a condition.
#[inline(always)]
fn lanes(holds: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for lane in 0..CHUNK {
        mask |= u32::from(holds(lane)) << lane;
    }
    mask
}

impl Vectors for Portable {
    #[inline(always)]
    fn apart32(addr: &[u32; CHUNK], first: u32, stride: u32) -> u32 {
        lanes(|lane| addr[lane] != first.wrapping_add(stride * lane as u32))
    }

    #[inline(always)]
    fn apart64(addr: &[u64; CHUNK], first: u64, stride: u64) -> u32 {
        lanes(|lane| addr[lane] != first.wrapping_add(stride * lane as u64))
    }

    #[inline(always)]
    fn outside32(addr: &[u32; CHUNK], start: u32, limit: u32, unaligned: u32) -> u32 {
        lanes(|lane| addr[lane].wrapping_sub(start) > limit || addr[lane] & unaligned != 0)
    }

    #[inline(always)]
    fn outside64(addr: &[u64; CHUNK], start: u64, limit: u64, unaligned: u64) -> u32 {
        lanes(|lane| addr[lane].wrapping_sub(start) > limit || addr[lane] & unaligned != 0)
    }

    #[inline(always)]
    fn set(flags: &[u32; CHUNK]) -> u32 {
        lanes(|lane| flags[lane] != 0)
    }

    #[inline(always)]
    unsafe fn hand_over<B: Body>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { B::baseline(cx, ins, frame, mask) }
    }
}

#[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
pub(super) use vectors::{Avx2, Avx512};

/// Handlers that call these were compiled for the instruction set, and are picked only where the
/// CPU has it.
#[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
mod vectors {
    use std::arch::x86_64::*;

    use super::{Body, CHUNK, Context, Flow, Frame, Ins, Vectors};
    use crate::exec::simd::Compiled;

    /// For handlers compiled for AVX2.
    pub(in crate::exec) struct Avx2;

    /// Eight words from `from` on.
    #[inline(always)]
    unsafe fn eight(addr: &[u32; CHUNK], from: usize) -> __m256i {
        // SAFETY: inside the array; the CPU has AVX2 by the caller's contract.
        unsafe { _mm256_loadu_si256(addr.as_ptr().add(from).cast()) }
    }

    /// Four double words from `from` on.
    #[inline(always)]
    unsafe fn four(addr: &[u64; CHUNK], from: usize) -> __m256i {
        // SAFETY: as in `eight`.
        unsafe { _mm256_loadu_si256(addr.as_ptr().add(from).cast()) }
    }

    /// Lanes that are not all ones.
    #[inline(always)]
    unsafe fn unlike32(equal: __m256i) -> u32 {
        // SAFETY: the CPU has AVX2 by the caller's contract.
        unsafe { !_mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u32 & 0xff }
    }

    #[inline(always)]
    unsafe fn unlike64(equal: __m256i) -> u32 {
        // SAFETY: as in `unlike32`.
        unsafe { !_mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32 & 0xf }
    }

    impl Vectors for Avx2 {
        #[inline(always)]
        fn apart32(addr: &[u32; CHUNK], first: u32, stride: u32) -> u32 {
            let mut mask = 0;
            for from in [0, 8] {
                // SAFETY: the handler that this is inlined into was picked because the CPU has
                // AVX2.
                unsafe {
                    let lanes = _mm256_add_epi32(
                        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                        _mm256_set1_epi32(from as i32),
                    );
                    let steps = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride as i32));
                    let expected = _mm256_add_epi32(_mm256_set1_epi32(first as i32), steps);
                    let equal = _mm256_cmpeq_epi32(eight(addr, from), expected);
                    mask |= unlike32(equal) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn apart64(addr: &[u64; CHUNK], first: u64, stride: u64) -> u32 {
            let mut mask = 0;
            for from in [0, 4, 8, 12] {
                let step = |lane: usize| (stride * (from + lane) as u64) as i64;
                // SAFETY: as in `apart32`.
                unsafe {
                    let steps = _mm256_setr_epi64x(step(0), step(1), step(2), step(3));
                    let expected = _mm256_add_epi64(_mm256_set1_epi64x(first as i64), steps);
                    let equal = _mm256_cmpeq_epi64(four(addr, from), expected);
                    mask |= unlike64(equal) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn outside32(addr: &[u32; CHUNK], start: u32, limit: u32, unaligned: u32) -> u32 {
            let mut mask = 0;
            for from in [0, 8] {
                // SAFETY: as in `apart32`.
                unsafe {
                    let words = eight(addr, from);
                    let offset = _mm256_sub_epi32(words, _mm256_set1_epi32(start as i32));
                    let limit = _mm256_set1_epi32(limit as i32);
                    let inside = _mm256_cmpeq_epi32(_mm256_max_epu32(offset, limit), limit);
                    let low = _mm256_and_si256(words, _mm256_set1_epi32(unaligned as i32));
                    let aligned = _mm256_cmpeq_epi32(low, _mm256_setzero_si256());
                    mask |= unlike32(_mm256_and_si256(inside, aligned)) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn outside64(addr: &[u64; CHUNK], start: u64, limit: u64, unaligned: u64) -> u32 {
            let mut mask = 0;
            for from in [0, 4, 8, 12] {
                // SAFETY: as in `apart32`.
                unsafe {
                    let words = four(addr, from);
                    // The comparison is signed: both sides are moved by half the range.
                    let half = _mm256_set1_epi64x(i64::MIN);
                    let offset = _mm256_sub_epi64(words, _mm256_set1_epi64x(start as i64));
                    let limit = _mm256_set1_epi64x((limit ^ 1 << 63) as i64);
                    let beyond = _mm256_cmpgt_epi64(_mm256_xor_si256(offset, half), limit);
                    let low = _mm256_and_si256(words, _mm256_set1_epi64x(unaligned as i64));
                    let aligned = _mm256_cmpeq_epi64(low, _mm256_setzero_si256());
                    mask |= unlike64(_mm256_andnot_si256(beyond, aligned)) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn set(flags: &[u32; CHUNK]) -> u32 {
            // SAFETY: as in `apart32`.
            let half = |from| unsafe {
                _mm256_movemask_ps(_mm256_castsi256_ps(eight(flags, from))) as u32
            };
            half(0) | half(8) << 8
        }

        #[inline(always)]
        unsafe fn hand_over<B: Body>(
            cx: &mut Context<'_>,
            ins: &Ins,
            frame: Frame,
            mask: u32,
        ) -> Flow {
            // SAFETY: the caller's contract.
            unsafe { B::avx2(cx, ins, frame, mask) }
        }
    }

    /// For handlers compiled for AVX-512.
    pub(in crate::exec) struct Avx512;

    /// Eight double words from `from` on.
    #[inline(always)]
    unsafe fn eight64(addr: &[u64; CHUNK], from: usize) -> __m512i {
        // SAFETY: inside the array; the CPU has AVX-512 by the caller's contract.
        unsafe { _mm512_loadu_si512(addr.as_ptr().add(from).cast()) }
    }

    impl Vectors for Avx512 {
        #[inline(always)]
        fn apart32(addr: &[u32; CHUNK], first: u32, stride: u32) -> u32 {
            // SAFETY: the handler that this is inlined into was picked because the CPU has AVX-512.
            unsafe {
                let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let steps = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride as i32));
                let expected = _mm512_add_epi32(_mm512_set1_epi32(first as i32), steps);
                let words = _mm512_loadu_si512(addr.as_ptr().cast());
                u32::from(_mm512_cmpneq_epi32_mask(words, expected))
            }
        }

        #[inline(always)]
        fn apart64(addr: &[u64; CHUNK], first: u64, stride: u64) -> u32 {
            let mut mask = 0;
            for from in [0, 8] {
                let step = |lane: usize| (stride * (from + lane) as u64) as i64;
                // SAFETY: as in `apart32`.
                unsafe {
                    let steps = _mm512_setr_epi64(
                        step(0),
                        step(1),
                        step(2),
                        step(3),
                        step(4),
                        step(5),
                        step(6),
                        step(7),
                    );
                    let expected = _mm512_add_epi64(_mm512_set1_epi64(first as i64), steps);
                    let unlike = _mm512_cmpneq_epi64_mask(eight64(addr, from), expected);
                    mask |= u32::from(unlike) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn outside32(addr: &[u32; CHUNK], start: u32, limit: u32, unaligned: u32) -> u32 {
            // SAFETY: as in `apart32`.
            unsafe {
                let words = _mm512_loadu_si512(addr.as_ptr().cast());
                let offset = _mm512_sub_epi32(words, _mm512_set1_epi32(start as i32));
                let beyond = _mm512_cmpgt_epu32_mask(offset, _mm512_set1_epi32(limit as i32));
                let low = _mm512_test_epi32_mask(words, _mm512_set1_epi32(unaligned as i32));
                u32::from(beyond | low)
            }
        }

        #[inline(always)]
        fn outside64(addr: &[u64; CHUNK], start: u64, limit: u64, unaligned: u64) -> u32 {
            let mut mask = 0;
            for from in [0, 8] {
                // SAFETY: as in `apart32`.
                unsafe {
                    let words = eight64(addr, from);
                    let offset = _mm512_sub_epi64(words, _mm512_set1_epi64(start as i64));
                    let beyond = _mm512_cmpgt_epu64_mask(offset, _mm512_set1_epi64(limit as i64));
                    let low = _mm512_test_epi64_mask(words, _mm512_set1_epi64(unaligned as i64));
                    mask |= u32::from(beyond | low) << from;
                }
            }
            mask
        }

        #[inline(always)]
        fn set(flags: &[u32; CHUNK]) -> u32 {
            // SAFETY: as in `apart32`.
            unsafe { u32::from(_mm512_movepi32_mask(_mm512_loadu_si512(flags.as_ptr().cast()))) }
        }

        #[inline(always)]
        unsafe fn hand_over<B: Body>(
            cx: &mut Context<'_>,
            ins: &Ins,
            frame: Frame,
            mask: u32,
        ) -> Flow {
            // SAFETY: the caller's contract.
            unsafe { B::avx512(cx, ins, frame, mask) }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every version that this CPU can run gives the portable answer.
    fn agree(a32: [u32; CHUNK], a64: [u64; CHUNK], stride: u32, limit: u32, unaligned: u32) {
        let ask = |apart32: fn(&[u32; CHUNK], u32, u32) -> u32,
                   apart64: fn(&[u64; CHUNK], u64, u64) -> u32,
                   outside32: fn(&[u32; CHUNK], u32, u32, u32) -> u32,
                   outside64: fn(&[u64; CHUNK], u64, u64, u64) -> u32| {
            [
                apart32(&a32, a32[0], stride),
                apart64(&a64, a64[0], stride.into()),
                outside32(&a32, a32[3], limit, unaligned),
                outside64(&a64, a64[3], u64::from(limit) << 20, unaligned.into()),
            ]
        };
        macro_rules! answers {
            ($set:ty) => {
                ask(<$set>::apart32, <$set>::apart64, <$set>::outside32, <$set>::outside64)
            };
        }
        let expected = answers!(Portable);
        #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
        {
            use crate::exec::SimdLevel;
            if SimdLevel::Avx2.min_available() == SimdLevel::Avx2 {
                assert_eq!(answers!(Avx2), expected);
            }
            if SimdLevel::Avx512.min_available() == SimdLevel::Avx512 {
                assert_eq!(answers!(Avx512), expected);
            }
        }
        // The first lane is where it is.
        assert_eq!(expected[0] & 1, 0);
        assert_eq!(expected[1] & 1, 0);
    }

    proptest! {
        #[test]
        fn all_instruction_sets_answer_alike(
            first in any::<u64>(),
            stride in prop::sample::select(vec![0u32, 1, 2, 4, 8, 16, 64]),
            odd in prop::collection::vec((0..CHUNK, any::<u64>()), 0..3),
            limit in any::<u32>(),
            unaligned in prop::sample::select(vec![0u32, 1, 3, 7, 15]),
        ) {
            let mut wide: [u64; CHUNK] =
                std::array::from_fn(|lane| first.wrapping_add(u64::from(stride) * lane as u64));
            for (lane, value) in odd {
                wide[lane] = value;
            }
            agree(wide.map(|word| word as u32), wide, stride, limit, unaligned);
        }
    }
}
