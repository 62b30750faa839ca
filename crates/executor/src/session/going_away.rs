//! When a session's thread leaves for another device ([`crate::recovery::moving_away`]): between
//! two commands, once what it has in flight has ended.

use super::{Session, StepError};
use crate::recovery::moving_away::StayReason;
use executor_link::messages::Baggage;
use policy::faults::hindrance::Hindrance;
use std::time::{Duration, Instant};

/// A session that is to go takes no command for so long, while what it has in flight ends.
const RESTS_WITHIN: Duration = Duration::from_secs(2);

/// What comes of a look at whether the session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Going {
    /// It need not, or cannot yet: it takes commands.
    NotNow,
    /// What it has in flight is to end first.
    Rests,
}

impl Session {
    /// Leaves for another device, if the session is to and can.
    #[cold]
    pub(super) fn goes_away(&mut self) -> Result<Going, StepError> {
        match self.state.relocation.away {
            None => Ok(Going::NotNow),
            Some(asked) => self.try_to_go(asked),
        }
    }

    fn try_to_go(&mut self, asked: Instant) -> Result<Going, StepError> {
        // What waits there was taken, and belongs to the commands so far.
        self.submit_batch()?;
        self.check_context()?;
        let is_late = asked.elapsed() >= RESTS_WITHIN;
        // Handles of what it shares say on which device that is.
        match self.state.hindrance_apart() {
            Some(hindrance) if hindrance.is_momentary() && !is_late => return Ok(Going::NotNow),
            Some(hindrance) => return Ok(self.stay(&self.state.reason_to_stay(hindrance))),
            None => {}
        }
        if self.state.partitions.have_resources() {
            return Ok(self.stay(&StayReason::Multiprocessors));
        }
        if !self.awaited.is_empty() || self.state.has_work_in_driver() {
            return Ok(match is_late {
                true => self.stay(&StayReason::Hindrance(Hindrance::WorkInFlight)),
                false => Going::Rests,
            });
        }
        let prepared = match self.state.prepare_to_leave() {
            Err(hindrance) if hindrance.is_momentary() && !is_late => return Ok(Going::NotNow),
            prepared => prepared.map_err(|hindrance| self.state.reason_to_stay(hindrance)),
        };
        match prepared.and_then(|()| self.state.copy_away()) {
            Ok(()) => {
                self.state.relocation.baggage = Baggage::Copies;
                Err(StepError::Leaves)
            }
            Err(reason) => {
                self.check_context()?;
                Ok(self.stay(&reason))
            }
        }
    }

    fn stay(&mut self, reason: &StayReason) -> Going {
        self.state.stay(reason);
        Going::NotNow
    }
}
