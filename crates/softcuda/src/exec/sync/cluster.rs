//! What the blocks of a cluster share: distributed shared memory and the cluster barrier.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exec::memory::Buffer;

/// Shared state of a cluster. Lives as long as any of its blocks, so that shared memory outlasts a
/// block that ends early.
#[derive(Debug)]
pub(in crate::exec) struct Cluster {
    memory: Vec<Buffer>,
    /// Phase of the barrier; written under `counts`, read without (Release, paired with Acquire).
    phase: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    arrived: u32,
    live: u32,
}

impl Cluster {
    pub(in crate::exec) fn new(blocks: usize, shared_bytes: usize, threads: u32) -> Self {
        Self {
            memory: (0..blocks).map(|_| Buffer::zeroed(shared_bytes.max(1))).collect(),
            phase: AtomicU64::new(0),
            counts: Mutex::new(Counts { arrived: 0, live: threads }),
        }
    }

    /// Start of each block's shared memory, by rank.
    pub(in crate::exec) fn shared(&self) -> Vec<*mut u8> {
        self.memory.iter().map(Buffer::start).collect()
    }

    pub(in crate::exec) fn phase(&self) -> u64 {
        // Pairs with the Release in `update`.
        self.phase.load(Ordering::Acquire)
    }

    /// Counts arrivals and exits of threads.
    pub(in crate::exec) fn update(&self, arrived: u32, exited: u32) {
        let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.arrived += arrived;
        counts.live = counts.live.saturating_sub(exited);
        if counts.arrived > 0 && counts.arrived >= counts.live {
            counts.arrived = 0;
            // Pairs with the Acquire in `phase`.
            self.phase.fetch_add(1, Ordering::Release);
        }
    }
}
