//! How often something may happen in a second.

use crate::core::Now;

/// Counts the events of the present second.
#[derive(Debug)]
pub(super) struct RateLimit {
    per_second: u32,
    second: u64,
    taken: u32,
    dropped: u64,
}

/// Whether one more event is within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowed {
    Yes,
    /// Yes, the first one after so many that were not.
    YesAfter {
        dropped: u64,
    },
    No,
}

impl RateLimit {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second, second: 0, taken: 0, dropped: 0 }
    }

    /// One event at `now`.
    pub(super) fn take(&mut self, now: Now) -> Allowed {
        if now.as_secs() != self.second {
            (self.second, self.taken) = (now.as_secs(), 0);
        }
        if self.taken >= self.per_second {
            self.dropped += 1;
            return Allowed::No;
        }
        self.taken += 1;
        match std::mem::take(&mut self.dropped) {
            0 => Allowed::Yes,
            dropped => Allowed::YesAfter { dropped },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_told_in_the_next_second() {
        let mut limit = RateLimit::new(2);
        let at = Now::from_millis;
        let taken: Vec<Allowed> = [0, 10, 20, 30, 1000, 1001].map(|ms| limit.take(at(ms))).to_vec();
        let expected = [
            Allowed::Yes,
            Allowed::Yes,
            Allowed::No,
            Allowed::No,
            Allowed::YesAfter { dropped: 2 },
            Allowed::Yes,
        ];
        assert_eq!(taken, expected);
    }
}
