//! Events: a record is a mark in a stream's work, and the completion word says when it is reached.

use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::graph::{Graph, NodeKind};
use crate::memory::sharing::{Handle, Thing};
use crate::session::Result;
use crate::session::slots::Mark;
use crate::stream::Target;
use crate::stream::gates::Ordered;
use crate::stream::late;
use crate::stream::late::Named;
use crate::stream::spare_events::Timing;
use crate::thread::current;
use cuda_abi::graph::capture::{Point, Recorded, Wait};
use cuda_abi::types::{CUevent, CUresult};
use link::wire::command::{
    EventCreate, EventDestroy, EventElapsed, EventElapsedReply, Opcode, StreamWaitEvent,
};
use link::wire::peer::StreamWaitPeer;
use link::wire::sharing::{EventNumber, OpenEvent, Token};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::IntoBytes;

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
/// Between two questions about a shared event.
const SHORTEST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// For whom a record or a wait is that meets a captured stream (`CU_EVENT_RECORD_EXTERNAL`,
/// `CU_EVENT_WAIT_EXTERNAL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The capture itself.
    Any,
    /// Work outside the capture, at each launch.
    External,
}

impl Audience {
    /// From the flags of a call; CUDA_ERROR_INVALID_VALUE for unknown ones.
    pub(crate) fn from_flags(flags: u32) -> Result<Self> {
        match flags {
            0 => Ok(Self::Any),
            1 => Ok(Self::External),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// An event that the program made.
pub(crate) struct Event {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    number: u32,
    flags: u32,
    /// An executable graph may name it.
    is_in_graph: AtomicBool,
    /// The executor's event has served another, whose record it may still have.
    has_served: AtomicBool,
    /// The last record.
    recorded: Recordings,
}

/// Where an event was recorded last.
enum Last {
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
struct Recordings {
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
    fn replace(&self, last: &mut Last, new: Last) {
        let word = match new {
            Last::At(mark) => packed(mark),
            _ => 0,
        };
        *last = new;
        // Release: with the Acquire in `at`; what was posted before the record is found posted.
        self.at.store(word, Ordering::Release);
    }

    /// The last record, if it is of the usual kind.
    fn at(&self) -> Option<Mark> {
        // Acquire: with the Release in `replace`.
        unpacked(self.at.load(Ordering::Acquire))
    }
}

/// Makes an event in the current context.
pub(crate) fn create(client: &Client, flags: u32) -> Result<Arc<Event>> {
    create_in(client, &current::owner()?, flags)
}

/// Makes an event in a context that is not green.
pub(crate) fn create_in(client: &Client, context: &Arc<Context>, flags: u32) -> Result<Arc<Event>> {
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = Arc::clone(context);
    let (backend, id) = context.backend()?;
    backend.session.check()?;
    let spare =
        if flags & INTERPROCESS == 0 { backend.spare_events.take(timing(flags)) } else { None };
    let (number, has_served) = match spare {
        Some(number) => (number, true),
        None => {
            let number = backend.events.take()?;
            let body = EventCreate { event: number, flags };
            backend.session.post(id, Opcode::EventCreate, &body)?;
            (number, false)
        }
    };
    let made = client.events.insert_with(|token| Event {
        has_served: AtomicBool::new(has_served),
        ..Event::new(token, context, number, flags)
    });
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Opens another client's event in the current context.
pub(crate) fn open(client: &Client, handle: Handle) -> Result<Arc<Event>> {
    if handle.is_own(client) {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let context = current::owner()?;
    if client.device(context.device)?.index != handle.device {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let (backend, id) = context.backend()?;
    let number = backend.events.take()?;
    let token = Token { words: handle.token };
    let body = OpenEvent { token, event: number, reserved: 0 };
    let opened = backend.session.call(id, Opcode::OpenEvent, &[body.as_bytes()]);
    opened.inspect_err(|_| backend.events.give_back(number))?;
    let flags = INTERPROCESS | DISABLE_TIMING;
    let made = client.events.insert_with(|token| Event::new(token, context, number, flags));
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

fn timing(flags: u32) -> Timing {
    if flags & DISABLE_TIMING == 0 { Timing::Enabled } else { Timing::Disabled }
}

/// What `see` finds of an event.
pub(crate) fn look<T>(
    client: &Client,
    handle: CUevent,
    see: impl FnOnce(&Event) -> Result<T>,
) -> Result<T> {
    client.events.look(handle.0, see).unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))
}

/// An event by handle.
pub(crate) fn get(client: &Client, handle: CUevent) -> Result<Arc<Event>> {
    client.events.get(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Destroys an event; who waits for its record goes on waiting.
pub(crate) fn destroy(client: &Client, handle: CUevent) -> Result {
    client.events.remove(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?.destroy()
}

/// Destroys the events of a context that is ending.
pub(crate) fn end_context(client: &Client, context: &Context) {
    for event in client.events.select(|event| event.context.token == context.token) {
        client.events.remove(event.token);
        // A failed session has no events left.
        let _ = event.destroy();
    }
}

impl Event {
    fn new(token: usize, context: Arc<Context>, number: u32, flags: u32) -> Self {
        let [is_in_graph, has_served] = [const { AtomicBool::new(false) }; 2];
        let recorded = Recordings::never();
        Self { token, context, number, flags, is_in_graph, has_served, recorded }
    }

    fn destroy(&self) -> Result {
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
    fn is_shared(&self) -> bool {
        self.flags & INTERPROCESS != 0
    }

    /// The handle for other processes.
    pub(crate) fn share(&self, client: &Client) -> Result<Handle> {
        if !self.is_shared() {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let (backend, id) = self.context.backend()?;
        let body = EventNumber { event: self.number, reserved: 0 };
        let token: Token = backend.session.call_for(id, Opcode::ShareEvent, &[body.as_bytes()])?;
        let device = client.device(self.context.device)?.index;
        Ok(Handle::new(client, Thing::Event, device, token.words))
    }

    fn query_shared(&self) -> Result<bool> {
        let (backend, id) = self.context.backend()?;
        let body = EventNumber { event: self.number, reserved: 0 };
        match backend.session.call(id, Opcode::EventQuery, &[body.as_bytes()]) {
            Ok(_) => Ok(true),
            Err(CUresult::ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
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
    fn last(&self) -> Result<Option<Mark>> {
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
    fn captured(&self) -> Recorded<Graph> {
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

    /// Records the event in a stream of its context's device; in a captured one, as a node only if
    /// it is for others than the capture.
    pub(crate) fn record(
        self: &Arc<Self>,
        client: &Client,
        target: &Target,
        audience: Audience,
    ) -> Result {
        if target.context.owner_token() != self.context.token {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let stream = target.captured();
        if let Some(capture) = client.graphs.registry.captures.active(stream)? {
            match audience {
                Audience::External => {
                    capture.add(stream, NodeKind::EventRecord(Arc::clone(self)))?;
                }
                Audience::Any => {
                    let point = capture.point(stream);
                    self.recorded.replace(&mut self.lock(), Last::Captured(point));
                }
            }
            return Ok(());
        }
        target.pass_gates()?;
        // Locked while posting, so that the mark kept is the record posted last.
        let mut last = self.lock();
        let mark = target.backend.session.post_record(target.id, target.slot, self.number)?;
        self.recorded.replace(&mut last, Last::At(mark));
        drop(last);
        if self.is_shared() {
            // When the caller tells another process of the record, the driver must have it.
            target.backend.session.call(target.id, Opcode::Ping, &[])?;
        }
        Ok(())
    }

    /// Whether the work before the last record is done; so it is without a record.
    pub(crate) fn is_done(&self, client: &Client) -> Result<bool> {
        if let Some(mark) = self.recorded.at().filter(|_| !self.is_shared()) {
            client.graphs.registry.captures.refuse_unsafe_call()?;
            let (backend, id) = self.context.backend()?;
            return backend.session.query(id, mark);
        }
        client.graphs.registry.captures.refuse_question(&self.captured())?;
        self.is_reached()
    }

    fn is_reached(&self) -> Result<bool> {
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

    /// Waits for the work before the last record.
    pub(crate) fn synchronize(&self, client: &Client) -> Result {
        if let Some(mark) = self.recorded.at().filter(|_| !self.is_shared()) {
            client.graphs.registry.captures.refuse_unsafe_call()?;
            let (backend, id) = self.context.backend()?;
            return backend.session.wait(id, mark);
        }
        client.graphs.registry.captures.refuse_question(&self.captured())?;
        let (backend, id) = self.context.backend()?;
        if self.is_shared() {
            let mut pause = SHORTEST_PAUSE;
            // Ends with the event, or with an error of the session.
            while !self.query_shared()? {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            return backend.session.settle();
        }
        match self.last()? {
            None => backend.session.check(),
            Some(mark) => backend.session.wait(id, mark),
        }
    }

    /// Makes a stream's later work wait for the last record; in a captured one, as a node only if
    /// that is for others than the capture.
    pub(crate) fn hold(
        self: &Arc<Self>,
        client: &Client,
        target: &Target,
        audience: Audience,
    ) -> Result {
        let stream = target.captured();
        if audience == Audience::External
            && target.capture(client, || Ok(NodeKind::EventWait(Arc::clone(self))))?
        {
            return Ok(());
        }
        // Another process may have recorded it.
        let elsewhere = self.is_shared() && client.graphs.registry.captures.find(stream).is_none();
        match client.graphs.registry.captures.wait(stream, self.captured())? {
            Wait::Nothing if !elsewhere => return Ok(()),
            _ => {}
        }
        let last = match self.is_shared() {
            true => None,
            false => match self.last()? {
                None => return Ok(()),
                last => last,
            },
        };
        let (own, id) = self.context.backend()?;
        if !core::ptr::eq(own, target.backend) {
            // Another process's records have no number here.
            let Some(mark) = last else { return self.synchronize(client) };
            return self.hold_across(client, own, id, mark, target);
        }
        let body =
            StreamWaitEvent { stream: target.slot, event: self.number, flags: 0, reserved: 0 };
        target.post(Opcode::StreamWaitEvent, &body).map(drop)
    }

    /// The same for a stream of another device: its executor waits for the signal that comes with
    /// the record.
    fn hold_across(
        &self,
        client: &Client,
        own: &Backend,
        context: u32,
        mark: Mark,
        target: &Target,
    ) -> Result {
        own.session.check()?;
        if own.session.is_complete(mark) {
            return Ok(());
        }
        own.session.request(context, mark)?;
        let body = StreamWaitPeer {
            stream: target.slot,
            device: client.device(self.context.device)?.index,
            slot: mark.slot,
            reserved: 0,
            value: mark.number,
        };
        target.post_wait(Opcode::StreamWaitPeer, body.as_bytes())
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
