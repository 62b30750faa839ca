//! What a program has said of managed memory: advice, and where it was prefetched to. It is told
//! again when asked for, as drivers do; where the bytes are, touches and work decide.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A device, or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Host,
    Device(i32),
}

/// Of a range, all of which was told the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) is_read_mostly: bool,
    pub(crate) preferred: Option<Place>,
    pub(crate) accessed_by: BTreeSet<Place>,
    pub(crate) prefetched: Option<Place>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Advices(Mutex<Ranges>);

/// By first address: its end, and what was said. They do not overlap.
type Ranges = BTreeMap<u64, (u64, Advice)>;

impl Advices {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is said of a range.
    pub(crate) fn change(&self, range: Range<u64>, change: impl Fn(&mut Advice)) {
        let mut ranges = self.lock();
        split(&mut ranges, range.start);
        split(&mut ranges, range.end);
        let mut at = range.start;
        while at < range.end {
            let next = ranges.range(at..range.end).next().map_or(range.end, |(&next, _)| next);
            if next > at {
                ranges.insert(at, (next, Advice::default()));
            }
            let Some((end, advice)) = ranges.get_mut(&at) else { return };
            change(advice);
            at = *end;
        }
    }

    /// What was said of all of a range.
    pub(crate) fn of(&self, range: Range<u64>) -> Advice {
        let ranges = self.lock();
        let before =
            ranges.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let mut common: Option<Advice> = None;
        let mut at = range.start;
        for (&start, (end, advice)) in before.into_iter().chain(ranges.range(range.clone())) {
            if start > at {
                return Advice::default();
            }
            common = Some(match common {
                None => advice.clone(),
                Some(common) => common.and(advice),
            });
            at = *end;
        }
        common.filter(|_| at >= range.end).unwrap_or_default()
    }

    /// Memory is gone.
    pub(crate) fn forget(&self, range: Range<u64>) {
        let mut ranges = self.lock();
        split(&mut ranges, range.start);
        split(&mut ranges, range.end);
        ranges.retain(|start, _| !range.contains(start));
    }
}

impl Advice {
    fn and(self, other: &Self) -> Self {
        Self {
            is_read_mostly: self.is_read_mostly && other.is_read_mostly,
            preferred: self.preferred.filter(|place| other.preferred == Some(*place)),
            accessed_by: &self.accessed_by & &other.accessed_by,
            prefetched: self.prefetched.filter(|place| other.prefetched == Some(*place)),
        }
    }
}

/// Makes an address an end of a range, if it lies in one.
fn split(ranges: &mut Ranges, at: u64) {
    let Some((_, (end, advice))) = ranges.range_mut(..at).next_back() else { return };
    if *end > at {
        let rest = (*end, advice.clone());
        *end = at;
        ranges.insert(at, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_range_holds_for_all_of_it() {
        let advices = Advices::default();
        let read_mostly = |range| advices.of(range).is_read_mostly;
        advices.change(10..20, |advice| advice.is_read_mostly = true);
        assert_eq!((read_mostly(10..20), read_mostly(12..13)), (true, true));
        assert_eq!(
            (read_mostly(9..20), read_mostly(10..21), read_mostly(30..31)),
            (false, false, false)
        );
        advices.change(15..25, |advice| advice.preferred = Some(Place::Device(1)));
        assert!(read_mostly(10..20));
        assert_eq!(
            advices.of(15..25),
            Advice { preferred: Some(Place::Device(1)), ..Advice::default() }
        );
        assert_eq!(advices.of(10..25), Advice::default());
        advices.change(5..30, |advice| _ = advice.accessed_by.insert(Place::Host));
        assert_eq!(advices.of(5..30).accessed_by, BTreeSet::from([Place::Host]));
        advices.change(12..18, |advice| advice.is_read_mostly = false);
        assert_eq!(
            (read_mostly(10..12), read_mostly(10..20), read_mostly(18..20)),
            (true, false, true)
        );
        advices.forget(0..16);
        assert_eq!((advices.of(10..12), read_mostly(18..20)), (Advice::default(), true));
    }
}
