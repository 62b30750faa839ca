//! How much of what somebody causes may be written to a log.

use std::time::Instant;

/// A limit of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    /// At once.
    pub(super) burst_bytes: u64,
    /// In the long run.
    pub(super) bytes_per_s: u64,
}

/// What may still be written.
#[derive(Debug)]
pub(super) struct Allowance {
    rate: Rate,
    left_bytes: u64,
    at: Instant,
    dropped: u64,
}

impl Allowance {
    /// All of it, from now on.
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, left_bytes: rate.burst_bytes, at: Instant::now(), dropped: 0 }
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        let more = (passed.as_millis() as u64).saturating_mul(self.rate.bytes_per_s) / 1000;
        // Too short a time counts with the next one.
        if more > 0 {
            self.left_bytes = self.left_bytes.saturating_add(more).min(self.rate.burst_bytes);
            self.at = now;
        }
    }

    /// Whether there is room for so many bytes.
    pub(super) fn has(&mut self, bytes: u64, now: Instant) -> bool {
        self.refill(now);
        self.left_bytes >= bytes
    }

    /// Takes so many, if there is room for them.
    pub(super) fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let has = self.has(bytes, now);
        if has {
            self.left_bytes -= bytes;
        }
        has
    }

    /// Counts a line that is left out.
    pub(super) fn drop_line(&mut self) {
        self.dropped += 1;
    }

    /// Lines that were left out and have not been told of.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// They are told of.
    pub(super) fn told(&mut self) {
        self.dropped = 0;
    }

    /// Whether there is nothing to remember.
    pub(super) fn is_whole(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left_bytes == self.rate.burst_bytes && self.dropped == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const RATE: Rate = Rate { burst_bytes: 64 << 10, bytes_per_s: 1 << 10 };

    #[test]
    fn a_flood_is_cut_and_comes_back_with_time() {
        let mut allowance = Allowance::new(RATE);
        let start = allowance.at;
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(allowance.take(RATE.burst_bytes, start) && allowance.is_whole(at(64)));
        assert!(allowance.take(RATE.burst_bytes - 1, at(64)));
        assert!(!allowance.take(2, at(64)) && !allowance.take(2, at(64)));
        allowance.drop_line();
        assert!(allowance.take(RATE.bytes_per_s, at(65)) && !allowance.is_whole(at(1000)));
        assert_eq!(allowance.dropped(), 1);
        allowance.told();
        assert!(allowance.is_whole(at(1000)));
    }
}
