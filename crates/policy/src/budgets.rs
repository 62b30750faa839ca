//! How much of what all clients of an executor share each of them may have.

use link::wire::owner::Owner;
use std::collections::BTreeMap;

/// The part of what is left over by all others that one owner may have: several who take all that
/// they can get still leave something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// So many of
    pub numerator: u64,
    /// so many parts.
    pub denominator: u64,
}

impl Part {
    /// Where others are likely, and what is left is enough for an honest one.
    pub const HALF: Self = Self { numerator: 1, denominator: 2 };
    /// Where one alone may want most of it.
    pub const THREE_QUARTERS: Self = Self { numerator: 3, denominator: 4 };
}

/// Something that there is only so much of.
#[derive(Clone, Debug)]
pub struct Budget {
    most: u64,
    part: Part,
    most_of_one: u64,
    used: BTreeMap<Owner, u64>,
}

impl Budget {
    /// There is `most` of it; an owner may have `part` of what others leave, and never more than
    /// `most_of_one`.
    pub fn new(most: u64, part: Part, most_of_one: u64) -> Self {
        Self { most, part, most_of_one, used: BTreeMap::new() }
    }

    /// Counts more for an owner, if it may have that; says whether it may.
    pub fn take(&mut self, owner: &Owner, amount: u64) -> bool {
        let own = self.used.get(owner).copied().unwrap_or(0);
        let all = self.used.values().fold(0, |sum: u64, used| sum.saturating_add(*used));
        let others = all.saturating_sub(own);
        let Part { numerator, denominator } = self.part;
        let left = u128::from(self.most.saturating_sub(others));
        let may =
            (left * u128::from(numerator) / u128::from(denominator)).min(self.most_of_one.into());
        if u128::from(own) + u128::from(amount) > may {
            return false;
        }
        self.count(owner, amount);
        true
    }

    /// Counts what an owner has anyway, as it had it before an executor took over.
    pub fn count(&mut self, owner: &Owner, amount: u64) {
        match self.used.get_mut(owner) {
            Some(own) => *own = own.saturating_add(amount),
            None if amount > 0 => drop(self.used.insert(owner.clone(), amount)),
            None => {}
        }
    }

    /// Takes back what was counted.
    pub fn give_back(&mut self, owner: &Owner, amount: u64) {
        let Some(own) = self.used.get_mut(owner) else { return };
        *own = own.saturating_sub(amount);
        if *own == 0 {
            self.used.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_a_part_of_what_others_leave() {
        let mut budget = Budget::new(64, Part::HALF, u64::MAX);
        let fill = |budget: &mut Budget, uid| {
            (0..).take_while(|_| budget.take(&Owner::user(uid), 1)).count()
        };
        assert_eq!([1, 2, 3].map(|uid| fill(&mut budget, uid)), [32, 16, 8]);
        assert_eq!(fill(&mut budget, 1), 0);
        budget.give_back(&Owner::user(1), 32);
        assert_eq!(fill(&mut budget, 4), 20);
    }

    #[test]
    fn containers_count_apart_and_nothing_overflows() {
        let mut budget = Budget::new(64, Part::HALF, 10);
        let of = |group: &str| Owner { uid: 0, entrance: Some(group.to_owned()) };
        assert!(!budget.take(&of("one"), 11) && budget.take(&of("one"), 10));
        assert!(!budget.take(&of("one"), 1) && budget.take(&of("two"), 10));
        assert!(!budget.take(&of("three"), u64::MAX));
        budget.give_back(&of("three"), 1);
        budget.count(&of("three"), u64::MAX);
        assert!(!budget.take(&of("four"), 1), "it has more than there is");
        budget.give_back(&of("three"), u64::MAX);
        assert!(budget.take(&of("four"), 1));
    }
}
