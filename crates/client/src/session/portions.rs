//! Long copies of pageable memory, done by several threads: one thread's copying is slower than the
//! device's.
//!
//! Observed on an H200's host: one thread copies 7 to 10 GB/s, four 23, six 32, eight 36; the
//! device takes 55. The portions of a copy are disjoint and all on the same stream, so that it does
//! not matter which is posted first; the caller goes on when all are done, or posted.

use crate::copy::shape::{End, Extent};
use crate::result::Result;
use crate::session::staging::PIECE_BYTES;
use crate::thread;
use std::sync::OnceLock;

/// What one thread copies at least: so much takes longer than to start a thread.
const PORTION_BYTES: u64 = 4 << 20;
const MOST_THREADS: u64 = 6;

/// Threads that copy on a machine of so many cores.
fn threads_of(cores: usize) -> u64 {
    // With two cores a second thread still overlaps one's page faults with the other's copying.
    (cores as u64 / 2).clamp(2, MOST_THREADS)
}

fn most_threads() -> u64 {
    static THREADS: OnceLock<u64> = OnceLock::new();
    *THREADS.get_or_init(|| {
        threads_of(std::thread::available_parallelism().map_or(1, |cores| cores.get()))
    })
}

/// One thread's part: both ends, and how much.
pub(crate) type Portion = (End, End, Extent);

/// Cuts a copy into portions for so many threads: rows of it, or stretches of its one row, in whole
/// staging pieces.
fn portions(destination: End, source: End, extent: Extent, threads: u64) -> Vec<Portion> {
    let Extent { width_bytes, height, depth } = extent;
    let size_bytes = width_bytes.saturating_mul(height);
    let count = (size_bytes / PORTION_BYTES).clamp(1, threads);
    if depth > 1 || count == 1 || (height > 1 && height < count) {
        return vec![(destination, source, extent)];
    }
    if height == 1 {
        let each = width_bytes.div_ceil(count).next_multiple_of(PIECE_BYTES);
        let starts = (0..width_bytes).step_by(each as usize);
        let portion = |x: u64| {
            let at = |end: End| End { address: end.address + x, ..end };
            (at(destination), at(source), Extent::linear(each.min(width_bytes - x)))
        };
        return starts.map(portion).collect();
    }
    let each = height.div_ceil(count);
    let portion = |row: u64| {
        let at = |end: End| End { address: end.row(0, row), ..end };
        let extent = Extent { height: each.min(height - row), ..extent };
        (at(destination), at(source), extent)
    };
    (0..height).step_by(each as usize).map(portion).collect()
}

/// Does a copy in portions, each by a thread of its own if it is long; the first error is the
/// copy's.
pub(crate) fn in_portions(
    destination: End,
    source: End,
    extent: Extent,
    copy: impl Fn(Portion) -> Result + Sync,
) -> Result {
    let mut portions = portions(destination, source, extent, most_threads()).into_iter();
    let Some(own) = portions.next() else { return Ok(()) };
    if portions.len() == 0 {
        return copy(own);
    }
    let copy = &copy;
    std::thread::scope(|scope| {
        let others: Vec<_> = portions
            .map(|portion| {
                let thread = std::thread::Builder::new().name("openmps-copy".into());
                // Where no thread can be had, this one does its part.
                let started =
                    thread::without_signals(|| thread.spawn_scoped(scope, move || copy(portion)));
                started.map_err(|_| portion)
            })
            .collect();
        let first = copy(own);
        others.into_iter().fold(first, |result, other| {
            let ended = match other {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                Err(portion) => copy(portion),
            };
            result.and(ended)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_cover_a_long_row_in_whole_pieces() {
        let size_bytes = 3 * PORTION_BYTES + PIECE_BYTES + 5;
        let all = portions(End::linear(100), End::linear(7), Extent::linear(size_bytes), 4);
        assert_eq!(all.len(), 3);
        let mut next = 0;
        for (to, from, extent) in all {
            assert_eq!((to.address, from.address), (100 + next, 7 + next));
            assert!(next.is_multiple_of(PIECE_BYTES));
            next += extent.width_bytes;
        }
        assert_eq!(next, size_bytes);
    }

    #[test]
    fn portions_cover_all_rows_once() {
        let end = |address, pitch_bytes| End { address, pitch_bytes, slice_bytes: 0 };
        let extent = Extent { width_bytes: 1 << 14, height: 1001, depth: 1 };
        let all = portions(end(0, 1 << 15), end(1 << 40, 1 << 14), extent, 3);
        assert_eq!(all.len(), 3);
        assert_eq!(all.iter().map(|(_, _, extent)| extent.height).sum::<u64>(), 1001);
        assert_eq!(all[1].0.address, 334 << 15);
        assert_eq!(all[2].1.address, (1 << 40) + (668 << 14));
    }

    #[test]
    fn short_copies_are_one_portion() {
        let short = portions(End::linear(0), End::linear(0), Extent::linear(PORTION_BYTES), 4);
        assert_eq!(short.len(), 1);
        assert_eq!([1, 2, 4, 6, 16].map(threads_of), [2, 2, 2, 3, 6]);
    }
}
