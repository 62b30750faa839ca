//! Where on a device a limited share of SMs goes.
//!
//! A device is cut into units, the smallest sets of SMs that can be set apart. A share is a run of neighbours, so that clusters of blocks find
//! SMs that belong together, and goes where the fewest shares are already.

use std::ops::Range;

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

/// The least loaded run of `count` units in `within`; the first of equals. `loads` says how many shares each unit is part of.
pub fn least_loaded(loads: &[u32], within: Range<usize>, count: usize) -> Range<usize> {
    let within = within.start..within.end.min(loads.len());
    let count = count.clamp(1, within.len().max(1));
    let starts = within.start..=within.end.saturating_sub(count).max(within.start);
    let load = |start: usize| -> u64 {
        loads.iter().skip(start).take(count).map(|&load| u64::from(load)).sum()
    };
    let start = starts.min_by_key(|&start| load(start)).unwrap_or(within.start);
    start..(start + count).min(within.end)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut loads = [0; 10];
        let mut place = |count| {
            let run = least_loaded(&loads, 0..10, count);
            loads[run.clone()].iter_mut().for_each(|load| *load += 1);
            run
        };
        assert_eq!([place(4), place(4), place(2), place(5)], [0..4, 4..8, 8..10, 0..5]);
        assert_eq!(place(3), 5..8);
    }

    #[test]
    fn shares_within_a_share_stay_there() {
        assert_eq!(least_loaded(&[0, 0, 3, 1, 2, 0], 2..5, 2), 3..5);
        assert_eq!(least_loaded(&[0, 0, 3, 1, 2, 0], 2..5, 9), 2..5);
        assert_eq!(least_loaded(&[], 0..0, 3), 0..0);
    }
}
