//! Waits whose length is known beforehand, nearly: those for long copies of pinned memory.
//!
//! A thread that sleeps for a completion is woken by the executor's monitor, which looks the more
//! rarely the longer the wait has lasted: a copy of 64 MiB was noticed 7 per cent late on an H200.
//! A device copies at one rate, so a thread sleeps for most of the time that its last copies let
//! expect, and looks for the end itself.

use link::spin::{self, Cores};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shorter copies end while a waiter spins anyway.
const LEAST_BYTES: u64 = 4 << 20;
/// What is expected of a device of which nothing is known, in bytes per microsecond: a fast one, so
/// that the first wait ends early rather than late.
const FIRST_RATE: u64 = 60_000;
/// A sleep may end so much later than it should.
const OVERSLEPT: Duration = Duration::from_micros(80);
/// Between two looks at whether the session is still there.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// How fast copies go between the host and a device.
#[derive(Debug)]
pub(crate) struct CopyRate {
    bytes_per_us: AtomicU64,
}

impl Default for CopyRate {
    fn default() -> Self {
        Self { bytes_per_us: AtomicU64::new(FIRST_RATE) }
    }
}

impl CopyRate {
    /// What a copy will take; `None` where it is not worth knowing.
    pub(crate) fn expected(&self, size_bytes: u64) -> Option<Duration> {
        // Relaxed, here and below: a guess.
        let rate = self.bytes_per_us.load(Ordering::Relaxed).max(1);
        (size_bytes >= LEAST_BYTES).then(|| Duration::from_micros(size_bytes / rate))
    }

    /// What one has taken, other work of its stream included: nearer to the faster ones, which had
    /// nothing to wait for. Who slept too long does not know how long it took, and expects less the
    /// next time: else a rate that was once too low would stay so.
    pub(crate) fn learn(&self, size_bytes: u64, took: Duration, woke: Woke) {
        let seen = size_bytes / u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let known = self.bytes_per_us.load(Ordering::Relaxed);
        if woke == Woke::Late {
            let next = known.max(seen).saturating_add(known / 4);
            return self.bytes_per_us.store(next, Ordering::Relaxed);
        }
        let weight = if seen > known { 2 } else { 8 };
        let next = (known * (weight - 1) + seen) / weight;
        self.bytes_per_us.store(next, Ordering::Relaxed);
    }
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woke {
    /// It was ready by then.
    Late,
    /// It was not, or nobody slept.
    InTime,
}

/// Returns when `ready`, or when it has taken a good part longer than expected, or, where cores are
/// wanted, when it should soon be ready; tells `nearly` that it should.
pub(crate) fn until(
    ready: impl Fn() -> bool,
    expected: Duration,
    cores: impl FnOnce() -> Cores,
    nearly: impl FnOnce(),
) -> Woke {
    let began = Instant::now();
    let wake_after = (expected - expected / 16).saturating_sub(OVERSLEPT);
    let mut woke = Woke::InTime;
    loop {
        if ready() {
            return woke;
        }
        let left = wake_after.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LONGEST_SLEEP));
        woke = Woke::Late;
    }
    nearly();
    if cores() == Cores::Wanted {
        return Woke::InTime;
    }
    // Machines with few cores spin for little.
    let spin = (expected / 8 + 2 * OVERSLEPT).min(spin::longest() * 10);
    let spin_until = began.elapsed() + spin;
    while !ready() && began.elapsed() < spin_until {
        for _ in 0..32 {
            core::hint::spin_loop();
        }
    }
    Woke::InTime
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_learnt_and_one_slow_copy_hardly_counts() {
        let rate = CopyRate::default();
        assert_eq!(rate.expected(1 << 20), None);
        for _ in 0..64 {
            rate.learn(50_000_000, Duration::from_millis(1), Woke::InTime);
        }
        let expected = rate.expected(50_000_000).unwrap();
        assert!(expected.abs_diff(Duration::from_millis(1)) < Duration::from_micros(2));
        rate.learn(50_000_000, Duration::from_secs(1), Woke::InTime);
        assert!(rate.expected(50_000_000).unwrap() < Duration::from_micros(1200));
        rate.learn(50_000_000, Duration::ZERO, Woke::InTime);
        assert!(rate.expected(u64::MAX).is_some());
    }

    #[test]
    fn who_sleeps_too_long_sleeps_less_and_less() {
        let rate = CopyRate::default();
        for _ in 0..64 {
            rate.learn(50_000_000, Duration::from_millis(10), Woke::InTime);
        }
        // It takes a millisecond now, but nobody looks before nine have passed.
        for _ in 0..16 {
            let expected = rate.expected(50_000_000).unwrap();
            if expected > Duration::from_millis(1) {
                rate.learn(50_000_000, expected, Woke::Late);
            }
        }
        assert!(rate.expected(50_000_000).unwrap() <= Duration::from_millis(1));
    }

    #[test]
    fn what_is_ready_is_not_waited_for_and_what_never_is_ends() {
        let looks = std::cell::Cell::new(0);
        let woke = until(
            || {
                looks.set(looks.get() + 1);
                true
            },
            Duration::from_secs(3600),
            || Cores::Spare,
            || panic!("it was ready"),
        );
        assert_eq!((looks.get(), woke), (1, Woke::InTime));
        let told = std::cell::Cell::new(0);
        let tell = || told.set(told.get() + 1);
        let _ = until(|| false, Duration::from_micros(100), || Cores::Spare, tell);
        let _ = until(|| false, Duration::from_micros(100), || Cores::Wanted, tell);
        assert_eq!(told.get(), 2);
    }
}
