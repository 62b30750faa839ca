//! Which addresses kernels and copies may touch, and how an unmap waits for those who do.
//!
//! Readers (a worker's slice, one piece of a copy) hold [`Accessible::enter`]'s guard for a bounded
//! time and look addresses up in an immutable snapshot without locking. Adding a range publishes a
//! new snapshot at once. Removing one publishes a snapshot without it and then waits until every
//! reader that entered before has left; only then may the pages go.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// An immutable, sorted list of disjoint accessible ranges.
#[derive(Debug, Default)]
pub(crate) struct RangeTable {
    ranges: Vec<Range<u64>>,
}

impl RangeTable {
    /// The accessible range that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Range<u64>> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (address < range.end).then(|| range.clone())
    }

    /// Whether all of `size_bytes` at `address` is accessible.
    pub(crate) fn covers(&self, address: u64, size_bytes: u64) -> bool {
        let Some(end) = address.checked_add(size_bytes) else { return false };
        let mut at = address;
        while at < end {
            match self.find(at) {
                Some(range) => at = range.end,
                None => return false,
            }
        }
        true
    }

    /// How many accessible bytes follow each other from `address` on, of at most so many.
    pub(crate) fn bytes_from(&self, address: u64, most_bytes: u64) -> u64 {
        let end = address.saturating_add(most_bytes);
        let mut at = address;
        while at < end
            && let Some(range) = self.find(at)
        {
            at = range.end.min(end);
        }
        at - address
    }
}

/// How finely accessible ranges are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Adjacent ranges count as one, as pages of a real device do.
    Mapping,
    /// Every range stands alone: an overrun into a neighbour is found.
    Exact,
}

/// Sets of devices, one bit each; a process has at most 16.
pub(crate) type DeviceSet = u32;

/// Whose kernels touch a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every device's: host memory.
    All,
    /// Those of the device that has it, of those that were given access to all of its memory, and
    /// of these.
    Of(u32, DeviceSet),
    /// These devices' only.
    Only(DeviceSet),
}

/// What [`Accessible`] knows.
#[derive(Debug, Default)]
struct Master {
    /// All ranges as added: first address to first address after.
    ranges: BTreeMap<u64, (u64, Reach)>,
    /// By device: which others may touch its memory.
    admitted: [DeviceSet; MOST_DEVICES],
}

impl Master {
    fn reaches(&self, device: usize, reach: Reach) -> bool {
        let has = |set: DeviceSet| set & 1 << device != 0;
        match reach {
            Reach::All => true,
            Reach::Only(these) => has(these),
            Reach::Of(owner, these) => {
                let admitted = self.admitted.get(owner as usize).copied().unwrap_or_default();
                owner as usize == device || has(admitted) || has(these)
            }
        }
    }
}

/// As many can be configured.
const MOST_DEVICES: usize = 16;

/// The process's accessible ranges.
#[derive(Debug)]
pub(crate) struct Accessible {
    precision: Precision,
    /// What the published snapshots are made from.
    master: Mutex<Master>,
    /// What any device touches: for copies.
    published: RwLock<Arc<RangeTable>>,
    /// What each device's kernels touch, where there are several devices.
    by_device: Vec<RwLock<Arc<RangeTable>>>,
    /// Held shared by readers of memory, exclusively (for a moment) by a removal.
    users: RwLock<()>,
}

/// Permission to touch accessible memory; keep it for a bounded time only.
pub(crate) struct Entered<'a> {
    owner: &'a Accessible,
    device: Option<usize>,
    table: Arc<RangeTable>,
    _users: RwLockReadGuard<'a, ()>,
}

impl Accessible {
    #[cfg(test)]
    pub(crate) fn new(precision: Precision) -> Self {
        Self::with_devices(precision, 1)
    }

    /// For a number of devices.
    pub(crate) fn with_devices(precision: Precision, devices: usize) -> Self {
        let tables = if devices > 1 { devices.min(MOST_DEVICES) } else { 0 };
        Accessible {
            precision,
            master: Mutex::default(),
            published: RwLock::default(),
            by_device: (0..tables).map(|_| RwLock::default()).collect(),
            users: RwLock::new(()),
        }
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Starts a bounded use of memory. Ranges found through the guard stay mapped until it is
    /// dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.enter_as(None)
    }

    /// The same for a kernel of a device, by ordinal.
    pub(crate) fn enter_on(&self, device: usize) -> Entered<'_> {
        self.enter_as(Some(device))
    }

    fn enter_as(&self, device: Option<usize>) -> Entered<'_> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        Entered { owner: self, device, table: self.snapshot_for(device), _users: users }
    }

    fn snapshot_for(&self, device: Option<usize>) -> Arc<RangeTable> {
        match device.and_then(|device| self.by_device.get(device)) {
            Some(table) => table.read().unwrap_or_else(PoisonError::into_inner).clone(),
            None => self.snapshot(),
        }
    }

    /// The current table, for questions that touch no memory.
    pub(crate) fn snapshot(&self) -> Arc<RangeTable> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a range accessible to all devices at once.
    pub(crate) fn add(&self, range: Range<u64>) {
        self.add_for(range, Reach::All);
    }

    /// Makes a range accessible to some devices at once.
    pub(crate) fn add_for(&self, range: Range<u64>, reach: Reach) {
        let mut master = self.lock();
        master.ranges.insert(range.start, (range.end, reach));
        self.publish(&master);
    }

    /// Changes who may touch the range that holds an address, and returns when nobody touches it
    /// who may not.
    pub(crate) fn change(&self, address: u64, change: impl FnOnce(Reach) -> Reach) {
        {
            let mut master = self.lock();
            let found = master.ranges.range_mut(..=address).next_back();
            let Some((_, (_, reach))) = found.filter(|(_, (end, _))| address < *end) else {
                return;
            };
            *reach = change(*reach);
            self.publish(&master);
        }
        drop(self.users.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Says which other devices may touch a device's memory, and returns when nobody touches it who
    /// may not.
    pub(crate) fn admit(&self, owner: u32, devices: DeviceSet) {
        {
            let mut master = self.lock();
            if let Some(admitted) = master.admitted.get_mut(owner as usize) {
                *admitted = devices;
            }
            self.publish(&master);
        }
        drop(self.users.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Master> {
        self.master.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes ranges inaccessible and returns when nobody uses them any more.
    pub(crate) fn remove(&self, ranges: &[Range<u64>]) {
        {
            let mut master = self.lock();
            for range in ranges {
                master.ranges.remove(&range.start);
            }
            self.publish(&master);
        }
        // Readers that entered with the old snapshot hold `users` shared; later ones see the new
        // one.
        drop(self.users.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn publish(&self, master: &Master) {
        let store = |table: &RwLock<Arc<RangeTable>>, ranges| {
            *table.write().unwrap_or_else(PoisonError::into_inner) =
                Arc::new(RangeTable { ranges });
        };
        store(&self.published, self.table(master, |_| true));
        for (device, table) in self.by_device.iter().enumerate() {
            store(table, self.table(master, |reach| master.reaches(device, reach)));
        }
    }

    /// The ranges that are reached so.
    fn table(&self, master: &Master, is_in: impl Fn(Reach) -> bool) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(master.ranges.len());
        for (&start, &(end, _)) in master.ranges.iter().filter(|(_, (_, reach))| is_in(*reach)) {
            match ranges.last_mut() {
                Some(last) if last.end == start && self.precision == Precision::Mapping => {
                    last.end = end
                }
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

impl Entered<'_> {
    /// The accessible range that contains `address`; sees ranges added since the guard was taken.
    pub(crate) fn find(&self, address: u64) -> Option<Range<u64>> {
        self.table.find(address).or_else(|| self.owner.snapshot_for(self.device).find(address))
    }

    /// Whether all of `size_bytes` at `address` is accessible.
    pub(crate) fn covers(&self, address: u64, size_bytes: u64) -> bool {
        self.table.covers(address, size_bytes)
            || self.owner.snapshot_for(self.device).covers(address, size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_merge_unless_exact() {
        for (precision, expected) in
            [(Precision::Mapping, 0x1000..0x3000), (Precision::Exact, 0x1000..0x2000)]
        {
            let accessible = Accessible::new(precision);
            accessible.add(0x2000..0x3000);
            accessible.add(0x1000..0x2000);
            assert_eq!(accessible.enter().find(0x1800), Some(expected));
            assert!(accessible.enter().covers(0x1000, 0x2000));
            assert!(!accessible.enter().covers(0x1000, 0x2001));
            let from =
                |address, most_bytes| accessible.enter().table.bytes_from(address, most_bytes);
            assert_eq!((from(0x1800, u64::MAX), from(0x1800, 0x900)), (0x1800, 0x900));
            assert_eq!((from(0xfff, 0x100), from(0x3000, 0x100)), (0, 0));
            assert_eq!(accessible.enter().find(0x3000), None);
        }
    }

    #[test]
    fn devices_touch_their_own_memory_and_what_they_are_admitted_to() {
        let accessible = Accessible::with_devices(Precision::Mapping, 3);
        accessible.add(0x1000..0x2000);
        accessible.add_for(0x2000..0x3000, Reach::Of(0, 0));
        accessible.add_for(0x3000..0x4000, Reach::Only(0b110));
        let seen = |device: usize| {
            let entered = accessible.enter_on(device);
            [0x1000, 0x2000, 0x3000].map(|address| entered.covers(address, 0x1000))
        };
        assert_eq!(seen(0), [true, true, false]);
        assert_eq!(seen(1), [true, false, true]);
        assert!(accessible.enter().covers(0x1000, 0x3000), "copies reach all");
        accessible.admit(0, 0b010);
        assert_eq!((seen(1), seen(2)), ([true, true, true], [true, false, true]));
        accessible.admit(0, 0);
        accessible.change(0x2800, |_| Reach::Of(0, 0b100));
        assert_eq!((seen(1), seen(2)), ([true, false, true], [true, true, true]));
    }

    #[test]
    fn a_removal_waits_for_those_inside() {
        let accessible = Accessible::new(Precision::Mapping);
        accessible.add(0x1000..0x2000);
        let left = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let inside = accessible.enter();
            let remover = scope.spawn(|| {
                accessible.remove(std::slice::from_ref(&(0x1000..0x2000)));
                // SeqCst: pairs with the store below; order is what the test is about.
                assert!(left.load(std::sync::atomic::Ordering::SeqCst));
            });
            while accessible.snapshot().find(0x1000).is_some() {
                std::thread::yield_now();
            }
            assert!(inside.find(0x1000).is_some(), "found through the guard until it is dropped");
            left.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(inside);
            remover.join().expect("remover ends");
        });
        assert_eq!(accessible.enter().find(0x1000), None);
    }
}
