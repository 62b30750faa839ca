//! Events: a record is a mark in a stream's work, and the completion word says when it is reached.

use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::graph::kinds::NodeKind;
use crate::memory::sharing::{Handle, Thing};
use crate::result::Result;
use crate::session::slots::Mark;
use crate::stream::Target;
use crate::stream::event::{BLOCKING_SYNC, DISABLE_TIMING, Event, INTERPROCESS, Last, timing};
use crate::thread::current;
use cuda_abi::graph::capture::Wait;
use cuda_abi::types::{CUevent, CUresult};
use link::wire::command::{EventCreate, Opcode, StreamWaitEvent};
use link::wire::peer::StreamWaitPeer;
use link::wire::sharing::{EventNumber, OpenEvent, Token};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

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
    let made = client.events.insert_with(|token| {
        let mut event = Event::new(token, context, number, flags);
        *event.has_served.get_mut() = has_served;
        event
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
}
