//! Device memory: identity-mapped address ranges backed by memfds.
//!
//! A device pointer is a host virtual address of this process. Address ranges are reserved without
//! access, physical allocations are memfds, mapping one into the other makes it accessible to
//! kernels and copies alike. Neighbours: kernels ask [`ranges`] which range an address lies in,
//! `transfer` copies through [`touch`], `api` offers `cuMem*` on [`AddressSpace`].
//!
//! | file | concept |
//! |---|---|
//! | [`physical`] | memfd-backed allocations and each device's account |
//! | [`holders`] | who still has what a process of a machine has let go |
//! | [`ranges`] | which addresses kernels may touch; how an unmap waits for those who do |
//! | [`space`] | reservations, mappings, host registrations |
//! | [`heap`] | `cuMemAlloc`: sub-allocation from 2 MiB chunks |
//! | [`touch`] | reading and writing what is accessible |
//! | [`os`] | the few `mmap` calls, the only `unsafe` of memory management |

pub(crate) mod heap;
pub(crate) mod holders;
pub(crate) mod os;
pub(crate) mod physical;
pub(crate) mod ranges;
pub(crate) mod space;
pub(crate) mod touch;

pub(crate) use physical::{Account, Physical};
pub(crate) use space::{AddressSpace, Allocation, AllocationKind};

/// Mapping granularity in bytes, as of a real device.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// Rounds up to a power-of-two multiple; `None` on overflow.
pub(crate) fn round_up(value: u64, to: u64) -> Option<u64> {
    Some(value.checked_add(to - 1)? & !(to - 1))
}
