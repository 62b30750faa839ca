//! Reading the events of a trace, and writing what they say to the ring.
//!
//! The device's clock is laid onto the host's once, and then kept within what is known: nothing
//! begins before it was submitted or ends after its end was seen. Nobody waits for room in the
//! ring: what finds none is kept, up to a bound.

use super::times::{Measured, parts};
use super::{End, PATIENCE, Span, Tracing, WITH_TIMING};
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::counters::monotonic_ns;
use link::trace::Record;
use std::sync::Arc;
use std::time::Instant;

/// Distances from one event to another are told in milliseconds as a float: exact to some
/// nanoseconds over this.
const ANCHOR_NS: u64 = 50_000_000;
/// Records that wait for room: a tracer that does not read for so long is gone.
const MOST_UNREAD: usize = 1 << 19;
/// Vectors that are kept for spans to come.
const MOST_SPARE: usize = 16;

/// The host's time at an event.
pub(super) struct Clock {
    event: Arc<CUevent>,
    event_ns: u64,
}

impl Clock {
    pub(super) fn into_event(self) -> Arc<CUevent> {
        self.event
    }
}

impl State {
    /// An event, and when it was: on a stream of its own, so that it waits for nothing.
    pub(super) fn start_clock(&mut self) -> Result<Clock, Failure> {
        let driver = self.driver();
        let event = self.context().new_event(WITH_TIMING)?;
        let stream = self.context().new_stream(0)?;
        // SAFETY: live handles, made above.
        let recorded = self.check(unsafe { driver.cuEventRecord(event, stream) });
        let started = Instant::now();
        // SAFETY: as above.
        let is_pending = || unsafe { driver.cuEventQuery(event) } == CUresult::ERROR_NOT_READY;
        while recorded.is_ok() && is_pending() && started.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        let event_ns = monotonic_ns();
        let _ = self.context().end_stream(stream);
        recorded?;
        Ok(Clock { event: Arc::new(event), event_ns })
    }

    /// Tells of the work that has ended.
    pub(super) fn look_at_trace(&mut self) {
        let driver = self.driver();
        let shared = Arc::clone(&self.shared);
        let Some(tracing) = &mut self.tracing else { return };
        tracing.since_look = 0;
        while let Some(End { event: end, recorded_ns }) = tracing.closed.front().and_then(|span| {
            let end = span.end.as_ref()?;
            Some(End { event: Arc::clone(&end.event), recorded_ns: end.recorded_ns })
        }) {
            // SAFETY: a live event of this session.
            match unsafe { driver.cuEventQuery(*end) } {
                CUresult::ERROR_NOT_READY => break,
                CUresult::SUCCESS => {}
                failed => {
                    let _ = shared.context.check(failed);
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
            let lasted_ns = between(&span.start, &end).unwrap_or(0).max(0) as u64;
            tracing.tell_span(&span, until_start, lasted_ns, recorded_ns, seen_ns);
            if until_start.unsigned_abs() > ANCHOR_NS {
                let event_ns = tracing.clock.event_ns.saturating_add_signed(until_start);
                let clock = Clock { event: Arc::clone(&span.start), event_ns };
                let before = std::mem::replace(&mut tracing.clock, clock);
                tracing.free.extend(Arc::into_inner(before.event));
            }
            drop(end);
            tracing.give_back(span);
        }
        tracing.flush();
    }
}

impl Tracing {
    pub(super) fn is_behind(&self) -> bool {
        !self.closed.is_empty() || (!self.unread.is_empty() && !self.is_given_up)
    }

    pub(super) fn tell(&mut self, record: &Record) {
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

    /// Keeps what others can use.
    pub(super) fn give_back(&mut self, span: Span) {
        let Span { start, end, mut works, .. } = span;
        let events = [Some(start), end.map(|end| end.event)];
        self.free.extend(events.into_iter().flatten().filter_map(Arc::into_inner));
        if self.spare.len() < MOST_SPARE {
            works.clear();
            self.spare.push(works);
        }
    }

    /// Tells of work that lasted `lasted_ns` together and began `until_start_ns` after the clock's
    /// event.
    fn tell_span(
        &mut self,
        span: &Span,
        until_start_ns: i64,
        lasted_ns: u64,
        closed_ns: u64,
        seen_ns: u64,
    ) {
        let Some(first) = span.works.first() else { return };
        let mut start_ns = self.clock.event_ns.saturating_add_signed(until_start_ns);
        // Kept within what is known of the host's time, and the clock with it.
        let before = start_ns;
        if start_ns.saturating_add(lasted_ns) > seen_ns {
            start_ns = seen_ns.saturating_sub(lasted_ns);
        }
        start_ns = start_ns.max(first.work.taken_ns);
        let moved = start_ns as i64 - before as i64;
        self.clock.event_ns = self.clock.event_ns.saturating_add_signed(moved);
        let together = span.works.len();
        if let (1, Some(function)) = (together, first.function)
            && let Some(known) = self.functions.get_mut(function as usize)
        {
            known.learn(lasted_ns, span.beginning);
        }
        // A stream does one thing at a time, whatever the clock says that was moved meanwhile.
        let mut free_ns = self.ended.get(&span.slot).copied().unwrap_or(0);
        let measured = Measured { start_ns, lasted_ns, closed_ns };
        for (begins_ns, ends_ns, submitted) in parts(&span.works, &measured) {
            let mut work = submitted.work;
            // Nor before it was taken, though the events' clock may say so.
            work.start_ns = begins_ns.max(free_ns).max(work.taken_ns);
            work.end_ns = ends_ns.max(work.start_ns);
            free_ns = work.end_ns;
            work.timed_together = together as u16;
            self.tell(&Record::Work(work));
        }
        self.ended.insert(span.slot, free_ns);
    }
}
