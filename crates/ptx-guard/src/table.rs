//! What the loader gives a guarded module, and what comes back.
//!
//! The table is a variable in constant memory. Its words, of 64 bits: how many ranges there are,
//! with the loader's number of the module in the upper half; the address of the record; then, for
//! the first look of every thread, a range that is [`WIDEST_BYTES`] long at least; then the ranges.
//! Ranges are (first address, length). A range that is written while kernels run is empty until its
//! length is there: a loader that keeps each range in its place may write the table at any time.

use std::collections::HashSet;

/// Ranges that a table has room for.
pub const MOST_RANGES: usize = 126;
/// Words of a table.
pub const TABLE_WORDS: usize = 4 + 2 * MOST_RANGES;
/// No plain access is wider.
pub const WIDEST_BYTES: u64 = 32;
/// Length of a record, in bytes; its memory is zeros before the first access that is recorded, and
/// device and host see it.
pub const RECORD_BYTES: usize = 56;
/// The first word of a record once all of it is there.
pub const RECORDED: u32 = 2;

/// The words of a table.
pub fn table(module: u32, record_address: u64, ranges: &[(u64, u64)]) -> Vec<u64> {
    let ranges = &ranges[..ranges.len().min(MOST_RANGES)];
    let mut words = vec![ranges.len() as u64 | u64::from(module) << 32, record_address];
    let first = ranges.iter().find(|(_, size_bytes)| *size_bytes >= WIDEST_BYTES);
    // Without one, every address is beyond.
    let (at, size_bytes) = first.copied().unwrap_or((u64::MAX, WIDEST_BYTES));
    words.extend([at, size_bytes]);
    words.extend(ranges.iter().flat_map(|&(at, size_bytes)| [at, size_bytes]));
    words.resize(TABLE_WORDS, 0);
    words
}

/// Ranges as a table is to have them: those that adjoin are one, and where there are more than it
/// has room for, the nearest are taken together with what lies between them.
pub fn merge(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    let mut sorted: Vec<(u64, u64)> = ranges.into_iter().filter(|(_, size)| *size > 0).collect();
    sorted.sort_unstable();
    for (at, size_bytes) in sorted {
        match merged.last_mut() {
            Some((last, length)) if at <= *last + *length => {
                *length = (*length).max(at + size_bytes - *last);
            }
            _ => merged.push((at, size_bytes)),
        }
    }
    let surplus = merged.len().saturating_sub(MOST_RANGES);
    if surplus == 0 {
        return merged;
    }
    let gap = |at: &usize| merged[*at].0 - merged[at - 1].0 - merged[at - 1].1;
    let mut nearest: Vec<usize> = (1..merged.len()).collect();
    nearest.sort_by_key(gap);
    nearest.truncate(surplus);
    let closed: HashSet<usize> = nearest.into_iter().collect();
    let mut fewer: Vec<(u64, u64)> = Vec::new();
    for (index, (at, size_bytes)) in merged.into_iter().enumerate() {
        match fewer.last_mut() {
            Some((first, length)) if closed.contains(&index) => *length = at + size_bytes - *first,
            _ => fewer.push((at, size_bytes)),
        }
    }
    fewer
}

/// An access that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The loader's number of the module.
    pub module: u32,
    /// Which of the module's accesses: an index of [`crate::Guarded::sites`].
    pub site: u32,
    /// The first byte that was to be touched.
    pub address: u64,
    /// How many were.
    pub size_bytes: u32,
    /// The block.
    pub block: [u32; 3],
    /// The thread in it.
    pub thread: [u32; 3],
}

impl Record {
    /// What a record says; `None` while it is not there, or not whole.
    pub fn read(words: &[u32; RECORD_BYTES / 4]) -> Option<Self> {
        let [state, module, low, high, site, size_bytes, bx, by, bz, tx, ty, tz, ..] = *words;
        (state == RECORDED).then(|| Self {
            module,
            site,
            address: u64::from(low) | u64::from(high) << 32,
            size_bytes,
            block: [bx, by, bz],
            thread: [tx, ty, tz],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range_and_too_many_become_fewer() {
        assert_eq!(merge([(20, 10), (0, 10), (10, 10), (40, 1)]), [(0, 30), (40, 1)]);
        let many = (0..200u64).map(|at| (at * 100, 10 + at % 2));
        let merged = merge(many.clone());
        assert_eq!(merged.len(), MOST_RANGES);
        let within = |at: u64| merged.iter().any(|(from, size)| (*from..from + size).contains(&at));
        assert!(many.into_iter().all(|(at, size)| within(at) && within(at + size - 1)));
        // Of a hundred thousand, too, and those far from others stay by themselves.
        let far = (0..100u64).map(|at| (1 << 40 | at << 20, 4096));
        let merged = merge((0..100_000u64).map(|at| (at * 8192, 4096)).chain(far.clone()));
        assert_eq!(merged.len(), MOST_RANGES);
        assert!(far.into_iter().all(|range| merged.contains(&range)));
    }

    #[test]
    fn a_table_without_ranges_lets_nothing_pass() {
        let words = table(7, 0x1000, &[]);
        assert_eq!(words[..4], [7 << 32, 0x1000, u64::MAX, 32]);
        assert_eq!(words.len(), TABLE_WORDS);
        let words = table(0, 0, &[(64, 8), (4096, 4096)]);
        assert_eq!(words[..8], [2, 0, 4096, 4096, 64, 8, 4096, 4096]);
    }

    #[test]
    fn a_record_counts_once_it_is_whole() {
        let mut words = [0; RECORD_BYTES / 4];
        words[..12].copy_from_slice(&[1, 3, 0x10, 1, 5, 4, 1, 2, 3, 4, 5, 6]);
        assert_eq!(Record::read(&words), None);
        words[0] = RECORDED;
        let record = Record::read(&words).unwrap();
        assert_eq!((record.address, record.site, record.thread), (0x1_0000_0010, 5, [4, 5, 6]));
    }
}
