//! Running one block: a resumable state machine over its warps.

use std::sync::{Arc, Weak};

use super::code::Frame;
use super::context::{CachedRange, Context, RANGE_ENTRIES, thread_index};
use super::fault::ThreadPosition;
use super::fill::{FillContext, Which, cluster_rank, fill};
use super::memory::Buffer;
use super::warp::{Wait, Warp};
use super::{Fault, Launch, Machine, WaitingAt};
use crate::exec::sync::barrier::{BARRIERS, Barrier};
use crate::exec::sync::cluster::Cluster;

/// Warp instructions a warp runs before the next one gets its turn.
const QUANTUM: u64 = 4096;

/// Reusable memory of a block (registers, shared and local memory). Blocks that end give theirs
/// back through [`BlockRun::into_arena`]; a pool of them saves allocation and, between blocks of
/// one launch, initialisation.
#[derive(Debug, Default)]
pub struct Arena {
    registers: Buffer,
    shared: Buffer,
    local: Buffer,
    /// The launch whose constants the registers hold.
    filled_for: Weak<Launch>,
    /// Warps of the last block, whose lists are reused; callee frames too, within one launch.
    warps: Vec<Warp>,
    barriers: Vec<Barrier>,
}

/// What one call of [`BlockRun::run`] came to. `executed` counts warp instructions of this call.
#[derive(Debug)]
pub enum Progress {
    /// The fuel is spent or a stop was requested; call again to go on.
    Yielded {
        /// Warp instructions executed.
        executed: u64,
    },
    /// All threads have exited.
    Finished {
        /// Warp instructions executed.
        executed: u64,
    },
    /// Every thread waits for other blocks of its cluster; call again after those have run.
    Blocked {
        /// Warp instructions executed.
        executed: u64,
    },
    /// A thread faulted. The block must not be run again.
    Fault(Box<Fault>),
    /// Nothing in the block can ever run again.
    Deadlock(Vec<WaitingAt>),
}

/// One block of a launch, from its first instruction to its last.
#[derive(Debug)]
pub struct BlockRun {
    pub(super) launch: Arc<Launch>,
    pub(super) index: [u32; 3],
    pub(super) warps: Vec<Warp>,
    pub(super) barriers: Vec<Barrier>,
    pub(super) cluster: Option<Arc<Cluster>>,
    cluster_shared: Vec<*mut u8>,
    shared: *mut u8,
    shared_bytes: u32,
    local_bytes: u32,
    /// Warps with threads that have not exited.
    pub(super) live_warps: usize,
    /// Barriers that somebody has arrived at, as bits.
    pub(super) open_barriers: u32,
    cursor: usize,
    started: bool,
    arena: Arena,
}

// SAFETY: the pointers lead into the block's own arena or into its cluster, which it keeps alive.
unsafe impl Send for BlockRun {}

impl BlockRun {
    /// A block at its first instruction. `index` lies within the launch's grid.
    pub fn new(launch: &Arc<Launch>, index: [u32; 3], arena: Arena) -> Self {
        Self::with_cluster(launch, index, arena, None)
    }

    /// All blocks of one cluster, sharing distributed shared memory and the cluster barrier.
    /// `cluster_index` counts clusters in the grid; one arena per block (missing ones are made).
    /// They may run on different workers.
    pub fn new_cluster(
        launch: &Arc<Launch>,
        cluster_index: [u32; 3],
        arenas: Vec<Arena>,
    ) -> Vec<Self> {
        let [cx, cy, cz] = launch.cluster.map(|n| n.max(1));
        let blocks = (cx * cy * cz) as usize;
        let shared = launch.kernel.static_shared_bytes.saturating_add(launch.dynamic_shared_bytes);
        let cluster = Arc::new(Cluster::new(
            blocks,
            shared as usize,
            launch.threads_per_block() * blocks as u32,
        ));
        let mut arenas = arenas.into_iter();
        (0..blocks as u32)
            .map(|rank| {
                let inside = [rank % cx, rank / cx % cy, rank / cx / cy];
                let index =
                    [0, 1, 2].map(|i| cluster_index[i] * launch.cluster[i].max(1) + inside[i]);
                let arena = arenas.next().unwrap_or_default();
                Self::with_cluster(launch, index, arena, Some(Arc::clone(&cluster)))
            })
            .collect()
    }

    fn with_cluster(
        launch: &Arc<Launch>,
        index: [u32; 3],
        arena: Arena,
        cluster: Option<Arc<Cluster>>,
    ) -> Self {
        let kernel = &launch.kernel;
        let mut local_bytes = kernel.local_bytes;
        if kernel.code.recursive {
            local_bytes = local_bytes.saturating_add(launch.stack_bytes);
        }
        Self {
            launch: Arc::clone(launch),
            index,
            warps: Vec::new(),
            barriers: Vec::new(),
            cluster_shared: cluster.as_ref().map(|c| c.shared()).unwrap_or_default(),
            cluster,
            shared: std::ptr::null_mut(),
            shared_bytes: kernel.static_shared_bytes.saturating_add(launch.dynamic_shared_bytes),
            local_bytes: local_bytes.next_multiple_of(16),
            live_warps: 0,
            open_barriers: 0,
            cursor: 0,
            started: false,
            arena,
        }
    }

    /// Makes memory and warps; on the worker that first runs the block.
    fn start(&mut self, machine: &dyn Machine) {
        self.started = true;
        let code = &self.launch.kernel.code;
        let Some(Some(entry)) = code.functions.get(code.entry) else { return };
        let warps = self.launch.threads_per_block().div_ceil(32) as usize;
        let frame_bytes = entry.frame_bytes as usize;
        // A weak reference keeps the address from being used again.
        let same = self.arena.filled_for.as_ptr() == Arc::as_ptr(&self.launch);
        let grew = self.arena.registers.reserve(warps * frame_bytes);
        if !same && !grew {
            // Nothing of another launch's registers may be seen.
            self.arena.registers.clear(warps * frame_bytes);
        }
        if !same {
            self.arena.filled_for = Arc::downgrade(&self.launch);
        }
        let local_per_warp = self.local_bytes as usize * 32;
        if !self.arena.local.reserve(local_per_warp * warps) && !same {
            self.arena.local.clear(local_per_warp * warps);
        }
        self.warps = std::mem::take(&mut self.arena.warps);
        if !same {
            // Callee frames hold constants of their launch.
            self.warps.clear();
        }
        self.warps.resize_with(warps, Warp::idle);
        self.barriers = std::mem::take(&mut self.arena.barriers);
        self.barriers.resize_with(BARRIERS + 1, Barrier::default);
        self.barriers.iter_mut().for_each(Barrier::reset);
        self.begin(machine, if same && !grew { Which::PerBlock } else { Which::All });
    }

    /// Puts every warp at the start of block `index`; `which` registers are not those of this block
    /// yet.
    fn begin(&mut self, machine: &dyn Machine, which: Which) {
        let code = &self.launch.kernel.code;
        let Some(Some(entry)) = code.functions.get(code.entry) else { return };
        self.shared = match &self.cluster {
            Some(_) => {
                let rank = cluster_rank(self.launch.cluster.map(|n| n.max(1)), self.index);
                self.cluster_shared[rank as usize]
            }
            None => {
                if !self.arena.shared.reserve(self.shared_bytes as usize) {
                    self.arena.shared.clear(self.shared_bytes as usize);
                }
                self.arena.shared.start()
            }
        };
        let threads = self.launch.threads_per_block();
        let local_per_warp = self.local_bytes as usize * 32;
        let mut context = FillContext {
            launch: &self.launch,
            block_index: self.index,
            warp: 0,
            local_base: 0,
            nsmid: machine.nsmid(),
        };
        for (number, warp) in self.warps.iter_mut().enumerate() {
            // SAFETY: inside the buffers by their sizes.
            let (memory, local) = unsafe {
                (
                    Frame(self.arena.registers.start().add(number * entry.frame_bytes as usize)),
                    self.arena.local.start().add(number * local_per_warp),
                )
            };
            context.warp = number as u32;
            // SAFETY: the frame has the entry's size.
            unsafe { fill(entry, memory, &context, which) };
            let count = (threads - number as u32 * 32).min(32);
            warp.restart(u32::MAX >> (32 - count), memory, local, code.entry);
        }
        self.live_warps = self.warps.len();
        while self.open_barriers != 0 {
            self.barriers[self.open_barriers.trailing_zeros() as usize].reset();
            self.open_barriers &= self.open_barriers - 1;
        }
        self.cursor = 0;
    }

    /// Runs up to about `fuel_warp_instructions` warp instructions.
    pub fn run(&mut self, machine: &dyn Machine, fuel_warp_instructions: u64) -> Progress {
        self.run_on(machine, fuel_warp_instructions, &mut |_| None)
    }

    /// Runs the block and, each time that one has finished, the block that `next` names: another
    /// one of the same launch, which is not one of clusters. `next` is told the warp instructions
    /// of this call so far. Starting them here saves most of what the start of a block costs.
    pub fn run_on(
        &mut self,
        machine: &dyn Machine,
        fuel_warp_instructions: u64,
        next: &mut dyn FnMut(u64) -> Option<[u32; 3]>,
    ) -> Progress {
        if !self.started {
            self.start(machine);
        }
        // SAFETY: the block owns a reference, which is not given up before this call returns;
        // counting another one would have all workers write to the same line of memory.
        let launch: &Launch = unsafe { &*Arc::as_ptr(&self.launch) };
        let cluster_shared = self.cluster_shared.clone();
        let mut cx = Context {
            machine,
            launch,
            block_index: self.index,
            warp: 0,
            shared: self.shared,
            shared_bytes: self.shared_bytes,
            cluster_shared: &cluster_shared,
            local: std::ptr::null_mut(),
            local_bytes: self.local_bytes,
            ranges: [CachedRange::default(); RANGE_ENTRIES],
            extras: std::ptr::null(),
            live: 0,
            active: 0,
            executed: 0,
            fault: None,
        };
        let mut left = fuel_warp_instructions.max(1);
        let mut idle = 0;
        loop {
            if self.live_warps == 0 {
                let Some(index) = next(cx.executed) else {
                    return Progress::Finished { executed: cx.executed };
                };
                self.index = index;
                self.begin(machine, Which::PerBlock);
                (cx.block_index, cx.shared, idle) = (index, self.shared, 0);
            }
            if left == 0 || machine.stop_requested() {
                return Progress::Yielded { executed: cx.executed };
            }
            let warp = self.cursor;
            self.cursor = if warp + 1 < self.warps.len() { warp + 1 } else { 0 };
            self.wake_cluster(warp);
            if self.warps[warp].next().is_none() {
                idle += 1;
                if idle >= self.warps.len() {
                    return self.stuck(cx.executed);
                }
                continue;
            }
            idle = 0;
            cx.warp = warp as u32;
            cx.local = self.warps[warp].local;
            let quantum = left.min(QUANTUM);
            let mut fuel = quantum;
            if let Err(fault) = self.run_warp(&mut cx, warp, &mut fuel) {
                return Progress::Fault(fault);
            }
            left -= (quantum - fuel).min(left);
        }
    }

    /// Lets fragments try again that wait for the cluster barrier, if its phase has changed.
    fn wake_cluster(&mut self, warp: usize) {
        let Some(cluster) = &self.cluster else { return };
        let warp = &mut self.warps[warp];
        if cluster.phase() != warp.cluster_phase {
            for fragment in &mut warp.fragments {
                if fragment.wait == Wait::Cluster {
                    fragment.wait = Wait::Ready;
                }
            }
        }
    }

    fn stuck(&self, executed: u64) -> Progress {
        let waiting = |wait| self.warps.iter().any(|w| w.fragments.iter().any(|f| f.wait == wait));
        if waiting(Wait::Cluster) {
            return Progress::Blocked { executed };
        }
        let mut positions = Vec::new();
        for (index, warp) in self.warps.iter().enumerate() {
            for fragment in &warp.fragments {
                let (_, line) = self.place(index, fragment.frame, fragment.pc);
                let reason = match fragment.wait {
                    Wait::Barrier(id) => format!("barrier {id}"),
                    Wait::Collective => "the other threads of a warp collective".to_owned(),
                    _ => "nothing".to_owned(),
                };
                positions.push(WaitingAt {
                    position: self.position(index, fragment.mask.trailing_zeros()),
                    threads: fragment.mask.count_ones(),
                    ptx_line: line,
                    reason,
                });
            }
        }
        Progress::Deadlock(positions)
    }

    /// Function name and PTX line of a program counter.
    pub(super) fn place(&self, warp: usize, frame: u32, pc: u32) -> (&str, u32) {
        let function = self.warps[warp].frames.get(frame as usize).map(|f| f.function);
        match function.and_then(|f| self.launch.kernel.code.functions.get(f)) {
            Some(Some(function)) => {
                (&function.name, function.lines.get(pc as usize).copied().unwrap_or(0))
            }
            _ => ("", 0),
        }
    }

    pub(super) fn position(&self, warp: usize, lane: u32) -> ThreadPosition {
        let thread = thread_index(self.launch.block, warp as u32 * 32 + lane.min(31));
        ThreadPosition { block: self.index, thread }
    }

    /// Takes the memory back for the next block.
    pub fn into_arena(mut self) -> Arena {
        self.arena.warps = self.warps;
        self.arena.barriers = self.barriers;
        self.arena
    }
}
