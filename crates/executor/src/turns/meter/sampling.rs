//! Launches are timed and sampled.

use super::*;
use crate::session::state::State;
use crate::submit::submitted::Submitted;
use crate::turns::costs::Timed;

/// `CU_EVENT_DEFAULT`: with timing.
const WITH_TIMING: u32 = 0;
/// Between two launches that get events.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Samples whose launches have not ended: a client may be far ahead of the device.
const MOST_PENDING: usize = 64;
/// What a small copy in a chain is taken to cost.
const COPY_NS: u64 = 2_000;

impl State {
    /// Before launches on a slot, and before its stream is told of them.
    pub(crate) fn begin_launches(&mut self, slot: u32, submitted: Submitted<'_>) {
        self.settle_by_words();
        let may_be_sampled = match submitted {
            Submitted::Piece(..) => true,
            Submitted::Chain(_) => self.meter.is_timed(submitted.pieces()),
        };
        let is_idle = may_be_sampled
            && !self.driver().is_software()
            && self.streams.is_idle(slot, || self.handle.words.completed(slot));
        self.meter.stream = if is_idle { StreamBefore::Idle } else { StreamBefore::MayBeBusy };
    }

    /// Before launches on `stream`.
    pub(crate) fn measure_launches(
        &mut self,
        stream: CUstream,
        submitted: Submitted<'_>,
    ) -> Measured {
        let before = std::mem::take(&mut self.meter.stream);
        let is_timed = self.meter.is_timed(submitted.pieces());
        self.meter.launches += u64::from(submitted.pieces());
        let is_new = match submitted {
            Submitted::Piece(piece, _) if self.pacing.knows(piece) => false,
            Submitted::Piece(piece, _) => {
                // The next launch may be its next sample.
                self.read_samples();
                !self.pacing.knows(piece) && !self.meter.is_being_sampled(piece)
            }
            // What was never sampled is in no chain.
            Submitted::Chain(_) => false,
        };
        if !is_timed && !is_new {
            return Measured::default();
        }
        let started = Instant::now();
        let due = self.meter.sampled.is_none_or(|at| started - at >= SAMPLE_INTERVAL);
        let ended = match due || is_new {
            true => self.begin_sample(stream, submitted, started, before),
            false => None,
        };
        let (sampled, started) = match ended {
            // What the events cost is not the launch's.
            Some((_, began)) => (Some(began), Instant::now()),
            None => (None, started),
        };
        Measured { started: Some(started), ended: ended.map(|(event, _)| event), sampled }
    }

    /// After it, on the same stream.
    pub(crate) fn launch_measured(&mut self, measured: Measured, stream: CUstream) {
        let submission = measured.started.map(|started| started.elapsed());
        if let Some(submission) = submission {
            self.counters().count_launch_time(submission);
        }
        if let Some(event) = measured.ended {
            if let Some(sample) = self.meter.pending.back_mut() {
                sample.submission = submission.unwrap_or_default();
            }
            // SAFETY: live handles of this session. A failure shows when the event is asked for.
            let _ = unsafe { self.driver().cuEventRecord(event, stream) };
        }
        if let Some(began) = measured.sampled
            && let Some(sample) = self.meter.pending.back_mut()
        {
            sample.host = began.elapsed();
        }
    }

    /// Reads the samples whose launches have ended.
    pub(crate) fn read_samples(&mut self) {
        let driver = self.driver();
        while let Some(sample) = self.meter.pending.pop_front() {
            let Sample { start, end, launches, count, ref sampled, alone, .. } = sample;
            // SAFETY: a live event of this session.
            match unsafe { driver.cuEventQuery(end) } {
                CUresult::ERROR_NOT_READY => {
                    self.meter.pending.push_front(sample);
                    return;
                }
                CUresult::SUCCESS => {
                    let mut milliseconds = 0.0f32;
                    // SAFETY: live events of this session, both reached; the result is written.
                    let read = unsafe { driver.cuEventElapsedTime(&mut milliseconds, start, end) };
                    let took = Duration::try_from_secs_f32(milliseconds / 1e3);
                    if let (true, Ok(took)) = (read.is_success(), took) {
                        let took = sample.kernel_time(took);
                        let (host, alone) = (sample.host_time(), alone && self.has_device());
                        self.learn(sampled, Timed { took, host, alone });
                        let each = took / count.max(1);
                        let all = each.saturating_mul(u32::try_from(launches).unwrap_or(u32::MAX));
                        self.counters().add_gpu_time(all);
                    }
                }
                // The context is lost, which others report.
                _ => {}
            }
            self.meter.free.push((start, end));
        }
    }

    fn learn(&mut self, sampled: &Sampled, timed: Timed) {
        match sampled {
            Sampled::Piece(piece) => self.learn_cost(*piece, timed),
            Sampled::Chain { functions, cost_ns } => {
                // Which of them took the time is not known: all are as much shorter, or longer,
                // than was thought.
                let all_ns = (*cost_ns).max(1) as f64;
                for &function in functions {
                    let piece = Piece::Function(function);
                    let part = self.known_cost_ns(piece) as f64 / all_ns;
                    let part_of = |time: Duration| {
                        Duration::from_nanos((time.as_nanos() as f64 * part) as u64)
                    };
                    let (took, host) = (part_of(timed.took), part_of(timed.host));
                    self.learn_cost(piece, Timed { took, host, ..timed });
                }
            }
        }
    }

    fn sampled(&self, submitted: Submitted<'_>) -> Sampled {
        match submitted {
            Submitted::Piece(piece, _) => Sampled::Piece(piece),
            Submitted::Chain(launches) => {
                let all = launches.kernels();
                let copies_ns = (launches.len() - launches.kernel_count()) as u64 * COPY_NS;
                let cost_ns =
                    all.clone().map(|function| self.known_cost_ns(Piece::Function(function)));
                let cost_ns = cost_ns.sum::<u64>() + copies_ns;
                let mut functions: Vec<u32> = all.collect();
                functions.sort_unstable();
                functions.dedup();
                Sampled::Chain { functions, cost_ns }
            }
        }
    }

    fn begin_sample(
        &mut self,
        stream: CUstream,
        submitted: Submitted<'_>,
        now: Instant,
        before: StreamBefore,
    ) -> Option<(CUevent, Instant)> {
        self.read_samples();
        let alone = self.has_device();
        if self.meter.pending.len() >= MOST_PENDING {
            return None;
        }
        let free = self.meter.free.pop();
        let new = || self.context().new_event(WITH_TIMING).ok();
        let (start, end) = match free {
            Some(events) => events,
            None => (new()?, new()?),
        };
        let began = Instant::now();
        // SAFETY: live handles of this session.
        if !unsafe { self.driver().cuEventRecord(start, stream) }.is_success() {
            self.meter.free.push((start, end));
            return None;
        }
        let sampled = self.sampled(submitted);
        let meter = &mut self.meter;
        let launches = meter.launches - meter.launches_at_sample;
        meter.sampled = Some(now);
        meter.launches_at_sample = meter.launches;
        let count = submitted.pieces();
        let (submission, host) = (Duration::ZERO, Duration::MAX);
        meter.pending.push_back(Sample {
            start,
            end,
            launches,
            count,
            sampled,
            host,
            alone,
            stream: before,
            submission,
        });
        Some((end, began))
    }

    /// Reads what is left at the session's end, and destroys the events.
    pub(crate) fn end_metering(&mut self) {
        self.read_samples();
        let Meter { pending, free, .. } = std::mem::take(&mut self.meter);
        let pending = pending.into_iter().map(|sample| (sample.start, sample.end));
        self.context().end_events(pending.chain(free).flat_map(|(start, end)| [start, end]));
    }
}
