//! What a session's kernels take of the device: how much of it they fill, on which SMs, and how
//! long they are.
//!
//! Kernels are weighed by the time that they take: what the device is at work on at most moments
//! counts. A program that infers launches a kernel that would fill the device between a hundred
//! that do not; of the few microseconds of that one nobody else notices anything.

use super::CONTENDS_NS;
use crate::session::state::State;
use crate::submit::submitted::{Launched, Shape};
use cuda_abi::types::*;
use executor_link::numbers::NumberMap;
use policy::turns::fairness::room::{ALL, Place, Room};
use policy::turns::fairness::{Demand, Kernels};

/// Of the time before so much work little is remembered.
const WINDOW_NS: f64 = 2e6;
/// Nor of what was before so many launches, however short they are: what a kernel was taken for
/// before it was known is forgotten, too.
const WINDOW_LAUNCHES: f64 = 512.0;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Extent {
    /// Part of the device that its kernels fill, of [`ALL`]; 0: not known.
    footprint: f64,
    /// How long the kernel is, in nanoseconds, that is at work at a moment.
    kernel_ns: f64,
    /// By function: threads, dynamic shared memory, and blocks of them per SM.
    occupancy: NumberMap<usize, (u32, u32, u32)>,
    pub(super) multiprocessors: u32,
}

impl Extent {
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

impl State {
    /// What the session's kernels want of the device.
    pub(super) fn demand(&mut self) -> Demand {
        let all = self.all_multiprocessors();
        let share = self.partitions.own();
        let place = share.and_then(|share| {
            let part = share.multiprocessors() * ALL / all;
            share.units().and_then(|units| Place::new(units, part))
        });
        self.pacing.extent.demand(place)
    }

    /// Counts a launch of such a cost that is about to be submitted.
    pub(super) fn extend(&mut self, launched: Launched, cost_ns: u64) {
        let (fills, kernels) = match launched {
            Launched::Kernel(shape) => (self.footprint(&shape), 1),
            Launched::Graph { kernels } => (ALL, u64::from(kernels.max(1))),
        };
        self.pacing.extent.add(fills, cost_ns / kernels, cost_ns);
    }

    fn all_multiprocessors(&mut self) -> u32 {
        if self.pacing.extent.multiprocessors == 0 {
            let mut count = 0;
            let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT;
            let device = self.context().device();
            // SAFETY: the result is written.
            let _ = unsafe { self.driver().cuDeviceGetAttribute(&mut count, attribute, device) };
            self.pacing.extent.multiprocessors = u32::try_from(count).unwrap_or(1).max(1);
        }
        self.pacing.extent.multiprocessors
    }

    /// The part of the device that a kernel fills; no more than the client may use.
    fn footprint(&mut self, shape: &Shape) -> u32 {
        let all = self.all_multiprocessors();
        let share = self.partitions.own().map_or(all, |share| share.multiprocessors()).min(all);
        let fits = u64::from(self.blocks_per_multiprocessor(shape)) * u64::from(all);
        let filled = shape.blocks.saturating_mul(ALL.into()) / fits.max(1);
        let most = u64::from(share) * u64::from(ALL) / u64::from(all);
        filled.clamp(1, most.max(1)) as u32
    }

    fn blocks_per_multiprocessor(&mut self, shape: &Shape) -> u32 {
        let Shape { function, block_threads, dynamic_shared_bytes, .. } = *shape;
        let key = (block_threads, dynamic_shared_bytes);
        if let Some(&(threads, shared_bytes, blocks)) =
            self.pacing.extent.occupancy.get(&function.0)
            && (threads, shared_bytes) == key
        {
            return blocks;
        }
        let mut blocks = 0;
        // SAFETY: a live function of this session; the result is written.
        let _ = unsafe {
            self.driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function,
                block_threads as i32,
                dynamic_shared_bytes as usize,
            )
        };
        let blocks = u32::try_from(blocks).unwrap_or(1).max(1);
        self.pacing.extent.occupancy.insert(function.0, (key.0, key.1, blocks));
        blocks
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
