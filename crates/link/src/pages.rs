//! Pages: the grain in which the system maps memory. How long they are is asked for once, of the
//! system; what depends on it takes [`Pages`], so that tests try all lengths.
//!
//! Not to be confused with the grain of devices: grants are multiples of the driver's 2 MiB.

use crate::wire::attach::Window;

/// The longest pages of any system that this runs on: those of aarch64 have 4, 16 or 64 KiB. What
/// two processes share is laid out for these, whatever the system has.
pub const LONGEST_BYTES: usize = 64 << 10;

/// Pages of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    bytes: u64,
}

impl Pages {
    /// Those of this system.
    pub fn of_system() -> Self {
        Self::of(rustix::param::page_size() as u64)
    }

    /// Pages of so many bytes, a power of two.
    ///
    /// # Panics
    /// When it is none.
    pub fn of(bytes: u64) -> Self {
        assert!(bytes.is_power_of_two(), "pages of {bytes} bytes");
        Self { bytes }
    }

    /// Length of one.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where the page of an address begins.
    pub fn first(self, address: u64) -> u64 {
        address & !(self.bytes - 1)
    }

    /// The length of the pages that so many bytes need; `None` when no number says it.
    pub fn whole(self, size_bytes: u64) -> Option<u64> {
        size_bytes.checked_next_multiple_of(self.bytes)
    }

    /// The pages that a range of addresses lies in.
    pub fn around(self, range: Window) -> Option<Window> {
        let base = self.first(range.base);
        let end = self.whole(range.base.checked_add(range.size_bytes)?)?;
        Some(Window { base, size_bytes: end - base })
    }

    /// Whether a range consists of whole pages.
    pub fn are_whole(self, at: u64, size_bytes: u64) -> bool {
        at.is_multiple_of(self.bytes) && size_bytes.is_multiple_of(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_lies_in_the_fewest_pages(
            shift in prop::sample::select(vec![12u32, 14, 16]),
            base in 0..1u64 << 40,
            size_bytes in 1..1u64 << 30,
        ) {
            let pages = Pages::of(1 << shift);
            let around = pages.around(Window { base, size_bytes }).unwrap();
            prop_assert!(around.contains(base, size_bytes));
            prop_assert!(pages.are_whole(around.base, around.size_bytes));
            prop_assert!(base - around.base < pages.bytes());
            let end = around.base + around.size_bytes;
            prop_assert!(end - (base + size_bytes) < pages.bytes());
            prop_assert_eq!(pages.whole(around.size_bytes), Some(around.size_bytes));
        }
    }

    #[test]
    fn what_no_number_says_is_none() {
        for pages in [4, 16, 64].map(|kib| Pages::of(kib << 10)) {
            assert_eq!(pages.whole(u64::MAX), None);
            assert_eq!(pages.around(Window { base: u64::MAX, size_bytes: 2 }), None);
            assert_eq!(pages.around(Window { base: u64::MAX - 1, size_bytes: 1 }), None);
        }
    }

    #[test]
    fn no_system_has_longer_pages_than_shared_memory_is_laid_out_for() {
        assert!(Pages::of_system().bytes() <= LONGEST_BYTES as u64);
    }
}
