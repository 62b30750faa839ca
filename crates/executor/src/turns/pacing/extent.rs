//! What a session's kernels take of the device: how much of it they fill, on which SMs, and how
//! long they are.
//!
//! Kernels are weighed by the time that they take: what the device is at work on at most moments
//! counts. A program that infers launches a kernel that would fill the device between a hundred
//! that do not; of the few microseconds of that one nobody else notices anything.

mod weighing;

use super::CONTENDS_NS;
use executor_link::numbers::NumberMap;
use policy::turns::fairness::room::{Place, Room};
use policy::turns::fairness::{Demand, Kernels};

/// Of the time before so much work little is remembered.
const WINDOW_NS: f64 = 2e6;
/// Nor of what was before so many launches, however short they are: what a kernel was taken for
/// before it was known is forgotten, too.
const WINDOW_LAUNCHES: f64 = 512.0;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Extent {
    /// Part of the device that its kernels fill, in thousandths; 0: not known.
    footprint: f64,
    /// How long the kernel is, in nanoseconds, that is at work at a moment.
    kernel_ns: f64,
    /// By function: threads, dynamic shared memory, and blocks of them per SM.
    occupancy: NumberMap<usize, (u32, u32, u32)>,
    /// Of the device.
    pub(super) multiprocessors: u32,
}

impl Extent {
    pub(super) fn new(multiprocessors: u32) -> Self {
        Self { multiprocessors: multiprocessors.max(1), ..Self::default() }
    }

    /// Kernels that fill so much, each of them so long, and so much all of them.
    fn add(&mut self, fills: u32, kernel_ns: u64, all_ns: u64) {
        let is_first = self.kernel_ns == 0.0;
        let least = 1.0 / WINDOW_LAUNCHES;
        let part = if is_first { 1.0 } else { (all_ns as f64 / WINDOW_NS).clamp(least, 1.0) };
        let fills = f64::from(fills);
        self.kernel_ns += (kernel_ns as f64 - self.kernel_ns) * part;
        self.footprint += (fills - self.footprint) * part;
        if kernel_ns >= CONTENDS_NS {
            // What lasts is in the others' way as long as it does.
            self.footprint = self.footprint.max(fills);
        }
    }

    /// What comes is not counted for a while: short kernels with nobody else there.
    pub(super) fn forget(&mut self) {
        (self.footprint, self.kernel_ns) = (0.0, 0.0);
    }

    /// Whether others' kernels would wait for these.
    pub(super) fn lasts(&self) -> bool {
        self.kernel_ns >= CONTENDS_NS as f64
    }

    fn demand(&self, place: Option<Place>) -> Demand {
        let kernels = if self.lasts() { Kernels::Lasting } else { Kernels::Short };
        Demand { room: Room::new(self.footprint.ceil() as u32, place), kernels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_count_by_the_time_that_they_take() {
        let mut inference = Extent::default();
        for _ in 0..20 {
            for place in 0..160 {
                let (fills, kernel_ns) = match place {
                    0..10 => (1000, 6_500),
                    10..12 => (250, 76_000),
                    _ => (60, 11_000),
                };
                inference.add(fills, kernel_ns, kernel_ns);
            }
        }
        assert!(!inference.lasts(), "{inference:?}");
        assert!(inference.footprint < 250.0, "{inference:?}");
        // One kernel that lasts changes that at once, and for as long as others would remember it.
        inference.add(1000, 5_000_000, 5_000_000);
        assert!(inference.lasts() && inference.footprint == 1000.0, "{inference:?}");
        (0..2_000).for_each(|_| inference.add(60, 11_000, 11_000));
        assert!(!inference.lasts() && inference.footprint < 70.0, "{inference:?}");
        // What was taken to last and turns out to be next to nothing.
        inference.add(1000, 2_000_000, 2_000_000);
        (0..4_000).for_each(|_| inference.add(60, 1, 1));
        assert!(!inference.lasts() && inference.footprint < 70.0, "{inference:?}");
    }
}
