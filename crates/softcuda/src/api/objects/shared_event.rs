//! Events that several processes record and wait for: two counters in a page that they share.
//!
//! A record takes the next number when it is called and, at its turn in its stream, raises what is
//! done to that number. Waiting means waiting for the last number that was taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::answer::Answer;
use crate::device::memory::{AddressSpace, AllocationKind, Physical};
use crate::device::ops::{Condition, Op, Step, Task, Width};

/// Bytes of the page.
const PAGE_BYTES: u64 = 4096;

/// The counters, at the page's begin.
#[repr(C)]
#[derive(Debug)]
struct Counters {
    taken: AtomicU64,
    done: AtomicU64,
}

/// The page of an event, mapped where kernels and stream operations reach it.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    space: Arc<AddressSpace>,
    address: u64,
}

impl SharedEvent {
    /// A page of an event that was never recorded.
    pub(crate) fn new(space: &Arc<AddressSpace>, device: u32) -> Answer<Arc<Self>> {
        let kind = AllocationKind::Host { flags: 0 };
        // Of no context: others may outlive the one that made it.
        let address = space.allocate_host(PAGE_BYTES, kind, device, 0)?;
        Ok(Arc::new(SharedEvent { space: space.clone(), address }))
    }

    /// The page of another process's event.
    pub(crate) fn import(space: &Arc<AddressSpace>, page: Physical) -> Answer<Arc<Self>> {
        let address = space.map_imported(page)?;
        Ok(Arc::new(SharedEvent { space: space.clone(), address }))
    }

    /// Where the page is.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    fn counters(&self) -> &Counters {
        // SAFETY: the page is mapped until this is dropped, aligned, and holds nothing but atomics,
        // which other processes change atomically.
        unsafe { &*(self.address as *const Counters) }
    }

    /// The operation that completes a record made now.
    pub(crate) fn record_op(self: &Arc<Self>) -> Op {
        // AcqRel: numbers of all processes are in one order.
        let number = self.counters().taken.fetch_add(1, Ordering::AcqRel) + 1;
        Op::Task(Box::new(Raise { event: self.clone(), number }))
    }

    /// The operation that waits for the last record made so far, if it is not done.
    pub(crate) fn wait_op(&self) -> Option<Op> {
        let number = self.pending()?;
        let (width, condition) = (Width::Bits64, Condition::GreaterOrEqual);
        Some(Op::WaitValue { address: self.address + 8, value: number, width, condition })
    }

    /// The number of the last record made so far, if it is not done.
    pub(crate) fn pending(&self) -> Option<u64> {
        // Acquire: partner of the increment in `record_op`.
        let number = self.counters().taken.load(Ordering::Acquire);
        (!self.is_done(number)).then_some(number)
    }

    /// Whether a record is done.
    pub(crate) fn is_done(&self, number: u64) -> bool {
        // Acquire: partner of the Release in `Raise`; what came before the record is visible.
        self.counters().done.load(Ordering::Acquire) >= number
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        let is_page = |kind| matches!(kind, AllocationKind::Host { .. } | AllocationKind::Imported);
        let _ = self.space.free(self.address, is_page);
    }
}

/// Marks a record as done, at its turn.
struct Raise {
    event: Arc<SharedEvent>,
    number: u64,
}

impl Task for Raise {
    fn step(&mut self) -> Step {
        // Release: partner of the Acquire in `is_done`. Records of other streams may be done out of
        // order.
        self.event.counters().done.fetch_max(self.number, Ordering::Release);
        Step::Done
    }
}
