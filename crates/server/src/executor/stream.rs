//! A session's streams, and what orders its legacy stream with its blocking ones.
//!
//! Every stream of a client, its legacy stream among them, is a non-blocking stream of the driver. CUDA's rule that work on the legacy stream
//! waits for all earlier work on blocking streams, and they for it, is made with events where there is such work, so a
//! program that uses one stream pays nothing.
//!
//! A destroyed stream's driver stream stays with its slot: the next stream in that slot takes it over, so that completion values of the old
//! one cannot be written after those of the new one.

use super::backlog::Backlog;
use super::context::Context;
use super::failure::{Failure, below};
use crate::policy::holds::Ordered;
use cuda_abi::types::*;
use link::wire::command::LEGACY_STREAM;
use link::wire::layout::STREAM_SLOTS;

const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ordered with the legacy stream.
    Blocking,
    NonBlocking,
}

#[derive(Debug)]
struct Stream {
    handle: CUstream,
    kind: Kind,
    priority: i32,
    open: bool,
    /// Has work that the legacy stream has not waited for.
    ahead_of_legacy: bool,
    /// Legacy work that this stream has waited for, as a count.
    legacy_seen: u64,
    /// Work was submitted after the last signal.
    unsignalled: bool,
    last_signal: u64,
    backlog: Backlog,
}

/// The streams of one session.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Vec<Option<Stream>>,
    /// Slots of blocking streams with `ahead_of_legacy`.
    ahead_of_legacy: Vec<u32>,
    /// Counts pieces of work on the legacy stream.
    legacy_work: u64,
    /// Recorded on the legacy stream after so much work.
    legacy_event: Option<(CUevent, u64)>,
    /// For the legacy stream's waits.
    join_event: Option<CUevent>,
}

impl Streams {
    /// Opens slot `slot`.
    pub(crate) fn create(
        &mut self,
        context: &Context,
        slot: u32,
        flags: u32,
        priority: i32,
    ) -> Result<(), Failure> {
        if slot == LEGACY_STREAM || slot as usize >= STREAM_SLOTS {
            return Err(Failure::Protocol(format!("stream slot {slot} does not exist")));
        }
        let kind =
            if flags & STREAM_NON_BLOCKING == 0 { Kind::Blocking } else { Kind::NonBlocking };
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        match &mut self.slots[index] {
            Some(stream) if stream.open => {
                Err(Failure::Protocol(format!("stream slot {slot} is in use")))
            }
            Some(parked) if parked.priority == priority => {
                parked.kind = kind;
                parked.open = true;
                Ok(())
            }
            other => {
                let fresh = new_stream(context, kind, priority)?;
                if let Some(mut old) = other.replace(fresh) {
                    old.backlog.clear(context);
                    let handle = other.as_ref().map_or(CUstream::NULL, |stream| stream.handle);
                    replace(context, &old, handle)?;
                    if let Some(stream) = other {
                        stream.ahead_of_legacy = old.ahead_of_legacy;
                        stream.unsignalled = old.unsignalled;
                        stream.last_signal = old.last_signal;
                    }
                }
                Ok(())
            }
        }
    }

    /// Closes slot `slot`; its work goes on.
    pub(crate) fn destroy(&mut self, slot: u32) -> Result<(), Failure> {
        if slot == LEGACY_STREAM {
            return Err(Failure::Protocol("the legacy stream cannot be destroyed".into()));
        }
        self.open_slot(slot)?.open = false;
        Ok(())
    }

    /// The driver's stream to put work of slot `slot` on, after all that this work must wait for.
    pub(crate) fn for_work(&mut self, context: &Context, slot: u32) -> Result<CUstream, Failure> {
        if slot == LEGACY_STREAM {
            let legacy = self.join_into_legacy(context)?;
            self.legacy_work += 1;
            self.mark_unsignalled(slot);
            return Ok(legacy);
        }
        let legacy_work = self.legacy_work;
        let stream = self.open_slot(slot)?;
        stream.unsignalled = true;
        let handle = stream.handle;
        if stream.kind == Kind::NonBlocking {
            return Ok(handle);
        }
        let behind = stream.legacy_seen != legacy_work;
        stream.legacy_seen = legacy_work;
        if !std::mem::replace(&mut stream.ahead_of_legacy, true) {
            self.ahead_of_legacy.push(slot);
        }
        if behind {
            let event = self.legacy_event(context)?;
            // SAFETY: live handles of this session.
            context.check(unsafe { context.driver().cuStreamWaitEvent(handle, event, 0) })?;
        }
        Ok(handle)
    }

    /// Before so many launches on slot `slot`: waits while its launches are too far ahead of the device; see [`Backlog`].
    pub(crate) fn admit_launches(
        &mut self,
        context: &Context,
        slot: u32,
        launches: u32,
        given_up: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        match self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            Some(stream) => stream.backlog.admit(context, stream.handle, launches, given_up),
            None => Ok(()),
        }
    }

    /// The driver's stream whose next write says that all earlier work of slot `slot` is done; remembers `value`.
    pub(crate) fn for_signal(
        &mut self,
        context: &Context,
        slot: u32,
        value: u64,
    ) -> Result<CUstream, Failure> {
        let handle = if slot == LEGACY_STREAM {
            self.join_into_legacy(context)?
        } else {
            self.open_slot(slot)?.handle
        };
        if let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            stream.unsignalled = false;
            stream.last_signal = value;
        }
        Ok(handle)
    }

    /// Whether work of slot `slot` is ordered with the legacy stream.
    pub(crate) fn ordered(&self, slot: u32) -> Ordered {
        let stream = self.slots.get(slot as usize).and_then(Option::as_ref);
        match stream.map(|stream| stream.kind) {
            Some(Kind::NonBlocking) if slot != LEGACY_STREAM => Ordered::Alone,
            None if slot != LEGACY_STREAM => Ordered::Alone,
            _ => Ordered::WithLegacy,
        }
    }

    /// Slots whose signals can change, as an upper bound.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether some stream has work that is not known to be done. `completed` gives a slot's completion word.
    pub(crate) fn in_flight(&self, completed: impl Fn(u32) -> u64) -> bool {
        let open = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, stream)| Some((slot as u32, stream.as_ref()?)));
        open.into_iter()
            .any(|(slot, stream)| stream.unsignalled || completed(slot) < stream.last_signal)
    }

    /// The driver's stream of a slot, whether its stream is closed or not.
    pub(crate) fn handle(&self, slot: u32) -> Option<CUstream> {
        self.slots.get(slot as usize)?.as_ref().map(|stream| stream.handle)
    }

    /// All driver streams, closed ones included.
    pub(crate) fn handles(&self) -> impl Iterator<Item = CUstream> {
        self.slots.iter().flatten().map(|stream| stream.handle)
    }

    /// Destroys all driver objects; their work has ended.
    pub(crate) fn clear(&mut self, context: &Context) {
        let driver = context.driver();
        for mut stream in self.slots.drain(..).flatten() {
            stream.backlog.clear(context);
            // SAFETY: a live stream of this session that nobody uses any more.
            let _ = unsafe { driver.cuStreamDestroy_v2(stream.handle) };
        }
        for event in self
            .legacy_event
            .take()
            .map(|(event, _)| event)
            .into_iter()
            .chain(self.join_event.take())
        {
            // SAFETY: as above.
            let _ = unsafe { driver.cuEventDestroy_v2(event) };
        }
    }

    fn open_slot(&mut self, slot: u32) -> Result<&mut Stream, Failure> {
        below("stream slot", slot, STREAM_SLOTS as u32)?;
        let stream =
            self.slots.get_mut(slot as usize).and_then(Option::as_mut).filter(|stream| stream.open);
        // A program can use a stream that it has destroyed; its client should have noticed.
        stream.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    fn mark_unsignalled(&mut self, slot: u32) {
        if let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            stream.unsignalled = true;
        }
    }

    fn legacy(&mut self, context: &Context) -> Result<CUstream, Failure> {
        if self.slots.is_empty() {
            self.slots.push(None);
        }
        let slot = &mut self.slots[LEGACY_STREAM as usize];
        if slot.is_none() {
            *slot = Some(new_stream(context, Kind::NonBlocking, 0)?);
        }
        Ok(slot.as_ref().map_or(CUstream::NULL, |stream| stream.handle))
    }

    /// Makes the legacy stream wait for all work of blocking streams so far.
    fn join_into_legacy(&mut self, context: &Context) -> Result<CUstream, Failure> {
        let legacy = self.legacy(context)?;
        let driver = context.driver();
        for slot in std::mem::take(&mut self.ahead_of_legacy) {
            let event = event_in(context, &mut self.join_event)?;
            let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
                continue;
            };
            stream.ahead_of_legacy = false;
            // SAFETY: live handles of this session. A wait means the record that came before it, so the event can be used again.
            unsafe {
                context.check(driver.cuEventRecord(event, stream.handle))?;
                context.check(driver.cuStreamWaitEvent(legacy, event, 0))?;
            }
        }
        Ok(legacy)
    }

    /// An event after all legacy work so far.
    fn legacy_event(&mut self, context: &Context) -> Result<CUevent, Failure> {
        let legacy = self.legacy(context)?;
        let (event, recorded_at) = match self.legacy_event {
            Some(known) => known,
            None => (new_event(context, EVENT_DISABLE_TIMING)?, 0),
        };
        if recorded_at != self.legacy_work {
            // SAFETY: live handles of this session.
            context.check(unsafe { context.driver().cuEventRecord(event, legacy) })?;
        }
        self.legacy_event = Some((event, self.legacy_work));
        Ok(event)
    }
}

/// Makes `next` wait for all work of `old`, then gives `old` up.
fn replace(context: &Context, old: &Stream, next: CUstream) -> Result<(), Failure> {
    let driver = context.driver();
    let event = new_event(context, EVENT_DISABLE_TIMING)?;
    // SAFETY: live handles of this session; the driver keeps destroyed ones until their work is done.
    unsafe {
        context.check(driver.cuEventRecord(event, old.handle))?;
        context.check(driver.cuStreamWaitEvent(next, event, 0))?;
        context.check(driver.cuEventDestroy_v2(event))?;
        context.check(driver.cuStreamDestroy_v2(old.handle))?;
    }
    Ok(())
}

fn new_stream(context: &Context, kind: Kind, priority: i32) -> Result<Stream, Failure> {
    let mut handle = CUstream::NULL;
    // SAFETY: `handle` is written.
    context.check(unsafe {
        context.driver().cuStreamCreateWithPriority(&mut handle, STREAM_NON_BLOCKING, priority)
    })?;
    Ok(Stream {
        handle,
        kind,
        priority,
        open: true,
        ahead_of_legacy: false,
        legacy_seen: 0,
        unsignalled: false,
        last_signal: 0,
        backlog: Backlog::default(),
    })
}

fn event_in(context: &Context, place: &mut Option<CUevent>) -> Result<CUevent, Failure> {
    match *place {
        Some(event) => Ok(event),
        None => Ok(*place.insert(new_event(context, EVENT_DISABLE_TIMING)?)),
    }
}

/// A driver event with these `CU_EVENT_*` flags.
pub(crate) fn new_event(context: &Context, flags: u32) -> Result<CUevent, Failure> {
    let mut event = CUevent::NULL;
    // SAFETY: `event` is written.
    context.check(unsafe { context.driver().cuEventCreate(&mut event, flags) })?;
    Ok(event)
}
