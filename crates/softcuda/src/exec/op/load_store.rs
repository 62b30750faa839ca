//! Handlers of loads and stores. Sixteen lanes at a time: consecutive addresses are one copy, equal
//! addresses one access, others a checked gather; what does not fit these goes lane by lane, which
//! also finds the faulting lane.
//!
//! Accesses race with other blocks' as the program makes them race; they are raw memory operations
//! on mapped device memory, whose elements the host accesses in one piece.

use std::marker::PhantomData;

use super::address::{AddressWord, Space};
use super::alu::{chunks, store_chunk};
use crate::exec::alu::{LANES, Register};
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::lanes::{CHUNK, Vectors};
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

/// Where the lanes of a chunk access memory, if all in one place.
enum Place {
    /// Lane `i` at this pointer plus `i` strides; inactive lanes included.
    Consecutive(*mut u8),
    /// All lanes at this pointer.
    Uniform(*mut u8),
    /// Neither, or not all of it is valid.
    Apart,
}

/// Classifies the addresses of the lanes of `mask`, each for `stride` bytes; `words` are their
/// registers. The immediate moves all lanes alike, so it need not be added to compare them.
#[inline(always)]
fn place<V: Vectors, S: Space>(
    cx: &mut Context<'_>,
    ins: &Ins,
    words: &[S::Register; CHUNK],
    mask: u32,
    stride: u64,
) -> Place {
    // Of a whole chunk the compiler knows that it is lane 0.
    let lead = if mask == WHOLE { 0 } else { mask.trailing_zeros() as usize % CHUNK };
    let word = words[lead];
    let address = S::address(word, ins.imm);
    if address & (stride - 1) != 0 {
        return Place::Apart;
    }
    let offset = lead as u64 * stride;
    let first = word.sub(S::Register::narrow(offset));
    if S::Register::apart::<V>(words, first, S::Register::narrow(stride)) & mask == 0 {
        let start = address.wrapping_sub(offset);
        S::contiguous(cx, ins, start, CHUNK as u64 * stride)
            .map_or(Place::Apart, Place::Consecutive)
    } else if S::Register::apart::<V>(words, word, S::Register::default()) & mask == 0 {
        S::contiguous(cx, ins, address, stride).map_or(Place::Apart, Place::Uniform)
    } else {
        Place::Apart
    }
}

/// All lanes of a chunk.
const WHOLE: u32 = 0xffff;

/// The addresses' registers of the chunk that starts with lane `first`.
///
/// # Safety
/// `a` of `ins` is an address register of `S` in `frame`.
#[inline(always)]
unsafe fn address_words<'a, S: Space>(
    frame: Frame,
    ins: &Ins,
    first: usize,
) -> &'a [S::Register; CHUNK] {
    // SAFETY: by the caller's contract.
    unsafe { &*frame.at::<S::Register>(ins.a).add(first).cast() }
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

/// `ld` of `N` elements: the usual case, all lanes at one place. Everything else is
/// [`LoadLanes`]'s, so that this handler needs neither masks nor memory for its lanes.
pub(in crate::exec) struct Load<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for Load<S, E, N> {
    /// Vectors of small or many elements are rare: one version is enough.
    const VECTOR: bool = S::VECTOR && (N == 1 || size_of::<E::Raw>() >= 4) && N <= 4;

    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let mut first = 0;
        while mask == u32::MAX && first < LANES {
            // SAFETY: operands by the emitter; pointers were checked by the space for
            // `STRIDE_BYTES` each.
            unsafe {
                let words = address_words::<S>(frame, ins, first);
                match place::<V, S>(cx, ins, words, WHOLE, Self::STRIDE_BYTES) {
                    Place::Consecutive(p) => {
                        let p = p.cast::<[[E::Raw; N]; CHUNK]>().read_unaligned();
                        Self::write(cx, ins, frame, (first, WHOLE), |n, i| p[i][n]);
                    }
                    Place::Uniform(p) => {
                        let p = p.cast::<[E::Raw; N]>().read_unaligned();
                        Self::write(cx, ins, frame, (first, WHOLE), |n, _| p[n]);
                    }
                    Place::Apart => break,
                }
            }
            first += CHUNK;
        }
        if first == LANES {
            return Flow::Next;
        }
        // SAFETY: the caller's contract.
        unsafe { V::hand_over::<LoadLanes<S, E, N>>(cx, ins, frame, mask & u32::MAX << first) }
    }
}

impl<S: Space, E: Element, const N: usize> Load<S, E, N> {
    const STRIDE_BYTES: u64 = size_of::<[E::Raw; N]>() as u64;

    /// Writes element `n` of lane `first + i` to its register, for the lanes of a part.
    #[inline(always)]
    unsafe fn write(
        cx: &Context<'_>,
        ins: &Ins,
        frame: Frame,
        (first, part): (usize, u32),
        raw: impl Fn(usize, usize) -> E::Raw,
    ) {
        for n in 0..N {
            let mut r = [E::Reg::default(); CHUNK];
            for (i, r) in r.iter_mut().enumerate() {
                *r = E::extend(raw(n, i));
            }
            // SAFETY: the destination is a register of this type, by the emitter.
            unsafe {
                let d = vector_register::<N>(cx, ins, ins.d, 0, n);
                store_chunk(frame.at::<E::Reg>(d).add(first), r, part);
            }
        }
    }
}

/// [`Load`] for some lanes, lanes whose addresses have nothing in common, and addresses that are
/// not valid.
struct LoadLanes<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for LoadLanes<S, E, N> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let stride = Load::<S, E, N>::STRIDE_BYTES;
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            let mut raw = [[E::Raw::default(); CHUNK]; N];
            // SAFETY: operands by the emitter; addresses and pointers are checked by the space for
            // `stride` bytes each.
            unsafe {
                match place::<V, S>(cx, ins, address_words::<S>(frame, ins, first), part, stride) {
                    Place::Consecutive(p) => {
                        let p = p.cast::<[[E::Raw; N]; CHUNK]>().read_unaligned();
                        for n in 0..N {
                            for i in 0..CHUNK {
                                raw[n][i] = p[i][n];
                            }
                        }
                    }
                    Place::Uniform(p) => {
                        let p = p.cast::<[E::Raw; N]>().read_unaligned();
                        for n in 0..N {
                            raw[n] = [p[n]; CHUNK];
                        }
                    }
                    Place::Apart => {
                        let addr = S::addresses(frame, ins.a, first, ins.imm);
                        let bias = S::all::<V>(cx, ins, &addr, part, stride);
                        for i in 0..CHUNK {
                            if part >> i & 1 == 0 {
                                continue;
                            }
                            let (lane, addr) = ((first + i) as u32, addr[i].widen());
                            let p = match bias {
                                Some(bias) => (addr as usize).wrapping_add(bias) as *mut u8,
                                None => match S::lane(cx, ins, addr, lane, stride, Access::Read) {
                                    Some(p) => p,
                                    None => return Flow::Fault,
                                },
                            };
                            let p = p.cast::<[E::Raw; N]>().read_unaligned();
                            for n in 0..N {
                                raw[n][i] = p[n];
                            }
                        }
                    }
                }
                Load::<S, E, N>::write(cx, ins, frame, (first, part), |n, i| raw[n][i]);
            }
        }
        Flow::Next
    }
}

/// `st` of `N` elements, address `a`, then the elements: the usual case, all lanes side by side.
/// Everything else is [`StoreLanes`]'s.
pub(in crate::exec) struct Store<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for Store<S, E, N> {
    /// Vectors of small or many elements are rare: one version is enough.
    const VECTOR: bool = S::VECTOR && (N == 1 || size_of::<E::Raw>() >= 4) && N <= 4;

    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let mut first = 0;
        while mask == u32::MAX && first < LANES {
            // SAFETY: operands by the emitter; pointers were checked by the space for
            // `STRIDE_BYTES` each.
            unsafe {
                let words = address_words::<S>(frame, ins, first);
                let Place::Consecutive(p) =
                    place::<V, S>(cx, ins, words, WHOLE, Self::STRIDE_BYTES)
                else {
                    break;
                };
                let raw = Self::read(cx, ins, frame, first);
                p.cast::<[[E::Raw; N]; CHUNK]>().write_unaligned(raw);
            }
            first += CHUNK;
        }
        if first == LANES {
            return Flow::Next;
        }
        // SAFETY: the caller's contract.
        unsafe { V::hand_over::<StoreLanes<S, E, N>>(cx, ins, frame, mask & u32::MAX << first) }
    }
}

impl<S: Space, E: Element, const N: usize> Store<S, E, N> {
    const STRIDE_BYTES: u64 = size_of::<[E::Raw; N]>() as u64;

    /// The elements of 16 lanes.
    #[inline(always)]
    unsafe fn read(
        cx: &Context<'_>,
        ins: &Ins,
        frame: Frame,
        first: usize,
    ) -> [[E::Raw; N]; CHUNK] {
        let mut raw = [[E::Raw::default(); N]; CHUNK];
        for n in 0..N {
            // SAFETY: sources are registers of this type, by the emitter.
            let r = unsafe {
                let source = vector_register::<N>(cx, ins, ins.b, 1, n);
                frame.at::<E::Reg>(source).add(first).cast::<[E::Reg; CHUNK]>().read()
            };
            for i in 0..CHUNK {
                raw[i][n] = E::truncate(r[i]);
            }
        }
        raw
    }
}

/// [`Store`] for some lanes, addresses that are not consecutive, and addresses that are not valid.
/// Which of several lanes wins that store at one address is not defined; the highest does.
struct StoreLanes<S, E, const N: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize> Body for StoreLanes<S, E, N> {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let stride = Store::<S, E, N>::STRIDE_BYTES;
        for (first, part) in chunks(mask) {
            if part == 0 {
                continue;
            }
            // SAFETY: operands by the emitter; addresses and pointers are checked by the space for
            // `stride` bytes each.
            unsafe {
                let raw = Store::<S, E, N>::read(cx, ins, frame, first);
                let addr = S::addresses(frame, ins.a, first, ins.imm);
                let bias = S::all::<V>(cx, ins, &addr, part, stride);
                for (i, &raw) in raw.iter().enumerate() {
                    if part >> i & 1 == 0 {
                        continue;
                    }
                    let (lane, addr) = ((first + i) as u32, addr[i].widen());
                    let p = match bias {
                        Some(bias) => (addr as usize).wrapping_add(bias) as *mut u8,
                        None => match S::lane(cx, ins, addr, lane, stride, Access::Write) {
                            Some(p) => p,
                            None => return Flow::Fault,
                        },
                    };
                    p.cast::<[E::Raw; N]>().write_unaligned(raw);
                }
            }
        }
        Flow::Next
    }
}
