//! How long to spin before sleeping.
//!
//! Spinning saves the two to fifty microseconds of a futex round trip when the answer is near, and takes a core from whoever
//! computes it when it is not. So the time allowed depends on how many cores there are, grows when spinning met its
//! event, and shrinks when it did not. The bounds are measured choices, not promises.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest time that one wait may spin on this machine.
pub fn longest() -> Duration {
    static LONGEST: OnceLock<Duration> = OnceLock::new();
    *LONGEST.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Duration::from_micros(longest_us(cores))
    })
}

fn longest_us(cores: usize) -> u64 {
    match cores {
        0 | 1 => 0,
        2 | 3 => 20,
        4..=7 => 60,
        _ => 200,
    }
}

/// One waiter's memory of whether spinning paid.
#[derive(Clone, Debug)]
pub struct Spin {
    limit: Duration,
    least: Duration,
    most: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Self::with_longest(longest())
    }
}

impl Spin {
    /// Spins never longer than `most`, and after many failures a sixteenth of it.
    pub fn with_longest(most: Duration) -> Self {
        Self { limit: most, least: most / 16, most }
    }

    /// Never spins.
    pub fn never() -> Self {
        Self::with_longest(Duration::ZERO)
    }

    /// What was not met by spinning came `waited` after the wait began, most of it slept. Where the longest spin would have met it, the next
    /// wait spins longer: without this a waiter whose limit has once fallen below its usual wait would sleep for ever after.
    pub fn came_after(&mut self, waited: Duration) {
        if waited <= self.most {
            self.limit = (self.limit * 4).min(self.most);
        }
    }

    /// Spins until `ready` or until this waiter's present limit; says whether it was `ready`.
    pub fn until(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if cfg!(feature = "shuttle") || self.most.is_zero() {
            return false;
        }
        let started = Instant::now();
        loop {
            for _ in 0..32 {
                core::hint::spin_loop();
                if ready() {
                    self.limit = (self.limit * 2).min(self.most);
                    return true;
                }
            }
            if started.elapsed() >= self.limit {
                self.limit = (self.limit / 2).max(self.least);
                return ready();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_core_never_spins() {
        assert_eq!(longest_us(1), 0);
        let mut looks = 0;
        let met = Spin::never().until(|| {
            looks += 1;
            false
        });
        assert!(!met);
        assert_eq!(looks, 1);
    }

    #[test]
    fn a_limit_below_the_usual_wait_recovers() {
        let most = Duration::from_micros(16);
        let mut spin = Spin::with_longest(most);
        for _ in 0..10 {
            assert!(!spin.until(|| false));
            spin.came_after(most);
        }
        assert!(spin.limit >= most / 2, "{spin:?}");
        for _ in 0..10 {
            assert!(!spin.until(|| false));
            spin.came_after(2 * most);
        }
        assert_eq!(spin.limit, Duration::from_micros(1));
    }

    #[test]
    fn the_limit_shrinks_on_failure_to_a_floor_and_grows_on_success() {
        let mut spin = Spin::with_longest(Duration::from_micros(16));
        for _ in 0..10 {
            assert!(!spin.until(|| false));
        }
        assert_eq!(spin.limit, Duration::from_micros(1));
        for _ in 0..10 {
            let mut looks = 0;
            assert!(spin.until(|| {
                looks += 1;
                looks > 2
            }));
        }
        assert_eq!(spin.limit, Duration::from_micros(16));
    }
}
