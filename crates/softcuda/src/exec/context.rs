//! What instruction handlers see of the warp that executes them: memory, clocks, and where to put a
//! fault.

use super::fault::{Access, FaultKind};
use super::launch::Launch;
use super::machine::Machine;

/// A cached mapped range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedRange {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Entries of the range cache; memory instructions are spread over them.
pub(super) const RANGE_ENTRIES: usize = 16;

/// A fault as a handler knows it; the interpreter adds block, thread and line.
#[derive(Clone, Debug)]
pub(super) struct PendingFault {
    pub(super) kind: FaultKind,
    pub(super) access: Option<Access>,
    pub(super) address: Option<u64>,
    pub(super) size_bytes: u32,
    pub(super) lane: u32,
    pub(super) detail: String,
}

/// The executing warp's surroundings. Built for each `run` call, repointed when the warp changes.
pub(super) struct Context<'a> {
    /// The device.
    pub(super) machine: &'a dyn Machine,
    /// The launch.
    pub(super) launch: &'a Launch,
    /// The block's index in the grid.
    pub(super) block_index: [u32; 3],
    /// The warp's number in the block.
    pub(super) warp: u32,
    /// The block's shared memory.
    pub(super) shared: *mut u8,
    /// Its size, bytes.
    pub(super) shared_bytes: u32,
    /// Shared memory of all blocks of the cluster by rank; empty without a cluster.
    pub(super) cluster_shared: &'a [*mut u8],
    /// The warp's local memory: thread by thread, `local_bytes` each.
    pub(super) local: *mut u8,
    /// Local memory per thread, bytes.
    pub(super) local_bytes: u32,
    /// Mapped ranges seen lately; valid during this `run` call.
    pub(super) ranges: [CachedRange; RANGE_ENTRIES],
    /// Operand lists of the current function.
    pub(super) extras: *const u32,
    /// Lanes of the warp that have not exited.
    pub(super) live: u32,
    /// Lanes of the current fragment (the guard not applied).
    pub(super) active: u32,
    /// Warp instructions executed in this `run` call, up to date at the last block boundary or so.
    pub(super) executed: u64,
    /// Why the last handler returned [`Flow::Fault`](super::code::Flow::Fault).
    pub(super) fault: Option<Box<PendingFault>>,
}

impl Context<'_> {
    /// Offset number `index` of an instruction's operand list.
    ///
    /// # Safety
    /// `e` is the instruction's list and has that many entries.
    #[inline(always)]
    pub(super) unsafe fn extra(&self, e: u32, index: usize) -> u32 {
        // SAFETY: by the caller's contract the entry exists.
        unsafe { *self.extras.add(e as usize + index) }
    }

    /// Index in the block of the thread in `lane`.
    pub(super) fn thread_of(&self, lane: u32) -> [u32; 3] {
        thread_index(self.launch.block, self.warp * 32 + lane)
    }

    /// Records a fault that is no memory access.
    #[cold]
    pub(super) fn raise(&mut self, kind: FaultKind, lane: u32, detail: impl Into<String>) {
        self.fault = Some(Box::new(PendingFault {
            kind,
            access: None,
            address: None,
            size_bytes: 0,
            lane,
            detail: detail.into(),
        }));
    }

    /// Records a memory fault.
    #[cold]
    pub(super) fn raise_access(
        &mut self,
        kind: FaultKind,
        access: Access,
        address: u64,
        size_bytes: u32,
        lane: u32,
    ) {
        self.fault = Some(Box::new(PendingFault {
            kind,
            access: Some(access),
            address: Some(address),
            size_bytes,
            lane,
            detail: String::new(),
        }));
    }
}

/// Index (x, y, z) of thread number `linear` of a block.
pub(super) fn thread_index(block: [u32; 3], linear: u32) -> [u32; 3] {
    let [x, y, _] = block.map(|n| n.max(1));
    [linear % x, linear / x % y, linear / x / y]
}
