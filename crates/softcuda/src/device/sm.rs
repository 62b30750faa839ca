//! One streaming multiprocessor: the blocks that are resident on it and its virtual time.

use std::sync::Arc;

use super::footprint::Footprint;
use super::grid::{Grid, Residency};
use crate::exec::BlockRun;

/// Slices in a row without an end after which a block is taken to wait for others: the SM then
/// takes further blocks of its grid, up to its occupancy, as a real SM has them resident from the
/// start.
pub(crate) const PATIENCE_SLICES: u32 = 4;

/// How far a resident block is.
#[expect(
    clippy::large_enum_variant,
    reason = "most slots hold a begun block, and a box would be one more allocation each"
)]
pub(crate) enum Stage {
    /// Placed, not yet begun: the block's index. Its registers are made by the worker that runs it
    /// first.
    Fresh([u32; 3]),
    Begun(BlockRun),
    /// A worker has it.
    Running,
}

/// A resident block.
pub(crate) struct Slot {
    pub(crate) grid: Arc<Grid>,
    pub(crate) stage: Stage,
    /// Warp instructions that this slot has had, relative to its neighbours.
    pub(crate) virtual_time: u64,
    /// Slices in a row that did not end the block.
    pub(crate) slices: u32,
    /// Waits for other blocks of its cluster.
    pub(crate) is_blocked: bool,
}

/// One SM.
#[derive(Default)]
pub(crate) struct Sm {
    /// Warp instructions executed here; the SM that lags most runs next.
    pub(crate) virtual_time: u64,
    pub(crate) is_running: bool,
    pub(crate) slots: Vec<Slot>,
    pub(crate) used: Footprint,
}

/// What an SM would do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Run the block in this slot.
    Slot(usize),
    /// Take a unit of the grid at this place of the device's list.
    Grid(usize),
}

impl Sm {
    /// Chooses by priority, then by the least virtual time; newcomers start level with the least.
    pub(crate) fn next(&self, index: u32, grids: &[Arc<Grid>], limit: Footprint) -> Option<Next> {
        let floor = self.floor();
        // (priority, virtual time, newcomer first)
        let mut best: Option<((i32, u64, u8), Next)> = None;
        let mut offer = |key, next| {
            if best.is_none_or(|(best_key, _)| key < best_key) {
                best = Some((key, next));
            }
        };
        for (place, slot) in self.slots.iter().enumerate() {
            if !matches!(slot.stage, Stage::Running) {
                offer((slot.grid.priority, slot.virtual_time, 1), Next::Slot(place));
            }
        }
        for (place, grid) in grids.iter().enumerate() {
            if grid.residency == Residency::Independent
                && grid.unit_blocks() == 1
                && grid.mask.contains(index)
                && grid.has_pending()
                && self.wants(grid)
                && self.fits(grid, limit)
            {
                offer((grid.priority, floor, 0), Next::Grid(place));
            }
        }
        best.map(|(_, next)| next)
    }

    /// One block of a grid at a time is enough until it turns out to wait for others.
    fn wants(&self, grid: &Arc<Grid>) -> bool {
        self.slots
            .iter()
            .filter(|slot| Arc::ptr_eq(&slot.grid, grid))
            .all(|slot| slot.is_blocked || slot.slices >= PATIENCE_SLICES)
    }

    /// Whether one block of the grid fits beside what is resident.
    pub(crate) fn fits(&self, grid: &Grid, limit: Footprint) -> bool {
        self.used.plus(grid.footprint).within(limit)
    }

    /// Virtual time of the slot that has had least.
    fn floor(&self) -> u64 {
        self.slots.iter().map(|slot| slot.virtual_time).min().unwrap_or(0)
    }

    /// Makes a block resident and returns its place.
    pub(crate) fn admit(&mut self, grid: &Arc<Grid>, stage: Stage) -> usize {
        let virtual_time = self.floor();
        self.used = self.used.plus(grid.footprint);
        self.slots.push(Slot {
            grid: grid.clone(),
            stage,
            virtual_time,
            slices: 0,
            is_blocked: false,
        });
        self.slots.len() - 1
    }

    /// Removes a slot and what it occupied.
    pub(crate) fn evict(&mut self, place: usize) {
        let slot = self.slots.remove(place);
        self.used = self.used.minus(slot.grid.footprint);
    }

    /// Removes the slots of stopped grids, except one that a worker is running.
    pub(crate) fn evict_stopped(&mut self) {
        for place in (0..self.slots.len()).rev() {
            let slot = &self.slots[place];
            if slot.grid.is_stopped() && !matches!(slot.stage, Stage::Running) {
                self.evict(place);
            }
        }
    }

    /// The slot that a worker is running here.
    pub(crate) fn running_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot.stage, Stage::Running))
    }
}
