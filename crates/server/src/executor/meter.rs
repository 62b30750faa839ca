//! What a session's launches cost: how long the driver takes to accept them, and how long they run.
//!
//! Both are sampled, so that a launch costs nothing for being metered: one launch in eight is timed on the host, and at most one in
//! [`SAMPLE_INTERVAL`] gets an event before and after it, whose distance stands for all launches since the sample before.

use super::state::State;
use super::stream::new_event;
use cuda_abi::types::*;
use std::time::{Duration, Instant};

/// `CU_EVENT_DEFAULT`: with timing.
const WITH_TIMING: u32 = 0;
/// Between two launches that get events.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
/// One launch in so many is timed.
const TIMED: u64 = 8;

/// A session's samples.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    events: Option<(CUevent, CUevent)>,
    /// The events are recorded, and stand for so many launches.
    pending: Option<u64>,
    launches: u64,
    launches_at_sample: u64,
    sampled: Option<Instant>,
}

/// A launch that is being measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    started: Option<Instant>,
    ended: Option<CUevent>,
}

impl State {
    /// Before a launch on `stream`.
    pub(super) fn measure_launch(&mut self, stream: CUstream) -> Measured {
        self.meter.launches += 1;
        if self.meter.launches % TIMED != 1 {
            return Measured::default();
        }
        let started = Instant::now();
        let due = self.meter.sampled.is_none_or(|at| started - at >= SAMPLE_INTERVAL);
        let ended =
            if due && self.finish_sample() { self.begin_sample(stream, started) } else { None };
        // What the events cost is not the launch's.
        let started = if ended.is_some() { Instant::now() } else { started };
        Measured { started: Some(started), ended }
    }

    /// After it, on the same stream.
    pub(super) fn launch_measured(&mut self, measured: Measured, stream: CUstream) {
        if let Some(started) = measured.started {
            self.counters().count_launch_time(started.elapsed());
        }
        if let Some(event) = measured.ended {
            // SAFETY: live handles of this session. A failure shows when the event is asked for.
            let _ = unsafe { self.driver().cuEventRecord(event, stream) };
        }
    }

    /// Takes the result of the last sample; `false` while its launch has not ended.
    fn finish_sample(&mut self) -> bool {
        let (Some((start, end)), Some(weight)) = (self.meter.events, self.meter.pending) else {
            return true;
        };
        let driver = self.driver();
        // SAFETY: a live event of this session.
        match unsafe { driver.cuEventQuery(end) } {
            CUresult::ERROR_NOT_READY => return false,
            CUresult::SUCCESS => {
                let mut milliseconds = 0.0f32;
                // SAFETY: live events of this session, both reached; the result is written.
                let read = unsafe { driver.cuEventElapsedTime(&mut milliseconds, start, end) };
                if read.is_success() && milliseconds.is_finite() && milliseconds > 0.0 {
                    let each = Duration::from_secs_f32(milliseconds / 1e3);
                    self.counters().add_gpu_time(each.saturating_mul(weight as u32));
                }
            }
            // The context is lost, which others report.
            _ => {}
        }
        self.meter.pending = None;
        true
    }

    fn begin_sample(&mut self, stream: CUstream, now: Instant) -> Option<CUevent> {
        let (start, end) = match self.meter.events {
            Some(events) => events,
            None => {
                let new = || new_event(self.context(), WITH_TIMING).ok();
                let events = (new()?, new()?);
                *self.meter.events.insert(events)
            }
        };
        // SAFETY: live handles of this session.
        if !unsafe { self.driver().cuEventRecord(start, stream) }.is_success() {
            return None;
        }
        let meter = &mut self.meter;
        meter.sampled = Some(now);
        meter.pending = Some(meter.launches - meter.launches_at_sample);
        meter.launches_at_sample = meter.launches;
        Some(end)
    }

    /// Destroys the events at the session's end.
    pub(super) fn end_metering(&mut self) {
        let _ = self.finish_sample();
        if let Some((start, end)) = self.meter.events.take() {
            for event in [start, end] {
                // SAFETY: a live event of this session that nothing names any more.
                let _ = unsafe { self.driver().cuEventDestroy_v2(event) };
            }
        }
    }
}
