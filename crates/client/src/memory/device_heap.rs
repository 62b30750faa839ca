//! Device memory of a session: pieces of what the server granted.
//!
//! A grant is 2 MiB for small pieces, and as long as the piece for large ones. A freed piece is
//! used again once all work that was posted before is done, on whatever stream: freeing waits for
//! nothing. Grants that are free as a whole go back to the server, but for a reserve and what
//! memory pools hold on to.

use crate::memory::allocator::{Allocator, Range, rounded};
use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use cuda_abi::types::CUresult;
use link::wire::command::{Grow, GrowReply, Opcode, Release};
use link::wire::peer::{PeerMap, PeerShow, PeerUnmap};
use std::collections::{BTreeMap, VecDeque};
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
    views: Vec<View>,
}

/// What the executor of another device has mapped.
struct View {
    session: &'static Session,
    /// First addresses of grants, and their lengths.
    grants: BTreeMap<u64, u64>,
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
    /// `held_bytes` says, where it matters, how much more than the reserve stays.
    pub(crate) fn free(
        &self,
        session: &Session,
        context: u32,
        Range { address, size_bytes }: Range,
        held_bytes: impl FnOnce() -> u64,
    ) -> Result {
        // Other devices may have work that uses it.
        for viewer in self.viewers_of(address) {
            viewer.wait_all(0)?;
        }
        let marks = session.outstanding(0)?;
        let mut heap = self.lock();
        let size_bytes = rounded(size_bytes).unwrap_or(0);
        heap.pending.push_back(Pending { address, size_bytes, marks });
        heap.pending_bytes += size_bytes;
        heap.retire(session);
        if heap.allocator.free_bytes() > RESERVE_BYTES {
            heap.give_back(session, context, RESERVE_BYTES.saturating_add(held_bytes()));
        }
        Ok(())
    }

    /// Gives back what is free beyond the reserve and so many bytes more.
    pub(crate) fn trim(&self, session: &Session, held_bytes: u64) {
        let mut heap = self.lock();
        heap.retire(session);
        heap.give_back(session, 0, RESERVE_BYTES.saturating_add(held_bytes));
    }

    /// Other devices that reach an address.
    fn viewers_of(&self, address: u64) -> Vec<&'static Session> {
        let heap = self.lock();
        if heap.views.is_empty() {
            return Vec::new();
        }
        let Some(Range { address, .. }) = heap.allocator.grant_of(address) else {
            return Vec::new();
        };
        let views = heap.views.iter().filter(|view| view.grants.contains_key(&address));
        views.map(|view| view.session).collect()
    }

    /// Has the executor of another device map the grant in which an allocation lies; `device` is
    /// the server's number of this heap's device and `session` the one there.
    pub(crate) fn show(
        &self,
        session: &Session,
        to: &'static Session,
        device: u32,
        address: u64,
    ) -> Result {
        let mut heap = self.lock();
        let grant = heap.allocator.grant_of(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let Range { address, size_bytes } = grant;
        let known = heap.views.iter().position(|view| core::ptr::eq(view.session, to));
        let place = known.unwrap_or_else(|| {
            heap.views.push(View { session: to, grants: BTreeMap::new() });
            heap.views.len() - 1
        });
        if heap.views[place].grants.contains_key(&address) {
            return Ok(());
        }
        session.call(0, Opcode::PeerShow, &[PeerShow { address }.as_bytes()])?;
        let body = PeerMap { device, key: address, address, size_bytes, ..PeerMap::default() };
        to.call(0, Opcode::PeerMap, &[body.as_bytes()])?;
        heap.views[place].grants.insert(address, size_bytes);
        Ok(())
    }

    /// Takes all grants out of the executor of another device, but for those that hold one of
    /// `kept`; its work is done.
    pub(crate) fn hide(&self, from: &'static Session, kept: &[u64]) -> Result {
        let mut heap = self.lock();
        let kept: Vec<u64> = kept
            .iter()
            .filter_map(|&address| heap.allocator.grant_of(address).map(|grant| grant.address))
            .collect();
        let found = heap.views.iter_mut().find(|view| core::ptr::eq(view.session, from));
        let Some(view) = found else { return Ok(()) };
        let hidden: Vec<(u64, u64)> = view
            .grants
            .iter()
            .filter(|(address, _)| !kept.contains(address))
            .map(|(&address, &size_bytes)| (address, size_bytes))
            .collect();
        for (address, size_bytes) in hidden {
            let body = PeerUnmap { address, size_bytes };
            from.call(0, Opcode::PeerUnmap, &[body.as_bytes()])?;
            view.grants.remove(&address);
        }
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
            for view in &mut self.views {
                if view.grants.remove(&address).is_none() {
                    continue;
                }
                // Freeing has waited for that device's work; what fails there has no memory left.
                let body = PeerUnmap { address, size_bytes };
                let _ = view.session.call(0, Opcode::PeerUnmap, &[body.as_bytes()]);
            }
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
