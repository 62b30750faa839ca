//! Work is traced, in spans.

use super::work::Meaning;
use super::*;
use crate::session::failure::Failure;
use crate::session::state::{Outcome, State};
use crate::submit::waiting::{Admission, Together};
use link::ring::Command;
use link::trace::{Record, Work};
use link::wire::trace::TraceFile;
use rustix::fd::AsFd;
use std::time::Instant;

/// Streams of a session with an open span.
const MOST_OPEN: usize = 8;
/// Looks for events that have been reached come after so many pieces of work.
const LOOK_EVERY: u32 = 32;
const POLL: Duration = Duration::from_micros(100);

impl State {
    /// Whether anybody traces this session.
    pub(crate) fn is_traced(&self) -> bool {
        self.tracing.is_some()
    }

    /// The command that is about to be done ends here in the session's ring.
    pub(crate) fn note_position(&mut self, position: u64) {
        if let Some(tracing) = &mut self.tracing {
            tracing.position = position;
        }
    }

    /// Takes the ring that the client has sent.
    pub(crate) fn trace_start(&mut self) -> Result<(), Failure> {
        let (TraceFile { .. }, file) = self.receive_file("the ring of a trace", PATIENCE)?;
        let ring = TraceRing::map(file.as_fd());
        self.discard(file);
        let ring = ring.map_err(|error| {
            Failure::Protocol(format!("what came as the ring of a trace is none: {error}"))
        })?;
        self.end_tracing();
        let clock = self.start_clock()?;
        self.tracing = Some(Box::new(Tracing {
            ring,
            unread: VecDeque::new(),
            is_given_up: false,
            functions: Vec::new(),
            last_text: 0,
            open: Vec::new(),
            closed: VecDeque::new(),
            free: Vec::new(),
            spare: Vec::new(),
            clock,
            ended: HashMap::new(),
            position: 0,
            waiting: VecDeque::new(),
            since_look: 0,
        }));
        Ok(())
    }

    /// Whether a launch may be timed together with others, and therefore wait for them. Who says so
    /// counts on [`State::trace_waits`].
    pub(crate) fn trace_admits(&self, function: u32) -> Admission {
        let Some(tracing) = &self.tracing else { return Admission::Waits };
        match tracing.known(function).timing() {
            Timing::Together => Admission::Waits,
            Timing::Alone => Admission::ByItself,
        }
    }

    /// The present command is a launch that waits for others.
    pub(crate) fn trace_waits(&mut self) {
        if let Some(tracing) = &mut self.tracing {
            let taken = tracing.take();
            tracing.waiting.push_back(taken);
        }
    }

    /// The first launches that waited are submitted, or never will be.
    pub(crate) fn trace_waited(&mut self, launches: usize) {
        if let Some(tracing) = &mut self.tracing {
            tracing.waiting.drain(..launches.min(tracing.waiting.len()));
        }
    }

    /// Does a command of a traced session.
    pub(crate) fn execute_traced(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        let (mut work, function) = match work::meaning(command) {
            Meaning::Work(work, function) => (work, function),
            Meaning::Question => return self.execute_now(command),
            Meaning::Other => {
                self.close_spans();
                return self.execute_now(command);
            }
        };
        if let Some(tracing) = &mut self.tracing {
            let taken = tracing.take();
            (work.position, work.taken_ns) = (taken.position, taken.taken_ns);
        }
        let timing = self.timing_of(function);
        let begun = self.trace_begins(work.stream, timing, self.expected_ns(function));
        let result = self.execute_now(command);
        match begun {
            Some(begun) if result.is_ok() => {
                let submitted = self.submitted(&begun, work, function);
                self.trace_submitted(&begun, submitted);
            }
            // Nothing was submitted.
            Some(begun) => drop(self.close_span(begun.slot)),
            None => {}
        }
        result
    }

    /// Launches of one stream that waited in the batch are about to be submitted.
    pub(crate) fn trace_batch_begins(
        &mut self,
        slot: u32,
        launches: Together<'_>,
    ) -> Option<Begun> {
        if !self.is_traced() {
            return None;
        }
        let expected_ns =
            launches.functions().map(|function| self.expected_ns(Some(function))).sum();
        self.trace_begins(slot, Timing::Together, expected_ns)
    }

    /// They were.
    pub(crate) fn trace_batch_began(&mut self, begun: Option<Begun>, launches: Together<'_>) {
        let Some(begun) = begun else { return };
        for (index, (launch, _)) in launches.iter().enumerate() {
            let mut work = work::kernel(launch);
            let taken = self.tracing.as_ref().and_then(|tracing| tracing.waiting.get(index));
            if let Some(&Taken { position, taken_ns }) = taken {
                (work.position, work.taken_ns) = (position, taken_ns);
            }
            let submitted = self.submitted(&begun, work, Some(launch.function));
            self.trace_submitted(&begun, submitted);
        }
    }

    fn expected_ns(&self, function: Option<u32>) -> u64 {
        let known = function.zip(self.tracing.as_ref());
        known.map_or(0, |(function, tracing)| tracing.known(function).kernel_ns)
    }

    fn timing_of(&self, function: Option<u32>) -> Timing {
        let known = function.zip(self.tracing.as_ref());
        known.map_or(Timing::Alone, |(function, tracing)| tracing.known(function).timing())
    }

    /// Sees to an event before work that is about to be submitted.
    fn trace_begins(&mut self, slot: u32, timing: Timing, expected_ns: u64) -> Option<Begun> {
        let tracing = self.tracing.as_mut()?;
        let fits = timing == Timing::Together
            && tracing.open.iter().any(|span| span.slot == slot && span.has_room());
        if !fits {
            let before = self.close_span(slot);
            let may_share = timing == Timing::Together || expected_ns >= TOGETHER_NS;
            self.open_span(slot, before.filter(|_| may_share))?;
        }
        Some(Begun { slot, timing, submitted_ns: monotonic_ns() })
    }

    /// What is to be told of work that was submitted.
    fn submitted(&mut self, begun: &Begun, mut work: Work, function: Option<u32>) -> Submitted {
        let mut expected_ns = 0;
        if let Some(function) = function {
            work.text = self.name_of(function);
            expected_ns = self.expected_ns(Some(function));
        }
        Submitted { work, function, expected_ns, submitted_ns: begun.submitted_ns }
    }

    /// Notes it.
    fn trace_submitted(&mut self, begun: &Begun, submitted: Submitted) {
        let Some(tracing) = &mut self.tracing else { return };
        let Some(span) = tracing.open.iter_mut().find(|span| span.slot == begun.slot) else {
            return;
        };
        let place = submitted.function.map(|function| function as usize);
        if let Some(known) = place.and_then(|place| tracing.functions.get_mut(place)) {
            known.submitted(begun.timing);
        }
        span.expected_ns = span.expected_ns.saturating_add(submitted.expected_ns);
        span.works.push(submitted);
        tracing.since_look += 1;
        let is_due = tracing.since_look >= LOOK_EVERY;
        // What is long goes on with the event at its end.
        if begun.timing == Timing::Alone && span.expected_ns < TOGETHER_NS {
            self.close_span(begun.slot);
        }
        if is_due {
            self.look_at_trace();
        }
    }

    fn open_span(&mut self, slot: u32, before: Option<Arc<CUevent>>) -> Option<()> {
        let (start, beginning) = match before {
            Some(event) => (event, Beginning::Shared),
            None => {
                let stream = self.stream_for_work(slot).ok()?;
                (self.record_time(stream)?, Beginning::Own)
            }
        };
        let oldest = self.tracing.as_ref()?.open.first().map(|span| span.slot);
        if let Some(oldest) = oldest.filter(|_| self.open_spans() >= MOST_OPEN) {
            self.close_span(oldest);
        }
        let tracing = self.tracing.as_mut()?;
        let works = tracing.spare.pop().unwrap_or_default();
        tracing.open.push(Span { slot, start, beginning, expected_ns: 0, works, end: None });
        Some(())
    }

    fn open_spans(&self) -> usize {
        self.tracing.as_ref().map_or(0, |tracing| tracing.open.len())
    }

    fn close_spans(&mut self) {
        while let Some(slot) =
            self.tracing.as_ref().and_then(|tracing| tracing.open.first()).map(|span| span.slot)
        {
            self.close_span(slot);
        }
    }

    /// Records the event behind a stream's work that lies together.
    fn close_span(&mut self, slot: u32) -> Option<Arc<CUevent>> {
        let tracing = self.tracing.as_mut()?;
        let place = tracing.open.iter().position(|span| span.slot == slot)?;
        let mut span = tracing.open.remove(place);
        if span.works.is_empty() {
            tracing.give_back(span);
            return None;
        }
        let event = self.streams.handle(slot).and_then(|stream| self.record_time(stream));
        let tracing = self.tracing.as_mut()?;
        let Some(event) = event else {
            // The context is lost.
            tracing.ring.count_lost(span.works.len() as u64);
            return None;
        };
        span.end = Some(End { event: Arc::clone(&event), recorded_ns: monotonic_ns() });
        tracing.closed.push_back(span);
        Some(event)
    }

    fn record_time(&mut self, stream: CUstream) -> Option<Arc<CUevent>> {
        let free = self.tracing.as_mut()?.free.pop();
        let event = match free {
            Some(event) => event,
            None => self.context().new_event(WITH_TIMING).ok()?,
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
        let text = self.tracing.as_ref().map_or(0, |tracing| tracing.known(function).text);
        if text != 0 {
            return text;
        }
        // Only numbers that are in use get here, so the list is no longer than that of the
        // functions.
        let Ok(known) = self.modules.function(function) else { return 0 };
        let name = Arc::clone(&known.name);
        let Some(tracing) = &mut self.tracing else { return 0 };
        let place = function as usize;
        if tracing.functions.len() <= place {
            tracing.functions.resize(place + 1, Known::default());
        }
        tracing.last_text += 1;
        let text = tracing.last_text;
        tracing.functions[place].text = text;
        Record::texts(text, &name).for_each(|record| tracing.tell(&record));
        text
    }

    /// Functions' numbers are free for others.
    pub(crate) fn forget_traced_functions(&mut self) {
        if let Some(tracing) = &mut self.tracing {
            tracing.functions.clear();
        }
    }

    /// Nothing is to be done: whoever is traced has time for it. Says whether there will be more to
    /// do.
    pub(crate) fn trace_idle(&mut self, idleness: Idleness) -> bool {
        if !self.is_traced() {
            return false;
        }
        if idleness == Idleness::Lasts {
            self.close_spans();
        }
        self.look_at_trace();
        self.tracing.as_ref().is_some_and(|tracing| tracing.is_behind() || !tracing.open.is_empty())
    }

    /// Waits for the session's work, tells of it and closes the ring.
    pub(crate) fn end_tracing(&mut self) {
        if !self.is_traced() {
            return;
        }
        self.close_spans();
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
        let of_span = |span: Span| [Some(span.start), span.end.map(|end| end.event)];
        let shared = closed.into_iter().flat_map(of_span).flatten().chain([clock.into_event()]);
        self.context().end_events(shared.filter_map(Arc::into_inner).chain(free));
    }
}
