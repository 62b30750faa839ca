//! What executors' drivers write to standard error: the text of device assertions, which natively
//! is the program's own, and whatever else a driver says.
//!
//! The file outlives the executor. What an assertion says goes to the client that is told of the
//! fault, which writes it where the program's errors go. Everything else goes to the log.

use crate::Keeper;
use cuda_abi::types::CUresult;
use executor_link::captured::Captured;
use executor_link::log::log_server;
use std::time::{Duration, Instant};

/// Between two looks at what drivers say while nothing fails.
const LOOK: Duration = Duration::from_secs(1);
/// More lines at a time are left out of the log.
const MOST_LINES: usize = 64;

/// What an executor's driver has said since it was last heard.
pub(crate) struct Said {
    pid: u32,
    text: String,
}

impl Said {
    pub(crate) fn take(pid: u32, said: &mut Captured) -> Self {
        let text = said.take().unwrap_or_else(|error| {
            log_server!("What the driver of executor {pid} says cannot be read: {error}");
            Vec::new()
        });
        Self { pid, text: String::from_utf8_lossy(&text).into_owned() }
    }

    /// Takes out what assertions say:
    /// `FILE:LINE: FUNCTION: block: [X,Y,Z], thread: [X,Y,Z] Assertion `TEXT` failed.`, a line for
    /// each thread.
    fn take_assertions(&mut self) -> String {
        let is_assertion = |line: &&str| line.contains(" Assertion `") && line.ends_with("failed.");
        let (assertions, others): (Vec<&str>, Vec<&str>) =
            self.text.lines().partition(is_assertion);
        let assertions = assertions.into_iter().flat_map(|line| [line, "\n"]).collect();
        self.text = others.join("\n");
        assertions
    }

    pub(crate) fn log(&self) {
        for line in self.text.lines().filter(|line| !line.is_empty()).take(MOST_LINES) {
            log_server!("The driver of executor {}: {line}", self.pid);
        }
    }
}

impl Keeper {
    /// After an executor's end, before those who have lost their work are told. If all who are told
    /// of a failed assertion are of one owner, they are told what it says, too; others are not to
    /// read each other's texts.
    pub(crate) fn pass_on(&self, mut said: Said, lost: &[(u64, CUresult)]) {
        let of_assertion = lost.iter().filter(|(_, code)| *code == CUresult::ERROR_ASSERT);
        let told: Vec<_> = of_assertion.filter_map(|(id, _)| self.sessions.get(id)).collect();
        if let Some(first) = told.first()
            && told.iter().all(|session| session.owner == first.owner)
        {
            let assertions = said.take_assertions();
            told.iter().for_each(|session| session.files.leave_last_words(&assertions));
        }
        said.log();
    }

    /// From time to time: logs what drivers say.
    pub(crate) fn hear_drivers(&mut self) {
        if self.heard_drivers.elapsed() < LOOK {
            return;
        }
        self.heard_drivers = Instant::now();
        for device in &mut self.devices {
            for executor in device.executors.values_mut() {
                executor.process.log_said();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_are_told_from_other_lines() {
        let one = "a.cu:3: void f(): block: [0,0,0], thread: [1,0,0] Assertion `x` failed.";
        let text = format!("a warning\n{one}\n{one}\nthe end\n");
        let mut said = Said { pid: 1, text };
        assert_eq!(said.take_assertions(), format!("{one}\n{one}\n"));
        assert_eq!(said.text, "a warning\nthe end");
        assert_eq!(said.take_assertions(), "");
    }
}
