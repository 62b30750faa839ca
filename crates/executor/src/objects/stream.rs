//! A session's streams, and what orders its legacy stream with its blocking ones.
//!
//! Every stream of a client, its legacy stream among them, is a non-blocking stream of the driver.
//! CUDA's rule that work on the legacy stream waits for all earlier work on blocking streams, and
//! they for it, is made with events where there is such work ([`ordering`]), so a program that uses
//! one stream pays nothing. Contexts with a partition of their own have a default stream of their
//! own.
//!
//! A destroyed stream's driver stream stays with its slot: the next stream in that slot takes it
//! over, so that completion values of the old one cannot be written after those of the new one.

mod ordering;

use crate::context::Context;
use crate::session::failure::{Failure, below};
use crate::sms::lanes::Lane;
use crate::sms::partition::Partition;
use crate::submit::backlog::Backlog;
use crate::turns::gate::{Track, Turnstile};
use cuda_abi::types::*;
use executor_link::standing::Standing;
use link::wire::command::{DEFAULT_STREAM, LEGACY_STREAM, StreamCreate};
use link::wire::layout::STREAM_SLOTS;
use link::wire::partition::OWN_SHARE;
use ordering::Domain;
use policy::turns::holds::Ordered;
use std::sync::Arc;

pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;
/// Signals are below this. A client counts the work of a stream, and never comes near; a word of
/// [`Standing`] has a bit besides.
const SIGNALS_END: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A default stream.
    Default,
    /// Ordered with the default stream in that slot.
    Blocking(u32),
    NonBlocking,
}

#[derive(Debug)]
struct Stream {
    handle: CUstream,
    kind: Kind,
    priority: i32,
    /// Where it runs; `None`: on the whole device.
    partition: Option<Arc<Partition>>,
    /// That partition's number in the session.
    place: u32,
    open: bool,
    /// The default stream that has not waited for work of this one.
    ahead_of: Option<u32>,
    /// Work of the default stream that this stream has waited for, as a count.
    default_seen: u64,
    /// Work was submitted after the last signal.
    unsignalled: bool,
    last_signal: u64,
    backlog: Backlog,
    track: Arc<Track>,
}

/// The streams of one session.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Where it is noted what they have in flight.
    standing: Standing,
    slots: Vec<Option<Stream>>,
    /// By the slots of default streams.
    domains: Vec<Option<Domain>>,
    /// For default streams' waits.
    join_event: Option<CUevent>,
    /// All of them, for the gate.
    turnstile: Arc<Turnstile>,
    /// Where those without a partition are made.
    lane: Lane,
}

impl Streams {
    /// None; they will be made in this lane.
    pub(crate) fn new(standing: Standing, lane: Lane) -> Self {
        let (slots, domains) = (Vec::new(), Vec::new());
        Self { standing, slots, domains, join_event: None, turnstile: Arc::default(), lane }
    }

    /// Opens a slot, whose completion word is `completed`: another executor may have served it.
    pub(crate) fn create(
        &mut self,
        context: &Context,
        wanted: &StreamCreate,
        partition: Option<Arc<Partition>>,
        completed: u64,
    ) -> Result<(), Failure> {
        let StreamCreate { stream: slot, flags, priority, legacy, .. } = *wanted;
        if slot == LEGACY_STREAM || slot as usize >= STREAM_SLOTS {
            return Err(Failure::Protocol(format!("stream slot {slot} does not exist")));
        }
        let kind = match flags {
            _ if flags & DEFAULT_STREAM != 0 => Kind::Default,
            _ if flags & STREAM_NON_BLOCKING != 0 => Kind::NonBlocking,
            _ if legacy == LEGACY_STREAM || self.domain(legacy).is_some() => Kind::Blocking(legacy),
            _ => return Err(Failure::Protocol(format!("stream {legacy} is no default stream"))),
        };
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        match &mut self.slots[index] {
            Some(stream) if stream.open => {
                return Err(Failure::Protocol(format!("stream slot {slot} is in use")));
            }
            Some(parked)
                if parked.priority == priority && is_same(&parked.partition, &partition) =>
            {
                parked.kind = kind;
                parked.place = wanted.partition;
                parked.default_seen = 0;
                parked.open = true;
            }
            other => {
                let mut fresh =
                    new_stream(context, &self.lane, &self.turnstile, kind, priority, partition)?;
                fresh.place = wanted.partition;
                fresh.last_signal = completed;
                if let Some(mut old) = other.replace(fresh) {
                    old.backlog.clear(context);
                    self.turnstile.forget(&old.track);
                    let handle = other.as_ref().map_or(CUstream::NULL, |stream| stream.handle);
                    replace(context, &self.turnstile, &old, handle)?;
                    if let Some(stream) = other {
                        // It waits for the old one's work.
                        stream.track.count();
                        stream.ahead_of = old.ahead_of;
                        stream.unsignalled = old.unsignalled;
                        stream.last_signal = old.last_signal;
                    }
                }
            }
        }
        match kind {
            Kind::Default => *self.domain_place(slot) = Some(Domain::default()),
            // Its work may come before any of the session's default stream, which waits for it.
            Kind::Blocking(default) => {
                self.domain_place(default).get_or_insert_default();
            }
            Kind::NonBlocking => {}
        }
        Ok(())
    }

    /// Opens the session's default stream, if it is not open. `completed` gives its completion
    /// word.
    pub(crate) fn open_legacy(
        &mut self,
        context: &Context,
        priority: i32,
        partition: impl FnOnce() -> Option<Arc<Partition>>,
        completed: impl FnOnce() -> u64,
    ) -> Result<(), Failure> {
        if self.slots.is_empty() {
            self.slots.push(None);
        }
        let slot = &mut self.slots[LEGACY_STREAM as usize];
        if slot.is_none() {
            let fresh = new_stream(
                context,
                &self.lane,
                &self.turnstile,
                Kind::Default,
                priority,
                partition(),
            )?;
            *slot = Some(Stream { last_signal: completed(), ..fresh });
            self.domain_place(LEGACY_STREAM).get_or_insert_default();
        }
        Ok(())
    }

    /// Closes slot `slot`; its work goes on.
    pub(crate) fn destroy(&mut self, context: &Context, slot: u32) -> Result<(), Failure> {
        if slot == LEGACY_STREAM {
            return Err(Failure::Protocol("the legacy stream cannot be destroyed".into()));
        }
        self.open_slot(slot)?.open = false;
        let domain = self.domains.get_mut(slot as usize).and_then(Option::take);
        if let Some(Domain { event: Some((event, _)), .. }) = domain {
            // SAFETY: a live event of this session; the driver keeps it until waits for it have
            // ended.
            context.check(unsafe { context.driver().cuEventDestroy_v2(event) })?;
        }
        Ok(())
    }

    /// The driver's stream to put work of slot `slot` on, after all that this work must wait for.
    pub(crate) fn for_work(&mut self, context: &Context, slot: u32) -> Result<CUstream, Failure> {
        let stream = self.open_slot(slot)?;
        stream.unsignalled = true;
        let (handle, kind, next_signal) = (stream.handle, stream.kind, stream.last_signal + 1);
        self.standing.note_submitted(slot);
        match kind {
            Kind::NonBlocking => Ok(handle),
            Kind::Default => {
                self.join_into_default(context, slot, handle, next_signal)?;
                if let Some(domain) = self.domain(slot) {
                    domain.work += 1;
                }
                Ok(handle)
            }
            Kind::Blocking(default) => {
                self.order_behind(context, slot, default, handle)?;
                Ok(handle)
            }
        }
    }

    /// Before so many launches on slot `slot`: waits while its launches are too far ahead of the
    /// device; see [`Backlog`].
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

    /// Refuses a signal that would say that work has ended which has not: its value must come after
    /// the last one's, which the completion word may have reached. The same value once more says
    /// nothing new where nothing was submitted since: so a signal is done again that an executor
    /// before has submitted, and not committed.
    pub(crate) fn check_signal(&self, slot: u32, value: u64) -> Result<(), Failure> {
        // Whoever needs the stream says what is wrong.
        let Some(stream) = self.slot(slot) else { return Ok(()) };
        let is_again = value == stream.last_signal && !stream.unsignalled;
        if value < SIGNALS_END && (value > stream.last_signal || is_again) {
            return Ok(());
        }
        let last = stream.last_signal;
        Err(Failure::Protocol(format!(
            "signal {value} of stream {slot} must come after {last} and before {SIGNALS_END}"
        )))
    }

    /// The driver's stream whose next write says that all earlier work of slot `slot` is done;
    /// remembers `value`, which was checked.
    pub(crate) fn for_signal(
        &mut self,
        context: &Context,
        slot: u32,
        value: u64,
    ) -> Result<CUstream, Failure> {
        let stream = self.open_slot(slot)?;
        stream.unsignalled = false;
        // One that is done again says nothing of what is new.
        let next_signal = value.max(stream.last_signal + 1);
        stream.last_signal = value;
        let (handle, kind) = (stream.handle, stream.kind);
        self.standing.note_signalled(slot, value);
        if kind == Kind::Default {
            self.join_into_default(context, slot, handle, next_signal)?;
        }
        Ok(handle)
    }

    /// What [`Self::for_signal`] said comes after all did not: the one before is the last.
    pub(crate) fn take_signal_back(&mut self, slot: u32, before: u64) {
        if let Ok(stream) = self.open_slot(slot) {
            stream.unsignalled = true;
            stream.last_signal = before;
            self.standing.note_submitted(slot);
        }
    }

    /// A signal of a slot that was held is about to be done: the slot counts as at work.
    pub(crate) fn expect_signal(&self, slot: u32) {
        self.standing.note_submitted(slot);
    }

    /// After [`Self::expect_signal`], whether it was done or refused.
    pub(crate) fn end_expectation(&self, slot: u32) {
        match self.slot(slot) {
            Some(stream) if stream.unsignalled => self.standing.note_submitted(slot),
            _ => self.standing.note_signalled(slot, self.last_signal(slot)),
        }
    }

    /// The driver says that all work of a slot has ended.
    pub(crate) fn note_ended(&mut self, slot: u32) {
        if let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) {
            stream.unsignalled = false;
            self.standing.note_signalled(slot, stream.last_signal);
        }
    }

    /// The last signal of a slot.
    pub(crate) fn last_signal(&self, slot: u32) -> u64 {
        self.slot(slot).map_or(0, |stream| stream.last_signal)
    }

    /// Which default stream work of slot `slot` is ordered with.
    pub(crate) fn ordered(&self, slot: u32) -> Ordered {
        match self.slot(slot).map(|stream| stream.kind) {
            Some(Kind::Blocking(default)) => Ordered::With(default),
            Some(Kind::Default) => Ordered::With(slot),
            None if slot == LEGACY_STREAM => Ordered::With(slot),
            Some(Kind::NonBlocking) | None => Ordered::Alone,
        }
    }

    /// Slots whose signals can change, as an upper bound.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether some stream has work that is not known to be done. `completed` gives a slot's
    /// completion word.
    pub(crate) fn in_flight(&self, completed: impl Fn(u32) -> u64) -> bool {
        let mut made = (0..).zip(&self.slots).filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
        made.any(|(slot, stream)| stream.unsignalled || completed(slot) < stream.last_signal)
    }

    /// Whether what is put on slot `slot` now begins at once: all its work has ended, as far as
    /// signals say, and it waits for no other stream.
    pub(crate) fn is_idle(&self, slot: u32, completed: impl FnOnce() -> u64) -> bool {
        let Some(stream) = self.slot(slot) else { return false };
        let domain = |slot: u32| self.domains.get(slot as usize).and_then(Option::as_ref);
        let waits = match stream.kind {
            Kind::NonBlocking => false,
            Kind::Default => domain(slot).is_some_and(|domain| !domain.ahead.is_empty()),
            Kind::Blocking(default) => {
                domain(default).is_some_and(|domain| domain.work != stream.default_seen)
            }
        };
        !waits && !stream.unsignalled && completed() >= stream.last_signal
    }

    /// Whether all work of all streams has ended; asks the driver where no signal was wanted.
    pub(crate) fn have_ended(&mut self, context: &Context, completed: impl Fn(u32) -> u64) -> bool {
        for (slot, stream) in self.slots.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            if stream.unsignalled {
                // SAFETY: a live stream of this session.
                if context.check(unsafe { context.driver().cuStreamQuery(stream.handle) }).is_err()
                {
                    return false;
                }
                stream.unsignalled = false;
                self.standing.note_signalled(slot as u32, stream.last_signal);
            } else if completed(slot as u32) < stream.last_signal {
                return false;
            }
        }
        true
    }

    /// Where the stream of a slot runs; `None`: on the whole device.
    pub(crate) fn partition(&self, slot: u32) -> &Option<Arc<Partition>> {
        self.slot(slot).map_or(&None, |stream| &stream.partition)
    }

    /// The driver's stream of a slot, whether its stream is closed or not.
    pub(crate) fn handle(&self, slot: u32) -> Option<CUstream> {
        self.slot(slot).map(|stream| stream.handle)
    }

    /// Moves the streams of the partition of this number to where it is now. What is submitted to
    /// them from now on waits for all that was before.
    pub(crate) fn move_to(
        &mut self,
        context: &Context,
        place: u32,
        partition: Option<Arc<Partition>>,
    ) -> Result<(), Failure> {
        let streams = self.slots.iter_mut().flatten().filter(|stream| stream.place == place);
        for stream in streams.filter(|stream| !is_same(&stream.partition, &partition)) {
            let next = driver_stream(context, &self.lane, stream.priority, partition.as_deref())?;
            if let Err(failure) = replace(context, &self.turnstile, stream, next) {
                let _ = context.end_stream(next);
                return Err(failure);
            }
            self.turnstile.forget(&stream.track);
            stream.track = self.turnstile.track(next);
            // It waits for the old one's work.
            stream.track.count();
            stream.handle = next;
            stream.partition.clone_from(&partition);
        }
        Ok(())
    }

    /// Events after all work that is not known to be done. `completed` gives a slot's completion
    /// word.
    pub(crate) fn fence(&self, context: &Context, completed: impl Fn(u32) -> u64) -> Vec<CUevent> {
        let mut events = Vec::new();
        for (slot, stream) in (0u32..).zip(&self.slots) {
            let Some(stream) = stream else { continue };
            if !stream.unsignalled && completed(slot) >= stream.last_signal {
                continue;
            }
            let Ok(event) = context.new_event(EVENT_DISABLE_TIMING) else { continue };
            // SAFETY: live handles of this session. A failed record leaves an event that counts as
            // reached.
            let _ = context.check(unsafe { context.driver().cuEventRecord(event, stream.handle) });
            events.push(event);
        }
        events
    }

    /// All streams, as the gate knows them.
    pub(crate) fn turnstile(&self) -> &Arc<Turnstile> {
        &self.turnstile
    }

    /// The work of a slot.
    pub(crate) fn track(&self, slot: u32) -> Option<&Track> {
        self.slot(slot).map(|stream| &*stream.track)
    }

    /// All driver streams, closed ones included.
    pub(crate) fn handles(&self) -> impl Iterator<Item = CUstream> {
        self.slots.iter().flatten().map(|stream| stream.handle)
    }

    /// Destroys all driver objects; their work has ended.
    pub(crate) fn clear(&mut self, context: &Context) {
        for mut stream in self.slots.drain(..).flatten() {
            stream.backlog.clear(context);
            self.turnstile.forget(&stream.track);
            let _ = context.end_stream(stream.handle);
        }
        let of_domains = self.domains.drain(..).flatten().filter_map(|domain| domain.event);
        context.end_events(of_domains.map(|(event, _)| event).chain(self.join_event.take()));
    }

    fn slot(&self, slot: u32) -> Option<&Stream> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn open_slot(&mut self, slot: u32) -> Result<&mut Stream, Failure> {
        below("stream slot", slot, STREAM_SLOTS as u32)?;
        let stream =
            self.slots.get_mut(slot as usize).and_then(Option::as_mut).filter(|stream| stream.open);
        // A program can use a stream that it has destroyed; its client should have noticed.
        stream.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }
}

pub(crate) fn is_same(one: &Option<Arc<Partition>>, other: &Option<Arc<Partition>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Makes `next` wait for all work of `old`, then gives `old` up.
fn replace(
    context: &Context,
    turnstile: &Turnstile,
    old: &Stream,
    next: CUstream,
) -> Result<(), Failure> {
    let driver = context.driver();
    let event = context.new_event(EVENT_DISABLE_TIMING)?;
    let pass = context.gate.enter(turnstile, None);
    // SAFETY: live handles of this session; the driver keeps destroyed ones until their work is
    // done.
    unsafe {
        context.check(driver.cuEventRecord(event, old.handle))?;
        context.check(driver.cuStreamWaitEvent(next, event, 0))?;
        context.check(driver.cuEventDestroy_v2(event))?;
    }
    drop(pass);
    Ok(context.end_stream(old.handle)?)
}

fn new_stream(
    context: &Context,
    lane: &Lane,
    turnstile: &Turnstile,
    kind: Kind,
    priority: i32,
    partition: Option<Arc<Partition>>,
) -> Result<Stream, Failure> {
    let handle = driver_stream(context, lane, priority, partition.as_deref())?;
    Ok(Stream {
        handle,
        kind,
        priority,
        partition,
        place: OWN_SHARE,
        open: true,
        ahead_of: None,
        default_seen: 0,
        unsignalled: false,
        last_signal: 0,
        backlog: Backlog::default(),
        track: turnstile.track(handle),
    })
}

/// A stream of the driver's on these SMs; on all, if there are none, in the session's lane.
fn driver_stream(
    context: &Context,
    lane: &Lane,
    priority: i32,
    partition: Option<&Partition>,
) -> Result<CUstream, Failure> {
    if let Some(green) = partition.or(lane.green()) {
        return green.stream(context, priority);
    }
    Ok(context.new_stream(priority)?)
}
