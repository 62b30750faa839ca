//! State spaces: from PTX addresses to host pointers, with every check a load or store needs.

use std::marker::PhantomData;

use crate::exec::code::{Frame, Ins};
use crate::exec::context::{CachedRange, Context, RANGE_ENTRIES};
use crate::exec::fault::{Access, FaultKind};
use crate::exec::lanes::{CHUNK, Vectors};
use crate::exec::window;

/// A state space as load and store handlers see it.
pub(in crate::exec) trait Space {
    /// As addresses of this space are computed: 32 bits for windows of less than 4 GiB.
    type Word: AddressWord;

    /// As registers hold addresses.
    type Register: AddressWord;

    /// Whether several lanes are accessed at once.
    const VECTOR: bool = true;

    /// The address that a register's word plus the instruction's immediate means.
    fn address(word: Self::Register, imm: i64) -> u64;

    /// Reads the addresses of 16 lanes from register `offset`, plus the instruction's immediate.
    ///
    /// # Safety
    /// `offset` is an address register of this space in `frame`.
    unsafe fn addresses(frame: Frame, offset: u32, first: usize, imm: i64) -> [Self::Word; CHUNK];

    /// A pointer to `len` bytes at `addr` if they are all valid; no fault is recorded otherwise.
    fn contiguous(cx: &mut Context<'_>, ins: &Ins, addr: u64, len: u64) -> Option<*mut u8>;

    /// What to add to the addresses of the lanes of `mask` to get pointers, if accesses of `size`
    /// bytes at all of them are aligned and valid; no fault is recorded otherwise.
    fn all<V: Vectors>(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: &[Self::Word; CHUNK],
        mask: u32,
        size: u64,
    ) -> Option<usize>;

    /// A pointer for one lane's access; records the fault if there is none.
    fn lane(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: u64,
        lane: u32,
        size: u64,
        access: Access,
    ) -> Option<*mut u8>;
}

/// The lane word of an address.
pub(in crate::exec) trait AddressWord: Copy + Default {
    fn widen(self) -> u64;
    /// The low bits of an address.
    fn narrow(addr: u64) -> Self;
    fn sub(self, other: Self) -> Self;
    /// See [`Vectors::apart64`].
    fn apart<V: Vectors>(addr: &[Self; CHUNK], first: Self, stride: Self) -> u32;
    /// See [`Vectors::outside64`].
    fn outside<V: Vectors>(addr: &[Self; CHUNK], start: Self, limit: Self, unaligned: Self) -> u32;
}

macro_rules! address_word {
    ($($t:ty, $apart:ident, $outside:ident;)*) => {$(
        impl AddressWord for $t {
            #[inline(always)]
            fn widen(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn narrow(addr: u64) -> Self {
                addr as $t
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn apart<V: Vectors>(addr: &[Self; CHUNK], first: Self, stride: Self) -> u32 {
                V::$apart(addr, first, stride)
            }
            #[inline(always)]
            fn outside<V: Vectors>(
                addr: &[Self; CHUNK],
                start: Self,
                limit: Self,
                unaligned: Self,
            ) -> u32 {
                V::$outside(addr, start, limit, unaligned)
            }
        }
    )*};
}

address_word! {
    u32, apart32, outside32;
    u64, apart64, outside64;
}

/// Whether all lanes of `mask` satisfy `addr - start <= limit` and are multiples of `size`.
#[inline(always)]
fn all_within<V: Vectors, W: AddressWord>(
    addr: &[W; CHUNK],
    mask: u32,
    start: W,
    limit: W,
    size: u64,
) -> bool {
    W::outside::<V>(addr, start, limit, W::narrow(size - 1)) & mask == 0
}

/// `.global` and `.const`: identity-mapped.
pub(in crate::exec) struct Global;

impl Global {
    #[inline(always)]
    fn slot(ins: &Ins) -> usize {
        ins.x as usize % RANGE_ENTRIES
    }

    /// Makes the cache entry of `ins` the range around `addr`.
    #[cold]
    #[inline(never)]
    fn refill(cx: &mut Context<'_>, slot: usize, addr: u64) -> bool {
        let Some(range) = cx.machine.range_of(addr) else { return false };
        if !range.contains(&addr) || range.end >= window::WINDOWS_START {
            return false;
        }
        cx.ranges[slot] = CachedRange { start: range.start, len: range.end - range.start };
        true
    }

    #[inline(always)]
    fn cached(range: CachedRange, addr: u64, len: u64) -> bool {
        let offset = addr.wrapping_sub(range.start);
        offset < range.len && len <= range.len - offset
    }
}

impl Space for Global {
    type Word = u64;
    type Register = u64;

    #[inline(always)]
    fn address(word: u64, imm: i64) -> u64 {
        word.wrapping_add_signed(imm)
    }

    #[inline(always)]
    unsafe fn addresses(frame: Frame, offset: u32, first: usize, imm: i64) -> [u64; CHUNK] {
        // SAFETY: by the caller's contract.
        let mut addr = unsafe { frame.at::<u64>(offset).add(first).cast::<[u64; CHUNK]>().read() };
        for addr in &mut addr {
            *addr = addr.wrapping_add_signed(imm);
        }
        addr
    }

    #[inline(always)]
    fn contiguous(cx: &mut Context<'_>, ins: &Ins, addr: u64, len: u64) -> Option<*mut u8> {
        let slot = Self::slot(ins);
        if Self::cached(cx.ranges[slot], addr, len)
            || (Self::refill(cx, slot, addr) && Self::cached(cx.ranges[slot], addr, len))
        {
            return Some(addr as usize as *mut u8);
        }
        None
    }

    #[inline(always)]
    fn all<V: Vectors>(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: &[u64; CHUNK],
        mask: u32,
        size: u64,
    ) -> Option<usize> {
        let slot = Self::slot(ins);
        let fits = |range: CachedRange| {
            range.len >= size && all_within::<V, _>(addr, mask, range.start, range.len - size, size)
        };
        if fits(cx.ranges[slot]) {
            return Some(0);
        }
        let first = addr[mask.trailing_zeros() as usize];
        (Self::refill(cx, slot, first) && fits(cx.ranges[slot])).then_some(0)
    }

    #[cold]
    #[inline(never)]
    fn lane(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: u64,
        lane: u32,
        size: u64,
        access: Access,
    ) -> Option<*mut u8> {
        if addr & (size - 1) != 0 {
            cx.raise_access(FaultKind::MisalignedAddress, access, addr, size as u32, lane);
            return None;
        }
        let slot = Self::slot(ins);
        let known = Self::cached(cx.ranges[slot], addr, size);
        if known || (Self::refill(cx, slot, addr) && Self::cached(cx.ranges[slot], addr, size)) {
            return Some(addr as usize as *mut u8);
        }
        cx.raise_access(FaultKind::IllegalAddress, access, addr, size as u32, lane);
        None
    }
}

/// `.shared`, by 32- or 64-bit address registers; the high half of an address is ignored (it is
/// that of the window).
pub(in crate::exec) struct Shared<W>(PhantomData<W>);

impl<W: AddressWord> Space for Shared<W> {
    type Word = u32;
    type Register = W;

    #[inline(always)]
    fn address(word: W, imm: i64) -> u64 {
        u64::from((word.widen() as u32).wrapping_add(imm as u32))
    }

    #[inline(always)]
    unsafe fn addresses(frame: Frame, offset: u32, first: usize, imm: i64) -> [u32; CHUNK] {
        // SAFETY: by the caller's contract.
        let words = unsafe { frame.at::<W>(offset).add(first).cast::<[W; CHUNK]>().read() };
        let mut addr = [0u32; CHUNK];
        for i in 0..CHUNK {
            addr[i] = (words[i].widen() as u32).wrapping_add(imm as u32);
        }
        addr
    }

    #[inline(always)]
    fn contiguous(cx: &mut Context<'_>, _: &Ins, addr: u64, len: u64) -> Option<*mut u8> {
        // SAFETY: the sum is inside the block's shared memory by the check.
        (addr.checked_add(len)? <= u64::from(cx.shared_bytes))
            .then(|| unsafe { cx.shared.add(addr as usize) })
    }

    #[inline(always)]
    fn all<V: Vectors>(
        cx: &mut Context<'_>,
        _: &Ins,
        addr: &[u32; CHUNK],
        mask: u32,
        size: u64,
    ) -> Option<usize> {
        let limit = cx.shared_bytes.checked_sub(size as u32)?;
        all_within::<V, _>(addr, mask, 0, limit, size).then_some(cx.shared as usize)
    }

    #[cold]
    #[inline(never)]
    fn lane(
        cx: &mut Context<'_>,
        _: &Ins,
        addr: u64,
        lane: u32,
        size: u64,
        access: Access,
    ) -> Option<*mut u8> {
        shared_lane(cx, addr, lane, size, access)
    }
}

/// One lane's access to shared memory of the own block or, by rank, of another one of the cluster.
fn shared_lane(
    cx: &mut Context<'_>,
    addr: u64,
    lane: u32,
    size: u64,
    access: Access,
) -> Option<*mut u8> {
    let kind = if addr & (size - 1) != 0 {
        FaultKind::MisalignedAddress
    } else {
        FaultKind::SharedOutOfRange
    };
    let rank = (addr >> window::CLUSTER_RANK_SHIFT & 0xff) as usize;
    let (base, offset) = match rank {
        0 => (Some(cx.shared), addr),
        _ => (
            cx.cluster_shared.get(rank - 1).copied(),
            addr & ((1 << window::CLUSTER_RANK_SHIFT) - 1),
        ),
    };
    match base {
        Some(base)
            if kind == FaultKind::SharedOutOfRange
                && offset + size <= u64::from(cx.shared_bytes) =>
        {
            // SAFETY: inside that block's shared memory by the check; all blocks of a launch have
            // the same size.
            Some(unsafe { base.add(offset as usize) })
        }
        _ => {
            cx.raise_access(kind, access, addr, size as u32, lane);
            None
        }
    }
}

/// `.local`: each thread's own memory.
pub(in crate::exec) struct Local<W>(PhantomData<W>);

impl<W: AddressWord> Space for Local<W> {
    type Word = u32;
    type Register = W;

    #[inline(always)]
    fn address(word: W, imm: i64) -> u64 {
        Shared::<W>::address(word, imm)
    }

    const VECTOR: bool = false;

    #[inline(always)]
    unsafe fn addresses(frame: Frame, offset: u32, first: usize, imm: i64) -> [u32; CHUNK] {
        // SAFETY: by the caller's contract.
        unsafe { Shared::<W>::addresses(frame, offset, first, imm) }
    }

    #[inline(always)]
    fn contiguous(_: &mut Context<'_>, _: &Ins, _: u64, _: u64) -> Option<*mut u8> {
        None
    }

    #[inline(always)]
    fn all<V: Vectors>(
        _: &mut Context<'_>,
        _: &Ins,
        _: &[u32; CHUNK],
        _: u32,
        _: u64,
    ) -> Option<usize> {
        None
    }

    #[inline(always)]
    fn lane(
        cx: &mut Context<'_>,
        _: &Ins,
        addr: u64,
        lane: u32,
        size: u64,
        access: Access,
    ) -> Option<*mut u8> {
        if addr & (size - 1) == 0 && addr + size <= u64::from(cx.local_bytes) {
            // SAFETY: inside the thread's part of the warp's local memory by the check.
            return Some(unsafe {
                cx.local.add(lane as usize * cx.local_bytes as usize + addr as usize)
            });
        }
        let kind = if addr & (size - 1) != 0 {
            FaultKind::MisalignedAddress
        } else {
            FaultKind::LocalOutOfRange
        };
        cx.raise_access(kind, access, addr, size as u32, lane);
        None
    }
}

/// Generic addresses: device memory or any window, per lane.
pub(in crate::exec) struct Generic;

impl Space for Generic {
    type Word = u64;
    type Register = u64;

    #[inline(always)]
    fn address(word: u64, imm: i64) -> u64 {
        Global::address(word, imm)
    }

    #[inline(always)]
    unsafe fn addresses(frame: Frame, offset: u32, first: usize, imm: i64) -> [u64; CHUNK] {
        // SAFETY: by the caller's contract.
        unsafe { Global::addresses(frame, offset, first, imm) }
    }

    #[inline(always)]
    fn contiguous(cx: &mut Context<'_>, ins: &Ins, addr: u64, len: u64) -> Option<*mut u8> {
        if addr >> window::TAG_SHIFT == window::SHARED_TAG {
            return Shared::<u64>::contiguous(cx, ins, addr & u64::from(u32::MAX), len);
        }
        Global::contiguous(cx, ins, addr, len)
    }

    #[inline(always)]
    fn all<V: Vectors>(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: &[u64; CHUNK],
        mask: u32,
        size: u64,
    ) -> Option<usize> {
        let first = addr[mask.trailing_zeros() as usize];
        if first < window::WINDOWS_START {
            return Global::all::<V>(cx, ins, addr, mask, size);
        }
        if first >> window::TAG_SHIFT != window::SHARED_TAG {
            return None;
        }
        let limit = u64::from(cx.shared_bytes).checked_sub(size)?;
        all_within::<V, _>(addr, mask, window::SHARED_WINDOW, limit, size)
            .then(|| (cx.shared as usize).wrapping_sub(window::SHARED_WINDOW as usize))
    }

    #[cold]
    #[inline(never)]
    fn lane(
        cx: &mut Context<'_>,
        ins: &Ins,
        addr: u64,
        lane: u32,
        size: u64,
        access: Access,
    ) -> Option<*mut u8> {
        let low = addr & u64::from(u32::MAX);
        match addr >> window::TAG_SHIFT {
            window::SHARED_TAG => shared_lane(cx, low, lane, size, access),
            window::LOCAL_TAG => Local::<u64>::lane(cx, ins, low, lane, size, access),
            window::PARAM_TAG => param_lane(cx, low, lane, size, access),
            _ => Global::lane(cx, ins, addr, lane, size, access),
        }
    }
}

/// One lane's access to the kernel's parameter buffer.
fn param_lane(
    cx: &mut Context<'_>,
    offset: u64,
    lane: u32,
    size: u64,
    access: Access,
) -> Option<*mut u8> {
    let params = &cx.launch.params;
    if access == Access::Read && offset & (size - 1) == 0 && offset + size <= params.len() as u64 {
        return Some(params[offset as usize..].as_ptr().cast_mut());
    }
    let misaligned = offset & (size - 1) != 0;
    let kind = if misaligned { FaultKind::MisalignedAddress } else { FaultKind::IllegalAddress };
    cx.raise_access(kind, access, window::PARAM_WINDOW + offset, size as u32, lane);
    None
}
