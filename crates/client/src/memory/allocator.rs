//! Hands out pieces of granted address ranges.
//!
//! Pure: addresses and lengths, no memory. A *grant* is a range that the server gave; free ranges
//! merge inside their grant only, so that a grant that is free as a whole can be given back. The
//! best fit is taken, lowest address first.

use std::collections::{BTreeMap, BTreeSet};

/// Every address and length is a multiple of this, as CUDA's are.
pub(crate) const ALIGN_BYTES: u64 = 512;

/// The state of all grants of one kind.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    /// First address to length.
    grants: BTreeMap<u64, u64>,
    /// First address to length.
    free: BTreeMap<u64, u64>,
    /// (length, first address) of the same ranges.
    by_size: BTreeSet<(u64, u64)>,
    /// First address to length.
    used: BTreeMap<u64, u64>,
    free_bytes: u64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

/// `size_bytes` rounded up to [`ALIGN_BYTES`]; `None` on overflow and for 0.
pub(crate) fn rounded(size_bytes: u64) -> Option<u64> {
    if size_bytes == 0 { None } else { size_bytes.checked_next_multiple_of(ALIGN_BYTES) }
}

impl Allocator {
    /// Adds a range, which must not overlap another grant.
    pub(crate) fn add_grant(&mut self, grant: Range) {
        self.grants.insert(grant.address, grant.size_bytes);
        self.insert_free(grant.address, grant.size_bytes);
    }

    /// Bytes that are granted and not used.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// The grant that an address lies in.
    pub(crate) fn grant_of(&self, address: u64) -> Option<Range> {
        let (&start, &size_bytes) = self.grants.range(..=address).next_back()?;
        let found = Range { address: start, size_bytes };
        (address - start < size_bytes).then_some(found)
    }

    /// Takes a range of at least `size_bytes`; `None` if no free range is long enough.
    pub(crate) fn allocate(&mut self, size_bytes: u64) -> Option<u64> {
        let size_bytes = rounded(size_bytes)?;
        let &(found_bytes, address) = self.by_size.range((size_bytes, 0)..).next()?;
        self.remove_free(address, found_bytes);
        if found_bytes > size_bytes {
            self.insert_free(address + size_bytes, found_bytes - size_bytes);
        }
        self.used.insert(address, size_bytes);
        Some(address)
    }

    /// Makes a range free again, merged with its free neighbours in the same grant; `None` if no
    /// used range starts there.
    pub(crate) fn free(&mut self, address: u64) -> Option<u64> {
        let freed_bytes = self.used.remove(&address)?;
        let (&grant, &grant_bytes) = self.grants.range(..=address).next_back()?;
        let (mut start, mut end) = (address, address + freed_bytes);
        if let Some((&before, &before_bytes)) = self.free.range(grant..start).next_back()
            && before + before_bytes == start
        {
            self.remove_free(before, before_bytes);
            start = before;
        }
        if end < grant + grant_bytes
            && let Some(&after_bytes) = self.free.get(&end)
        {
            self.remove_free(end, after_bytes);
            end += after_bytes;
        }
        self.insert_free(start, end - start);
        Some(freed_bytes)
    }

    /// Gives up one grant that is free as a whole, the largest first, as long as more than
    /// `keep_free_bytes` are free.
    pub(crate) fn take_free_grant(&mut self, keep_free_bytes: u64) -> Option<Range> {
        if self.free_bytes <= keep_free_bytes {
            return None;
        }
        let &(size_bytes, address) = self
            .by_size
            .iter()
            .rev()
            .find(|(size, address)| self.grants.get(address) == Some(size))?;
        self.remove_free(address, size_bytes);
        self.grants.remove(&address);
        Some(Range { address, size_bytes })
    }

    fn insert_free(&mut self, address: u64, size_bytes: u64) {
        self.free.insert(address, size_bytes);
        self.by_size.insert((size_bytes, address));
        self.free_bytes += size_bytes;
    }

    fn remove_free(&mut self, address: u64, size_bytes: u64) {
        self.free.remove(&address);
        self.by_size.remove(&(size_bytes, address));
        self.free_bytes -= size_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_grant_is_split_and_becomes_whole_again() {
        let mut allocator = Allocator::default();
        allocator.add_grant(Range { address: 0x1000_0000, size_bytes: 2 * MIB });
        let a = allocator.allocate(1).unwrap();
        let b = allocator.allocate(513).unwrap();
        assert_eq!((a, b), (0x1000_0000, 0x1000_0200));
        assert_eq!(allocator.take_free_grant(0), None);
        assert_eq!(allocator.free(b), Some(1024));
        assert_eq!(allocator.free(b), None, "freed twice");
        assert_eq!(allocator.free(a + 512), None, "no start of a range");
        assert_eq!(allocator.free(a), Some(512));
        assert_eq!(allocator.take_free_grant(2 * MIB), None, "kept");
        assert_eq!(
            allocator.take_free_grant(0),
            Some(Range { address: 0x1000_0000, size_bytes: 2 * MIB })
        );
        assert_eq!(allocator.allocate(1), None);
    }

    #[test]
    fn neighbouring_grants_stay_apart() {
        let mut allocator = Allocator::default();
        allocator.add_grant(Range { address: 2 * MIB, size_bytes: 2 * MIB });
        allocator.add_grant(Range { address: 4 * MIB, size_bytes: 2 * MIB });
        assert_eq!(allocator.allocate(3 * MIB), None);
        let a = allocator.allocate(2 * MIB).unwrap();
        let b = allocator.allocate(2 * MIB).unwrap();
        allocator.free(a);
        allocator.free(b);
        assert!(allocator.take_free_grant(0).is_some());
        assert!(allocator.take_free_grant(0).is_some());
        assert_eq!(allocator.free_bytes(), 0);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        let mut allocator = Allocator::default();
        allocator.add_grant(Range { address: MIB, size_bytes: MIB });
        assert_eq!(allocator.allocate(0), None);
        assert_eq!(allocator.allocate(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 1_u64..600_000, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut allocator = Allocator::default();
            let mut granted = 0;
            let mut live: Vec<Range> = Vec::new();
            for (frees, size_bytes, which) in steps {
                if frees && !live.is_empty() {
                    let range = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(allocator.free(range.address), Some(range.size_bytes));
                } else {
                    let address = match allocator.allocate(size_bytes) {
                        Some(address) => address,
                        None => {
                            allocator.add_grant(Range { address: 0x7000_0000 + granted, size_bytes: 2 * MIB });
                            granted += 2 * MIB;
                            allocator.allocate(size_bytes).unwrap()
                        }
                    };
                    let new = Range { address, size_bytes: rounded(size_bytes).unwrap() };
                    prop_assert_eq!(address % ALIGN_BYTES, 0);
                    for other in &live {
                        prop_assert!(
                            new.address + new.size_bytes <= other.address
                                || other.address + other.size_bytes <= new.address
                        );
                    }
                    live.push(new);
                }
                let used: u64 = live.iter().map(|r| r.size_bytes).sum();
                prop_assert_eq!(allocator.free_bytes() + used, granted);
            }
            for range in live {
                allocator.free(range.address);
            }
            let mut back = 0;
            while let Some(range) = allocator.take_free_grant(0) {
                back += range.size_bytes;
            }
            prop_assert_eq!(back, granted, "every grant is whole again");
        }
    }
}
