//! One device's SMs: which SM runs next, and where blocks, clusters and cooperative grids are
//! placed.

use std::sync::Arc;

use super::footprint::Footprint;
use super::grid::{Grid, Residency};
use super::sm::{Next, Sm, Stage};
use crate::exec::{Arena, BlockRun};

/// Fuel of a slice in warp instructions: about 0.2 ms.
const SLICE_WARP_INSTRUCTIONS: u64 = 32_768;
/// The same for blocks that may spin until other blocks have had their turn.
const SPIN_SLICE_WARP_INSTRUCTIONS: u64 = 2_048;

/// The SMs of one device and the grids that have work for them.
pub(crate) struct Placement {
    pub(crate) sms: Vec<Sm>,
    pub(crate) grids: Vec<Arc<Grid>>,
    limit: Footprint,
    /// Virtual time of the SM that ran last: an idle SM does not hoard time.
    pub(crate) now: u64,
}

/// A block taken off its SM for one slice.
pub(crate) struct Slice {
    pub(crate) device: usize,
    pub(crate) sm: u32,
    pub(crate) grid: Arc<Grid>,
    pub(crate) stage: Stage,
    pub(crate) fuel_warp_instructions: u64,
    /// The SM's virtual time, cycles.
    pub(crate) start_cycles: u64,
}

impl Placement {
    pub(crate) fn new(sm_count: u32, limit: Footprint) -> Self {
        Placement {
            sms: (0..sm_count).map(|_| Sm::default()).collect(),
            grids: Vec::new(),
            limit,
            now: 0,
        }
    }

    /// Takes the block that should run next, if there is any.
    pub(crate) fn take(&mut self, device: usize) -> Option<Slice> {
        self.place_together();
        let mut chosen: Option<(u64, usize, Next)> = None;
        for (index, sm) in self.sms.iter().enumerate() {
            if sm.is_running || chosen.is_some_and(|(least, _, _)| sm.virtual_time >= least) {
                continue;
            }
            if let Some(next) = sm.next(index as u32, &self.grids, self.limit) {
                chosen = Some((sm.virtual_time, index, next));
            }
        }
        let (_, index, next) = chosen?;
        let sm = &mut self.sms[index];
        if sm.slots.is_empty() {
            sm.virtual_time = sm.virtual_time.max(self.now);
        }
        self.now = self.now.max(sm.virtual_time);
        let place = match next {
            Next::Slot(place) => place,
            Next::Grid(place) => {
                let grid = self.grids[place].clone();
                let Some(unit) = grid.claim() else { return self.take(device) };
                sm.admit(&grid, Stage::Fresh(unit))
            }
        };
        let start_cycles = sm.virtual_time;
        let slot = &mut sm.slots[place];
        let stage = std::mem::replace(&mut slot.stage, Stage::Running);
        sm.is_running = true;
        let spins = slot.grid.residency == Residency::Cooperative
            || slot.grid.unit_blocks() > 1
            || slot.slices >= super::sm::PATIENCE_SLICES;
        let fuel = if spins { SPIN_SLICE_WARP_INSTRUCTIONS } else { SLICE_WARP_INSTRUCTIONS };
        Some(Slice {
            device,
            sm: index as u32,
            grid: slot.grid.clone(),
            stage,
            fuel_warp_instructions: fuel,
            start_cycles,
        })
    }

    /// Places clusters and cooperative grids, whose blocks go to SMs all at once or not at all.
    fn place_together(&mut self) {
        for place in 0..self.grids.len() {
            let grid = self.grids[place].clone();
            while is_placed_together(&grid) && grid.has_pending() {
                let units = if grid.residency == Residency::Cooperative { grid.units() } else { 1 };
                let blocks = units * u64::from(grid.unit_blocks());
                let Some(homes) = self.homes(&grid, blocks) else { break };
                let mut homes = homes.into_iter();
                for _ in 0..units {
                    let Some(unit) = grid.claim() else { break };
                    for stage in unit_stages(&grid, unit) {
                        if let Some(home) = homes.next() {
                            self.sms[home].admit(&grid, stage);
                        }
                    }
                }
            }
        }
    }

    /// SMs for `blocks` blocks of the grid, least occupied first; `None`: not all fit now.
    fn homes(&self, grid: &Grid, blocks: u64) -> Option<Vec<usize>> {
        let mut room: Vec<(usize, Footprint)> = self
            .sms
            .iter()
            .enumerate()
            .filter(|(index, _)| grid.mask.contains(*index as u32))
            .map(|(index, sm)| (index, sm.used))
            .collect();
        let mut homes = Vec::new();
        while (homes.len() as u64) < blocks {
            let before = homes.len();
            for (index, used) in &mut room {
                let with = used.plus(grid.footprint);
                if (homes.len() as u64) < blocks && with.within(self.limit) {
                    *used = with;
                    homes.push(*index);
                }
            }
            if homes.len() == before {
                return None;
            }
        }
        Some(homes)
    }

    /// Puts a block back after a slice.
    pub(crate) fn put_back(&mut self, sm: u32, executed: u64, outcome: Stay) {
        let Some(sm) = self.sms.get_mut(sm as usize) else { return };
        sm.is_running = false;
        // A wait takes as long as a neighbour's slice: else a block that only looks whether it may
        // go on would stay the one that lags most, and be taken again and again before those that
        // it waits for.
        let executed = match outcome {
            Stay::Blocked(_) => executed.max(SPIN_SLICE_WARP_INSTRUCTIONS),
            _ => executed,
        };
        sm.virtual_time += executed;
        let Some(place) = sm.running_slot() else { return };
        let slot = &mut sm.slots[place];
        slot.virtual_time += executed;
        match outcome {
            Stay::Resident(run) if !slot.grid.is_stopped() => {
                slot.stage = Stage::Begun(run);
                slot.slices = slot.slices.saturating_add(1);
                slot.is_blocked = false;
            }
            Stay::Blocked(run) if !slot.grid.is_stopped() => {
                slot.stage = Stage::Begun(run);
                slot.slices = slot.slices.saturating_add(1);
                slot.is_blocked = true;
            }
            _ => {
                self.now = self.now.max(sm.virtual_time);
                sm.evict(place);
            }
        }
    }

    /// Drops a grid's resident blocks (those not running) and takes it off the list once none is
    /// left. Returns whether this call took it off: its launch is completed once.
    pub(crate) fn remove(&mut self, grid: &Arc<Grid>) -> bool {
        if grid.is_stopped() {
            self.sms.iter_mut().for_each(Sm::evict_stopped);
        }
        if self.sms.iter().any(|sm| sm.slots.iter().any(|slot| Arc::ptr_eq(&slot.grid, grid))) {
            return false;
        }
        let before = self.grids.len();
        self.grids.retain(|other| !Arc::ptr_eq(other, grid));
        self.grids.len() < before
    }
}

/// Whether a block stays on its SM after a slice.
pub(crate) enum Stay {
    Resident(BlockRun),
    Blocked(BlockRun),
    Gone,
}

fn is_placed_together(grid: &Grid) -> bool {
    grid.residency == Residency::Cooperative || grid.unit_blocks() > 1
}

fn unit_stages(grid: &Grid, unit: [u32; 3]) -> Vec<Stage> {
    match grid.unit_blocks() {
        1 => vec![Stage::Fresh(unit)],
        blocks => {
            let arenas = (0..blocks).map(|_| Arena::default()).collect();
            BlockRun::new_cluster(&grid.launch, unit, arenas)
                .into_iter()
                .map(Stage::Begun)
                .collect()
        }
    }
}
