//! How far a stream's launches may be ahead of the device.
//!
//! A driver takes about a thousand launches per stream before the launching thread waits; so do we,
//! here, where the wait ends when the client does: what a client that has left had not yet
//! submitted is never run. Nothing that a native program could do is lost by waiting, since there
//! its own call would wait.

use crate::context::Context;
use crate::session::failure::Failure;
use cuda_abi::types::*;
use std::collections::VecDeque;
use std::time::Duration;

/// Launches between two marks.
const LAUNCHES_PER_MARK: u32 = 256;
/// Marks that are not reached, at most: 1,024 launches.
const MOST_MARKS: usize = 4;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIMING: u32 = 2;
const POLL_SHORTEST: Duration = Duration::from_micros(20);
const POLL_LONGEST: Duration = Duration::from_millis(1);

/// One stream's launches.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    since_mark: u32,
    /// Recorded after each so many launches, the oldest first.
    marks: VecDeque<CUevent>,
    free: Vec<CUevent>,
}

impl Backlog {
    /// Before so many launches on `stream`: waits while too many have not ended. `given_up` ends
    /// the wait.
    pub(crate) fn admit(
        &mut self,
        context: &Context,
        stream: CUstream,
        launches: u32,
        given_up: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        self.since_mark = self.since_mark.saturating_add(launches);
        if self.since_mark < LAUNCHES_PER_MARK {
            return Ok(());
        }
        self.since_mark = 0;
        let event = match self.free.pop() {
            Some(event) => event,
            None => context.new_event(WITHOUT_TIMING)?,
        };
        // SAFETY: live handles of this session.
        let recorded = context.check(unsafe { context.driver().cuEventRecord(event, stream) });
        self.marks.push_back(event);
        recorded?;
        let mut poll = POLL_SHORTEST;
        loop {
            self.drop_reached(context)?;
            if self.marks.len() < MOST_MARKS || given_up() {
                return Ok(());
            }
            std::thread::sleep(poll);
            poll = (poll * 2).min(POLL_LONGEST);
        }
    }

    fn drop_reached(&mut self, context: &Context) -> Result<(), Failure> {
        while let Some(&event) = self.marks.front() {
            // SAFETY: a live event of this session.
            match unsafe { context.driver().cuEventQuery(event) } {
                CUresult::ERROR_NOT_READY => return Ok(()),
                result => context.check(result)?,
            }
            self.marks.pop_front();
            self.free.push(event);
        }
        Ok(())
    }

    /// Destroys the events; the stream's work has ended.
    pub(crate) fn clear(&mut self, context: &Context) {
        context.end_events(self.marks.drain(..).chain(self.free.drain(..)));
    }
}
