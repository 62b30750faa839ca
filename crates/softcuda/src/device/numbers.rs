//! Numbers for handles of which kernels are given the values: always the smallest that is free, so
//! that whoever makes the same objects again gets the same handles.

use std::collections::BTreeSet;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// None from here on was ever taken.
    next: u64,
    free: BTreeSet<u64>,
}

impl Numbers {
    /// The smallest that is free, from 0.
    pub(crate) fn take(&mut self) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// A number that was taken is free again.
    pub(crate) fn give_back(&mut self, number: u64) {
        self.free.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_free_number_comes_first() {
        let mut numbers = Numbers::default();
        assert_eq!([(); 4].map(|()| numbers.take()), [0, 1, 2, 3]);
        numbers.give_back(2);
        numbers.give_back(0);
        assert_eq!([(); 3].map(|()| numbers.take()), [0, 2, 4]);
    }
}
