//! What the device does for a session that is traced: kernels, copies and fills, with when they ran, into the ring of `openmps trace`.
//!
//! Times come from events. An event costs the device something, so kernels that are known to be short are timed *together*: events stand before the first and behind the last of
//! them, and each gets the part of the time between that its own length makes of theirs. How long a kernel takes is learned from those that are timed alone: the first of each
//! function, every [`ALONE_EVERY`]th, and whatever lies between other commands. Work that follows at once on the same stream shares the event between.
//!
//! The device's clock is laid onto the host's once, and then kept within what is known: nothing begins before it was submitted or ends after its end was seen. Like
//! [`super::meter`], but of every launch, and only for sessions that are traced; those are not batched ([`super::batch`]). The ring's format is [`link::trace`].

use super::failure::Failure;
use super::state::{Outcome, State};
use super::stream::new_event;
use crate::counters::monotonic_ns;
use cuda_abi::types::*;
use link::ring::Command;
use link::trace::{Record, TraceRing, Words, Work, WorkKind};
use link::wire::array::ArrayCopy;
use link::wire::command::{Copy, Copy3d, Fill, Launch, Opcode};
use link::wire::graph::GraphLaunch;
use link::wire::trace::TraceFile;
use rustix::fd::AsFd;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// `CU_EVENT_DEFAULT`: with timing.
const WITH_TIMING: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// Kernels are timed together as long as they are expected to take less than this.
const TOGETHER_NS: u64 = 100_000;
/// And no more than these.
const MOST_TOGETHER: usize = 32;
/// Of each function one kernel in so many is timed alone.
const ALONE_EVERY: u32 = 64;
/// Looks for events that have been reached come after so many pieces of work.
const LOOK_EVERY: u32 = 16;
/// Distances from one event to another are told in milliseconds as a float: exact to some nanoseconds over this.
const ANCHOR_NS: u64 = 50_000_000;
/// Records that wait for room: a tracer that does not read for so long is gone.
const MOST_UNREAD: usize = 1 << 19;
/// Longest wait for a client's file, for work to end, and for room, when a trace begins or ends.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_micros(100);

/// A session's trace.
pub(crate) struct Tracing {
    ring: TraceRing,
    /// Records for which the ring had no room.
    unread: VecDeque<Words>,
    is_given_up: bool,
    /// Numbers of functions' names, which are never used again.
    texts: HashMap<u32, u64>,
    last_text: u64,
    functions: HashMap<u32, Cost>,
    open: Option<Span>,
    /// In the order in which they were closed.
    closed: VecDeque<Span>,
    free: Vec<CUevent>,
    clock: Clock,
    /// When the last work of a stream ended.
    ended: HashMap<u32, u64>,
    /// Where the present command ends in the session's ring.
    position: u64,
    since_look: u32,
}

/// What a function's kernels take.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    kernel_ns: u64,
    since_alone: u32,
}

/// Work between two events on one stream.
struct Span {
    slot: u32,
    start: Arc<CUevent>,
    end: Option<Arc<CUevent>>,
    expected_ns: u64,
    works: Vec<Submitted>,
}

struct Submitted {
    work: Work,
    function: Option<u32>,
    expected_ns: u64,
    /// When the driver was asked for it.
    submitted_ns: u64,
}

/// The host's time at an event.
struct Clock {
    event: Arc<CUevent>,
    event_ns: u64,
}

/// Work that is being submitted.
pub(super) struct Begun {
    submitted: Submitted,
    is_alone: bool,
}

impl State {
    /// Whether anybody traces this session.
    pub(super) fn is_traced(&self) -> bool {
        self.tracing.is_some()
    }

    /// The command that is about to be done ends here in the session's ring.
    pub(super) fn note_position(&mut self, position: u64) {
        if let Some(tracing) = &mut self.tracing {
            tracing.position = position;
        }
    }

    /// Takes the ring that the client has sent.
    pub(super) fn trace_start(&mut self) -> Result<(), Failure> {
        let received = self.memory.socket.receive::<TraceFile>(PATIENCE);
        let mut received = received
            .map_err(|error| Failure::Protocol(format!("no ring for a trace came: {error}")))?;
        let file = received.descriptors.pop();
        let ring = file.as_ref().map(|file| TraceRing::map(file.as_fd()));
        let Some(Ok(ring)) = ring else {
            return Err(Failure::Protocol("what came as the ring of a trace is none".into()));
        };
        self.end_tracing();
        let clock = self.start_clock()?;
        self.tracing = Some(Box::new(Tracing {
            ring,
            unread: VecDeque::new(),
            is_given_up: false,
            texts: HashMap::new(),
            last_text: 0,
            functions: HashMap::new(),
            open: None,
            closed: VecDeque::new(),
            free: Vec::new(),
            clock,
            ended: HashMap::new(),
            position: 0,
            since_look: 0,
        }));
        Ok(())
    }

    /// An event, and when it was: on a stream of its own, so that it waits for nothing.
    fn start_clock(&mut self) -> Result<Clock, Failure> {
        let driver = self.driver();
        let event = new_event(self.context(), WITH_TIMING)?;
        let mut stream = CUstream::NULL;
        // SAFETY: `stream` is written; without order with the legacy stream.
        self.check(unsafe { driver.cuStreamCreate(&mut stream, NON_BLOCKING) })?;
        // SAFETY: live handles, made above.
        let recorded = self.check(unsafe { driver.cuEventRecord(event, stream) });
        let started = Instant::now();
        // SAFETY: as above.
        let is_pending = || unsafe { driver.cuEventQuery(event) } == CUresult::ERROR_NOT_READY;
        while recorded.is_ok() && is_pending() && started.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        let event_ns = monotonic_ns();
        // SAFETY: made above, and known to nobody else.
        let _ = unsafe { driver.cuStreamDestroy_v2(stream) };
        recorded?;
        Ok(Clock { event: Arc::new(event), event_ns })
    }

    /// Does a command of a traced session.
    pub(super) fn execute_traced(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        let begun = self.trace_begins(command);
        if begun.is_none() {
            self.close_span();
        }
        let result = self.execute_now(command);
        match begun {
            Some(begun) if result.is_ok() => self.trace_began(begun),
            // Nothing was submitted.
            Some(_) => drop(self.close_span()),
            None => {}
        }
        result
    }

    fn trace_begins(&mut self, command: &Command<'_>) -> Option<Begun> {
        let (mut work, function) = describe(command)?;
        let tracing = self.tracing.as_mut()?;
        work.position = std::mem::take(&mut tracing.position);
        work.taken_ns = monotonic_ns();
        let cost = function.map(|function| *tracing.functions.entry(function).or_default());
        let expected_ns = cost.map_or(0, |cost| cost.kernel_ns);
        let is_alone = cost.is_none_or(|cost| {
            cost.kernel_ns == 0 || cost.kernel_ns >= TOGETHER_NS || cost.since_alone >= ALONE_EVERY
        });
        let fits = tracing.open.as_ref().is_some_and(|span| {
            span.slot == work.stream
                && !is_alone
                && span.works.len() < MOST_TOGETHER
                && span.expected_ns + expected_ns <= TOGETHER_NS
        });
        if !fits {
            let before = self.close_span().filter(|_| expected_ns >= TOGETHER_NS || !is_alone);
            self.open_span(work.stream, before)?;
        }
        if let Some(function) = function {
            work.text = self.name_of(function);
        }
        let submitted = Submitted { work, function, expected_ns, submitted_ns: monotonic_ns() };
        Some(Begun { submitted, is_alone })
    }

    fn trace_began(&mut self, begun: Begun) {
        let Some(tracing) = &mut self.tracing else { return };
        if let Some(function) = begun.submitted.function {
            let cost = tracing.functions.entry(function).or_default();
            cost.since_alone = if begun.is_alone { 0 } else { cost.since_alone + 1 };
        }
        if let Some(span) = &mut tracing.open {
            span.expected_ns += begun.submitted.expected_ns;
            span.works.push(begun.submitted);
        }
        tracing.since_look += 1;
        let is_due = tracing.since_look >= LOOK_EVERY;
        // What is long goes on with the event at its end.
        if begun.is_alone && !self.open_is_long() {
            self.close_span();
        }
        if is_due {
            self.look_at_trace();
        }
    }

    fn open_is_long(&self) -> bool {
        let open = self.tracing.as_ref().and_then(|tracing| tracing.open.as_ref());
        open.is_some_and(|span| span.expected_ns >= TOGETHER_NS)
    }

    fn open_span(&mut self, slot: u32, before: Option<(u32, Arc<CUevent>)>) -> Option<()> {
        let start = match before {
            Some((before, event)) if before == slot => event,
            _ => {
                let stream = self.stream_for_work(slot).ok()?;
                self.record_time(stream)?
            }
        };
        let tracing = self.tracing.as_mut()?;
        tracing.open = Some(Span { slot, start, end: None, expected_ns: 0, works: Vec::new() });
        Some(())
    }

    /// Records the event behind the work that lies together; returns it with its stream.
    fn close_span(&mut self) -> Option<(u32, Arc<CUevent>)> {
        let tracing = self.tracing.as_mut()?;
        let mut span = tracing.open.take()?;
        if span.works.is_empty() {
            tracing.give_back(span.start);
            return None;
        }
        let end = self.streams.handle(span.slot).and_then(|stream| self.record_time(stream));
        let tracing = self.tracing.as_mut()?;
        let Some(end) = end else {
            // The context is lost.
            tracing.ring.count_lost(span.works.len() as u64);
            return None;
        };
        span.end = Some(Arc::clone(&end));
        let slot = span.slot;
        tracing.closed.push_back(span);
        Some((slot, end))
    }

    fn record_time(&mut self, stream: CUstream) -> Option<Arc<CUevent>> {
        let free = self.tracing.as_mut()?.free.pop();
        let event = match free {
            Some(event) => event,
            None => new_event(self.context(), WITH_TIMING).ok()?,
        };
        // SAFETY: live handles of this session.
        let recorded = unsafe { self.driver().cuEventRecord(event, stream) };
        if self.check(recorded).is_err() {
            self.tracing.as_mut()?.free.push(event);
            return None;
        }
        Some(Arc::new(event))
    }

    /// The text of a function's name, told when it is first needed.
    fn name_of(&mut self, function: u32) -> u64 {
        let Ok(known) = self.modules.function(function) else { return 0 };
        let name = Arc::clone(&known.name);
        let Some(tracing) = &mut self.tracing else { return 0 };
        if let Some(&text) = tracing.texts.get(&function) {
            return text;
        }
        tracing.last_text += 1;
        let text = tracing.last_text;
        tracing.texts.insert(function, text);
        Record::texts(text, &name).for_each(|record| tracing.tell(&record));
        text
    }

    /// A function's number is free for another one.
    pub(super) fn forget_traced_functions(&mut self) {
        if let Some(tracing) = &mut self.tracing {
            tracing.functions.clear();
            tracing.texts.clear();
        }
    }

    /// Nothing is to be done: whoever is traced has time for it.
    pub(super) fn trace_idle(&mut self) -> bool {
        if !self.is_traced() {
            return false;
        }
        self.close_span();
        self.look_at_trace();
        self.tracing.as_ref().is_some_and(|tracing| tracing.is_behind())
    }

    /// Tells of the work that has ended.
    fn look_at_trace(&mut self) {
        let driver = self.driver();
        let context = self.shared.clone();
        let Some(tracing) = &mut self.tracing else { return };
        tracing.since_look = 0;
        while let Some(end) = tracing.closed.front().and_then(|span| span.end.clone()) {
            // SAFETY: a live event of this session.
            match unsafe { driver.cuEventQuery(*end) } {
                CUresult::ERROR_NOT_READY => break,
                CUresult::SUCCESS => {}
                failed => {
                    let _ = context.context.check(failed);
                    let lost = tracing.closed.drain(..).map(|span| span.works.len() as u64).sum();
                    tracing.ring.count_lost(lost);
                    break;
                }
            }
            let seen_ns = monotonic_ns();
            let Some(span) = tracing.closed.pop_front() else { break };
            let between = |from: &CUevent, to: &CUevent| {
                let mut milliseconds = 0.0f32;
                // SAFETY: live events that have been reached; the result is written.
                let read = unsafe { driver.cuEventElapsedTime(&mut milliseconds, *from, *to) };
                read.is_success().then(|| (f64::from(milliseconds) * 1e6) as i64)
            };
            let until_start = between(&tracing.clock.event, &span.start).unwrap_or(0);
            let lasted = between(&span.start, &end).unwrap_or(0).max(0) as u64;
            tracing.tell_span(&span, until_start, lasted, seen_ns);
            let Span { start, .. } = span;
            if until_start.unsigned_abs() > ANCHOR_NS {
                let event_ns = tracing.clock.event_ns.saturating_add_signed(until_start);
                let before =
                    std::mem::replace(&mut tracing.clock, Clock { event: start, event_ns });
                tracing.give_back(before.event);
            } else {
                tracing.give_back(start);
            }
            drop(end);
        }
        tracing.flush();
    }

    /// Waits for the session's work, tells of it and closes the ring.
    pub(super) fn end_tracing(&mut self) {
        if !self.is_traced() {
            return;
        }
        self.close_span();
        let started = Instant::now();
        loop {
            self.look_at_trace();
            let is_behind = self.tracing.as_ref().is_some_and(|tracing| tracing.is_behind());
            if !is_behind || started.elapsed() > PATIENCE {
                break;
            }
            std::thread::sleep(POLL);
        }
        let Some(tracing) = self.tracing.take() else { return };
        let Tracing { ring, unread, closed, free, clock, .. } = *tracing;
        let untold: usize = closed.iter().map(|span| span.works.len()).sum();
        ring.count_lost((unread.len() + untold) as u64);
        ring.close();
        let of_span = |span: Span| [Some(span.start), span.end].into_iter().flatten();
        let shared = closed.into_iter().flat_map(of_span).chain([clock.event]);
        let events = shared.filter_map(Arc::into_inner).chain(free);
        for event in events {
            // SAFETY: a live event of this session that nothing names any more.
            let _ = unsafe { self.driver().cuEventDestroy_v2(event) };
        }
    }
}

impl Tracing {
    fn is_behind(&self) -> bool {
        !self.closed.is_empty() || (!self.unread.is_empty() && !self.is_given_up)
    }

    fn tell(&mut self, record: &Record) {
        let words = record.to_words();
        if self.unread.is_empty() && self.ring.try_push(&words) {
            return;
        }
        if self.unread.len() >= MOST_UNREAD || self.is_given_up {
            self.is_given_up = true;
            self.ring.count_lost(1);
            return;
        }
        self.unread.push_back(words);
    }

    fn flush(&mut self) {
        while let Some(words) = self.unread.front() {
            if !self.ring.try_push(words) {
                return;
            }
            self.unread.pop_front();
        }
    }

    fn give_back(&mut self, event: Arc<CUevent>) {
        self.free.extend(Arc::into_inner(event));
    }

    /// Tells of work that lasted `lasted_ns` together and began `until_start_ns` after the clock's event.
    fn tell_span(&mut self, span: &Span, until_start_ns: i64, lasted_ns: u64, seen_ns: u64) {
        let Some(first) = span.works.first() else { return };
        let mut start_ns = self.clock.event_ns.saturating_add_signed(until_start_ns);
        // Kept within what is known of the host's time, and the clock with it.
        let before = start_ns;
        if start_ns + lasted_ns > seen_ns {
            start_ns = seen_ns.saturating_sub(lasted_ns);
        }
        let is_shared_start = Arc::strong_count(&span.start) > 1;
        if start_ns < first.work.taken_ns && !is_shared_start {
            start_ns = first.work.taken_ns;
        }
        let moved = start_ns as i64 - before as i64;
        self.clock.event_ns = self.clock.event_ns.saturating_add_signed(moved);
        let together = span.works.len();
        if let (1, Some(function)) = (together, first.function) {
            let cost = self.functions.entry(function).or_default();
            // An event shared with what came before has the pause between in it.
            let is_better = cost.kernel_ns == 0 || !is_shared_start || lasted_ns < cost.kernel_ns;
            if is_better {
                cost.kernel_ns = lasted_ns.max(1);
            }
        }
        // A stream does one thing at a time, whatever the clock says that was moved meanwhile.
        let mut free_ns = self.ended.get(&span.slot).copied().unwrap_or(0);
        for (part_ns, end_ns, submitted) in parts(&span.works, start_ns, lasted_ns) {
            let mut work = submitted.work;
            work.start_ns = part_ns.max(free_ns);
            work.end_ns = end_ns.max(work.start_ns);
            free_ns = work.end_ns;
            work.timed_together = together as u16;
            self.tell(&Record::Work(work));
        }
        self.ended.insert(span.slot, free_ns);
    }
}

/// When each of several pieces of work ran, of which it is known when the first began and that all took `lasted_ns`: none before it was submitted, each in proportion to what
/// it is expected to take.
fn parts(works: &[Submitted], start_ns: u64, lasted_ns: u64) -> Vec<(u64, u64, &Submitted)> {
    let end_ns = start_ns + lasted_ns;
    let expected: u64 = works.iter().map(|submitted| submitted.expected_ns.max(1)).sum();
    // What the device was not waiting for it worked on.
    let busy = expected.min(lasted_ns).max(1);
    let last_submitted = works.last().map_or(0, |submitted| submitted.submitted_ns);
    let is_ahead = last_submitted <= start_ns;
    let total = if is_ahead { lasted_ns } else { busy };
    let mut at = start_ns;
    let mut placed = Vec::with_capacity(works.len());
    for submitted in works {
        let share = u128::from(submitted.expected_ns.max(1)) * u128::from(total);
        let length = (share / u128::from(expected)) as u64;
        let begins = if is_ahead { at } else { at.max(submitted.submitted_ns).min(end_ns) };
        at = (begins + length).min(end_ns);
        placed.push((begins, at, submitted));
    }
    placed
}

/// What a command has the device do, and the function that it launches; `None` for what is no work.
fn describe(command: &Command<'_>) -> Option<(Work, Option<u32>)> {
    fn body<T: FromBytes>(command: &Command<'_>) -> Option<T> {
        T::read_from_prefix(command.body).ok().map(|(body, _)| body)
    }
    let of = |kind, stream, size_bytes| Work {
        kind,
        stream,
        text: 0,
        position: 0,
        taken_ns: 0,
        start_ns: 0,
        end_ns: 0,
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        timed_together: 1,
        size_bytes,
    };
    let product = |sizes: [u64; 3]| sizes.into_iter().fold(1, u64::saturating_mul);
    Some(match Opcode::from_number(command.header.opcode)? {
        Opcode::Launch => {
            let launch: Launch = body(command)?;
            let work = Work {
                grid: launch.grid,
                block: launch.block.map(|threads| threads as u16),
                shared_bytes: launch.dynamic_shared_bytes,
                ..of(WorkKind::Kernel, launch.stream, 0)
            };
            (work, Some(launch.function))
        }
        Opcode::GraphLaunch => (of(WorkKind::Graph, body::<GraphLaunch>(command)?.stream, 0), None),
        Opcode::Copy => {
            let copy: Copy = body(command)?;
            (of(WorkKind::Copy, copy.stream, copy.size_bytes), None)
        }
        Opcode::Copy3d => {
            let copy: Copy3d = body(command)?;
            let size = product([copy.width_bytes, copy.height, copy.depth]);
            (of(WorkKind::Copy, copy.stream, size), None)
        }
        Opcode::ArrayCopy => {
            let copy: ArrayCopy = body(command)?;
            let size = product([copy.width_bytes, copy.height, copy.depth]);
            (of(WorkKind::Copy, copy.stream, size), None)
        }
        Opcode::Fill => {
            let fill: Fill = body(command)?;
            let size = product([u64::from(fill.element_bytes), fill.width, fill.height]);
            (of(WorkKind::Fill, fill.stream, size), None)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::command::Header;
    use zerocopy::IntoBytes;

    fn submitted(submitted_ns: u64, expected_ns: u64) -> Submitted {
        let body = Fill { stream: 3, element_bytes: 4, width: 8, height: 2, ..Fill::default() };
        let header = Header {
            opcode: Opcode::Fill as u16,
            call_slot: 0,
            size_bytes: 0,
            context: 0,
            reserved: 0,
        };
        let (work, function) = describe(&Command { header, body: body.as_bytes() }).unwrap();
        assert_eq!((work.kind, work.stream, work.size_bytes), (WorkKind::Fill, 3, 64));
        Submitted { work, function, expected_ns, submitted_ns }
    }

    fn places(works: &[Submitted], start_ns: u64, lasted_ns: u64) -> Vec<(u64, u64)> {
        parts(works, start_ns, lasted_ns).iter().map(|&(start, end, _)| (start, end)).collect()
    }

    #[test]
    fn what_was_submitted_ahead_shares_the_time_in_proportion() {
        let works = [submitted(10, 100), submitted(20, 300)];
        assert_eq!(places(&works, 1000, 800), [(1000, 1200), (1200, 1800)]);
    }

    #[test]
    fn nothing_begins_before_it_was_submitted_or_ends_after_the_end() {
        let works = [submitted(900, 100), submitted(1500, 100), submitted(1990, 100)];
        assert_eq!(places(&works, 1000, 1000), [(1000, 1100), (1500, 1600), (1990, 2000)]);
    }

    #[test]
    fn times_without_estimates_add_up() {
        let works = [submitted(0, 0), submitted(0, 0)];
        assert_eq!(places(&works, 100, 10), [(100, 105), (105, 110)]);
        assert_eq!(places(&works, 100, 0), [(100, 100), (100, 100)]);
    }
}
