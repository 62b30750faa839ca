//! Which addresses a client may name: an ordered set of ranges with an answer in logarithmic time.

use std::collections::BTreeMap;

/// Disjoint ranges of addresses.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// First address to first address after.
    ends: BTreeMap<u64, u64>,
    removals: u64,
    insertions: u64,
}

impl Ranges {
    /// Adds a range; false, and nothing added, when it is empty, overflows or overlaps another.
    #[must_use]
    pub fn insert(&mut self, address: u64, size_bytes: u64) -> bool {
        let Some(end) = address.checked_add(size_bytes) else { return false };
        if size_bytes == 0
            || self.ends.range(..end).next_back().is_some_and(|(_, &other_end)| other_end > address)
        {
            return false;
        }
        self.ends.insert(address, end);
        self.insertions += 1;
        true
    }

    /// Removes a range that was inserted as such; says whether it was there.
    pub fn remove(&mut self, address: u64, size_bytes: u64) -> bool {
        let found = self.ends.get(&address).is_some_and(|end| end - address == size_bytes);
        if found {
            self.ends.remove(&address);
            self.removals += 1;
        }
        found
    }

    /// How many ranges were removed so far: while this stays, so does what the set contains.
    pub fn removals(&self) -> u64 {
        self.removals
    }

    /// How many ranges were inserted or removed so far.
    pub fn changes(&self) -> u64 {
        self.insertions + self.removals
    }

    /// Whether all of `[address, address + size_bytes)` is in ranges of this set, which may adjoin
    /// each other.
    pub fn contain(&self, address: u64, size_bytes: u64) -> bool {
        let Some(end) = address.checked_add(size_bytes) else { return false };
        let mut at = address;
        loop {
            let Some((_, &range_end)) = self.ends.range(..=at).next_back() else { return false };
            if range_end >= end && (size_bytes > 0 || range_end > at) {
                return true;
            }
            if range_end <= at {
                return false;
            }
            at = range_end;
        }
    }

    /// The length of the range that begins at `address`.
    pub fn length(&self, address: u64) -> Option<u64> {
        self.ends.get(&address).map(|end| end - address)
    }

    /// The ranges, (address, length), in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|(&address, &end)| (address, end - address))
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges() -> Ranges {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(100, 50));
        assert!(ranges.insert(150, 50));
        assert!(ranges.insert(300, 10));
        ranges
    }

    #[test]
    fn what_lies_in_one_or_in_adjoining_ranges_is_contained() {
        let ranges = ranges();
        for (address, size) in [(100, 50), (100, 100), (149, 2), (199, 1), (300, 10), (100, 0)] {
            assert!(ranges.contain(address, size), "{address} {size}");
        }
        for (address, size) in
            [(99, 2), (199, 2), (200, 1), (200, 0), (300, 11), (0, 400), (310, 1), (u64::MAX, 2)]
        {
            assert!(!ranges.contain(address, size), "{address} {size}");
        }
    }

    #[test]
    fn overlaps_are_refused_and_removal_wants_the_whole_range() {
        let mut ranges = ranges();
        for (address, size) in [(100, 1), (90, 11), (140, 300), (305, 1), (50, 0), (u64::MAX, 1)] {
            assert!(!ranges.insert(address, size), "{address} {size}");
        }
        assert!(ranges.insert(200, 100));
        assert!(!ranges.remove(100, 49));
        assert!(!ranges.remove(101, 49));
        assert!(ranges.remove(100, 50));
        assert!(!ranges.contain(120, 1));
        assert_eq!(ranges.len(), 3);
    }
}
