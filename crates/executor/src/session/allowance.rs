//! How much device memory sessions hold, against their own limits and those of their groups. Limits
//! change while they run: what is held beyond a new one stays, and nothing is added.

use link::wire::shares::Total;
use policy::limits::MemoryBound;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

const NO_LIMIT: u64 = u64::MAX;

/// Bytes held, and how many that may be. Its numbers stand for themselves: no other memory is read
/// because of them, so every access is relaxed.
#[derive(Debug)]
pub(crate) struct Meter {
    held: AtomicU64,
    limit: AtomicU64,
}

impl Meter {
    fn new(limit_bytes: Option<u64>) -> Self {
        Self { held: AtomicU64::new(0), limit: AtomicU64::new(limit_bytes.unwrap_or(NO_LIMIT)) }
    }

    fn set_limit(&self, limit_bytes: Option<u64>) {
        self.limit.store(limit_bytes.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }

    /// Counts more, if the limit allows it; says whether it does.
    fn take(&self, size_bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |held: u64| held.checked_add(size_bytes).filter(|&total| total <= limit);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, size_bytes: u64) {
        self.held.fetch_sub(size_bytes, Ordering::Relaxed);
    }

    fn limit_bytes(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != NO_LIMIT)
    }

    fn left_bytes(&self) -> Option<u64> {
        let limit = self.limit_bytes()?;
        Some(limit.saturating_sub(self.held.load(Ordering::Relaxed)))
    }
}

/// What one session may hold.
#[derive(Debug)]
pub(crate) struct Allowance {
    own: Meter,
    /// Whether its own limit is told as the device's memory. Relaxed, as what a meter has: a number
    /// that is a moment old is right.
    is_told: AtomicBool,
    group: Option<Arc<Meter>>,
}

impl Allowance {
    /// None held yet.
    pub(crate) fn new(bound: MemoryBound, group: Option<Arc<Meter>>) -> Self {
        let is_told = AtomicBool::new(bound.total == Total::Limit);
        Self { own: Meter::new(bound.bytes), is_told, group }
    }

    /// From now on it is this much.
    pub(crate) fn set_bound(&self, bound: MemoryBound) {
        self.own.set_limit(bound.bytes);
        self.is_told.store(bound.total == Total::Limit, Ordering::Relaxed);
    }

    /// Whether a group's limit holds as well.
    pub(crate) fn is_shared(&self) -> bool {
        self.group.is_some()
    }

    /// Counts more, if both limits allow it; says whether they do.
    pub(crate) fn take(&self, size_bytes: u64) -> bool {
        if !self.own.take(size_bytes) {
            return false;
        }
        let is_allowed = self.group.as_ref().is_none_or(|group| group.take(size_bytes));
        if !is_allowed {
            self.own.give_back(size_bytes);
        }
        is_allowed
    }

    /// Counts what is there in any case, whether the limits allow it or not.
    pub(crate) fn hold(&self, size_bytes: u64) {
        for meter in std::iter::once(&self.own).chain(self.group.as_deref()) {
            meter.held.fetch_add(size_bytes, Ordering::Relaxed);
        }
    }

    /// Counts less.
    pub(crate) fn give_back(&self, size_bytes: u64) {
        self.own.give_back(size_bytes);
        if let Some(group) = &self.group {
            group.give_back(size_bytes);
        }
    }

    /// What may still be taken, if that is limited.
    pub(crate) fn left_bytes(&self) -> Option<u64> {
        let of_group = self.group.as_ref().and_then(|group| group.left_bytes());
        self.own.left_bytes().into_iter().chain(of_group).min()
    }

    /// What the client is told as the memory of a device that has so much: a group's limit is
    /// always told.
    pub(crate) fn total_bytes(&self, device_bytes: u64) -> u64 {
        let total = match self.is_told.load(Ordering::Relaxed) {
            true => Total::Limit,
            false => Total::Device,
        };
        let own = MemoryBound { bytes: self.own.limit_bytes(), total };
        let group = self.group.as_ref().and_then(|group| group.limit_bytes());
        own.and(MemoryBound::told(group)).total_bytes(device_bytes)
    }

    /// The session has ended and holds nothing.
    pub(crate) fn end(&self) {
        self.give_back(self.own.held.load(Ordering::Relaxed));
    }
}

/// The groups that have sessions on this device.
#[derive(Debug, Default)]
pub(crate) struct GroupMeters(Mutex<HashMap<String, Weak<Meter>>>);

impl GroupMeters {
    /// The meter of a group, with this limit.
    pub(crate) fn join(&self, name: &str, limit_bytes: Option<u64>) -> Arc<Meter> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|_, meter| meter.strong_count() > 0);
        if let Some(known) = groups.get(name).and_then(Weak::upgrade) {
            known.set_limit(limit_bytes);
            return known;
        }
        let meter = Arc::new(Meter::new(limit_bytes));
        groups.insert(name.to_owned(), Arc::downgrade(&meter));
        meter
    }

    /// From now on a group may hold this much.
    pub(crate) fn set_limit(&self, name: &str, limit_bytes: Option<u64>) {
        let groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(meter) = groups.get(name).and_then(Weak::upgrade) {
            meter.set_limit(limit_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn untold(bytes: Option<u64>) -> MemoryBound {
        MemoryBound { bytes, total: Total::Device }
    }

    #[test]
    fn both_limits_hold_and_change() {
        let groups = GroupMeters::default();
        let member = |limit| Allowance::new(untold(limit), Some(groups.join("g", Some(10))));
        let (one, two) = (member(Some(6)), member(None));
        assert!(one.take(6) && !one.take(1));
        assert_eq!((one.left_bytes(), two.left_bytes()), (Some(0), Some(4)));
        assert!(!two.take(5) && two.take(4));
        groups.set_limit("g", Some(8));
        assert_eq!(two.left_bytes(), Some(0));
        assert!(!two.take(1), "more is held than may be: nothing is added");
        one.set_bound(MemoryBound::default());
        one.give_back(3);
        assert!(one.take(1) && !one.take(1));
        one.end();
        assert!(two.take(4) && !two.take(1));
    }

    #[test]
    fn a_group_without_members_is_forgotten() {
        let groups = GroupMeters::default();
        let gone = Allowance::new(untold(None), Some(groups.join("g", Some(1))));
        assert!(gone.take(1));
        drop(gone);
        let next = Allowance::new(untold(None), Some(groups.join("g", Some(5))));
        assert_eq!(next.left_bytes(), Some(5));
    }

    #[test]
    fn the_lowest_limit_is_told_unless_none_is() {
        let groups = GroupMeters::default();
        let alone = Allowance::new(untold(Some(6)), None);
        assert_eq!(alone.total_bytes(20), 20);
        alone.set_bound(MemoryBound::told(Some(7)));
        assert_eq!((alone.total_bytes(20), alone.total_bytes(5)), (7, 5));
        alone.set_bound(MemoryBound::told(None));
        assert_eq!(alone.total_bytes(20), 20);
        let member = Allowance::new(untold(Some(6)), Some(groups.join("g", Some(10))));
        assert_eq!(member.total_bytes(20), 6);
        groups.set_limit("g", Some(4));
        assert_eq!(member.total_bytes(20), 4);
        groups.set_limit("g", None);
        assert_eq!(member.total_bytes(20), 20);
    }

    /// What the model knows of a member: its group, its own limit, and what it holds in pieces.
    struct Member {
        allowance: Allowance,
        group: usize,
        limit: Option<u64>,
        held: Vec<u64>,
    }

    proptest! {
        #[test]
        fn sums_of_members_and_groups_hold_whatever_happens(
            acts in prop::collection::vec((0u8..9, 0usize..4, 0u64..40), 1..200)
        ) {
            const NAMES: [&str; 2] = ["a", "b"];
            let groups = GroupMeters::default();
            let mut limits: [Option<u64>; 2] = [Some(50), None];
            let mut members: Vec<Member> = Vec::new();
            for (act, which, number) in acts {
                let place = which.min(members.len().saturating_sub(1));
                let of_group = |members: &[Member], group: usize| -> u64 {
                    let of = members.iter().filter(|member| member.group == group);
                    of.flat_map(|member| &member.held).sum()
                };
                match act {
                    0 if members.len() < 4 => {
                        let (group, limit) = (which % 2, (number > 10).then_some(number));
                        let meter = groups.join(NAMES[group], limits[group]);
                        let allowance = Allowance::new(untold(limit), Some(meter));
                        members.push(Member { allowance, group, limit, held: Vec::new() });
                    }
                    1 => {
                        limits[which % 2] = (number > 5).then_some(2 * number);
                        groups.set_limit(NAMES[which % 2], limits[which % 2]);
                    }
                    _ if members.is_empty() => {}
                    2 => {
                        let member = members.swap_remove(place);
                        member.allowance.end();
                    }
                    3 => {
                        members[place].limit = (number > 5).then_some(number);
                        members[place].allowance.set_bound(untold(members[place].limit));
                    }
                    4 => {
                        let member = &mut members[place];
                        if let Some(size_bytes) = member.held.pop() {
                            member.allowance.give_back(size_bytes);
                        }
                    }
                    // What is there in any case, as what an executor before this one had granted.
                    5 => {
                        members[place].allowance.hold(number);
                        members[place].held.push(number);
                    }
                    _ => {
                        let group = members[place].group;
                        let sum = of_group(&members, group) + number;
                        let member = &mut members[place];
                        let own = member.held.iter().sum::<u64>() + number;
                        let fits = |limit: Option<u64>, sum| limit.is_none_or(|limit| sum <= limit);
                        let may = fits(member.limit, own) && fits(limits[group], sum);
                        prop_assert_eq!(member.allowance.take(number), may);
                        member.held.extend(may.then_some(number));
                    }
                }
                for member in &members {
                    let left = |limit: Option<u64>, held| limit.map(|limit| limit.saturating_sub(held));
                    let own = left(member.limit, member.held.iter().sum());
                    let group = left(limits[member.group], of_group(&members, member.group));
                    let least = own.into_iter().chain(group).min();
                    prop_assert_eq!(member.allowance.left_bytes(), least);
                }
            }
        }
    }
}
