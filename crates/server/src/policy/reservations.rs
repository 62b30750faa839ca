//! Addresses that clients reserve for memory to be mapped there (`cuMemAddressReserve`): unique in the server.
//!
//! They lie beyond where programs are loaded and below where their libraries and stacks are, and within what an NVIDIA driver was observed to reserve
//! exactly. Each device's executor has an equal share, so that it need not ask.

use super::ranges::Ranges;
use link::wire::attach::Window;

/// First address of the area: position-independent programs are loaded below it.
const AREA_BASE: u64 = 0x5700_0000_0000;
/// First address after it.
const AREA_END: u64 = 0x6000_0000_0000;
/// A driver was observed to ignore the wanted address of anything smaller, and where it has a gap of just that size, of that, too (an executor fills
/// such gaps before it asks again).
pub const UNIT_BYTES: u64 = 32 << 20;
/// Unmapped space after each reservation.
const GAP_BYTES: u64 = UNIT_BYTES;

/// What is reserved on one device.
#[derive(Debug)]
pub struct Reservations {
    area: Window,
    taken: Ranges,
}

impl Reservations {
    /// The share of one of `devices` devices.
    pub fn share(device: u32, devices: u32) -> Window {
        let share = (AREA_END - AREA_BASE) / u64::from(devices.max(1)) / UNIT_BYTES * UNIT_BYTES;
        let base = AREA_BASE + share * u64::from(device.min(devices.saturating_sub(1)));
        Window { base, size_bytes: share }
    }

    /// None yet, in the share of one of `devices` devices.
    pub fn new(device: u32, devices: u32) -> Self {
        Self { area: Self::share(device, devices), taken: Ranges::default() }
    }

    /// Takes the lowest free range of `size_bytes`, aligned to `alignment_bytes` (a power of two, or 0). Its length is what it takes of
    /// the area's units.
    pub fn take(&mut self, size_bytes: u64, alignment_bytes: u64) -> Option<Window> {
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
        (self.area.contains(at, size_bytes) && self.taken.insert(at, size_bytes)).then_some(found)
    }

    /// Takes a range that was taken before, by another executor's hand; says whether it was free.
    pub fn claim(&mut self, window: Window) -> bool {
        let Window { base, size_bytes } = window;
        self.area.contains(base, size_bytes) && self.taken.insert(base, size_bytes)
    }

    /// Gives a range back in which nothing is mapped.
    pub fn give_back(&mut self, window: Window) {
        self.taken.remove(window.base, window.size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_apart_and_used_again() {
        let mut reservations = Reservations::new(0, 2);
        let first = reservations.take(1, 0).unwrap();
        assert_eq!(first, Window { base: AREA_BASE, size_bytes: UNIT_BYTES });
        let second = reservations.take(3 << 30, 1 << 30).unwrap();
        assert!(second.base.is_multiple_of(1 << 30));
        assert!(second.base >= first.base + first.size_bytes + GAP_BYTES);
        let third = reservations.take(UNIT_BYTES, 0).unwrap();
        assert_eq!(third.base, first.base + first.size_bytes + GAP_BYTES, "the gap is used");
        reservations.give_back(second);
        assert_eq!(reservations.take(3 << 30, 1 << 30), Some(second));
    }

    #[test]
    fn devices_share_nothing_and_shares_end() {
        let mut one = Reservations::new(0, 2);
        let mut other = Reservations::new(1, 2);
        let half = one.area.size_bytes;
        let whole = one.take(half, 0).unwrap();
        assert_eq!(one.take(1, 0), None);
        assert_eq!(other.take(1, 0).unwrap().base, whole.base + half);
        for (size, alignment) in [(0, 0), (u64::MAX, 0), (1, 3), (1, 1 << 63)] {
            assert_eq!(other.take(size, alignment), None, "{size} {alignment}");
        }
    }
}
