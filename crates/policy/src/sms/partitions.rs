//! Where on a device a limited share of SMs goes, and which SMs are reserved.
//!
//! A device is cut into units, the smallest sets of SMs that can be set apart. On devices with
//! clusters of blocks some units make a *cluster set* together, and only a share that has all of
//! them takes large clusters ([`ClusterSets`]). A share is a run of neighbours with as many whole
//! sets as it has room for, and goes where the fewest shares are already. Reserved units are taken
//! from the end of the device, and belong to no share but those of their reservation.

use std::cmp::Reverse;

/// Name of the reservation for the latency class, whose clients may use what nobody has reserved,
/// too. No name that is chosen has a space.
pub const HEADROOM: &str = "latency class";

/// Numbers of units, ascending.
pub type Units = Vec<usize>;

/// Which units make cluster sets: the first `count` runs of `units` units each. Of the first
/// `joint` sets each two neighbours, from an even one on, take clusters of twice the size together.
/// `count` is 0 on a device without clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterSets {
    /// Units of one set.
    pub units: usize,
    /// Sets.
    pub count: usize,
    /// Sets that have a partner.
    pub joint: usize,
}

/// A piece of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Two partners, by half the number of the first set.
    Joint(usize),
    /// A cluster set.
    Set(usize),
    /// A unit.
    Unit(usize),
}

impl ClusterSets {
    /// How many of the first `sets` sets lie in these units as a whole, by runs of `run` sets.
    fn whole(&self, units: &[usize], run: usize, sets: usize) -> usize {
        let size = self.units * run;
        let starts = (0..sets / run.max(1)).map(|index| index * size);
        starts.filter(|&start| contains(units, start, size)).count()
    }

    /// What a share of these units is made of: joint sets, then sets, then what is left.
    pub fn cover(&self, units: &[usize]) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut rest = units;
        while let Some(&first) = rest.first() {
            let set = first / self.units.max(1);
            let begins = |run: usize, sets: usize| {
                let size = run * self.units;
                set < sets && first.is_multiple_of(size) && contains(rest, first, size)
            };
            let (part, length) = if begins(2, self.joint) {
                (Part::Joint(set / 2), 2 * self.units)
            } else if begins(1, self.count) {
                (Part::Set(set), self.units)
            } else {
                (Part::Unit(first), 1)
            };
            parts.push(part);
            rest = &rest[length..];
        }
        parts
    }

    /// Sets that lie in these units as a whole.
    pub fn sets_in(&self, units: &[usize]) -> usize {
        self.whole(units, 1, self.count)
    }

    /// Pairs of partners that do.
    fn pairs_in(&self, units: &[usize]) -> usize {
        self.whole(units, 2, self.joint)
    }

    /// Those of ascending units that are in a set; all on a device without clusters.
    fn of_sets<'a>(&self, units: &'a [usize]) -> &'a [usize] {
        match self.count * self.units {
            0 => units,
            end => &units[..units.partition_point(|&unit| unit < end)],
        }
    }

    /// Units that a share has at least.
    fn fewest(&self) -> usize {
        if self.count > 0 { self.units } else { 1 }
    }

    /// How many sets a run of so many units holds that lies as well as it can.
    fn most_in(&self, units: usize) -> usize {
        units.checked_div(self.units).unwrap_or(0).min(self.count)
    }
}

/// Whether ascending `units` hold this run.
fn contains(units: &[usize], start: usize, length: usize) -> bool {
    let first = units.partition_point(|&unit| unit < start);
    units.get(first..first + length).is_some_and(|run| run[length - 1] == start + length - 1)
}

/// The units of a device, and who has reserved some.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// SMs of each unit.
    sizes: Vec<u32>,
    clusters: ClusterSets,
    reserved: Vec<(String, Units)>,
}

impl Layout {
    /// A device of units of these sizes, nothing reserved.
    pub fn new(sizes: Vec<u32>, clusters: ClusterSets) -> Self {
        Self { sizes, clusters, reserved: Vec::new() }
    }

    /// Which units make cluster sets.
    pub fn clusters(&self) -> ClusterSets {
        self.clusters
    }

    /// Whether the units are not known.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Makes these reservations, by name and number of SMs, the only ones. Those that are there
    /// already keep their units. Returns what could not be reserved: the message names it.
    pub fn reserve(&mut self, wanted: &[(String, u32)]) -> Vec<String> {
        let mut before = std::mem::take(&mut self.reserved);
        before.retain(|(name, units)| {
            wanted.iter().any(|(other, count)| other == name && self.covers(units, *count))
        });
        self.reserved = before;
        let mut refused = Vec::new();
        for (name, count) in wanted {
            if self.reserved.iter().any(|(known, _)| known == name) {
                continue;
            }
            match self.units_to_reserve(*count) {
                Some(units) => self.reserved.push((name.clone(), units)),
                None => refused.push(format!(
                    "reservation {name}: {count} SMs are not free: release another reservation"
                )),
            }
        }
        refused
    }

    /// The reservations and how many SMs each has.
    pub fn reservations(&self) -> Vec<(String, u32)> {
        let count = |units: &Units| units.iter().map(|&unit| self.sizes[unit]).sum();
        self.reserved.iter().map(|(name, units)| (name.clone(), count(units))).collect()
    }

    /// Whether any unit is reserved.
    pub fn has_reservations(&self) -> bool {
        !self.reserved.is_empty()
    }

    /// The units that a client of this reservation may use, or of none. A reservation that is not
    /// there is none.
    pub fn allowed(&self, reservation: Option<&str>) -> Units {
        let own = self.reserved.iter().find(|(name, _)| Some(name.as_str()) == reservation);
        match own {
            Some((name, units)) if name != HEADROOM => units.clone(),
            headroom => {
                let mut units = self.free();
                units.extend(headroom.iter().flat_map(|(_, units)| units));
                units.sort_unstable();
                units
            }
        }
    }

    /// All units.
    pub fn all(&self) -> Units {
        (0..self.sizes.len()).collect()
    }

    /// The units within `within` for a share of this size. It holds as many cluster sets as it may,
    /// or one less; of such shares it is the least loaded one, then the one that breaks the fewest
    /// sets, has the most, and the fewest gaps; then the first. `loads` says how many shares each
    /// unit is part of.
    pub fn place(&self, loads: &[u32], within: &[usize], size: ShareSize) -> Units {
        let count = self.units_of(within, size).max(1);
        let load = |unit: usize| u64::from(loads.get(unit).copied().unwrap_or(0));
        let runs = within.windows(count).map(<[usize]>::to_vec);
        let best = runs.chain(self.of_whole_sets(within, count, load)).min_by_key(|share| {
            let (is_poor, broken, sets, pairs) = self.rank(share);
            let load: u64 = share.iter().map(|&unit| load(unit)).sum();
            (is_poor, load, broken, sets, pairs, span(self.clusters.of_sets(share)))
        });
        best.unwrap_or_default()
    }

    /// Shares of `count` units that are runs of whole cluster sets, and of units that are left over
    /// for the rest.
    fn of_whole_sets(
        &self,
        within: &[usize],
        count: usize,
        load: impl Fn(usize) -> u64,
    ) -> Vec<Units> {
        let ClusterSets { units: size, count: sets, .. } = self.clusters;
        let of_set = |set: &usize| set * size..(set + 1) * size;
        let whole: Vec<usize> =
            (0..sets).filter(|set| contains(within, set * size, size)).collect();
        let mut others: Units = within.to_vec();
        others.retain(|unit| !whole.iter().any(|set| of_set(set).contains(unit)));
        others.sort_by_key(|&unit| load(unit));
        let most = self.clusters.most_in(count);
        let mut shares = Vec::new();
        for taken in most.saturating_sub(1).max(1)..=most {
            let Some(rest) = others.get(..count - taken * size) else { continue };
            shares.extend(whole.windows(taken).map(|run| {
                let mut share: Units = run.iter().flat_map(of_set).chain(rest.to_vec()).collect();
                share.sort_unstable();
                share
            }));
        }
        shares
    }

    /// How bad a share is for clusters: whether it lacks more than one of the sets that it could
    /// hold, or all of them; how many sets it breaks, so that others cannot have them; and how many
    /// sets and pairs of sets it has.
    fn rank(&self, share: &[usize]) -> (bool, usize, Reverse<usize>, Reverse<usize>) {
        let ClusterSets { units: size, count, .. } = self.clusters;
        let (sets, most) = (self.clusters.sets_in(share), self.clusters.most_in(share.len()));
        let is_poor = sets < most.min(1).max(most.saturating_sub(1));
        let mut touched: Units = share.iter().map(|unit| unit / size.max(1)).collect();
        touched.retain(|&set| set < count);
        touched.dedup();
        let pairs = self.clusters.pairs_in(share);
        (is_poor, touched.len() - sets, Reverse(sets), Reverse(pairs))
    }

    /// Whether these units are a share of so many SMs within `within`.
    pub fn is_share(&self, units: &[usize], within: &[usize], size: ShareSize) -> bool {
        units.len() == self.units_of(within, size) && all_among(within, units)
    }

    /// How many of the units `within` a share is: a whole cluster set at least.
    fn units_of(&self, within: &[usize], size: ShareSize) -> usize {
        let sizes: Vec<u32> = within.iter().map(|&unit| self.sizes[unit]).collect();
        units_of(&sizes, size).max(self.clusters.fewest()).min(within.len())
    }

    fn free(&self) -> Units {
        let taken = |unit: &usize| self.reserved.iter().any(|(_, units)| units.contains(unit));
        (0..self.sizes.len()).filter(|unit| !taken(unit)).collect()
    }

    /// Whether units are those of a reservation of so many SMs: no more of them than needed.
    fn covers(&self, units: &[usize], multiprocessors: u32) -> bool {
        let sizes = || units.iter().map(|&unit| self.sizes[unit]);
        let (sum, largest) = (sizes().sum::<u32>(), sizes().max().unwrap_or(0));
        let is_smallest = units.len() == self.clusters.fewest();
        sum >= multiprocessors && (is_smallest || sum < multiprocessors + largest.max(1))
    }

    /// Free units of at least so many SMs, towards the end, with the cluster sets that there is
    /// room for; some must be left over, a cluster set among them.
    fn units_to_reserve(&self, multiprocessors: u32) -> Option<Units> {
        let free = self.free();
        let sizes: Vec<u32> = free.iter().rev().map(|&unit| self.sizes[unit]).collect();
        let count = units_of(&sizes, ShareSize::AtLeast(multiprocessors));
        let count = count.max(self.clusters.fewest());
        if multiprocessors == 0 || count >= free.len() {
            return None;
        }
        let sum = |run: &[usize]| run.iter().map(|&unit| self.sizes[unit]).sum::<u32>();
        let leaves_a_set = |run: &[usize]| {
            let left: Units = free.iter().copied().filter(|unit| !run.contains(unit)).collect();
            self.clusters.count == 0 || self.clusters.sets_in(&left) > 0
        };
        free.windows(count)
            .filter(|run| sum(run) >= multiprocessors && leaves_a_set(run))
            .min_by_key(|run| (self.rank(run), span(run), Reverse(run[0])))
            .map(<[usize]>::to_vec)
    }
}

/// Whether all of `units` are among `within`, both ascending.
pub fn all_among(within: &[usize], units: &[usize]) -> bool {
    units.iter().all(|unit| within.binary_search(unit).is_ok())
}

/// How far a run reaches beyond a run without gaps.
fn span(run: &[usize]) -> usize {
    match (run.first(), run.last()) {
        (Some(first), Some(last)) => last - first + 1 - run.len(),
        _ => 0,
    }
}

/// How many SMs are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSize {
    /// No more than these, as percentages are: what is left of a unit is lost.
    AtMost(u32),
    /// These or more, as execution affinity and reservations are.
    AtLeast(u32),
}

/// How many units a share is, one at least and all at most. `units` are the sizes in SMs.
fn units_of(units: &[u32], size: ShareSize) -> usize {
    let mut sum = 0;
    let counted = units.iter().take_while(|&&unit| match size {
        ShareSize::AtMost(most) => {
            sum += unit;
            sum <= most
        }
        ShareSize::AtLeast(least) => {
            let goes_on = sum < least;
            sum += unit;
            goes_on
        }
    });
    counted.count().max(1).min(units.len())
}

#[cfg(test)]
mod tests {
    use super::ShareSize::{AtLeast, AtMost};
    use super::*;
    use proptest::prelude::*;

    fn pairs(count: usize) -> Layout {
        Layout::new(vec![2; count], ClusterSets::default())
    }

    #[test]
    fn shares_have_no_more_than_was_asked_for() {
        let units = [2; 66];
        for (asked, given) in [(1, 1), (2, 1), (17, 8), (66, 33), (132, 66), (500, 66)] {
            assert_eq!(units_of(&units, AtMost(asked)), given, "{asked}");
        }
        assert_eq!(units_of(&[2, 2, 1], AtMost(5)), 3);
        assert_eq!(units_of(&[2, 2, 1], AtMost(4)), 2);
        assert_eq!(units_of(&[], AtMost(4)), 0);
    }

    #[test]
    fn affinities_have_no_fewer_than_was_asked_for() {
        let units = [2; 66];
        for (asked, given) in [(1, 1), (2, 1), (17, 9), (66, 33), (132, 66), (500, 66)] {
            assert_eq!(units_of(&units, AtLeast(asked)), given, "{asked}");
        }
        assert_eq!(units_of(&[2, 2, 1], AtLeast(5)), 3);
    }

    /// 132 SMs as an H200 has them: 15 sets of 8, of which 14 have a partner, and 6 pairs that are
    /// left over.
    fn h200() -> Layout {
        Layout::new(vec![2; 66], ClusterSets { units: 4, count: 15, joint: 14 })
    }

    #[test]
    fn shares_hold_clusters_and_have_the_sms_that_nvidias_have() {
        let layout = h200();
        let asked = [(1, 8), (13, 12), (33, 32), (52, 52), (66, 66), (99, 98), (132, 132)];
        for (asked, given) in asked {
            let share = layout.place(&[0; 66], &layout.all(), AtMost(asked));
            let sets = layout.clusters().sets_in(&share);
            assert_eq!((2 * share.len() as u32, sets), (given, (given as usize / 8).min(15)));
            assert_eq!(layout.clusters().pairs_in(&share), (given as usize / 16).min(7));
        }
    }

    #[test]
    fn a_share_is_covered_by_the_largest_sets_in_it() {
        let clusters = h200().clusters();
        let cover = |units: std::ops::Range<usize>| clusters.cover(&units.collect::<Units>());
        assert_eq!(cover(0..9), [Part::Joint(0), Part::Unit(8)]);
        assert_eq!(cover(3..13), [Part::Unit(3), Part::Set(1), Part::Set(2), Part::Unit(12)]);
        assert_eq!(cover(52..62), [Part::Set(13), Part::Set(14), Part::Unit(60), Part::Unit(61)]);
        assert_eq!(clusters.cover(&[0, 1, 2, 4, 5, 6, 7]).len(), 4);
        assert_eq!(pairs(9).clusters().cover(&[2, 3]), [Part::Unit(2), Part::Unit(3)]);
    }

    #[test]
    fn halves_are_disjoint_and_hold_clusters_both() {
        let layout = h200();
        let mut loads = [0; 66];
        let mut take = |size| {
            let share = layout.place(&loads, &layout.all(), size);
            share.iter().for_each(|&unit| loads[unit] += 1);
            (share.len(), layout.clusters().sets_in(&share))
        };
        assert_eq!([take(AtMost(66)), take(AtMost(66))], [(33, 8), (33, 7)]);
        assert_eq!(loads, [1; 66]);
    }

    #[test]
    fn a_reservation_holds_clusters_and_so_does_what_it_leaves() {
        let mut layout = h200();
        let named = |name: &str, count| (name.to_owned(), count);
        assert!(layout.reserve(&[named("a", 3), named("b", 20)]).is_empty());
        assert_eq!(layout.reservations(), [named("a", 8), named("b", 20)]);
        for name in ["a", "b"] {
            let units = layout.allowed(Some(name));
            assert!(layout.clusters().sets_in(&units) > 0, "{name}: {units:?}");
        }
        let refused = layout.reserve(&[named("all", 130)]);
        assert!(refused.len() == 1, "nothing that takes clusters would be left");
    }

    #[test]
    fn shares_go_where_the_fewest_are() {
        let layout = pairs(10);
        let mut loads = [0; 10];
        let mut place = |count: u32| {
            let run = layout.place(&loads, &layout.all(), AtMost(2 * count));
            run.iter().for_each(|&unit| loads[unit] += 1);
            (run[0], run.len())
        };
        assert_eq!([place(4), place(4), place(2), place(5)], [(0, 4), (4, 4), (8, 2), (0, 5)]);
        assert_eq!(place(3), (5, 3));
    }

    #[test]
    fn shares_within_a_share_stay_there() {
        let layout = pairs(6);
        assert_eq!(layout.place(&[0, 0, 3, 1, 2, 0], &[2, 3, 4], AtMost(4)), [3, 4]);
        assert_eq!(layout.place(&[0, 0, 3, 1, 2, 0], &[2, 3, 4], AtMost(18)), [2, 3, 4]);
        assert_eq!(layout.place(&[], &[], AtMost(3)), Units::new());
        // Neighbours are preferred to what only the list makes neighbours.
        assert_eq!(layout.place(&[0; 6], &[0, 2, 4, 5], AtMost(4)), [4, 5]);
        assert!(layout.is_share(&[3, 4], &[2, 3, 4], AtMost(5)));
        assert!(!layout.is_share(&[3, 4], &[2, 3], AtMost(5)));
        assert!(!layout.is_share(&[3], &[2, 3], AtMost(5)));
    }

    #[test]
    fn reservations_come_from_the_end_and_stay_where_they_are() {
        let mut layout = pairs(10);
        let named = |name: &str, count| (name.to_owned(), count);
        assert_eq!(layout.reserve(&[named("a", 4), named("b", 3)]), Vec::<String>::new());
        assert_eq!(layout.allowed(Some("a")), [8, 9]);
        assert_eq!(layout.allowed(Some("b")), [6, 7]);
        assert_eq!(layout.allowed(None), [0, 1, 2, 3, 4, 5]);
        assert_eq!(layout.allowed(Some("unknown")), layout.allowed(None));
        assert_eq!(layout.reservations(), [named("a", 4), named("b", 4)]);
        assert!(layout.reserve(&[named("b", 3), named("c", 2)]).is_empty());
        assert_eq!((layout.allowed(Some("b")), layout.allowed(Some("c"))), (vec![6, 7], vec![9]));
        let refused = layout.reserve(&[named("b", 3), named("d", 16)]);
        assert!(refused.len() == 1 && refused[0].contains("reservation d"), "{refused:?}");
        assert!(layout.reserve(&[named("b", 6)]).is_empty());
        assert_eq!(layout.allowed(Some("b")), [7, 8, 9]);
        assert!(layout.reserve(&[]).is_empty() && layout.allowed(None).len() == 10);
    }

    #[test]
    fn the_latency_class_has_the_headroom_and_what_is_free() {
        let mut layout = pairs(10);
        let named = |name: &str, count| (name.to_owned(), count);
        assert_eq!(layout.allowed(Some(HEADROOM)), layout.all());
        assert!(layout.reserve(&[named("a", 4), named(HEADROOM, 4)]).is_empty());
        assert_eq!(layout.allowed(None), [0, 1, 2, 3, 4, 5]);
        assert_eq!(layout.allowed(Some(HEADROOM)), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(layout.reserve(&[named(HEADROOM, 4)]).is_empty());
        assert_eq!(layout.allowed(Some(HEADROOM)), layout.all());
        assert_eq!(layout.allowed(None), [0, 1, 2, 3, 4, 5, 8, 9]);
    }

    proptest! {
        #[test]
        fn nobody_is_where_he_may_not_be(
            pairs in 1usize..40,
            odd in any::<bool>(),
            has_clusters in any::<bool>(),
            steps in prop::collection::vec((0usize..6, 0u32..40, any::<bool>()), 1..60),
        ) {
            // As drivers cut a device: pairs, and at most one SM that is left over.
            let sizes: Vec<u32> =
                std::iter::repeat_n(2, pairs).chain(odd.then_some(1)).collect();
            let all: u32 = sizes.iter().sum();
            let count = if has_clusters { pairs / 4 } else { 0 };
            let clusters = ClusterSets { units: 4, count, joint: count / 2 * 2 };
            let mut layout = Layout::new(sizes.clone(), clusters);
            let fewest = if count > 0 { 8 } else { 0 };
            let mut wanted: Vec<(String, u32)> = Vec::new();
            for (which, count, reserves) in steps {
                let name = format!("r{which}");
                if reserves {
                    wanted.retain(|(known, _)| *known != name);
                    if count > 0 {
                        wanted.push((name.clone(), count));
                    }
                    let refused = layout.reserve(&wanted);
                    let made = layout.reservations();
                    prop_assert_eq!(made.len() + refused.len(), wanted.len());
                    wanted.retain(|(known, _)| made.iter().any(|(name, _)| name == known));
                    for (name, count) in &made {
                        let asked = wanted.iter().find(|(known, _)| known == name).unwrap().1;
                        prop_assert!(*count >= asked && *count < asked.max(fewest) + 4);
                    }
                    let reserved: u32 = made.iter().map(|(_, count)| count).sum();
                    prop_assert!(reserved < all, "something is left for the others");
                }
                let within = layout.allowed(Some(&name));
                let size = AtMost(count);
                let share = layout.place(&vec![0; sizes.len()], &within, size);
                prop_assert!(all_among(&within, &share) && !share.is_empty());
                prop_assert!(layout.is_share(&share, &within, size));
                prop_assert!(clusters.sets_in(&share) > 0 || clusters.sets_in(&within) == 0);
                for (other, _) in layout.reservations().iter().filter(|(other, _)| *other != name) {
                    let theirs = layout.allowed(Some(other));
                    prop_assert!(share.iter().all(|unit| !theirs.contains(unit)));
                }
            }
        }
    }
}
