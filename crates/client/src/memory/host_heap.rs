//! Host memory that this process shares with the executor, at the same addresses.
//!
//! A *region* is a file of ours, mapped by both in the session's host window. Small pinned
//! allocations are pieces of common regions; large ones, and images, have regions of their own.
//! The driver takes and gives up pinned memory when the device is quiet, so some that was freed is
//! kept for the next allocations of the same size.

use crate::memory::allocator::{Allocator, Range};
use crate::result::Result;
use crate::session::Session;
use cuda_abi::types::CUresult;
use link::pages::Pages;
use link::shm::{self, Access, Reservation, ShmError};
use link::wire::attach::Window;
use link::wire::command::{REGION_PINNED, RegionMap};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

/// Regions that small allocations share.
const COMMON_REGION_BYTES: u64 = 1 << 20;
/// Longest piece of a common region.
const SMALL_BYTES: u64 = 128 << 10;
/// Longest freed region that is kept, and how much is kept in all.
const LONGEST_KEPT_BYTES: u64 = 8 << 20;
const MOST_KEPT_BYTES: u64 = 32 << 20;

/// See the module's description.
pub(crate) struct HostHeap {
    window: Reservation,
    pages: Pages,
    state: Mutex<State>,
}

struct State {
    /// Addresses of the window, by regions.
    regions: Allocator,
    /// Pieces of common regions.
    small: Allocator,
    kept: KeptRegions,
}

/// Pinned regions that were freed, the latest last.
#[derive(Debug, Default)]
struct KeptRegions(Vec<Range>);

impl KeptRegions {
    /// Keeps a region if there is room.
    fn put(&mut self, region: Range) -> bool {
        let kept_bytes: u64 = self.0.iter().map(|it| it.size_bytes).sum();
        let has_room = region.size_bytes <= LONGEST_KEPT_BYTES
            && kept_bytes + region.size_bytes <= MOST_KEPT_BYTES;
        if has_room {
            self.0.push(region);
        }
        has_room
    }

    /// The latest one of that size.
    fn take(&mut self, size_bytes: u64) -> Option<Range> {
        let found = self.0.iter().rposition(|it| it.size_bytes == size_bytes)?;
        Some(self.0.remove(found))
    }
}

/// Memory mapped by both sides.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// So that it can be mapped elsewhere as well.
    pub(crate) file: OwnedFd,
}

impl HostHeap {
    /// Reserves the session's window, of which regions take whole pages.
    pub(crate) fn new(window: Window, pages: Pages) -> core::result::Result<Self, ShmError> {
        let mut regions = Allocator::default();
        regions.add_grant(Range { address: window.base, size_bytes: window.size_bytes });
        let state = State { regions, small: Allocator::default(), kept: Default::default() };
        let window = Reservation::in_pages(window, pages)?;
        Ok(Self { window, pages, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes a region of at least `size_bytes`, of zeros.
    pub(crate) fn create_region(
        &self,
        session: &Session,
        context: u32,
        size_bytes: u64,
        kind: u32,
    ) -> Result<Region> {
        let region = self.take(size_bytes)?;
        let Region { address, size_bytes, .. } = region;
        if kind == REGION_PINNED {
            // Else its pages would be made while the driver registers them, which holds up all
            // clients' work.
            self.window.populate(address, size_bytes);
        }
        let told = RegionMap { address, size_bytes, kind, reserved: 0 };
        match session.map_region(context, region.file.as_fd(), told) {
            Ok(_) => Ok(region),
            Err(error) => {
                self.forget(address, size_bytes);
                Err(error)
            }
        }
    }

    /// Makes a region that this process alone knows.
    fn take(&self, size_bytes: u64) -> Result<Region> {
        let size_bytes =
            self.pages.whole(size_bytes.max(1)).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let address =
            self.lock().regions.allocate(size_bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        match self.map(address, size_bytes) {
            Ok(file) => Ok(Region { address, size_bytes, file }),
            Err(error) => {
                self.forget(address, size_bytes);
                Err(error)
            }
        }
    }

    fn map(&self, address: u64, size_bytes: u64) -> Result<OwnedFd> {
        let mapped = shm::create("openmps-region", size_bytes).and_then(|file| {
            self.window.map(file.as_fd(), address, size_bytes, Access::ReadWrite)?;
            Ok(file)
        });
        mapped.map_err(|error| {
            crate::error!("no region of {size_bytes} bytes: {error}");
            CUresult::ERROR_OUT_OF_MEMORY
        })
    }

    fn forget(&self, address: u64, size_bytes: u64) {
        match self.window.unmap(address, size_bytes) {
            Ok(()) => drop(self.lock().regions.free(address)),
            // The addresses stay taken: nobody else may get them while something is mapped there.
            Err(error) => crate::error!("a region at {address:#x} stays mapped: {error}"),
        }
    }

    /// Ends a region that no work uses any more, of at least `size_bytes`.
    pub(crate) fn destroy_region(
        &self,
        session: &Session,
        context: u32,
        address: u64,
        size_bytes: u64,
    ) -> Result {
        let size_bytes =
            self.pages.whole(size_bytes.max(1)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let answer = session.unmap_region(context, address, size_bytes);
        self.forget(address, size_bytes);
        answer
    }

    /// Takes a small piece of pinned memory, or `None` if it is too long for that.
    pub(crate) fn allocate_small(
        &self,
        session: &Session,
        context: u32,
        size_bytes: u64,
    ) -> Option<Result<u64>> {
        if size_bytes > SMALL_BYTES {
            return None;
        }
        if let Some(address) = self.lock().small.allocate(size_bytes) {
            return Some(Ok(address));
        }
        Some(self.create_region(session, context, COMMON_REGION_BYTES, REGION_PINNED).and_then(
            |region| {
                let mut state = self.lock();
                state
                    .small
                    .add_grant(Range { address: region.address, size_bytes: region.size_bytes });
                state.small.allocate(size_bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
            },
        ))
    }

    /// Makes a region for one allocation, or takes one that was kept.
    pub(crate) fn allocate_large(
        &self,
        session: &Session,
        context: u32,
        size_bytes: u64,
    ) -> Result<u64> {
        let whole_bytes = self.pages.whole(size_bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if let Some(region) = self.lock().kept.take(whole_bytes) {
            return Ok(region.address);
        }
        let make = || self.create_region(session, context, size_bytes, REGION_PINNED);
        let made = make().or_else(|error| {
            let kept = std::mem::take(&mut self.lock().kept).0;
            if kept.is_empty() {
                return Err(error);
            }
            for Range { address, size_bytes } in kept {
                // What fails here has failed the session, and the next call says so.
                let _ = self.destroy_region(session, context, address, size_bytes);
            }
            make()
        });
        made.map(|region| region.address)
    }

    /// Keeps or ends a region that [`Self::allocate_large`] gave and that no work uses any more.
    pub(crate) fn free_large(
        &self,
        session: &Session,
        context: u32,
        address: u64,
        size_bytes: u64,
    ) -> Result {
        let whole_bytes = self.pages.whole(size_bytes).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let is_kept = self.lock().kept.put(Range { address, size_bytes: whole_bytes });
        if is_kept {
            return Ok(());
        }
        self.destroy_region(session, context, address, size_bytes)
    }

    /// Gives a small piece back that no work uses any more; says whether it was one.
    pub(crate) fn free_small(&self, address: u64) -> bool {
        self.lock().small.free(address).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_regions_are_kept_up_to_a_limit() {
        let region = |number: u64, size_bytes| Range { address: number << 30, size_bytes };
        let mut kept = KeptRegions::default();
        assert!(!kept.put(region(1, LONGEST_KEPT_BYTES + 4096)), "too long");
        assert!((1..=4).all(|number| kept.put(region(number, LONGEST_KEPT_BYTES))));
        assert!(!kept.put(region(5, 4096)), "there is no room");
        assert_eq!(kept.take(4096), None);
        assert_eq!(kept.take(LONGEST_KEPT_BYTES), Some(region(4, LONGEST_KEPT_BYTES)));
        assert!(kept.put(region(5, 4096)));
        assert_eq!(kept.take(4096), Some(region(5, 4096)));
    }

    /// Where nothing else is.
    const WINDOW: Window = Window { base: 0x0b00_0000_0000, size_bytes: 64 << 20 };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A system with shorter pages maps longer ones just as well.
        #[test]
        fn regions_are_whole_pages_of_their_own(
            kib in prop::sample::select(vec![4u64, 16, 64]),
            wanted in prop::collection::vec(0..200_000u64, 1..12),
        ) {
            let pages = Pages::of(kib << 10);
            let heap = HostHeap::new(WINDOW, pages).unwrap();
            let regions: Vec<_> = wanted.iter().map(|size| heap.take(*size).unwrap()).collect();
            for (number, (region, size_bytes)) in regions.iter().zip(&wanted).enumerate() {
                prop_assert!(pages.are_whole(region.address, region.size_bytes));
                prop_assert!(region.size_bytes >= *size_bytes);
                prop_assert!(region.size_bytes < size_bytes.max(&1) + pages.bytes());
                prop_assert!(WINDOW.contains(region.address, region.size_bytes));
                // SAFETY: just mapped, and this test's own.
                unsafe {
                    let at = region.address as *mut u8;
                    at.write_bytes(number as u8 + 1, region.size_bytes as usize);
                }
            }
            for (number, region) in regions.iter().enumerate() {
                // SAFETY: as above; nobody writes any more.
                let bytes = unsafe {
                    let at = region.address as *const u8;
                    core::slice::from_raw_parts(at, region.size_bytes as usize)
                };
                prop_assert!(bytes.iter().all(|byte| *byte == number as u8 + 1), "they overlap");
            }
            regions.iter().for_each(|region| heap.forget(region.address, region.size_bytes));
            let all = heap.take(WINDOW.size_bytes);
            prop_assert_eq!(all.unwrap().address, WINDOW.base, "something stayed taken");
        }
    }
}
