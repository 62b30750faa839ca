//! Events of the executor that the program has destroyed, kept for the next ones that it makes.
//!
//! Programs make and destroy events around single pieces of work. An event that was recorded before
//! serves a new one as well as a fresh one: whether the new one was recorded, and where, only this
//! process knows. Not kept are events that other processes or executable graphs name.

use std::sync::{Mutex, PoisonError};

/// More are destroyed: they are the driver's memory.
const MOST: usize = 256;

/// What the executor's event can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    Enabled,
    Disabled,
}

/// Numbers of events, by what they can do.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents {
    timed: Mutex<Vec<u32>>,
    untimed: Mutex<Vec<u32>>,
}

impl SpareEvents {
    fn of(&self, timing: Timing) -> &Mutex<Vec<u32>> {
        match timing {
            Timing::Enabled => &self.timed,
            Timing::Disabled => &self.untimed,
        }
    }

    /// One to be used again.
    pub(crate) fn take(&self, timing: Timing) -> Option<u32> {
        self.of(timing).lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Keeps one that no work will name any more, other than what was posted; gives it back when
    /// there are enough.
    pub(crate) fn keep(&self, timing: Timing, number: u32) -> Result<(), u32> {
        let mut spare = self.of(timing).lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() >= MOST {
            return Err(number);
        }
        spare.push(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_serve_again_for_what_they_can_do() {
        let spare = SpareEvents::default();
        spare.keep(Timing::Disabled, 7).unwrap();
        assert_eq!(spare.take(Timing::Enabled), None);
        assert_eq!(spare.take(Timing::Disabled), Some(7));
        assert_eq!(spare.take(Timing::Disabled), None);
        for number in 0..MOST as u32 {
            spare.keep(Timing::Enabled, number).unwrap();
        }
        assert_eq!(spare.keep(Timing::Enabled, 1000), Err(1000));
    }
}
