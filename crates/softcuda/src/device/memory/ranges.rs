//! Which addresses kernels and copies may touch, and how an unmap waits for those who do.
//!
//! Readers (a worker's slice, one piece of a copy) hold [`Accessible::enter`]'s guard for a bounded
//! time and look addresses up in an immutable snapshot without locking. Adding a range publishes a
//! new snapshot at once. Removing one publishes a snapshot without it and then waits until every
//! reader that entered before has left; only then may the pages go.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

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
}

/// How finely accessible ranges are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Adjacent ranges count as one, as pages of a real device do.
    Mapping,
    /// Every range stands alone: an overrun into a neighbour is found.
    Exact,
}

/// The process's accessible ranges.
#[derive(Debug)]
pub(crate) struct Accessible {
    precision: Precision,
    /// All ranges as added, by start; the published snapshot is made from it.
    master: Mutex<std::collections::BTreeMap<u64, u64>>,
    published: RwLock<Arc<RangeTable>>,
    /// Held shared by readers of memory, exclusively (for a moment) by a removal.
    users: RwLock<()>,
}

/// Permission to touch accessible memory; keep it for a bounded time only.
pub(crate) struct Entered<'a> {
    owner: &'a Accessible,
    table: Arc<RangeTable>,
    _users: RwLockReadGuard<'a, ()>,
}

impl Accessible {
    pub(crate) fn new(precision: Precision) -> Self {
        Accessible {
            precision,
            master: Mutex::default(),
            published: RwLock::default(),
            users: RwLock::new(()),
        }
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Starts a bounded use of memory. Ranges found through the guard stay mapped until it is dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        Entered { owner: self, table: self.snapshot(), _users: users }
    }

    /// The current table, for questions that touch no memory.
    pub(crate) fn snapshot(&self) -> Arc<RangeTable> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a range accessible at once.
    pub(crate) fn add(&self, range: Range<u64>) {
        let mut master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
        master.insert(range.start, range.end);
        self.publish(&master);
    }

    /// Makes ranges inaccessible and returns when nobody uses them any more.
    pub(crate) fn remove(&self, ranges: &[Range<u64>]) {
        {
            let mut master = self.master.lock().unwrap_or_else(PoisonError::into_inner);
            for range in ranges {
                master.remove(&range.start);
            }
            self.publish(&master);
        }
        // Readers that entered with the old snapshot hold `users` shared; later ones see the new one.
        drop(self.users.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn publish(&self, master: &std::collections::BTreeMap<u64, u64>) {
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(master.len());
        for (&start, &end) in master {
            match ranges.last_mut() {
                Some(last) if last.end == start && self.precision == Precision::Mapping => {
                    last.end = end
                }
                _ => ranges.push(start..end),
            }
        }
        *self.published.write().unwrap_or_else(PoisonError::into_inner) =
            Arc::new(RangeTable { ranges });
    }
}

impl Entered<'_> {
    /// The accessible range that contains `address`; sees ranges added since the guard was taken.
    pub(crate) fn find(&self, address: u64) -> Option<Range<u64>> {
        self.table.find(address).or_else(|| self.owner.snapshot().find(address))
    }

    /// Whether all of `size_bytes` at `address` is accessible.
    pub(crate) fn covers(&self, address: u64, size_bytes: u64) -> bool {
        self.table.covers(address, size_bytes) || self.owner.snapshot().covers(address, size_bytes)
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
            assert_eq!(accessible.enter().find(0x3000), None);
        }
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
