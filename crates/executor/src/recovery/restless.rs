//! For tests: sessions that go to their device's other context again and again, between any two
//! commands. What a program computes must not depend on where it runs.

use super::relocation::LOOK;
use crate::session::state::State;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, Reason, Verdict};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// After how many commands a session tries to leave.
const EVERY_VARIABLE: &str = "OPENMPS_TEST_RELOCATE_EVERY";
/// Longest wait for the end of what it has in flight, and for the keeper's answer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Counts one session's commands.
#[derive(Debug)]
pub(crate) struct Restless {
    every: NonZeroU32,
    commands: u32,
}

impl Restless {
    /// What the environment asks for; `None`: sessions stay where they are.
    pub(crate) fn from_environment() -> Option<Self> {
        let word = std::env::var_os(EVERY_VARIABLE)?;
        let every = word.to_str().and_then(|word| word.trim().parse().ok());
        if every.is_none() {
            log_server!("{EVERY_VARIABLE} is {word:?}, but can be a number of commands from 1 on");
        }
        every.map(|every| Self { every, commands: 0 })
    }

    /// Before a command: whether the session is to try.
    pub(crate) fn is_due(&mut self) -> bool {
        self.commands += 1;
        let is_due = self.commands >= self.every.get();
        if is_due {
            self.commands = 0;
        }
        is_due
    }
}

impl State {
    /// Between two commands: whether the session leaves for no reason.
    pub(crate) fn wanders(&mut self) -> bool {
        if self.hindrance().is_some() || !self.ends_work(LONGEST_WAIT) {
            return false;
        }
        self.tell_stuck(Reason::Test);
        let asked = Instant::now();
        while self.handle.verdict().is_none()
            && asked.elapsed() < LONGEST_WAIT
            && !self.handle.gives_up()
        {
            std::thread::sleep(LOOK / 10);
        }
        let verdict = self.handle.verdict();
        self.handle.take_verdict(None);
        if verdict.is_none() {
            self.shared.tell(&FromExecutor::Unstuck { session: self.handle.id });
        }
        if verdict != Some(Verdict::Leaves) {
            return false;
        }
        let prepared = self.prepare_to_leave();
        if let Err(hindrance) = prepared {
            log_server!("{} stays in its context, for {hindrance}", self.handle.label);
        }
        prepared.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_before_every_so_many_commands() {
        let mut restless = Restless { every: NonZeroU32::new(3).unwrap(), commands: 0 };
        let due: Vec<bool> = (0..7).map(|_| restless.is_due()).collect();
        assert_eq!(due, [false, false, true, false, false, true, false]);
    }
}
