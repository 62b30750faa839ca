//! An event: where it was recorded last, and what the executor knows of it.

use crate::context::Context;
use crate::graph::kinds::Graph;
use crate::result::Result;
use crate::session::slots::Mark;
use crate::stream::gates::Ordered;
use crate::stream::late;
use crate::stream::late::Named;
use crate::stream::spare_events::Timing;
use cuda_abi::graph::capture::{Point, Recorded};
use cuda_abi::types::CUresult;
use link::wire::command::{EventCreate, EventDestroy, EventElapsed, EventElapsedReply, Opcode};
use link::wire::sharing::EventNumber;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

pub(super) const BLOCKING_SYNC: u32 = 1;
pub(super) const DISABLE_TIMING: u32 = 2;
pub(super) const INTERPROCESS: u32 = 4;

/// An event that the program made.
pub(crate) struct Event {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    pub(super) number: u32,
    pub(super) flags: u32,
    /// An executable graph may name it.
    is_in_graph: AtomicBool,
    /// The executor's event has served another, whose record it may still have.
    pub(super) has_served: AtomicBool,
    /// The last record.
    pub(super) recorded: Recordings,
}

/// Where an event was recorded last.
pub(super) enum Last {
    Never,
    At(Mark),
    /// By a graph, in work that is posted when host functions of this stream have returned.
    Coming {
        slot: u32,
        ordered: Ordered,
    },
    /// In a capture.
    Captured(Point<Graph>),
}

/// The last record, of which the usual kind is read without a lock.
pub(super) struct Recordings {
    last: Mutex<Last>,
    /// [`Last::At`] as a [`packed`] mark; else 0.
    at: AtomicU64,
}

/// How many bits a mark's number has, beside its slot.
const NUMBER_BITS: u32 = 48;

/// A mark in one word, if it fits: one whose number is 0, or beyond what anybody will post, does
/// not.
fn packed(mark: Mark) -> u64 {
    const { assert!(link::wire::layout::STREAM_SLOTS <= 1 << (64 - NUMBER_BITS)) };
    if mark.number == 0 || mark.number >> NUMBER_BITS != 0 {
        return 0;
    }
    u64::from(mark.slot) << NUMBER_BITS | mark.number
}

/// The mark in a word.
fn unpacked(word: u64) -> Option<Mark> {
    let slot = u32::try_from(word >> NUMBER_BITS).ok()?;
    let number = word & ((1 << NUMBER_BITS) - 1);
    (number != 0).then_some(Mark { slot, number })
}

impl Recordings {
    fn never() -> Self {
        Self { last: Mutex::new(Last::Never), at: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the last record; `last` is this one's, locked.
    pub(super) fn replace(&self, last: &mut Last, new: Last) {
        let word = match new {
            Last::At(mark) => packed(mark),
            _ => 0,
        };
        *last = new;
        // Release: with the Acquire in `at`; what was posted before the record is found posted.
        self.at.store(word, Ordering::Release);
    }

    /// The last record, if it is of the usual kind.
    pub(super) fn at(&self) -> Option<Mark> {
        // Acquire: with the Release in `replace`.
        unpacked(self.at.load(Ordering::Acquire))
    }
}

pub(super) fn timing(flags: u32) -> Timing {
    if flags & DISABLE_TIMING == 0 { Timing::Enabled } else { Timing::Disabled }
}

impl Event {
    pub(super) fn new(token: usize, context: Arc<Context>, number: u32, flags: u32) -> Self {
        let [is_in_graph, has_served] = [const { AtomicBool::new(false) }; 2];
        let recorded = Recordings::never();
        Self { token, context, number, flags, is_in_graph, has_served, recorded }
    }

    pub(super) fn destroy(&self) -> Result {
        // Threads may remember the event for long: its capture's graph, which may hold memory, must
        // go.
        let captured = {
            let mut last = self.lock();
            matches!(*last, Last::Captured(_)).then(|| std::mem::replace(&mut *last, Last::Never))
        };
        drop(captured);
        let (backend, id) = self.context.backend()?;
        // Relaxed: who destroys an event knows of the graphs that name it, or races with them.
        let named = if self.is_shared() || self.is_in_graph.load(Ordering::Relaxed) {
            Named::Event(self.number)
        } else {
            Named::OwnEvent(self.number, timing(self.flags))
        };
        late::destroy(backend, id, named)
    }

    /// Whether other processes may record it and wait for it, so that only the executor knows its
    /// state.
    pub(super) fn is_shared(&self) -> bool {
        self.flags & INTERPROCESS != 0
    }

    pub(super) fn query_shared(&self) -> Result<bool> {
        let (backend, id) = self.context.backend()?;
        let body = EventNumber { event: self.number, reserved: 0 };
        match backend.session.call(id, Opcode::EventQuery, &[body.as_bytes()]) {
            Ok(_) => Ok(true),
            Err(CUresult::ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Last> {
        self.recorded.lock()
    }

    /// The executor's number, for an executable graph: it keeps the executor's event, which cannot
    /// serve another then.
    pub(crate) fn number_for_graphs(&self) -> u32 {
        // Relaxed: see `destroy`.
        self.is_in_graph.store(true, Ordering::Relaxed);
        self.number
    }

    /// The same for a graph's wait. Before its first record there is nothing to wait for, so the
    /// executor's event must not have another's.
    pub(crate) fn number_for_graph_waits(&self) -> u32 {
        // Locked while posting: a record comes before this or after it.
        let last = self.lock();
        // Relaxed: changed under the lock alone.
        if matches!(*last, Last::Never) && self.has_served.swap(false, Ordering::Relaxed) {
            // A failed session has no events left, as the graph's own command will say.
            let _ = self.renew();
        }
        drop(last);
        self.number_for_graphs()
    }

    /// Replaces the executor's event by a fresh one.
    fn renew(&self) -> Result {
        let (backend, id) = self.context.backend()?;
        let former = EventDestroy { event: self.number, reserved: 0 };
        backend.session.post(id, Opcode::EventDestroy, &former)?;
        let body = EventCreate { event: self.number, flags: self.flags };
        backend.session.post(id, Opcode::EventCreate, &body)
    }

    /// Handle of the context that it belongs to.
    pub(crate) fn context_token(&self) -> usize {
        self.context.token
    }

    /// The last record outside captures, waited for until it is posted.
    pub(super) fn last(&self) -> Result<Option<Mark>> {
        let coming = match *self.lock() {
            Last::At(mark) => return Ok(Some(mark)),
            Last::Never | Last::Captured(_) => return Ok(None),
            Last::Coming { slot, ordered } => (slot, ordered),
        };
        let (backend, _) = self.context.backend()?;
        backend.session.pass_gates(coming.0, coming.1)?;
        match *self.lock() {
            Last::At(mark) => Ok(Some(mark)),
            _ => backend.session.check().map(|()| None),
        }
    }

    /// Where captures see it recorded.
    pub(super) fn captured(&self) -> Recorded<Graph> {
        match &*self.lock() {
            Last::Never => Recorded::Never,
            Last::At(_) | Last::Coming { .. } => Recorded::Outside,
            Last::Captured(point) => Recorded::Captured(point.clone()),
        }
    }

    /// A launched graph has recorded it.
    pub(crate) fn was_recorded(&self, mark: Mark) {
        self.recorded.replace(&mut self.lock(), Last::At(mark));
    }

    /// A launched graph will record it, once host functions of this stream have returned.
    pub(crate) fn will_be_recorded(&self, slot: u32, ordered: Ordered) {
        self.recorded.replace(&mut self.lock(), Last::Coming { slot, ordered });
    }

    pub(super) fn is_reached(&self) -> Result<bool> {
        let (backend, id) = self.context.backend()?;
        if self.is_shared() {
            let is_reached = self.query_shared()?;
            // What has been waited for is seen, as after any other wait.
            return if is_reached { backend.session.settle().map(|()| true) } else { Ok(false) };
        }
        if let Last::Coming { slot, ordered } = *self.lock()
            && backend.session.gates().is_held(slot, ordered)
        {
            return backend.session.check().map(|()| false);
        }
        match self.last()? {
            None => backend.session.check().map(|()| true),
            Some(mark) => backend.session.query(id, mark),
        }
    }

    /// Milliseconds from this record to another.
    pub(crate) fn elapsed_ms(&self, end: &Event) -> Result<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if [self, end].iter().any(|event| matches!(*event.lock(), Last::Captured(_))) {
            return Err(CUresult::ERROR_CAPTURED_EVENT);
        }
        let is_recorded = |event: &Event| !matches!(*event.lock(), Last::Never);
        if !is_recorded(self) || !is_recorded(end) || self.context.token != end.context.token {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if !self.is_reached()? || !end.is_reached()? {
            return Err(CUresult::ERROR_NOT_READY);
        }
        let (backend, id) = self.context.backend()?;
        let body = EventElapsed { start: self.number, end: end.number };
        let reply: EventElapsedReply =
            backend.session.call_for(id, Opcode::EventElapsed, &[body.as_bytes()])?;
        Ok(reply.milliseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_packed_or_left_out() {
        for (slot, number) in [(0, 1), (4095, 1), (7, (1 << NUMBER_BITS) - 1)] {
            let mark = Mark { slot, number };
            assert_eq!(unpacked(packed(mark)), Some(mark));
        }
        for number in [0, 1 << NUMBER_BITS, u64::MAX] {
            assert_eq!(unpacked(packed(Mark { slot: 3, number })), None);
        }
    }
}
