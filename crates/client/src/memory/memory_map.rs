//! What lies where: every range of addresses that means something to the API, with what is known of
//! it.
//!
//! Pointer queries are answered from here, and copies learn whether an end is memory that the
//! executor reaches (*shared*) or memory of this process alone (*private*), which must be staged.

use crate::result::Result;
use crate::thread::remembered;
use crate::thread::remembered::Place;
use cuda_abi::types::CUresult;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What a range is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and its kin.
    Device,
    /// From a memory pool: freed in stream order.
    Pool {
        /// The pool's handle.
        pool: usize,
    },
    /// An allocation node's.
    Graph,
    /// A `__device__` variable: freed with its module.
    Global,
    /// `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// `cuMemAllocManaged`: device memory that the host uses at the same addresses, see
    /// [`crate::two_sided::managed`].
    Managed,
    /// The same where that cannot be: pinned memory.
    ManagedHost,
    /// A `__managed__` variable: mirrored, see [`crate::two_sided::mirrors`]; freed with its
    /// module.
    ManagedGlobal,
    /// `cuMemHostRegister`: the program's own memory.
    Registered {
        flags: u32,
        /// The device's address of the same bytes, once it was asked for.
        alias: Mutex<Option<Alias>>,
    },
    /// `cuMemMap`: memory of one device that was created apart from its addresses.
    Mapped {
        /// Whether it can be exported as a descriptor.
        shareable: bool,
    },
    /// Memory of another client.
    Opened {
        /// By which the executor knows it.
        token: [u64; 2],
    },
    /// The device's addresses of registered pages.
    Alias {
        /// The program's address of the first page.
        first_page: u64,
    },
}

/// A second mapping of registered pages, where the executor reaches them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    /// Device address of the first page.
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    /// The program's address of the first page.
    pub(crate) first_page: u64,
}

/// A range with a meaning.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) base: u64,
    pub(crate) size_bytes: u64,
    pub(crate) kind: Kind,
    /// Handle of the context that it belongs to.
    pub(crate) context: usize,
    pub(crate) device: i32,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: never used again.
    pub(crate) buffer_id: u64,
    /// [`KNOWN`], or [`REMOVED`] from the map.
    state: AtomicU64,
}

const KNOWN: u64 = 0;
const REMOVED: u64 = 1;

impl Area {
    pub(crate) fn new(base: u64, size_bytes: u64, kind: Kind, context: usize, device: i32) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
        let buffer_id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        let state = AtomicU64::new(KNOWN);
        Self { base, size_bytes, kind, context, device, buffer_id, state }
    }

    /// It is no longer in the map, and threads may not remember it.
    fn forget(&self) {
        // Release: with the Acquire of threads that remember it.
        self.state.store(REMOVED, Ordering::Release);
    }

    fn contains(&self, address: u64, size_bytes: u64) -> bool {
        let Some(offset) = address.checked_sub(self.base) else { return false };
        offset.checked_add(size_bytes).is_some_and(|end| end <= self.size_bytes)
    }

    /// Bytes from an address in it to its end.
    pub(crate) fn left(&self, address: u64) -> u64 {
        (self.base + self.size_bytes).saturating_sub(address)
    }

    /// Whether it is managed memory, wherever it lies.
    pub(crate) fn is_managed(&self) -> bool {
        matches!(self.kind, Kind::Managed | Kind::ManagedHost | Kind::ManagedGlobal)
    }

    /// Whether this process can read and write it through its address.
    pub(crate) fn is_host(&self) -> bool {
        !matches!(
            self.kind,
            Kind::Device
                | Kind::Pool { .. }
                | Kind::Graph
                | Kind::Global
                | Kind::Mapped { .. }
                | Kind::Opened { .. }
        )
    }

    /// Whether the executor reaches it at the same address.
    pub(crate) fn is_shared(&self) -> bool {
        !matches!(self.kind, Kind::Registered { .. })
    }
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// The executor reaches it.
    Shared(Arc<Area>),
    /// Memory of this process alone.
    Private,
}

impl Reach {
    /// Whether only this process reaches it.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self, Self::Private)
    }

    /// As the executor of a device sees it: host memory that another device's executor has is
    /// private to this process.
    pub(crate) fn seen_from(self, device: i32) -> Self {
        match self {
            Self::Shared(area) if area.device != device && area.is_host() => Self::Private,
            other => other,
        }
    }

    /// Whether it is memory of another device.
    pub(crate) fn is_foreign(&self, device: i32) -> bool {
        self.foreign(device).is_some()
    }

    /// The other device that it is memory of, if it is.
    pub(crate) fn foreign(&self, device: i32) -> Option<i32> {
        match self {
            Self::Shared(area) if area.device != device && !area.is_host() => Some(area.device),
            _ => None,
        }
    }

    /// Whether this process reaches it.
    pub(crate) fn is_host(&self) -> bool {
        match self {
            Self::Shared(area) => area.is_host(),
            Self::Private => true,
        }
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct MemoryMap {
    /// Different from all other maps' and tables'.
    number: u64,
    areas: RwLock<Areas>,
    /// What the ranges lie between: ordinary memory, of which libraries ask as often, mostly does
    /// not.
    lowest: AtomicU64,
    end: AtomicU64,
}

type Areas = BTreeMap<u64, Arc<Area>>;

/// What threads remember ranges of memory as.
const AREAS: usize = 0;
/// Addresses of one such piece are remembered in one place.
const PIECE_BITS: u32 = 16;

impl Default for MemoryMap {
    fn default() -> Self {
        let (lowest, end) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Self { number: remembered::table_number(), areas: RwLock::default(), lowest, end }
    }
}

impl MemoryMap {
    fn read(&self) -> RwLockReadGuard<'_, Areas> {
        self.areas.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Areas> {
        self.areas.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a range, which overlaps no other.
    pub(crate) fn insert(&self, area: Area) -> Arc<Area> {
        let area = Arc::new(area);
        let mut areas = self.write();
        if let Some(former) = areas.insert(area.base, Arc::clone(&area)) {
            former.forget();
        }
        // Release: with the Acquire in `is_outside`. They only ever spread: who knows of the range
        // finds it inside.
        self.lowest.fetch_min(area.base, Ordering::Release);
        self.end.fetch_max(area.base.saturating_add(area.size_bytes), Ordering::Release);
        area
    }

    /// Whether no range can hold an address.
    #[inline]
    fn is_outside(&self, address: u64) -> bool {
        // Acquire: with the Release in `insert`.
        address < self.lowest.load(Ordering::Acquire) || address >= self.end.load(Ordering::Acquire)
    }

    /// Where threads remember the range of an address.
    fn place(&self, address: u64) -> (u64, usize, usize) {
        (self.number, AREAS, (address >> PIECE_BITS) as usize)
    }

    /// What `look` finds of the range that holds an address, without the cost of a reference.
    #[inline]
    pub(crate) fn look<T>(&self, address: u64, look: impl FnOnce(Option<&Area>) -> T) -> T {
        if self.is_outside(address) {
            return look(None);
        }
        let is_meant = |_, area: &Area| area.contains(address, 1);
        // SAFETY: what is remembered of this map is an area, and the map is there.
        let seen = unsafe {
            remembered::look(self.place(address), is_meant, look, |look, area| look(Some(area)))
        };
        match seen {
            Ok(seen) => seen,
            Err(look) => self.find_anew(address, look),
        }
    }

    /// The same of what is not remembered, and is from now on.
    #[cold]
    fn find_anew<T>(&self, address: u64, look: impl FnOnce(Option<&Area>) -> T) -> T {
        let found = {
            let areas = self.read();
            let below = areas.range(..=address).next_back();
            below.map(|(_, area)| area).filter(|area| area.contains(address, 1)).cloned()
        };
        let Some(area) = found else { return look(None) };
        let (table, kind, index) = self.place(address);
        let token = area.base as usize;
        // The state is part of what is kept.
        remembered::keep(
            Place { table, token, kind, index, alive: KNOWN, state: &area.state },
            &area,
        );
        look(Some(&area))
    }

    /// The range that holds an address.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Area>> {
        if self.is_outside(address) {
            return None;
        }
        let areas = self.read();
        let (_, area) = areas.range(..=address).next_back()?;
        area.contains(address, 1).then(|| Arc::clone(area))
    }

    /// Whether any range lies in `[address, address + size_bytes)`.
    pub(crate) fn overlaps(&self, address: u64, size_bytes: u64) -> bool {
        let areas = self.read();
        let end = address.saturating_add(size_bytes);
        areas
            .range(..end)
            .next_back()
            .is_some_and(|(_, area)| area.base + area.size_bytes > address)
    }

    /// Takes the range that starts at an address, if `condition` holds.
    pub(crate) fn remove(
        &self,
        address: u64,
        condition: impl FnOnce(&Area) -> bool,
    ) -> Option<Arc<Area>> {
        let mut areas = self.write();
        if !condition(areas.get(&address)?) {
            return None;
        }
        let removed = areas.remove(&address)?;
        removed.forget();
        Some(removed)
    }

    /// Takes all ranges for which `condition` holds.
    pub(crate) fn remove_all(&self, condition: impl Fn(&Area) -> bool) -> Vec<Arc<Area>> {
        let mut areas = self.write();
        let taken: Vec<_> = areas.values().filter(|area| condition(area)).cloned().collect();
        for area in &taken {
            areas.remove(&area.base);
            area.forget();
        }
        taken
    }

    /// All ranges for which `condition` holds.
    pub(crate) fn select(&self, condition: impl Fn(&Area) -> bool) -> Vec<Arc<Area>> {
        let areas = self.areas.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        areas.values().filter(|area| condition(area)).cloned().collect()
    }

    /// How an end of a copy is reached; CUDA_ERROR_INVALID_VALUE when it runs over the end of its
    /// range.
    pub(crate) fn reach(&self, address: u64, size_bytes: u64) -> Result<Reach> {
        match self.find(address) {
            None if address == 0 => Err(CUresult::ERROR_INVALID_VALUE),
            None => Ok(Reach::Private),
            Some(area)
                if !area.contains(address, size_bytes)
                    && !self.continues(&area, address, size_bytes) =>
            {
                Err(CUresult::ERROR_INVALID_VALUE)
            }
            Some(area) if area.is_shared() => Ok(Reach::Shared(area)),
            Some(_) => Ok(Reach::Private),
        }
    }

    /// Whether a range that begins in `area` goes on through mappings that follow each other
    /// without gaps.
    fn continues(&self, area: &Area, address: u64, size_bytes: u64) -> bool {
        let is_mapped = |area: &Area| matches!(area.kind, Kind::Mapped { .. });
        let Some(end) = address.checked_add(size_bytes).filter(|_| is_mapped(area)) else {
            return false;
        };
        let areas = self.read();
        let mut next = area.base + area.size_bytes;
        while next < end {
            match areas.get(&next).filter(|area| is_mapped(area)) {
                Some(area) => next += area.size_bytes,
                None => return false,
            }
        }
        true
    }

    /// As [`Self::reach`], for what must be memory that the device reaches.
    pub(crate) fn device_reach(&self, address: u64, size_bytes: u64) -> Result<Arc<Area>> {
        match self.reach(address, size_bytes)? {
            Reach::Shared(area) => Ok(area),
            Reach::Private => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_follow_each_other_are_one_end_of_a_copy() {
        let map = MemoryMap::default();
        for base in [0x1000, 0x2000, 0x4000] {
            map.insert(Area::new(base, 0x1000, Kind::Mapped { shareable: false }, 0, 0));
        }
        map.insert(Area::new(0x5000, 0x1000, Kind::Device, 1, 0));
        assert!(matches!(map.reach(0x1800, 0x1800), Ok(Reach::Shared(_))));
        assert!(map.reach(0x1800, 0x1801).is_err());
        assert!(map.reach(0x4000, 0x1001).is_err(), "what follows is no mapping");
        assert!(map.reach(0x1000, u64::MAX).is_err());
    }

    #[test]
    fn ranges_are_found_by_any_address_inside() {
        let map = MemoryMap::default();
        map.insert(Area::new(0x1000, 0x100, Kind::Device, 1, 0));
        map.insert(Area::new(0x2000, 0x100, Kind::Pinned(0), 1, 0));
        map.insert(Area::new(
            0x3000,
            0x100,
            Kind::Registered { flags: 0, alias: Mutex::default() },
            1,
            0,
        ));
        assert_eq!(map.find(0x10ff).unwrap().base, 0x1000);
        assert!(map.find(0x1100).is_none());
        assert!(matches!(map.reach(0x1010, 0xf0), Ok(Reach::Shared(_))));
        assert!(matches!(map.reach(0x1010, 0xf1), Err(CUresult::ERROR_INVALID_VALUE)));
        assert!(matches!(map.reach(0x1010, u64::MAX), Err(CUresult::ERROR_INVALID_VALUE)));
        assert!(matches!(map.reach(0x3000, 8), Ok(Reach::Private)));
        assert!(map.device_reach(0x5000, 8).is_err());
        assert!(
            map.overlaps(0x0ff0, 0x11) && !map.overlaps(0x0ff0, 0x10) && !map.overlaps(0x1100, 8)
        );
        assert!(map.remove(0x1000, |area| area.is_host()).is_none());
        assert!(map.remove(0x1000, |area| !area.is_host()).is_some());
        assert!(map.find(0x1000).is_none());
    }

    #[test]
    fn a_range_that_was_looked_at_is_not_found_when_it_is_gone() {
        let map = MemoryMap::default();
        let seen = |address| map.look(address, |area| area.map(|area| (area.base, area.context)));
        map.insert(Area::new(0x10_0000, 0x1000, Kind::Device, 1, 0));
        assert_eq!(
            (seen(0x10_0800), seen(0x10_0fff)),
            (Some((0x10_0000, 1)), Some((0x10_0000, 1)))
        );
        assert_eq!((seen(0x10_1000), seen(0xf_ffff)), (None, None));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(map.remove(0x10_0000, |_| true).is_some())).join().unwrap();
        });
        assert_eq!(seen(0x10_0800), None);
        map.insert(Area::new(0x10_0800, 0x1000, Kind::Device, 2, 0));
        assert_eq!((seen(0x10_0800), seen(0x10_0000)), (Some((0x10_0800, 2)), None));
        assert_eq!(map.remove_all(|_| true).len(), 1);
        assert_eq!(seen(0x10_0800), None);
    }
}
