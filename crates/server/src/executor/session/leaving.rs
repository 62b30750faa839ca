//! A session goes on in another context: see [`super::super::relocation`].

use super::{Session, StepError};
use std::time::{Duration, Instant};

/// Nothing is in flight, so callers that wait for work are answered at the next look.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_micros(50);

impl Session {
    /// After another wait for its turn: leaves where that does not come.
    pub(super) fn leave_if_held(&mut self) -> Result<(), StepError> {
        let held = self.held_since.get_or_insert_with(Instant::now);
        if self.awaited.is_empty()
            && self.state.leaves_its_turn(held)
            && self.state.prepare_to_leave().is_ok()
        {
            return Err(StepError::Leaves);
        }
        Ok(())
    }

    /// Leaves the session to another executor. The command in hand is not committed.
    pub(super) fn leave(mut self) {
        let began = Instant::now();
        while !self.awaited.is_empty() && began.elapsed() < ANSWERS_TIMEOUT {
            if self.see_to_waiters().is_err() {
                self.await_end();
            }
            std::thread::sleep(LOOK);
        }
        let Self { state, consumer, waker, .. } = self;
        drop(consumer);
        state.leave();
        waker.wake();
    }
}
