//! Addresses that clients reserve for memory to be mapped there (`cuMemAddressReserve`): unique in
//! the server.
//!
//! They lie beyond where programs are loaded and below where their libraries and stacks are, and
//! within what an NVIDIA driver was observed to reserve exactly. Each device's executor has an
//! equal share, so that it need not ask.

use super::ranges::Ranges;
use crate::budgets::{Budget, Part};
use link::wire::attach::Window;
use link::wire::owner::Owner;

/// First address of the area: position-independent programs are loaded below it.
const AREA_BASE: u64 = 0x5700_0000_0000;
/// First address after it.
const AREA_END: u64 = 0x6000_0000_0000;
/// A driver was observed to ignore the wanted address of anything smaller, and where it has a gap
/// of just that size, of that, too (an executor fills such gaps before it asks again).
pub const UNIT_BYTES: u64 = 32 << 20;
/// Unmapped space after each reservation.
const GAP_BYTES: u64 = UNIT_BYTES;

/// Of a device's share, what is the second executor's.
fn second_bytes(share_bytes: u64) -> u64 {
    share_bytes / 4 / UNIT_BYTES * UNIT_BYTES
}

/// What is reserved on one device.
#[derive(Debug)]
pub struct Reservations {
    area: Window,
    taken: Ranges,
    /// Bytes, gaps included.
    budget: Budget,
}

impl Reservations {
    /// The share of one of `devices` devices.
    pub fn share(device: u32, devices: u32) -> Window {
        let share = (AREA_END - AREA_BASE) / u64::from(devices.max(1)) / UNIT_BYTES * UNIT_BYTES;
        let base = AREA_BASE + share * u64::from(device.min(devices.saturating_sub(1)));
        Window { base, size_bytes: share }
    }

    /// None yet, in the share of one of `devices` devices: most of it is the first executor's.
    pub fn of_first(device: u32, devices: u32) -> Self {
        let Window { base, size_bytes } = Self::share(device, devices);
        Self::within(Window { base, size_bytes: size_bytes - second_bytes(size_bytes) })
    }

    /// The same for the second executor of the device, which has the rest.
    pub fn of_second(device: u32, devices: u32) -> Self {
        let Window { base, size_bytes } = Self::share(device, devices);
        let own_bytes = second_bytes(size_bytes);
        Self::within(Window { base: base + size_bytes - own_bytes, size_bytes: own_bytes })
    }

    fn within(area: Window) -> Self {
        // Allocators reserve more than the device's memory, several times: one owner alone may want
        // most of the area.
        let budget = Budget::new(area.size_bytes, Part::THREE_QUARTERS, u64::MAX);
        Self { area, taken: Ranges::default(), budget }
    }

    /// Takes the lowest free range of `size_bytes`, aligned to `alignment_bytes` (a power of two,
    /// or 0), for an owner, who may have a part of what others leave. Its length is what it takes
    /// of the area's units.
    pub fn take(&mut self, owner: &Owner, size_bytes: u64, alignment_bytes: u64) -> Option<Window> {
        let aligned_to = alignment_bytes.max(UNIT_BYTES);
        if size_bytes == 0 || !(alignment_bytes == 0 || alignment_bytes.is_power_of_two()) {
            return None;
        }
        let size_bytes = size_bytes.checked_next_multiple_of(UNIT_BYTES)?;
        let mut at = self.area.base.checked_next_multiple_of(aligned_to)?;
        for (taken, length) in self.taken.iter() {
            if taken >= at && taken - at >= size_bytes.checked_add(GAP_BYTES)? {
                break;
            }
            let after = taken.checked_add(length)?.checked_add(GAP_BYTES)?;
            at = at.max(after.checked_next_multiple_of(aligned_to)?);
        }
        let found = Window { base: at, size_bytes };
        let counted_bytes = size_bytes.checked_add(GAP_BYTES)?;
        let is_taken = self.area.contains(at, size_bytes)
            && self.budget.take(owner, counted_bytes)
            && self.taken.insert(at, size_bytes);
        is_taken.then_some(found)
    }

    /// Takes a range that an owner had before, by another executor's hand; says whether it was
    /// free.
    pub fn claim(&mut self, owner: &Owner, window: Window) -> bool {
        let Window { base, size_bytes } = window;
        let is_free = self.area.contains(base, size_bytes) && self.taken.insert(base, size_bytes);
        if is_free {
            self.budget.count(owner, size_bytes.saturating_add(GAP_BYTES));
        }
        is_free
    }

    /// Gives a range of an owner's back in which nothing is mapped.
    pub fn give_back(&mut self, owner: &Owner, window: Window) {
        self.taken.remove(window.base, window.size_bytes);
        self.budget.give_back(owner, window.size_bytes.saturating_add(GAP_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { uid: 1, entrance: None };

    #[test]
    fn ranges_are_aligned_apart_and_used_again() {
        let mut reservations = Reservations::of_first(0, 2);
        let first = reservations.take(&OWNER, 1, 0).unwrap();
        assert_eq!(first, Window { base: AREA_BASE, size_bytes: UNIT_BYTES });
        let second = reservations.take(&OWNER, 3 << 30, 1 << 30).unwrap();
        assert!(second.base.is_multiple_of(1 << 30));
        assert!(second.base >= first.base + first.size_bytes + GAP_BYTES);
        let third = reservations.take(&OWNER, UNIT_BYTES, 0).unwrap();
        assert_eq!(third.base, first.base + first.size_bytes + GAP_BYTES, "the gap is used");
        reservations.give_back(&OWNER, second);
        assert_eq!(reservations.take(&OWNER, 3 << 30, 1 << 30), Some(second));
    }

    #[test]
    fn devices_share_nothing_and_shares_end() {
        let mut one = Reservations::of_first(0, 2);
        let [mut second, mut other] = [Reservations::of_second(0, 2), Reservations::of_first(1, 2)];
        let own = one.area.size_bytes;
        let most = own / 4 * 3 / UNIT_BYTES * UNIT_BYTES - GAP_BYTES;
        let first = one.take(&OWNER, most, 0).unwrap();
        assert_eq!(one.take(&OWNER, UNIT_BYTES, 0), None);
        assert_eq!(second.take(&OWNER, 1, 0).unwrap().base, first.base + own);
        let half = Reservations::share(0, 2).size_bytes;
        assert_eq!(other.take(&OWNER, 1, 0).unwrap().base, first.base + half);
        for (size, alignment) in [(0, 0), (u64::MAX, 0), (1, 3), (1, 1 << 63)] {
            assert_eq!(other.take(&OWNER, size, alignment), None, "{size} {alignment}");
        }
    }

    #[test]
    fn nobody_has_so_much_that_nothing_is_left_for_others() {
        let mut reservations = Reservations::of_first(0, 1);
        let taken = |reservations: &mut Reservations, owner: &Owner| {
            let sizes = (25..44).rev().map(|exponent| 1u64 << exponent);
            let all = sizes.flat_map(|size| {
                std::iter::from_fn(|| reservations.take(owner, size, 0)).collect::<Vec<_>>()
            });
            all.collect::<Vec<Window>>()
        };
        let of_first = taken(&mut reservations, &OWNER);
        let other = Owner::user(2);
        let wanted = 1 << 40;
        let got = reservations.take(&other, wanted, 0).unwrap();
        assert_eq!(got.size_bytes, wanted);
        // By another executor they come in any order.
        let mut next = Reservations::of_first(0, 1);
        let of_other = taken(&mut next, &other);
        of_other.into_iter().for_each(|window| next.give_back(&other, window));
        assert!(of_first.iter().chain([&got]).all(|window| next.claim(&OWNER, *window)));
        assert!(!next.claim(&other, got), "it is taken");
        assert_eq!(next.take(&OWNER, 1, 0), None);
        assert!(next.take(&other, UNIT_BYTES, 0).is_some());
    }
}
