//! Handlers of loads and stores. Sixteen lanes at a time: consecutive addresses are one copy, equal addresses one
//! access, others a checked gather; what does not fit these goes lane by lane, which also finds the faulting lane.
//!
//! Accesses race with other blocks' as the program makes them race; they are raw memory operations on mapped device memory, whose elements the
//! host accesses in one piece.

use std::marker::PhantomData;

use super::address::{AddressWord, CHUNK, Space};
use super::alu::{chunks, store_chunk};
#[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Compare, Portable};
use crate::exec::alu::Register;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::simd::Body;

/// An element in memory and the register it is loaded into or stored from.
pub(in crate::exec) trait Element {
    /// As it lies in memory.
    type Raw: Copy + Default;
    /// Register word.
    type Reg: Register;
    /// Loads extend.
    fn extend(raw: Self::Raw) -> Self::Reg;
    /// Stores truncate.
    fn truncate(reg: Self::Reg) -> Self::Raw;
}

macro_rules! elements {
    ($($(#[$m:meta])* $name:ident: $raw:ty, $reg:ty, |$r:ident| $extend:expr;)*) => {$(
        $(#[$m])*
        pub(in crate::exec) struct $name;
        impl Element for $name {
            type Raw = $raw;
            type Reg = $reg;
            #[inline(always)]
            fn extend($r: $raw) -> $reg {
                $extend
            }
            #[inline(always)]
            fn truncate(reg: $reg) -> $raw {
                reg as $raw
            }
        }
    )*};
}

elements! {
    /// Byte, zero-extended.
    U8: u8, u32, |r| u32::from(r);
    /// Byte, sign-extended.
    S8: u8, u32, |r| r as i8 as i32 as u32;
    /// Half word, zero-extended.
    U16: u16, u32, |r| u32::from(r);
    /// Half word, sign-extended.
    S16: u16, u32, |r| r as i16 as i32 as u32;
    /// Word.
    W32: u32, u32, |r| r;
    /// Double word.
    W64: u64, u64, |r| r;
}

/// How the lanes of a chunk access memory.
enum Pattern {
    /// Lane `i` at this pointer plus `i` strides; inactive lanes included.
    Consecutive(*mut u8),
    /// All lanes at this pointer.
    Uniform(*mut u8),
    /// Lane `i` at its address plus this.
    Scattered(usize),
    /// Lane by lane.
    Slow,
}

/// Classifies the addresses of the lanes of `mask`, each for `stride` bytes.
#[inline(always)]
fn pattern<C: Compare, S: Space>(
    cx: &mut Context<'_>,
    ins: &Ins,
    addr: &[S::Word; CHUNK],
    mask: u32,
    stride: u64,
) -> Pattern {
    let lead = mask.trailing_zeros() as usize;
    let first = addr[lead];
    let start = first.sub(S::Word::narrow(lead as u64 * stride));
    let is_aligned = first.widen() & (stride - 1) == 0;
    if is_aligned && S::Word::apart::<C>(addr, start, S::Word::narrow(stride)) & mask == 0 {
        if let Some(p) = S::contiguous(cx, ins, start.widen(), CHUNK as u64 * stride) {
            return Pattern::Consecutive(p);
        }
    } else if is_aligned
        && S::Word::apart::<C>(addr, first, S::Word::default()) & mask == 0
        && let Some(p) = S::contiguous(cx, ins, first.widen(), stride)
    {
        return Pattern::Uniform(p);
    }
    match S::all::<C>(cx, ins, addr, mask, stride) {
        Some(bias) => Pattern::Scattered(bias),
        None => Pattern::Slow,
    }
}

/// Frame offset of register `index` of a vector operand whose first list entry is `list`.
#[inline(always)]
unsafe fn vector_register<const N: usize>(
    cx: &Context<'_>,
    ins: &Ins,
    single: u32,
    list: usize,
    index: usize,
) -> u32 {
    // SAFETY: vector instructions have an operand list, by the emitter.
    if N == 1 { single } else { unsafe { cx.extra(ins.e, list + index) } }
}

/// `ld` of `N` elements.
pub(in crate::exec) struct Load<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for Load<S, E, N> {
    /// Vectors of small or many elements are rare: one version is enough.
    const VECTOR: bool = S::VECTOR && (N == 1 || size_of::<E::Raw>() >= 4) && N <= 4;

    #[inline(always)]
    unsafe fn run(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Portable>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[inline(always)]
    unsafe fn run_avx2(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Avx2>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[inline(always)]
    unsafe fn run_avx512(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Avx512>(cx, ins, frame, mask) }
    }
}

impl<S: Space, E: Element, const N: usize> Load<S, E, N> {
    #[inline(always)]
    unsafe fn access<C: Compare>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let size = size_of::<E::Raw>();
        let stride = (size * N) as u64;
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands by the emitter; pointers were checked by the space for `stride` bytes each.
            unsafe {
                let addr = S::addresses(frame, ins.a, first, ins.imm);
                let mut raw = [[E::Raw::default(); CHUNK]; N];
                match pattern::<C, S>(cx, ins, &addr, part, stride) {
                    Pattern::Consecutive(p) => {
                        let p = p.cast::<[[E::Raw; N]; CHUNK]>().read_unaligned();
                        for n in 0..N {
                            for i in 0..CHUNK {
                                raw[n][i] = p[i][n];
                            }
                        }
                    }
                    Pattern::Uniform(p) => {
                        let p = p.cast::<[E::Raw; N]>().read_unaligned();
                        for n in 0..N {
                            raw[n] = [p[n]; CHUNK];
                        }
                    }
                    Pattern::Scattered(bias) => {
                        for i in 0..CHUNK {
                            if part >> i & 1 != 0 {
                                let p = (addr[i].widen() as usize).wrapping_add(bias)
                                    as *const [E::Raw; N];
                                let p = p.read_unaligned();
                                for n in 0..N {
                                    raw[n][i] = p[n];
                                }
                            }
                        }
                    }
                    Pattern::Slow => {
                        for i in 0..CHUNK {
                            if part >> i & 1 != 0 {
                                let lane = (first + i) as u32;
                                let Some(p) =
                                    S::lane(cx, ins, addr[i].widen(), lane, stride, Access::Read)
                                else {
                                    return Flow::Fault;
                                };
                                let p = p.cast::<[E::Raw; N]>().read_unaligned();
                                for n in 0..N {
                                    raw[n][i] = p[n];
                                }
                            }
                        }
                    }
                }
                for (n, raw) in raw.iter().enumerate() {
                    let d = vector_register::<N>(cx, ins, ins.d, 0, n);
                    let mut r = [E::Reg::default(); CHUNK];
                    for i in 0..CHUNK {
                        r[i] = E::extend(raw[i]);
                    }
                    store_chunk(frame.at::<E::Reg>(d).add(first), r, part);
                }
            }
        }
        Flow::Next
    }
}

/// `st` of `N` elements: address `a`, then the elements.
pub(in crate::exec) struct Store<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for Store<S, E, N> {
    /// Vectors of small or many elements are rare: one version is enough.
    const VECTOR: bool = S::VECTOR && (N == 1 || size_of::<E::Raw>() >= 4) && N <= 4;

    #[inline(always)]
    unsafe fn run(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Portable>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[inline(always)]
    unsafe fn run_avx2(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Avx2>(cx, ins, frame, mask) }
    }

    #[cfg(all(target_arch = "x86_64", softcuda_all_levels))]
    #[inline(always)]
    unsafe fn run_avx512(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        // SAFETY: the caller's contract.
        unsafe { Self::access::<Avx512>(cx, ins, frame, mask) }
    }
}

impl<S: Space, E: Element, const N: usize> Store<S, E, N> {
    #[inline(always)]
    unsafe fn access<C: Compare>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let size = size_of::<E::Raw>();
        let stride = (size * N) as u64;
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands by the emitter; pointers were checked by the space for `stride` bytes each.
            unsafe {
                let addr = S::addresses(frame, ins.a, first, ins.imm);
                let mut raw = [[E::Raw::default(); N]; CHUNK];
                #[allow(clippy::needless_range_loop)]
                for n in 0..N {
                    let source = vector_register::<N>(cx, ins, ins.b, 1, n);
                    let r = frame.at::<E::Reg>(source).add(first).cast::<[E::Reg; CHUNK]>().read();
                    for i in 0..CHUNK {
                        raw[i][n] = E::truncate(r[i]);
                    }
                }
                match pattern::<C, S>(cx, ins, &addr, part, stride) {
                    Pattern::Consecutive(p) if part == 0xffff => {
                        p.cast::<[[E::Raw; N]; CHUNK]>().write_unaligned(raw);
                    }
                    Pattern::Consecutive(p) => {
                        for (i, &raw) in raw.iter().enumerate() {
                            if part >> i & 1 != 0 {
                                p.cast::<[E::Raw; N]>().add(i).write_unaligned(raw);
                            }
                        }
                    }
                    Pattern::Uniform(p) => {
                        // Which lane wins is not defined; the highest does.
                        let last = (31 - part.leading_zeros()) as usize;
                        p.cast::<[E::Raw; N]>().write_unaligned(raw[last]);
                    }
                    Pattern::Scattered(bias) => {
                        for i in 0..CHUNK {
                            if part >> i & 1 != 0 {
                                let p = (addr[i].widen() as usize).wrapping_add(bias)
                                    as *mut [E::Raw; N];
                                p.write_unaligned(raw[i]);
                            }
                        }
                    }
                    Pattern::Slow => {
                        for i in 0..CHUNK {
                            if part >> i & 1 != 0 {
                                let lane = (first + i) as u32;
                                let Some(p) =
                                    S::lane(cx, ins, addr[i].widen(), lane, stride, Access::Write)
                                else {
                                    return Flow::Fault;
                                };
                                p.cast::<[E::Raw; N]>().write_unaligned(raw[i]);
                            }
                        }
                    }
                }
            }
        }
        Flow::Next
    }
}
