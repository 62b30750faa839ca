//! Device memory of a session: pieces of what the server granted.
//!
//! A grant is 2 MiB for small pieces, and as long as the piece for large ones. A freed piece is used again once all work that was posted
//! before is done, on whatever stream: freeing waits for nothing. Grants that are free as a whole go back to the server, but for a reserve.

use crate::allocator::{Allocator, Range, rounded};
use crate::session::{Result, Session};
use crate::slots::Mark;
use cuda_abi::types::CUresult;
use link::wire::command::{Grow, GrowReply, Opcode, Release};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use zerocopy::IntoBytes;

const SMALL_GRANT_BYTES: u64 = 2 << 20;
/// Pieces from this length on get a grant of their own.
const LARGE_BYTES: u64 = 1 << 20;
/// Free bytes that are not given back.
const RESERVE_BYTES: u64 = 32 << 20;
/// From this length on, waiting for freed memory is better than taking more.
const WAIT_BYTES: u64 = 32 << 20;

/// See the module's description.
#[derive(Default)]
pub(crate) struct DeviceHeap(Mutex<Heap>);

#[derive(Default)]
struct Heap {
    allocator: Allocator,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
}

/// A freed piece that earlier work may still use.
struct Pending {
    address: u64,
    size_bytes: u64,
    marks: Vec<Mark>,
}

impl DeviceHeap {
    fn lock(&self) -> MutexGuard<'_, Heap> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes `size_bytes`; CUDA_ERROR_OUT_OF_MEMORY when the server grants no more.
    pub(crate) fn allocate(&self, session: &Session, context: u32, size_bytes: u64) -> Result<u64> {
        let size_bytes = rounded(size_bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        session.check()?;
        let mut heap = self.lock();
        heap.retire(session);
        if let Some(address) = heap.allocator.allocate(size_bytes) {
            return Ok(address);
        }
        if size_bytes >= WAIT_BYTES && heap.pending_bytes >= size_bytes {
            heap.wait_for_pending(session, context)?;
            if let Some(address) = heap.allocator.allocate(size_bytes) {
                return Ok(address);
            }
        }
        if heap.grow(session, context, size_bytes) == Err(CUresult::ERROR_OUT_OF_MEMORY) {
            heap.wait_for_pending(session, context)?;
            if let Some(address) = heap.allocator.allocate(size_bytes) {
                return Ok(address);
            }
            heap.give_back(session, context, 0);
            heap.grow(session, context, size_bytes)?;
        }
        session.check()?;
        heap.allocator.allocate(size_bytes).ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Frees a piece that [`Self::allocate`] gave, once all work posted so far is done.
    pub(crate) fn free(
        &self,
        session: &Session,
        context: u32,
        address: u64,
        size_bytes: u64,
    ) -> Result {
        let marks = session.outstanding(0)?;
        let mut heap = self.lock();
        let size_bytes = rounded(size_bytes).unwrap_or(0);
        heap.pending.push_back(Pending { address, size_bytes, marks });
        heap.pending_bytes += size_bytes;
        heap.retire(session);
        heap.give_back(session, context, RESERVE_BYTES);
        Ok(())
    }

    /// Bytes granted and not used, freed ones included.
    pub(crate) fn free_bytes(&self) -> u64 {
        let heap = self.lock();
        heap.allocator.free_bytes() + heap.pending_bytes
    }
}

impl Heap {
    /// Frees what no work uses any more, oldest first.
    fn retire(&mut self, session: &Session) {
        while let Some(oldest) = self.pending.front() {
            if !oldest.marks.iter().all(|&mark| session.is_complete(mark)) {
                return;
            }
            self.pending_bytes -= oldest.size_bytes;
            self.allocator.free(oldest.address);
            self.pending.pop_front();
        }
    }

    fn wait_for_pending(&mut self, session: &Session, context: u32) -> Result {
        for pending in &self.pending {
            for &mark in &pending.marks {
                session.wait(context, mark)?;
            }
        }
        self.retire(session);
        Ok(())
    }

    fn grow(&mut self, session: &Session, context: u32, size_bytes: u64) -> Result {
        let size_bytes = if size_bytes < LARGE_BYTES { SMALL_GRANT_BYTES } else { size_bytes };
        let body = Grow { size_bytes };
        let grant: GrowReply = session.call_for(context, Opcode::Grow, &[body.as_bytes()])?;
        self.allocator.add_grant(Range { address: grant.address, size_bytes: grant.size_bytes });
        Ok(())
    }

    /// Gives grants back; a refusal is only logged, the memory is the server's either way.
    fn give_back(&mut self, session: &Session, context: u32, keep_free_bytes: u64) {
        while let Some(Range { address, size_bytes }) =
            self.allocator.take_free_grant(keep_free_bytes)
        {
            let body = Release { address, size_bytes };
            if let Err(error) = session.call(context, Opcode::Release, &[body.as_bytes()]) {
                crate::warn!(
                    "the server did not take {size_bytes} bytes of device memory back: {error}"
                );
                return;
            }
        }
    }
}
