//! Which sets of SMs lie in which others, and the order of a device's units that follows.

use super::partitions::ClusterSets;
use thiserror::Error;

/// Words of a set.
const WORDS: usize = 16;

/// Some SMs of a device, by number, below 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmSet([u64; WORDS]);

impl SmSet {
    /// Adds one.
    pub fn insert(&mut self, sm: usize) {
        self.0[sm / 64] |= 1 << (sm % 64);
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether all of them are in `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, others)| own & !others == 0)
    }
}

/// The order in which units make runs: see [`ClusterSets`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The units, by their place in what was given.
    pub units: Vec<usize>,
    /// The cluster sets.
    pub sets: Vec<usize>,
    /// The joint sets.
    pub joints: Vec<usize>,
    /// What that comes to.
    pub clusters: ClusterSets,
}

/// What does not fit together.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Misfit {
    /// A joint set is no union of two sets.
    #[error("a set of SMs for large clusters is not made of two smaller ones")]
    Joint,
    /// Units and sets cross.
    #[error("the smallest units do not fill a set of SMs that takes clusters")]
    Unit,
}

/// Orders units so that those of a set are neighbours, and so are two sets that make a joint one;
/// units of no set come last.
///
/// # Errors
/// See [`Misfit`].
pub fn arrange(units: &[SmSet], sets: &[SmSet], joints: &[SmSet]) -> Result<Arrangement, Misfit> {
    let inside = |parts: &[SmSet], whole: &SmSet| -> Vec<usize> {
        let parts = parts.iter().enumerate();
        parts.filter(|(_, part)| part.is_within(whole)).map(|(index, _)| index).collect()
    };
    let mut set_order = Vec::new();
    for joint in joints {
        let [one, other] = inside(sets, joint)[..] else {
            return Err(Misfit::Joint);
        };
        set_order.extend([one, other]);
    }
    let joint = set_order.len();
    let alone: Vec<usize> = (0..sets.len()).filter(|set| !set_order.contains(set)).collect();
    set_order.extend(alone);
    let units_of: Vec<Vec<usize>> =
        set_order.iter().map(|&set| inside(units, &sets[set])).collect();
    let size = units_of.first().map_or(0, Vec::len);
    let fills = |(set, own): (&usize, &Vec<usize>)| {
        let count: u32 = own.iter().map(|&unit| units[unit].count()).sum();
        own.len() == size && count == sets[*set].count()
    };
    if set_order.len() != sets.len() || !set_order.iter().zip(&units_of).all(fills) {
        return Err(Misfit::Unit);
    }
    let mut order: Vec<usize> = units_of.into_iter().flatten().collect();
    let left_over: Vec<usize> = (0..units.len()).filter(|unit| !order.contains(unit)).collect();
    order.extend(left_over);
    match order.len() == units.len() {
        true => Ok(Arrangement {
            units: order,
            clusters: ClusterSets { units: size, count: set_order.len(), joint },
            sets: set_order,
            joints: (0..joints.len()).collect(),
        }),
        false => Err(Misfit::Unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(sms: impl IntoIterator<Item = usize>) -> SmSet {
        let mut set = SmSet::default();
        sms.into_iter().for_each(|sm| set.insert(sm));
        set
    }

    /// The SMs of one H200, as a kernel saw them: sets of 8 are scattered over the numbers, and so
    /// are pairs over the sets.
    fn h200() -> (Vec<SmSet>, Vec<SmSet>, Vec<SmSet>) {
        let eight = |start: usize, step: usize| {
            set((0..4).flat_map(move |row| [start + row * step, start + row * step + 1]))
        };
        let sets: Vec<SmSet> = (0..8)
            .map(|index| eight(2 * index, 16))
            .chain((0..7).map(|index| eight(64 + 2 * index, 14)))
            .collect();
        let both = |one: SmSet, other: SmSet| {
            set((0..132).filter(|&sm| set([sm]).is_within(&one) || set([sm]).is_within(&other)))
        };
        let joints = (0..7).map(|index| both(sets[index + 1], sets[index + 8])).collect();
        let starts = (0..16).step_by(2).chain((124..132).step_by(2)).chain((16..124).step_by(2));
        (starts.map(|sm| set([sm, sm + 1])).collect(), sets, joints)
    }

    #[test]
    fn units_of_a_set_are_neighbours_and_so_are_partners() {
        let (units, sets, joints) = h200();
        let made = arrange(&units, &sets, &joints).expect("fits");
        assert_eq!(made.clusters, ClusterSets { units: 4, count: 15, joint: 14 });
        assert_eq!(made.sets, [1, 8, 2, 9, 3, 10, 4, 11, 5, 12, 6, 13, 7, 14, 0]);
        for (place, &set) in made.sets.iter().enumerate() {
            let own = &made.units[4 * place..4 * place + 4];
            assert!(own.iter().all(|&unit| units[unit].is_within(&sets[set])));
        }
        let mut all = made.units.clone();
        all.sort_unstable();
        assert_eq!(all, (0..66).collect::<Vec<_>>());
        assert!(
            made.units[60..].iter().all(|&unit| !sets.iter().any(|set| units[unit].is_within(set)))
        );
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (units, sets, joints) = h200();
        assert!(arrange(&units[1..], &sets, &joints).is_err(), "a set lacks a unit");
        assert!(arrange(&units, &sets[1..], &joints).is_ok(), "the one without a partner");
        assert!(arrange(&units, &sets[..8], &joints).is_err(), "partners are missing");
        let without = arrange(&units, &sets, &[]).expect("fits");
        assert_eq!(without.clusters, ClusterSets { units: 4, count: 15, joint: 0 });
        assert_eq!(arrange(&units, &[], &[]).map(|made| made.clusters.count), Ok(0));
    }
}
