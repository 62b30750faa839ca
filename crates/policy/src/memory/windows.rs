//! Windows of addresses: one pair, device and host, for every client on every device, at addresses
//! unique in the server.
//!
//! A client's addresses are valid in every process that knows them, and an overrun meets unmapped
//! space before it meets another client's memory. The area lies where programs, their loaders and
//! sanitizers have nothing, and where an NVIDIA driver was observed to give reservations exactly.

use link::wire::attach::Window;
use std::collections::BTreeSet;

/// First address of the area.
pub const AREA_BASE: u64 = 0x1100_0000_0000;
/// First address after it.
pub const AREA_END: u64 = 0x5100_0000_0000;
/// Length of a host window: pinned memory and staging of one client.
pub const HOST_WINDOW_BYTES: u64 = 64 << 30;
/// Unmapped space after each window.
const GAP_BYTES: u64 = 4 << 30;
const ALIGN_BYTES: u64 = 32 << 30;
/// There are no more pairs of windows, however little memory the devices have.
pub const MOST_PAIRS: u64 = (AREA_END - AREA_BASE) / pair_bytes(ALIGN_BYTES);

const fn pair_bytes(device_window_bytes: u64) -> u64 {
    (device_window_bytes + HOST_WINDOW_BYTES + 2 * GAP_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// Hands out pairs of windows.
#[derive(Debug)]
pub struct WindowSpace {
    device_window_bytes: u64,
    taken: BTreeSet<u64>,
    /// Where to look first: a window that was just given back rests as long as possible, so that
    /// stale pointers meet nothing.
    next: u64,
}

/// One client's windows on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowPair {
    /// Device memory.
    pub device: Window,
    /// Host memory.
    pub host: Window,
}

impl WindowSpace {
    /// For devices of up to `largest_device_bytes` of memory, with a quarter more for
    /// fragmentation.
    pub fn new(largest_device_bytes: u64) -> Self {
        let wanted = largest_device_bytes.saturating_add(largest_device_bytes / 4);
        let device_window_bytes = wanted.clamp(ALIGN_BYTES, 1 << 40).next_multiple_of(ALIGN_BYTES);
        Self { device_window_bytes, taken: BTreeSet::new(), next: 0 }
    }

    fn pair_bytes(&self) -> u64 {
        pair_bytes(self.device_window_bytes)
    }

    /// How many pairs there are.
    pub fn capacity(&self) -> u64 {
        (AREA_END - AREA_BASE) / self.pair_bytes()
    }

    /// A pair of windows that nobody has; `None` when all are taken.
    pub fn take(&mut self) -> Option<WindowPair> {
        let capacity = self.capacity();
        let index = (0..capacity)
            .map(|step| (self.next + step) % capacity)
            .find(|index| !self.taken.contains(index))?;
        self.taken.insert(index);
        self.next = (index + 1) % capacity;
        let base = AREA_BASE + index * self.pair_bytes();
        let device = Window { base, size_bytes: self.device_window_bytes };
        let host_base = base + self.device_window_bytes + GAP_BYTES;
        Some(WindowPair { device, host: Window { base: host_base, size_bytes: HOST_WINDOW_BYTES } })
    }

    /// Takes a pair back, once nothing is mapped there in any process of the server.
    pub fn give_back(&mut self, pair: WindowPair) {
        self.taken.remove(&((pair.device.base.saturating_sub(AREA_BASE)) / self.pair_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_h200_gets_windows_that_hold_all_its_memory_for_two_devices_of_clients() {
        let space = WindowSpace::new(143_771 << 20);
        assert!(space.device_window_bytes > 143_771 << 20);
        assert!(space.capacity() >= 4 * 48, "{}", space.capacity());
        assert_eq!(WindowSpace::new(1).capacity(), MOST_PAIRS);
    }

    #[test]
    fn windows_are_disjoint_aligned_and_inside_the_area_until_none_is_left() {
        let mut space = WindowSpace::new(16 << 30);
        let mut windows = Vec::new();
        while let Some(pair) = space.take() {
            windows.extend([pair.device, pair.host]);
        }
        assert_eq!(windows.len() as u64, 2 * space.capacity());
        windows.sort_by_key(|window| window.base);
        assert!(windows[0].base >= AREA_BASE);
        for two in windows.windows(2) {
            assert!(two[0].base + two[0].size_bytes + GAP_BYTES <= two[1].base);
        }
        let last = windows.last().unwrap();
        assert!(last.base + last.size_bytes <= AREA_END);
        assert!(windows.iter().all(|window| window.base.is_multiple_of(4 << 30)));
    }

    #[test]
    fn a_window_given_back_is_the_last_to_be_used_again() {
        let mut space = WindowSpace::new(1 << 40);
        let first = space.take().unwrap();
        space.give_back(first);
        let mut others = 0;
        while space.take().unwrap() != first {
            others += 1;
        }
        assert_eq!(others, space.capacity() - 1);
        assert_eq!(space.take(), None);
    }
}
