//! Kernels are weighed.

use super::*;
use crate::session::state::State;
use crate::submit::submitted::{Launched, Shape};
use policy::turns::fairness::room::ALL;

impl State {
    /// What the session's kernels want of the device.
    pub(crate) fn demand(&mut self) -> Demand {
        let all = self.pacing.extent.multiprocessors;
        let share = self.partitions.own();
        let place = share.and_then(|share| {
            let part = share.multiprocessors() * ALL / all;
            share.units().and_then(|units| Place::new(units, part))
        });
        self.pacing.extent.demand(place)
    }

    /// Counts a launch of such a cost that is about to be submitted.
    pub(crate) fn extend(&mut self, launched: Launched, cost_ns: u64) {
        let (fills, kernels) = match launched {
            Launched::Kernel(shape) => (self.footprint(&shape), 1),
            Launched::Graph { kernels } => (ALL, u64::from(kernels.max(1))),
        };
        self.pacing.extent.add(fills, cost_ns / kernels, cost_ns);
    }

    /// The part of the device that a kernel fills; no more than the client may use.
    fn footprint(&mut self, shape: &Shape) -> u32 {
        let all = self.pacing.extent.multiprocessors;
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
