//! Whether a client waits for a launch as soon as it has posted it: then the signal by which it
//! waits can go to the device with the launch.
//!
//! The signal of a client that waits comes some hundred nanoseconds behind the launch, when the
//! session's thread has taken the launch already. To look for it that long is worth it, if it
//! comes; where it did not come the last times, only one launch in more and more is looked behind.
//! In company what is spared is a submission that queues for the driver's lock behind the others',
//! so there it is worth a longer look, at a client that may share its core.

use link::ring::Command;
use link::wire::command::{NO_CALL, Opcode, Signal};
use std::time::{Duration, Instant};

/// How long to look for a signal behind a launch: a client that waits has posted it by then.
const ALONE: Duration = Duration::from_nanos(500);
/// The same where others queue for the driver.
const IN_COMPANY: Duration = Duration::from_nanos(1500);
/// Looks between two at the clock.
const LOOKS: u32 = 4;
/// After so many looks in vain, one launch in 256 is worth one.
const MOST_MISSES: u32 = 8;

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// What was looked for is there.
    Found,
    InVain,
}

/// What one session's launches have taught.
#[derive(Debug, Default)]
pub(crate) struct Nearness {
    /// Looks in vain, one after the other.
    misses: u32,
    /// Launches without a look until the next one.
    skipped: u32,
    looked: bool,
    #[cfg(test)]
    looks: u32,
}

impl Nearness {
    /// Looks for something posted, for as long as a signal may take. `busy` sessions have work on
    /// the device.
    pub(crate) fn look(busy: u32, is_posted: impl Fn() -> bool) {
        Self::look_for(if busy > 1 { IN_COMPANY } else { ALONE }, is_posted);
    }

    /// The same for as long as this.
    pub(crate) fn look_for(limit: Duration, is_posted: impl Fn() -> bool) {
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if is_posted() {
                    return;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= limit {
                return;
            }
        }
    }

    /// Whether to look behind the next launch.
    pub(crate) fn is_worth_a_look(&mut self) -> bool {
        let is_due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_due
    }

    /// Whether there has been a look, and the last one was not in vain.
    pub(crate) fn found_the_last(&self) -> bool {
        self.looked && self.misses == 0
    }

    /// How often there has been a look.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u32 {
        self.looks
    }

    /// After a look.
    pub(crate) fn learn(&mut self, look: Look) {
        self.looked = true;
        #[cfg(test)]
        {
            self.looks += 1;
        }
        self.misses = match look {
            Look::Found => 0,
            Look::InVain => (self.misses + 1).min(MOST_MISSES),
        };
        self.skipped = (1 << self.misses) - 1;
    }
}

/// A posted signal.
pub(crate) fn signal_of(command: &Command<'_>) -> Option<Signal> {
    let is_posted =
        command.header.opcode == Opcode::Signal as u16 && command.header.call_slot == NO_CALL;
    if is_posted { command.parse::<Signal>().map(|(signal, _)| signal) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_a_signal_brings_them_back() {
        let mut nearness = Nearness::default();
        let mut looks = 0;
        for _ in 0..10_000 {
            if nearness.is_worth_a_look() {
                looks += 1;
                nearness.learn(Look::InVain);
            }
        }
        assert!(looks < 60, "{looks}");
        while !nearness.is_worth_a_look() {}
        nearness.learn(Look::Found);
        assert!(nearness.is_worth_a_look());
    }
}
