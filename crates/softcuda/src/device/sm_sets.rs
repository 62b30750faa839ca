//! Sets of SMs: splitting a device into groups, and choosing SMs for a limit.

use super::grid::SmMask;

/// Smallest group of SMs, and the step of its size, when SMs that schedule clusters together stay
/// together.
pub(crate) const COSCHEDULED_SMS: u32 = 8;
/// The same when they need not.
pub(crate) const INDEPENDENT_SMS: u32 = 2;

/// SMs that are one behind the other and can run a cluster together: a GPC. Each has two sets of
/// [`COSCHEDULED_SMS`].
const GPC_SMS: u32 = 16;

/// How many clusters of `blocks` run on these SMs at a time, if an SM has room for `per_sm` blocks.
/// Each block of a cluster has an SM of its own, all in one GPC.
pub(crate) fn active_clusters(mask: SmMask, blocks: u32, per_sm: u32) -> u32 {
    let mut counts = [0; (256 / GPC_SMS) as usize];
    mask.iter().for_each(|sm| counts[(sm / GPC_SMS) as usize] += 1);
    let fits = counts.into_iter().filter(|&count| count >= blocks);
    fits.map(|count| count * per_sm / blocks.max(1)).sum()
}

/// What splitting gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) groups: Vec<SmMask>,
    pub(crate) remaining: SmMask,
}

/// Splits `from` into up to `most` groups of at least `least` SMs, in steps of `step`; `None`: not
/// even one fits. Groups whose SMs need not stay together are spread over the GPCs, as a real
/// device does it: they take no clusters.
pub(crate) fn split(from: SmMask, least: u32, step: u32, most: u32) -> Option<Split> {
    let have = from.count();
    if least > have {
        return None;
    }
    let size = least.max(step).next_multiple_of(step).min(have).max(1);
    let mut order: Vec<u32> = from.iter().collect();
    if step == INDEPENDENT_SMS {
        order.sort_by_key(|sm| (sm % GPC_SMS / INDEPENDENT_SMS, *sm));
    }
    let mut sms = order.into_iter();
    let groups = (0..(have / size).min(most)).map(|_| sms.by_ref().take(size as usize).collect());
    let groups: Vec<SmMask> = groups.collect();
    Some(Split { groups, remaining: sms.collect() })
}

/// How many limits already apply to each SM, so that new ones go where there are fewest.
#[derive(Debug, Default)]
pub(crate) struct Loads(Vec<u32>);

impl Loads {
    /// Takes the `count` least loaded of `sm_count` SMs.
    pub(crate) fn take(&mut self, count: u32, sm_count: u32) -> SmMask {
        self.0.resize(sm_count as usize, 0);
        let mut order: Vec<u32> = (0..sm_count).collect();
        order.sort_by_key(|&sm| (self.0[sm as usize], sm));
        let mask: SmMask = order.into_iter().take(count as usize).collect();
        mask.iter().for_each(|sm| self.0[sm as usize] += 1);
        mask
    }

    /// Gives SMs back that were taken together.
    pub(crate) fn give(&mut self, mask: SmMask) {
        for sm in mask.iter() {
            if let Some(load) = self.0.get_mut(sm as usize) {
                *load = load.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(least: u32, step: u32, most: u32) -> Option<(usize, u32, u32)> {
        let split = split(SmMask::first(132), least, step, most)?;
        Some((split.groups.len(), split.groups[0].count(), split.remaining.count()))
    }

    #[test]
    fn splits_are_those_of_a_real_device_of_132_sms() {
        assert_eq!(sizes(1, 8, 8), Some((8, 8, 68)));
        assert_eq!(sizes(33, 8, 8), Some((3, 40, 12)));
        assert_eq!(sizes(66, 8, 8), Some((1, 72, 60)));
        assert_eq!(sizes(132, 8, 8), Some((1, 132, 0)));
        assert_eq!(sizes(140, 8, 8), None);
        assert_eq!(sizes(0, 2, 8), Some((8, 2, 116)));
        assert_eq!(sizes(33, 2, 8), Some((3, 34, 30)));
        assert_eq!(sizes(66, 2, 8), Some((2, 66, 0)));
    }

    #[test]
    fn groups_are_disjoint_and_inside() {
        let from: SmMask = [3, 5, 70, 71, 90, 91, 100].into_iter().collect();
        let split = split(from, 2, 2, 9).expect("fits");
        assert_eq!(split.groups.len(), 3);
        let mut all: Vec<u32> =
            split.groups.iter().chain([&split.remaining]).flat_map(|mask| mask.iter()).collect();
        all.sort_unstable();
        assert_eq!(all, from.iter().collect::<Vec<_>>());
    }

    #[test]
    fn what_was_split_for_clusters_takes_them_and_what_was_not_does_not() {
        let first =
            |least, step| split(SmMask::first(132), least, step, 1).expect("fits").groups.remove(0);
        let clusters = |mask| [1, 2, 4, 8, 16].map(|blocks| active_clusters(mask, blocks, 1));
        assert_eq!(clusters(first(8, COSCHEDULED_SMS)), [8, 4, 2, 1, 0]);
        assert_eq!(clusters(first(16, COSCHEDULED_SMS)), [16, 8, 4, 2, 1]);
        assert_eq!(clusters(first(8, INDEPENDENT_SMS)), [8, 4, 0, 0, 0]);
        assert_eq!(active_clusters(first(2, INDEPENDENT_SMS), 2, 2), 2);
        assert_eq!(active_clusters(SmMask::first(132), 8, 2), 32);
    }

    #[test]
    fn limits_go_to_the_least_loaded_sms() {
        let mut loads = Loads::default();
        let first = loads.take(5, 12);
        let second = loads.take(5, 12);
        assert!(first.iter().all(|sm| !second.contains(sm)));
        loads.give(first);
        assert_eq!(loads.take(5, 12).iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
