//! When a standby is started.
//!
//! It costs a context's memory, so clients have to have stayed for a while. And the making of a
//! context takes from those who are at work: on an H200 requests of eight PyTorch clients took up
//! to twice as long for 0.2 s (`docs/lab-notebook.md`). So it waits for a moment in which nobody
//! has posted anything for longer than it takes, but not for ever, not after a fault, which the
//! next one may follow, and not beside a long kernel, which others may have to leave.

use std::time::Duration;

/// Clients have been there for so long.
const WORTH_IT: Duration = Duration::from_secs(2);
/// Who has posted nothing for so long will post nothing for about as long again; a second was less
/// than programs that start together wait for each other.
const QUIET: Duration = Duration::from_secs(2);
/// After so long it comes, whoever is at work.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Faults come in close succession.
const AFTER_FAULT: Duration = Duration::from_secs(20);

/// What is known of a device that lacks a standby.
#[derive(Clone, Copy, Debug)]
pub struct Lacking {
    /// How long it has had clients.
    pub in_use: Duration,
    /// For how long none of them has posted anything; absent: one does.
    pub quiet: Option<Duration>,
    /// Since its last fault, if it had one.
    pub since_fault: Option<Duration>,
    /// A kernel has run for long, beside which others cannot load code.
    pub beside_long_kernel: bool,
}

impl Lacking {
    /// Whether clients have been there for long enough for a standby to be worth its memory.
    pub fn is_worth_it(&self) -> bool {
        self.in_use >= WORTH_IT
    }

    /// Whether a standby is to be started now.
    pub fn is_due(&self) -> bool {
        let is_quiet = self.quiet.is_some_and(|quiet| quiet >= QUIET);
        let may_fail_again = self.since_fault.is_some_and(|since| since < AFTER_FAULT);
        self.beside_long_kernel
            || self.is_worth_it() && (is_quiet || may_fail_again || self.in_use >= LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_waits_for_a_quiet_moment_but_not_for_ever_and_not_after_a_fault() {
        let seconds = Duration::from_secs;
        let is_due = |in_use, quiet: Option<u64>, since_fault: Option<u64>| {
            let (quiet, since_fault) = (quiet.map(seconds), since_fault.map(seconds));
            let in_use = seconds(in_use);
            Lacking { in_use, quiet, since_fault, beside_long_kernel: false }.is_due()
        };
        assert!(!is_due(1, Some(2), Some(0)), "clients may be gone again at once");
        assert!(is_due(2, Some(2), None) && !is_due(9, Some(1), None) && !is_due(9, None, None));
        assert!(is_due(10, None, None), "nobody ever rests");
        assert!(is_due(2, None, Some(19)) && !is_due(2, None, Some(20)));
        let new = Lacking {
            in_use: seconds(0),
            quiet: None,
            since_fault: None,
            beside_long_kernel: true,
        };
        assert!(new.is_due(), "who comes next would wait for it");
    }
}
