//! How much of a session's work is inside the driver, and for how long its streams have been busy:
//! events between launches.
//!
//! Launches are counted by what they are estimated to cost. After so much of it on a stream an
//! event is recorded there, a *mark*; a mark that is reached takes what lies before it out of the
//! count. The time from the first launch of an idle session until its last mark is a *span*: the
//! time in which at least one of its streams was busy, by the device's clock.

use crate::context::Context;
use cuda_abi::types::*;

/// `CU_EVENT_DEFAULT`: with timing.
const WITH_TIMING: u32 = 0;

/// Launches, and what they cost by estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) cost_ns: u64,
    pub(crate) launches: u32,
}

/// What is not known to have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) all: Work,
    /// What ends with the first mark, by estimate.
    pub(crate) first_ns: u64,
}

/// Work on a stream after its last mark.
#[derive(Clone, Copy, Debug)]
struct Loose {
    slot: u32,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    slot: u32,
    event: CUevent,
    work: Work,
}

/// What a look found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Marks that have been reached since the last look.
    pub(crate) reached: u32,
    /// One of them was recorded after one that has not been reached.
    pub(crate) overtook: bool,
    /// The streams were busy for so long since then.
    pub(crate) busy_ns: u64,
    /// What has ended was thought to cost so much.
    pub(crate) cost_ns: u64,
}

/// One session's marks.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    in_flight: Work,
    loose: Vec<Loose>,
    /// In the order in which they were recorded, of all streams.
    marks: Vec<Mark>,
    free: Vec<CUevent>,
    /// Recorded before the first launch of the present span.
    begin: Option<CUevent>,
    /// What of the present span has been told.
    told_ns: u64,
}

impl Marks {
    /// What is not known to have ended.
    pub(crate) fn in_flight(&self) -> Work {
        self.in_flight
    }

    /// The same, with what ends at the first mark.
    pub(crate) fn ahead(&self) -> InFlight {
        let first = self.marks.iter().map(|mark| mark.work).find(|work| work.launches > 0);
        let first_ns = first.map_or(self.in_flight.cost_ns, |work| work.cost_ns);
        InFlight { all: self.in_flight, first_ns }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.launches == 0
    }

    /// Before a launch on `stream` whose time counts: begins a span, if there is none. What was in
    /// flight before counts for nothing.
    pub(crate) fn launch_begins(&mut self, context: &Context, stream: CUstream) {
        if self.begin.is_some() {
            return;
        }
        self.told_ns = 0;
        self.begin = self.record(context, stream);
    }

    /// After it.
    pub(crate) fn launched(&mut self, slot: u32, launched: Work) {
        let place = self.loose.iter().position(|loose| loose.slot == slot).unwrap_or_else(|| {
            self.loose.push(Loose { slot, work: Work::default() });
            self.loose.len() - 1
        });
        for work in [&mut self.loose[place].work, &mut self.in_flight] {
            work.cost_ns += launched.cost_ns;
            work.launches += launched.launches;
        }
    }

    /// Records marks on the streams on which at least so much lies behind the last one.
    pub(crate) fn mark(
        &mut self,
        context: &Context,
        least_ns: u64,
        stream: impl Fn(u32) -> Option<CUstream>,
    ) {
        if !self.loose.iter().any(|loose| loose.work.cost_ns >= least_ns) {
            return;
        }
        let (due, loose) = std::mem::take(&mut self.loose)
            .into_iter()
            .partition::<Vec<_>, _>(|loose| loose.work.cost_ns >= least_ns);
        self.loose = loose;
        for Loose { slot, work } in due {
            match stream(slot).and_then(|stream| self.record(context, stream)) {
                Some(event) => self.marks.push(Mark { slot, event, work }),
                // The context is lost: nothing will ever be reached, and nobody shall wait for it.
                None => self.take_out(work),
            }
        }
    }

    /// Looks which marks have been reached.
    pub(crate) fn look(&mut self, context: &Context) -> Look {
        let driver = context.driver();
        let mut look = Look::default();
        let mut until_ns = self.told_ns;
        let mut behind: Vec<u32> = Vec::new();
        for mark in std::mem::take(&mut self.marks) {
            // SAFETY: a live event of this session.
            let is_pending = behind.contains(&mark.slot)
                || unsafe { driver.cuEventQuery(mark.event) } == CUresult::ERROR_NOT_READY;
            if is_pending {
                behind.push(mark.slot);
                self.marks.push(mark);
                continue;
            }
            look.reached += 1;
            look.cost_ns += mark.work.cost_ns;
            look.overtook |= !behind.is_empty();
            if let Some(begin) = self.begin {
                let mut milliseconds = 0.0f32;
                // SAFETY: live events of this session; the result is written.
                let read =
                    unsafe { driver.cuEventElapsedTime(&mut milliseconds, begin, mark.event) };
                if read.is_success() {
                    until_ns = until_ns.max((f64::from(milliseconds) * 1e6) as u64);
                }
            }
            self.free.push(mark.event);
            self.take_out(mark.work);
        }
        look.busy_ns = until_ns - self.told_ns;
        self.told_ns = until_ns;
        if self.is_empty() {
            self.free.extend(self.begin.take());
        }
        look
    }

    /// What is in flight may never end: it counts no more. Its marks stay, since what comes after
    /// them on their streams waits for it.
    pub(crate) fn give_up(&mut self) {
        self.in_flight = Work::default();
        self.loose.clear();
        self.marks.iter_mut().for_each(|mark| mark.work = Work::default());
        self.free.extend(self.begin.take());
    }

    /// All work is known to have ended.
    pub(crate) fn forget(&mut self) {
        self.in_flight = Work::default();
        self.loose.clear();
        self.free.extend(self.marks.drain(..).map(|mark| mark.event).chain(self.begin.take()));
    }

    /// Destroys the events.
    pub(crate) fn clear(&mut self, context: &Context) {
        self.forget();
        context.end_events(self.free.drain(..));
    }

    fn take_out(&mut self, work: Work) {
        self.in_flight.cost_ns = self.in_flight.cost_ns.saturating_sub(work.cost_ns);
        self.in_flight.launches = self.in_flight.launches.saturating_sub(work.launches);
    }

    fn record(&mut self, context: &Context, stream: CUstream) -> Option<CUevent> {
        let event = match self.free.pop() {
            Some(event) => event,
            None => context.new_event(WITH_TIMING).ok()?,
        };
        // SAFETY: live handles of this session.
        if context.check(unsafe { context.driver().cuEventRecord(event, stream) }).is_err() {
            self.free.push(event);
            return None;
        }
        Some(event)
    }
}
