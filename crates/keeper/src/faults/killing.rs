//! Work that does not end: of a client that has left, whatever ended it, or was terminated.
//!
//! A kernel on a device cannot be stopped but by ending the context that it runs in. So the session
//! gets a while to end by itself; then all others of the executor stop submitting, what they have
//! on the device gets as long to end, and the executor is replaced
//! ([`crate::executors::takeover`]).

use crate::Keeper;
use crate::executors::place::Place;
use crate::sessions::session::Service;
use executor_link::log::log_fault;
use executor_link::messages::ToExecutor;
use policy::faults::recovery::Cause;
use std::time::{Duration, Instant};

/// An executor that is about to be replaced because of one session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Killing {
    session: u64,
    since: Instant,
}

impl Keeper {
    /// From now on a session's work has only so long.
    pub(crate) fn doom(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.doomed_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether anybody's work is being waited for.
    pub(crate) fn is_anybody_doomed(&self) -> bool {
        !self.killings.is_empty()
            || self.sessions.values().any(|session| session.doomed_since.is_some())
    }

    /// From time to time: ends what does not end.
    pub(crate) fn see_to_doomed(&mut self) {
        let patience = Duration::from_millis(self.fault_settings.kill_patience_ms);
        let mut late = Vec::new();
        for (&id, session) in &mut self.sessions {
            let Some(since) = session.doomed_since else { continue };
            // What it has submitted is over when its session's thread says so, which asks the
            // driver: a kernel can write the completion words.
            if session.service != Service::Serving || session.standing.is_at_rest() {
                session.doomed_since = None;
            } else if since.elapsed() >= patience && session.has_work() {
                late.push((session.place(), id));
            }
        }
        for (place, session) in late {
            if self.killings.contains_key(&place) {
                continue;
            }
            let label = self.sessions.get(&session).map_or("", |session| &session.label);
            log_fault!(
                "{label} has work on the device that does not end: its executor is replaced"
            );
            self.killings.insert(place, Killing { session, since: Instant::now() });
            if let Some(executor) = self.executor(place) {
                executor.tell(&ToExecutor::Quiesce, &[]);
            }
        }
        let killings = std::mem::take(&mut self.killings);
        for (place, killing) in killings {
            let session = self.sessions.get(&killing.session);
            if session.is_none_or(|it| it.doomed_since.is_none() || !it.has_work()) {
                // It has ended after all; the others may go on.
                if let Some(executor) = self.executor(place) {
                    executor.tell(&ToExecutor::Resume, &[]);
                }
                self.answer_stuck(place.device);
                continue;
            }
            if killing.since.elapsed() < patience && self.are_others_busy(place, killing.session) {
                self.killings.insert(place, killing);
                continue;
            }
            self.fail_over(place, Cause::Killed { session: killing.session });
        }
    }

    /// Whether anybody has work there who is not doomed.
    fn are_others_busy(&self, place: Place, doomed: u64) -> bool {
        self.sessions.iter().any(|(&id, session)| {
            id != doomed
                && session.place() == place
                && session.doomed_since.is_none()
                && session.service == Service::Serving
                && session.has_work()
        })
    }
}
