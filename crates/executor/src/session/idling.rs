//! When a session's thread has nothing to do, or may not: it sees to the clients that wait for
//! earlier work, then sleeps.

use super::{IDLE, PAUSE_POLL, Session, StepError};
use crate::recovery::relocation::Due;
use crate::session::state::State;
use crate::sms::resharing::Mail;
use crate::turns::flight::LOOK;
use crate::watch::tracing::Idleness;
use cuda_abi::types::CUresult;
use executor_link::counters::monotonic_ns;
use link::call;
use link::ring::Waited;
use policy::turns::priorities::Class;
use std::sync::Arc;
use std::time::Duration;

/// Between two questions to the driver while a client waits for a stream's end.
const SYNCHRONIZE_POLL: Duration = Duration::from_micros(50);

impl Session {
    /// The next launch must wait: sees to those who wait for earlier ones, then sleeps.
    pub(super) fn wait_for_turn(&mut self) -> Result<(), StepError> {
        if std::mem::take(&mut self.is_idle) {
            self.state.counters().set_idle_since(None);
        }
        self.see_to_waiters()?;
        if self.state.handle.memory.sleepers() > 0 {
            self.waker.wake();
        }
        self.state.wait_for_turn(self.awaited.len());
        Ok(())
    }

    pub(super) fn see_to_waiters(&mut self) -> Result<(), StepError> {
        self.answer_awaited()?;
        if self.state.collect_output().is_err() {
            // The context is lost, which the monitor tells everybody.
            self.waker.wake();
        }
        Ok(())
    }

    /// Nothing to take: sees to those who wait, then sleeps.
    pub(super) fn idle(&mut self) -> Result<(), StepError> {
        self.see_to_waiters()?;
        let idleness = match std::mem::replace(&mut self.is_idle, true) {
            true => Idleness::Lasts,
            false => Idleness::Begins,
        };
        if idleness == Idleness::Begins {
            self.state.counters().set_idle_since(Some(monotonic_ns()));
        }
        let handle = Arc::clone(&self.state.handle);
        let ordered = handle.moves.is_any();
        if ordered {
            let has_commands = self.consumer.backlog_bytes() > 0 && !self.state.must_pause();
            if self.awaited.is_empty() && !has_commands && self.state.move_out() {
                return Ok(());
            }
            if self.state.must_pause() {
                std::thread::sleep(self.state.pace_idle(PAUSE_POLL));
                return Ok(());
            }
        }
        let waits = ordered
            || self.state.relocation.away.is_some()
            || self.state.trace_idle(idleness)
            || !self.awaited.is_empty()
            || self.state.printing.is_active()
            || self.state.resharing.is_active()
            || !self.state.holding.is_empty();
        let limit = if waits { SYNCHRONIZE_POLL } else { self.state.sleep_limit(IDLE) };
        let limit = self.state.pace_idle(limit);
        let (waker, state, heeded) = (&self.waker, &self.state, self.heeded);
        // Looked at after this thread has announced its sleep: a client that begins to sleep later
        // rings.
        let waited = self.consumer.wait(self.state.shared.flights.cores(), limit, &mut || {
            if handle.memory.sleepers() > 0 {
                waker.wake();
            }
            handle.wished() != heeded
                || handle.mailbox.has_mail()
                || (!ordered && handle.moves.is_any())
                || state.sleep_limit(limit) < limit
                || state.is_looked_for()
        });
        if waited == Waited::Nothing && self.awaited.is_empty() {
            self.state.look_whether_idle();
        }
        Ok(())
    }

    pub(super) fn answer_awaited(&mut self) -> Result<(), StepError> {
        let (state, mut wrong) = (&mut self.state, Ok(()));
        self.awaited.retain(|&(slot, stream)| {
            let result = match state.streams.handle(stream) {
                // SAFETY: a live stream of this session: one that took the place of another waits
                // for it.
                Some(stream) => unsafe { state.driver().cuStreamQuery(stream) },
                None => CUresult::ERROR_INVALID_HANDLE,
            };
            if result == CUresult::ERROR_NOT_READY {
                return true;
            }
            let _ = state.context().check(result);
            if state.context().lost().is_some() {
                return true;
            }
            if result.is_success() {
                // Before its client knows.
                state.streams.note_ended(stream);
            }
            if let Err(error) = call::answer(&state.handle.memory, slot, result.0, &[]) {
                wrong = Err(error.into());
            }
            false
        });
        if self.awaited.is_empty() && self.state.relocation.due == Due::Look {
            // It could not be seen to while somebody waited.
            self.state.handle.mailbox.put(Mail::Quarantine);
        }
        wrong
    }
}

impl State {
    /// Before work is submitted.
    pub(crate) fn note_work(&self) {
        self.shared.flights.set_busy(&self.flight);
    }

    /// How long the session's thread may sleep, as far as its own work matters to others.
    pub(crate) fn sleep_limit(&self, longest: Duration) -> Duration {
        if !self.flight.is_busy() {
            return self.contents.next_look(longest, LOOK);
        }
        let look = match self.shared.flights.look_interval() {
            // They are saved when the work has ended.
            _ if self.modules.have_variables() || self.contents.are_due() => Some(LOOK),
            // Others have less credit until then.
            Some(_) if self.pacing.class == Class::Latency => Some(LOOK),
            interval => interval,
        };
        look.map_or(longest, |look| longest.min(look))
    }

    /// After a sleep in which nothing was posted: finds out whether all work has ended, and saves
    /// what only the driver has.
    pub(crate) fn look_whether_idle(&mut self) {
        if !self.flight.is_busy() {
            // Those that could not be saved when the work had ended.
            self.save_variables();
            return self.save_arrays();
        }
        if self.has_ended() {
            self.shared.flights.set_idle(&self.flight);
            self.history().settle();
            self.end_retired();
            self.pace_settled();
            self.save_variables();
            let unkept = self.renew_leaving();
            unkept.into_iter().for_each(|library| self.unload_later(library));
            self.save_arrays();
            self.repeating.settle(self.records.position + 1);
        }
    }
}
