//! Where on a device a limited share of SMs goes, and which SMs are reserved.
//!
//! A device is cut into units, the smallest sets of SMs that can be set apart. A share is a run of neighbours where that can be, so that clusters of
//! blocks find SMs that belong together, and goes where the fewest shares are already. Reserved units are taken from the end of the device,
//! and belong to no share but those of their reservation.

/// Name of the reservation for the latency class, whose clients may use what nobody has reserved, too. No name that is chosen has a space.
pub const HEADROOM: &str = "latency class";

/// Numbers of units, ascending.
pub type Units = Vec<usize>;

/// The units of a device, and who has reserved some.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// SMs of each unit.
    sizes: Vec<u32>,
    reserved: Vec<(String, Units)>,
}

impl Layout {
    /// A device of units of these sizes, nothing reserved.
    pub fn new(sizes: Vec<u32>) -> Self {
        Self { sizes, reserved: Vec::new() }
    }

    /// Whether the units are not known.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Makes these reservations, by name and number of SMs, the only ones. Those that are there already keep their units. Returns what could not
    /// be reserved: the message names it.
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

    /// The units that a client of this reservation may use, or of none. A reservation that is not there is none.
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

    /// The units within `within` for a share of so many SMs: the least loaded run, then the one with the fewest gaps, then the first. `loads` says how
    /// many shares each unit is part of.
    pub fn place(&self, loads: &[u32], within: &[usize], multiprocessors: u32) -> Units {
        let sizes: Vec<u32> = within.iter().map(|&unit| self.sizes[unit]).collect();
        let count = units_of(&sizes, multiprocessors);
        let load = |run: &[usize]| -> u64 {
            run.iter().map(|&unit| u64::from(loads.get(unit).copied().unwrap_or(0))).sum()
        };
        let runs = within.windows(count.max(1));
        let best = runs.min_by_key(|run| (load(run), span(run)));
        best.map(<[usize]>::to_vec).unwrap_or_default()
    }

    /// Whether these units are a share of so many SMs within `within`.
    pub fn is_share(&self, units: &[usize], within: &[usize], multiprocessors: u32) -> bool {
        let sizes: Vec<u32> = within.iter().map(|&unit| self.sizes[unit]).collect();
        units.len() == units_of(&sizes, multiprocessors) && contains(within, units)
    }

    fn free(&self) -> Units {
        let taken = |unit: &usize| self.reserved.iter().any(|(_, units)| units.contains(unit));
        (0..self.sizes.len()).filter(|unit| !taken(unit)).collect()
    }

    /// Whether units are those of a reservation of so many SMs: no more of them than needed.
    fn covers(&self, units: &[usize], multiprocessors: u32) -> bool {
        let sizes = || units.iter().map(|&unit| self.sizes[unit]);
        let (sum, largest) = (sizes().sum::<u32>(), sizes().max().unwrap_or(0));
        sum >= multiprocessors && sum < multiprocessors + largest.max(1)
    }

    /// Free units of at least so many SMs, towards the end; some must be left over.
    fn units_to_reserve(&self, multiprocessors: u32) -> Option<Units> {
        let free = self.free();
        let sizes: Vec<u32> = free.iter().map(|&unit| self.sizes[unit]).collect();
        let mut sum = 0;
        let fewer = sizes.iter().rev().take_while(|&&size| {
            let goes_on = sum < multiprocessors;
            sum += size;
            goes_on
        });
        let count = fewer.count();
        if count == 0 || count >= free.len() || sizes.iter().sum::<u32>() < multiprocessors {
            return None;
        }
        free.windows(count)
            .filter(|run| run.iter().map(|&unit| self.sizes[unit]).sum::<u32>() >= multiprocessors)
            .min_by_key(|run| (span(run), std::cmp::Reverse(run[0])))
            .map(<[usize]>::to_vec)
    }
}

/// Whether all of `units` are among `within`, both ascending.
pub fn contains(within: &[usize], units: &[usize]) -> bool {
    units.iter().all(|unit| within.binary_search(unit).is_ok())
}

/// How far a run reaches beyond a run without gaps.
fn span(run: &[usize]) -> usize {
    match (run.first(), run.last()) {
        (Some(first), Some(last)) => last - first + 1 - run.len(),
        _ => 0,
    }
}

/// How many units a share of so many SMs is: no more SMs than asked for, but one unit at least. `units` are the sizes in SMs.
pub fn units_of(units: &[u32], multiprocessors: u32) -> usize {
    let mut left = multiprocessors;
    let fits = units.iter().take_while(|&&size| {
        let is_room = size <= left;
        left = left.saturating_sub(size);
        is_room
    });
    fits.count().max(1).min(units.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_have_no_more_than_was_asked_for() {
        let units = [2; 66];
        for (asked, given) in [(1, 1), (2, 1), (17, 8), (66, 33), (132, 66), (500, 66)] {
            assert_eq!(units_of(&units, asked), given, "{asked}");
        }
        assert_eq!(units_of(&[2, 2, 1], 5), 3);
        assert_eq!(units_of(&[2, 2, 1], 4), 2);
        assert_eq!(units_of(&[], 4), 0);
    }

    #[test]
    fn shares_go_where_the_fewest_are() {
        let layout = Layout::new(vec![2; 10]);
        let mut loads = [0; 10];
        let mut place = |count: u32| {
            let run = layout.place(&loads, &layout.all(), 2 * count);
            run.iter().for_each(|&unit| loads[unit] += 1);
            (run[0], run.len())
        };
        assert_eq!([place(4), place(4), place(2), place(5)], [(0, 4), (4, 4), (8, 2), (0, 5)]);
        assert_eq!(place(3), (5, 3));
    }

    #[test]
    fn shares_within_a_share_stay_there() {
        let layout = Layout::new(vec![2; 6]);
        assert_eq!(layout.place(&[0, 0, 3, 1, 2, 0], &[2, 3, 4], 4), [3, 4]);
        assert_eq!(layout.place(&[0, 0, 3, 1, 2, 0], &[2, 3, 4], 18), [2, 3, 4]);
        assert_eq!(layout.place(&[], &[], 3), Units::new());
        // Neighbours are preferred to what only the list makes neighbours.
        assert_eq!(layout.place(&[0; 6], &[0, 2, 4, 5], 4), [4, 5]);
        assert!(layout.is_share(&[3, 4], &[2, 3, 4], 5));
        assert!(!layout.is_share(&[3, 4], &[2, 3], 5));
        assert!(!layout.is_share(&[3], &[2, 3], 5));
    }

    #[test]
    fn reservations_come_from_the_end_and_stay_where_they_are() {
        let mut layout = Layout::new(vec![2; 10]);
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
        let mut layout = Layout::new(vec![2; 10]);
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
            steps in prop::collection::vec((0usize..6, 0u32..40, any::<bool>()), 1..60),
        ) {
            // As drivers cut a device: pairs, and at most one SM that is left over.
            let sizes: Vec<u32> =
                std::iter::repeat_n(2, pairs).chain(odd.then_some(1)).collect();
            let all: u32 = sizes.iter().sum();
            let mut layout = Layout::new(sizes.clone());
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
                        prop_assert!(*count >= asked && *count < asked + 4);
                    }
                    let reserved: u32 = made.iter().map(|(_, count)| count).sum();
                    prop_assert!(reserved < all, "something is left for the others");
                }
                let within = layout.allowed(Some(&name));
                let share = layout.place(&vec![0; sizes.len()], &within, count);
                prop_assert!(contains(&within, &share) && !share.is_empty());
                prop_assert!(layout.is_share(&share, &within, count));
                for (other, _) in layout.reservations().iter().filter(|(other, _)| *other != name) {
                    let theirs = layout.allowed(Some(other));
                    prop_assert!(share.iter().all(|unit| !theirs.contains(unit)));
                }
            }
        }
    }
}
