//! A warp: its fragments, its call frames, its live lanes.
//!
//! A warp whose lanes diverged is a short list of fragments, each with its own program counter,
//! lanes and call frame. The one with the smallest (epoch, depth, program counter) runs; fragments
//! that meet at a block's start merge. A fragment that keeps branching backwards while others could
//! run gets a higher epoch, so that every lane makes progress.

use super::code::{Frame, Function};
use super::fill::{FillContext, Which, fill};
use super::memory::Buffer;

/// Why a fragment does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It can run.
    Ready,
    /// It may execute the collective it stands at, alone: all its partners are here or at their own
    /// place.
    Released,
    /// Parked at block barrier `id`; the instruction is done when released.
    Barrier(u8),
    /// Parked before a warp collective.
    Collective,
    /// Parked before a `barrier.cluster.wait`.
    Cluster,
}

impl Wait {
    pub(super) fn can_run(self) -> bool {
        matches!(self, Self::Ready | Self::Released)
    }
}

/// Lanes of a warp at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) frame: u32,
    pub(super) epoch: u32,
    /// Backward branches since the last change of epoch.
    pub(super) spins: u32,
    pub(super) wait: Wait,
}

/// A call frame.
#[derive(Debug)]
pub(super) struct FrameRecord {
    /// Program-wide number of the function.
    pub(super) function: usize,
    pub(super) memory: Frame,
    /// Memory of a called function; entry frames lie in the block's arena.
    owned: Option<Buffer>,
    /// Fragments and callee frames that refer to it.
    refs: u32,
    /// Caller's frame.
    pub(super) parent: u32,
    /// Program counter of the call.
    pub(super) call_pc: u32,
    pub(super) depth: u32,
    /// Offset of its part of the thread's local memory.
    pub(super) local_base: u32,
}

/// No frame.
pub(super) const NO_FRAME: u32 = u32::MAX;

/// One warp.
#[derive(Debug)]
pub(super) struct Warp {
    /// Lanes that have not exited.
    pub(super) live: u32,
    pub(super) fragments: Vec<Fragment>,
    pub(super) frames: Vec<FrameRecord>,
    free_records: Vec<u32>,
    free_memory: Vec<(usize, Buffer)>,
    /// Bytes of the callee frames in use.
    pub(super) callee_bytes: usize,
    /// The warp's local memory.
    pub(super) local: *mut u8,
    /// Phase of the cluster barrier that the warp arrived in.
    pub(super) cluster_phase: u64,
}

// SAFETY: the pointers lead into memory that the same block owns.
unsafe impl Send for Warp {}

/// Most idle callee frames kept per warp.
const FREE_FRAMES: usize = 64;
/// Largest of them, bytes.
const FREE_FRAME_BYTES: usize = 1 << 20;
/// Most bytes of the registers of a warp's calls: what deep recursion may take, in diverged
/// threads, too.
pub(super) const CALLEE_LIMIT_BYTES: usize = 64 << 20;

impl Warp {
    /// A warp without threads; [`restart`](Self::restart) gives it some.
    pub(super) fn idle() -> Self {
        Self {
            live: 0,
            fragments: Vec::new(),
            frames: Vec::new(),
            free_records: Vec::new(),
            free_memory: Vec::new(),
            callee_bytes: 0,
            local: std::ptr::null_mut(),
            cluster_phase: 0,
        }
    }

    /// Makes it a fresh warp at the start of its entry, whose frame and local memory stay.
    pub(super) fn restart(&mut self, lanes: u32, memory: Frame, local: *mut u8, entry: usize) {
        self.frames.clear();
        self.fragments.clear();
        self.free_records.clear();
        self.callee_bytes = 0;
        self.frames.push(FrameRecord {
            function: entry,
            memory,
            owned: None,
            refs: 1,
            parent: NO_FRAME,
            call_pc: 0,
            depth: 0,
            local_base: 0,
        });
        self.fragments.push(Fragment {
            pc: 0,
            mask: lanes,
            frame: 0,
            epoch: 0,
            spins: 0,
            wait: Wait::Ready,
        });
        self.live = lanes;
        self.local = local;
        self.cluster_phase = 0;
    }

    /// Ends the warp with its last threads.
    pub(super) fn end(&mut self) {
        self.live = 0;
        self.fragments.clear();
        while let Some(record) = self.frames.pop() {
            self.recycle(record.function, record.owned);
        }
        self.free_records.clear();
    }

    /// Index of the fragment to run: ready, smallest (epoch, depth from the innermost, program
    /// counter).
    pub(super) fn next(&self) -> Option<usize> {
        if let [only] = self.fragments.as_slice() {
            return only.wait.can_run().then_some(0);
        }
        let key = |f: &Fragment| (f.epoch, u32::MAX - self.frames[f.frame as usize].depth, f.pc);
        (0..self.fragments.len())
            .filter(|&i| self.fragments[i].wait.can_run())
            .min_by_key(|&i| key(&self.fragments[i]))
    }

    /// Merges ready fragments that stand where fragment `index` does; returns its new index.
    pub(super) fn merge(&mut self, index: usize) -> usize {
        let mut index = index;
        let Fragment { pc, frame, wait, .. } = self.fragments[index];
        if wait != Wait::Ready {
            return index;
        }
        let mut other = 0;
        while other < self.fragments.len() {
            let f = self.fragments[other];
            if other == index || f.wait != Wait::Ready || f.pc != pc || f.frame != frame {
                other += 1;
                continue;
            }
            let into = &mut self.fragments[index];
            into.mask |= f.mask;
            into.epoch = into.epoch.max(f.epoch);
            into.spins = into.spins.max(f.spins);
            self.fragments.swap_remove(other);
            self.release(frame);
            if index == self.fragments.len() {
                index = other;
            }
        }
        index
    }

    /// Adds a fragment on a frame.
    pub(super) fn add(&mut self, fragment: Fragment) {
        if fragment.mask != 0 {
            self.frames[fragment.frame as usize].refs += 1;
            self.fragments.push(fragment);
        }
    }

    /// Removes a fragment.
    pub(super) fn remove(&mut self, index: usize) {
        let fragment = self.fragments.swap_remove(index);
        self.release(fragment.frame);
    }

    fn release(&mut self, frame: u32) {
        let mut frame = frame;
        while frame != NO_FRAME {
            let record = &mut self.frames[frame as usize];
            record.refs -= 1;
            if record.refs > 0 {
                return;
            }
            let (function, owned, parent) = (record.function, record.owned.take(), record.parent);
            self.recycle(function, owned);
            self.free_records.push(frame);
            frame = parent;
        }
    }

    /// Keeps the memory of a callee's frame for the function's next call, if it is small.
    fn recycle(&mut self, function: usize, owned: Option<Buffer>) {
        let Some(memory) = owned else { return };
        self.callee_bytes -= memory.len();
        if self.free_memory.len() < FREE_FRAMES && memory.len() <= FREE_FRAME_BYTES {
            self.free_memory.push((function, memory));
        }
    }

    /// A frame for a call of `function` from `parent` at `call_pc`; the caller adds the fragment
    /// that uses it.
    pub(super) fn call(
        &mut self,
        number: usize,
        function: &Function,
        parent: u32,
        call_pc: u32,
        parent_local_bytes: u32,
        context: &mut FillContext<'_>,
    ) -> u32 {
        let caller = &mut self.frames[parent as usize];
        caller.refs += 1;
        let local_base = caller.local_base + parent_local_bytes;
        let depth = caller.depth + 1;
        context.local_base = local_base;
        let recycled = self.free_memory.iter().rposition(|(f, _)| *f == number);
        let (memory, which) = match recycled {
            Some(index) => (self.free_memory.swap_remove(index).1, Which::PerCall),
            None => (Buffer::zeroed(function.frame_bytes as usize), Which::All),
        };
        self.callee_bytes += memory.len();
        let frame = Frame(memory.start());
        // SAFETY: the buffer has the function's frame size.
        unsafe { fill(function, frame, context, which) };
        let record = FrameRecord {
            function: number,
            memory: frame,
            owned: Some(memory),
            refs: 0,
            parent,
            call_pc,
            depth,
            local_base,
        };
        match self.free_records.pop() {
            Some(index) => {
                self.frames[index as usize] = record;
                index
            }
            None => {
                self.frames.push(record);
                (self.frames.len() - 1) as u32
            }
        }
    }
}
