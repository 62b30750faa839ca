//! A session's events.

use crate::session::failure::{Failure, below};
use crate::session::state::State;
use cuda_abi::types::{CUevent, CUresult};
use executor_link::counters::monotonic_ns;
use executor_link::messages::EventTime;
use link::wire::command::{
    EventCreate, EventDestroy, EventElapsed, EventElapsedReply, EventRecord, MAX_EVENTS,
    StreamWaitEvent,
};
use std::collections::HashMap;
use std::sync::Arc;

/// `CU_EVENT_DISABLE_TIMING`; the other flags mean nothing to the executor.
const DISABLE_TIMING: u32 = 2;

impl State {
    pub(crate) fn event_create(&mut self, wanted: EventCreate) -> Result<(), Failure> {
        let EventCreate { event, flags } = wanted;
        if event >= MAX_EVENTS || self.events.contains_key(&event) {
            return Err(Failure::Protocol(format!(
                "event {event} cannot be created: in use, or beyond {MAX_EVENTS}"
            )));
        }
        let handle = self.context().new_event(flags & DISABLE_TIMING)?;
        self.events.insert(event, Arc::new(handle));
        Ok(())
    }

    pub(crate) fn event_destroy(&mut self, wanted: EventDestroy) -> Result<(), Failure> {
        below("event", wanted.event, MAX_EVENTS)?;
        let event = self.events.remove(&wanted.event).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.past_times.forget(wanted.event);
        if self.others_have(wanted.event) {
            return Ok(());
        }
        // What a graph names goes with the last such graph.
        let Some(handle) = Arc::into_inner(event) else { return Ok(()) };
        // SAFETY: a live event of this session; the driver keeps it until its work is done.
        self.check(unsafe { self.driver().cuEventDestroy_v2(handle) })
    }

    pub(crate) fn event_record(&mut self, wanted: EventRecord) -> Result<(), Failure> {
        let event = self.event(wanted.event)?;
        self.past_times.forget(wanted.event);
        // Before the record counts as work itself.
        self.check_signal(wanted.stream, wanted.value)?;
        let stream = self.stream_for_work(wanted.stream)?;
        // SAFETY: live handles of this session.
        self.check(unsafe { self.driver().cuEventRecord(event, stream) })?;
        self.signal(wanted.stream, wanted.value)
    }

    pub(crate) fn stream_wait_event(&mut self, wanted: StreamWaitEvent) -> Result<(), Failure> {
        let event = self.event(wanted.event)?;
        let stream = self.stream_for_work(wanted.stream)?;
        // SAFETY: live handles of this session. Flags have a meaning in captures only, which do not
        // come here.
        self.check(unsafe { self.driver().cuStreamWaitEvent(stream, event, 0) })
    }

    pub(crate) fn event_elapsed(&mut self, wanted: EventElapsed) -> Result<(), Failure> {
        let (start, end) = (self.event(wanted.start)?, self.event(wanted.end)?);
        let mut milliseconds = 0.0;
        let driver = self.driver();
        // SAFETY: live handles of this session; the result is written.
        let result = unsafe {
            match driver.cuEventElapsedTime_v2 {
                Some(_) => driver.cuEventElapsedTime_v2(&mut milliseconds, start, end),
                None => driver.cuEventElapsedTime(&mut milliseconds, start, end),
            }
        };
        if let Err(failure) = self.check(result) {
            milliseconds = self.past_elapsed(wanted.start, wanted.end).ok_or(failure)?;
        }
        self.answer(&EventElapsedReply { milliseconds, reserved: 0 })
    }

    pub(crate) fn event(&self, number: u32) -> Result<CUevent, Failure> {
        self.kept_event(number).map(|event| *event)
    }

    /// An event, to be kept alive.
    pub(crate) fn kept_event(&self, number: u32) -> Result<Arc<CUevent>, Failure> {
        below("event", number, MAX_EVENTS)?;
        self.events.get(&number).cloned().ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }
}

/// When events were recorded in another context. Events that are recorded here have the driver's
/// word.
#[derive(Debug, Default)]
pub(crate) struct PastTimes {
    /// Milliseconds of the clock that all processes share, by the event's number.
    at_ms: HashMap<u32, f64>,
    /// An event that was recorded here, and when.
    reference: Option<(CUevent, f64)>,
}

impl PastTimes {
    pub(crate) fn new(times: Vec<EventTime>) -> Self {
        let at_ms = times.into_iter().map(|EventTime { event, at_ms }| (event, at_ms)).collect();
        Self { at_ms, reference: None }
    }

    /// The event is recorded here, or destroyed.
    fn forget(&mut self, event: u32) {
        if !self.at_ms.is_empty() {
            self.at_ms.remove(&event);
        }
    }
}

/// Events of which the times are taken along: as many as one message holds.
pub(crate) const MOST_TIMES: usize = 1024;

impl State {
    /// When the session's events were recorded. Nothing is in flight.
    pub(crate) fn event_times(&mut self) -> Vec<EventTime> {
        let numbers: Vec<u32> = self.events.keys().copied().collect();
        let time_of = |event| self.event_time(event).map(|at_ms| EventTime { event, at_ms });
        numbers.into_iter().filter_map(time_of).collect()
    }

    /// The time between two events, of which at least one was recorded in another context.
    fn past_elapsed(&mut self, start: u32, end: u32) -> Option<f32> {
        if self.past_times.at_ms.is_empty() {
            return None;
        }
        Some((self.event_time(end)? - self.event_time(start)?) as f32)
    }

    /// When an event was recorded; `None`: never, or without a time.
    fn event_time(&mut self, number: u32) -> Option<f64> {
        let event = self.event(number).ok()?;
        let here = self.reference().and_then(|(reference, at_ms)| {
            let driver = self.driver();
            let elapsed = |start, end| {
                let mut milliseconds = 0.0;
                // SAFETY: live handles of this session; the result is written.
                let result = unsafe { driver.cuEventElapsedTime(&mut milliseconds, start, end) };
                result.is_success().then_some(f64::from(milliseconds))
            };
            elapsed(event, reference).map(|before| at_ms - before)
        });
        here.or_else(|| self.past_times.at_ms.get(&number).copied())
    }

    /// An event of the session's own, and when it was recorded.
    fn reference(&mut self) -> Option<(CUevent, f64)> {
        if self.past_times.reference.is_none() {
            let event = self.context().new_event(0).ok()?;
            let stream = self.side_stream().ok()?;
            // SAFETY: live handles of this session.
            self.check(unsafe { self.driver().cuEventRecord(event, stream) }).ok()?;
            let is_reached = self.await_copies(stream);
            self.past_times.reference = Some((event, monotonic_ns() as f64 / 1e6));
            is_reached.then_some(())?;
        }
        self.past_times.reference
    }

    /// At the session's end.
    pub(crate) fn clear_past_times(&mut self) {
        let reference = self.past_times.reference.take();
        self.context().end_events(reference.map(|(event, _)| event));
    }
}

#[cfg(test)]
mod tests {
    use crate::session::Step;
    use crate::testbed::{Bed, Client};
    use link::wire::command::{EventCreate, EventRecord, Opcode};
    use zerocopy::IntoBytes;

    /// Whether all that was posted was done.
    fn is_served(client: &mut Client) -> bool {
        loop {
            match client.session.step() {
                Ok(Step::Done) => {}
                Ok(_) => return true,
                Err(_) => return false,
            }
        }
    }

    fn post_record(client: &mut Client, value: u64) {
        let record = EventRecord { event: 1, stream: 0, value };
        client.post(Opcode::EventRecord, record.as_bytes());
    }

    #[test]
    fn what_a_stream_signals_grows() {
        let wrong: [fn(&mut Client); 6] = [
            |client| client.post_signal(1 << 62),
            |client| client.post_signal(u64::MAX),
            |client| client.post_signal(9),
            |client| post_record(client, 9),
            |client| {
                // The launch has not ended when the word has reached what was signalled before.
                client.post_launch();
                client.post_signal(10);
            },
            |client| {
                client.post_launch();
                post_record(client, 10);
            },
        ];
        for (number, wrong) in wrong.into_iter().enumerate() {
            // Alone: beside others, whose work never ends here, it would wait for its turn.
            let bed = Bed::new();
            let mut client = bed.open();
            client.post(Opcode::EventCreate, EventCreate { event: 1, flags: 2 }.as_bytes());
            client.post_launch();
            client.post_signal(7);
            client.post_launch();
            post_record(&mut client, 10);
            // Once more, as after an executor that submitted it and ended.
            client.post_signal(10);
            post_record(&mut client, 10);
            assert!(is_served(&mut client));
            wrong(&mut client);
            assert!(!is_served(&mut client), "{number}");
        }
    }
}
