//! One kernel launch while it runs: which blocks are left, what a block needs of an SM.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::footprint::Footprint;
use crate::exec;

/// Turns that each SM gets of a grid with blocks enough, so that one that is busy meanwhile gets
/// some, too.
const TURNS_PER_SM: u64 = 4;
/// Blocks that one SM takes in a row at least, if they are short.
const LEAST_TURN_BLOCKS: u64 = 4;
/// Units that a worker claims at once, at most, and as a part of those that are left.
const MOST_CLAIMED_AT_ONCE: u64 = 16;
const UNITS_LEFT_PER_CLAIMED: u64 = 64;

/// Set of SMs by index; at most 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SmMask([u64; 4]);

impl SmMask {
    /// No SM at all.
    pub(crate) const EMPTY: SmMask = SmMask([0; 4]);

    /// SMs 0 to `count` - 1.
    pub(crate) fn first(count: u32) -> Self {
        let mut mask = SmMask::EMPTY;
        (0..count).for_each(|sm| mask.insert(sm));
        mask
    }

    pub(crate) fn insert(&mut self, sm: u32) {
        if let Some(word) = self.0.get_mut(sm as usize / 64) {
            *word |= 1 << (sm % 64);
        }
    }

    pub(crate) fn contains(&self, sm: u32) -> bool {
        self.0.get(sm as usize / 64).is_some_and(|word| word >> (sm % 64) & 1 == 1)
    }

    /// The SMs, lowest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        (0..256).filter(move |sm| self.contains(*sm))
    }

    /// The set as 32 bytes.
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The set of 32 bytes.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        let set = |sm: &u32| bytes[*sm as usize / 8] >> (sm % 8) & 1 == 1;
        (0..256).filter(set).collect()
    }

    /// How many SMs.
    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

impl FromIterator<u32> for SmMask {
    fn from_iter<I: IntoIterator<Item = u32>>(sms: I) -> Self {
        let mut mask = SmMask::EMPTY;
        sms.into_iter().for_each(|sm| mask.insert(sm));
        mask
    }
}

/// Whether all blocks of a grid must be resident at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Residency {
    Independent,
    Cooperative,
}

/// A launch as the scheduler sees it. Blocks are claimed in units: single blocks, or clusters of
/// blocks.
#[derive(Debug)]
pub(crate) struct Grid {
    pub(crate) launch: Arc<exec::Launch>,
    pub(crate) device: u32,
    pub(crate) mask: SmMask,
    /// Smaller runs first.
    pub(crate) priority: i32,
    pub(crate) residency: Residency,
    /// Of one block.
    pub(crate) footprint: Footprint,
    /// Context's memory, heap, console.
    pub(crate) services: Arc<super::services::ContextServices>,
    /// Stream whose head this launch is; set when it starts.
    stream: AtomicU64,
    units: u64,
    counts: Counts,
    /// Units that were claimed and not started.
    given_back: Mutex<Vec<Range<u64>>>,
    stopped: AtomicBool,
    /// When its stream came to it.
    started: OnceLock<Instant>,
}

/// What every worker writes, in lines of memory of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Counts {
    next_unit: AtomicU64,
    /// Length of [`Grid::given_back`].
    given_back: AtomicU64,
    remaining_blocks: AtomicU64,
}

impl Grid {
    /// A launch that has not started.
    pub(crate) fn new(
        launch: exec::Launch,
        device: u32,
        mask: SmMask,
        priority: i32,
        residency: Residency,
        footprint: Footprint,
        services: Arc<super::services::ContextServices>,
    ) -> Self {
        let blocks = count(launch.grid);
        let units = blocks / count(launch.cluster).max(1);
        Grid {
            launch: Arc::new(launch),
            device,
            mask,
            priority,
            residency,
            footprint,
            services,
            stream: AtomicU64::new(0),
            units,
            counts: Counts {
                next_unit: AtomicU64::new(0),
                given_back: AtomicU64::new(0),
                remaining_blocks: AtomicU64::new(blocks),
            },
            given_back: Mutex::default(),
            stopped: AtomicBool::new(false),
            started: OnceLock::new(),
        }
    }

    /// Blocks of one unit (cluster).
    pub(crate) fn unit_blocks(&self) -> u32 {
        count(self.launch.cluster) as u32
    }

    /// All units, claimed or not.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// How many blocks in a row one SM may take: few enough for every SM to get some where there
    /// are enough, as on a real device, and enough that a small grid is not all switching.
    pub(crate) fn turn_blocks(&self) -> u64 {
        let turns = TURNS_PER_SM * u64::from(self.mask.count().max(1));
        (self.units / turns).max(LEAST_TURN_BLOCKS)
    }

    /// Whether units are left to claim.
    pub(crate) fn has_pending(&self) -> bool {
        // Relaxed: a hint; `claim` decides.
        let counts = &self.counts;
        let is_left = counts.next_unit.load(Ordering::Relaxed) < self.units
            || counts.given_back.load(Ordering::Relaxed) > 0;
        is_left && !self.is_stopped()
    }

    /// Claims the next unit: its index in units of the grid (blocks, or clusters).
    pub(crate) fn claim(&self) -> Option<[u32; 3]> {
        self.claim_run(1).next().map(|unit| self.unit_index(unit))
    }

    /// Claims up to `most` units that follow each other, by number; none are left if it is empty.
    /// Those that are not started must be given back.
    pub(crate) fn claim_run(&self, most: u64) -> Range<u64> {
        if self.is_stopped() {
            return 0..0;
        }
        // Relaxed: a hint; the lock decides. Who gives some back wakes the workers afterwards.
        if self.counts.given_back.load(Ordering::Relaxed) > 0 {
            let mut given_back = self.given_back.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(run) = given_back.last_mut() {
                let taken = run.start..run.end.min(run.start + most);
                run.start = taken.end;
                if run.is_empty() {
                    given_back.pop();
                }
                // Relaxed: as above.
                self.counts.given_back.store(given_back.len() as u64, Ordering::Relaxed);
                return taken;
            }
        }
        // Relaxed: only the number matters; the launch itself is shared by Arc.
        let start = self.counts.next_unit.fetch_add(most, Ordering::Relaxed);
        let end = start.saturating_add(most).min(self.units).max(start);
        if end - start < most {
            // Undo, so that no number of calls can wrap it around. Relaxed: as above.
            self.counts.next_unit.fetch_sub(most - (end - start), Ordering::Relaxed);
        }
        start..end
    }

    /// How many units a worker may claim at once: neighbours in the grid are neighbours in memory,
    /// but the last ones are for whoever is idle.
    pub(crate) fn most_claimed_at_once(&self) -> u64 {
        // Relaxed: a hint.
        let left = self.units.saturating_sub(self.counts.next_unit.load(Ordering::Relaxed));
        (left / UNITS_LEFT_PER_CLAIMED).clamp(1, MOST_CLAIMED_AT_ONCE)
    }

    /// Takes back units that were claimed and not started.
    pub(crate) fn give_back(&self, run: Range<u64>) {
        let mut given_back = self.given_back.lock().unwrap_or_else(PoisonError::into_inner);
        given_back.push(run);
        // Relaxed: as in `claim_run`.
        self.counts.given_back.store(given_back.len() as u64, Ordering::Relaxed);
    }

    /// Index in the grid (in units) of unit number `unit`.
    pub(crate) fn unit_index(&self, unit: u64) -> [u32; 3] {
        let [x, y, _] = std::array::from_fn::<u64, 3, _>(|axis| {
            u64::from(self.launch.grid[axis] / self.launch.cluster[axis].max(1)).max(1)
        });
        [(unit % x) as u32, (unit / x % y) as u32, (unit / x / y) as u32]
    }

    /// Counts finished blocks.
    pub(crate) fn finish_blocks(&self, blocks: u64) {
        // AcqRel: the last finisher sees all blocks' effects; partner: every other finisher.
        self.counts.remaining_blocks.fetch_sub(blocks, Ordering::AcqRel);
    }

    /// Whether all blocks have finished.
    pub(crate) fn is_finished(&self) -> bool {
        // Acquire: partner of the AcqRel in `finish_blocks`.
        self.counts.remaining_blocks.load(Ordering::Acquire) == 0
    }

    /// Tells running blocks to stop and claims to end.
    pub(crate) fn stop(&self) {
        // Relaxed: polled; no data travels with it.
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Relaxed: as in `stop`.
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stream(&self) -> u64 {
        // Relaxed: written and read with the engine's lock held.
        self.stream.load(Ordering::Relaxed)
    }

    /// Notes that the launch has come to the head of a stream.
    pub(crate) fn start(&self, stream: u64) {
        // Relaxed: as in `stream`.
        self.stream.store(stream, Ordering::Relaxed);
        self.started.get_or_init(Instant::now);
    }

    /// How long the launch has been at the head of its stream.
    pub(crate) fn runs_for(&self) -> Duration {
        self.started.get().map_or(Duration::ZERO, Instant::elapsed)
    }
}

/// Product of three dimensions.
pub(crate) fn count(dimensions: [u32; 3]) -> u64 {
    dimensions.iter().map(|&d| u64::from(d)).fold(1, u64::saturating_mul)
}
