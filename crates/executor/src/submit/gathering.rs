//! How long launches wait for those behind them: while the device is at work on what was submitted
//! before, and as long as they come one behind the other.
//!
//! A client posts a launch in 0.3 us, a submission takes 2 us and more: of a burst of twenty the
//! first is submitted, since it finds the device idle, and when that is done some five are there,
//! then ten, then the rest. Each submission is a turn of the driver's lock, which clients queue
//! for. The first kernel alone keeps the device busy for longer than it takes to post the others,
//! so that those wait and go together. By estimate: what the samples say that its kernels take at
//! least.

use super::nearness::{Look, Nearness};
use std::time::{Duration, Instant};

/// Between two launches of a burst.
const LONGEST_GAP: Duration = Duration::from_nanos(1000);
/// Launches wait for those behind them for so long, at most.
const LONGEST: Duration = Duration::from_micros(20);

/// What one session's bursts are like.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// The stream of the last launches, and until when the device is at work on them.
    ahead: Option<(u32, Instant)>,
    nearness: Nearness,
    /// What waits has waited since then for what comes.
    began: Option<Instant>,
}

impl Gathering {
    /// Whether more came whenever it was looked for lately.
    pub(super) fn are_bursts(&self) -> bool {
        self.nearness.found_the_last()
    }

    pub(super) fn submitted(&mut self, slot: u32, takes: Duration) {
        let now = Instant::now();
        let before = self.ahead.filter(|&(of, until)| of == slot && until > now);
        let (_, begins) = before.unwrap_or((slot, now));
        self.ahead = Some((slot, begins + takes));
        self.began = None;
    }

    /// A burst was submitted with the signal that its client waits for.
    pub(crate) fn end(&mut self) {
        self.ahead = None;
        self.began = None;
    }

    /// Whether the device is at work on launches of this stream for a while.
    pub(super) fn is_ahead(&self, slot: u32, now: Instant) -> bool {
        self.ahead.is_some_and(|(of, until)| of == slot && until > now)
    }

    /// Whether something is posted behind what waits, on a stream, before the device has nothing
    /// more to do there.
    pub(super) fn look(&mut self, slot: u32, now: Instant, is_posted: impl Fn() -> bool) -> bool {
        let began = *self.began.get_or_insert(now);
        if !self.is_ahead(slot, now) || now - began >= LONGEST || !self.nearness.is_worth_a_look() {
            return false;
        }
        Nearness::look_for(LONGEST_GAP, &is_posted);
        let is_near = is_posted();
        self.nearness.learn(if is_near { Look::Found } else { Look::InVain });
        is_near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn launches_wait_while_the_device_is_at_work_and_more_comes() {
        // All at one moment, however long the test's thread is kept from running.
        let now = Instant::now();
        let mut gathering = Gathering::default();
        assert!(!gathering.look(0, now, || true), "nothing was submitted");
        gathering.submitted(0, LONG);
        assert!(!gathering.look(1, now, || true), "another stream's");
        assert!(gathering.look(0, now, || true) && gathering.are_bursts());
        assert!(!gathering.look(0, now, || false) && !gathering.are_bursts(), "nothing came");
        assert!((0..4).any(|_| gathering.look(0, now, || true)));
        assert!(!gathering.look(0, now + LONGEST, || true), "they have waited for long");
        gathering.submitted(0, LONG);
        assert!(gathering.look(0, now, || true));
        gathering.submitted(1, Duration::ZERO);
        assert!(!gathering.look(1, Instant::now(), || true), "the device has nothing to do");
    }

    #[test]
    fn what_is_submitted_behind_work_begins_after_it() {
        let mut gathering = Gathering::default();
        gathering.submitted(0, LONG);
        gathering.submitted(0, LONG);
        assert!(gathering.is_ahead(0, Instant::now() + LONG));
        gathering.submitted(1, LONG);
        assert!(!gathering.is_ahead(0, Instant::now()), "the last launches' stream is known");
    }
}
