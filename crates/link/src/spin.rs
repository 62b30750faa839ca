//! How long to spin before sleeping.
//!
//! Spinning saves the two to fifty microseconds of a futex round trip when the answer is near, and takes a core from whoever
//! computes it when it is not. So the time allowed depends on how many cores there are, grows when spinning met its
//! event, and shrinks when it did not. A spin of more than some microseconds gives the core to others in between, which costs nothing where nobody
//! wants it: clients and the threads that serve them may be more than there are cores. Where one of the others keeps it, the spin ends. The bounds are
//! measured choices, not promises.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// From then on a spin lets others have the core in between.
const POLITE_AFTER: Duration = Duration::from_micros(5);
/// Whoever got it and kept it for so long computes: it is better to sleep, since the end of a sleep interrupts it.
const TAKEN: Duration = Duration::from_micros(50);

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

/// A sleep that is to end at a certain time ends so much earlier: systems end them late.
const LATE: Duration = Duration::from_micros(70);

/// One waiter's memory of whether spinning paid, and of how long its waits are that are too long for it.
#[derive(Clone, Debug)]
pub struct Spin {
    limit: Duration,
    least: Duration,
    most: Duration,
    /// What long waits took on average, and by how much they differ from that.
    usual: Duration,
    differ: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Self::with_longest(longest())
    }
}

impl Spin {
    /// Spins never longer than `most`, and after many failures a sixteenth of it.
    pub fn with_longest(most: Duration) -> Self {
        let (usual, differ) = (Duration::ZERO, Duration::MAX);
        Self { limit: most, least: most / 16, most, usual, differ }
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

    /// A wait that was too long for spinning took so long.
    pub fn took(&mut self, waited: Duration) {
        let off = waited.abs_diff(self.usual);
        self.differ = match self.differ {
            Duration::MAX => off,
            before => (before * 3 + off) / 4,
        };
        self.usual = (self.usual * 3 + waited) / 4;
    }

    /// How long to sleep, after `waited`, until spinning is likely to meet the event: where waits longer than any spin take much the same time. The last part
    /// of such a wait is better spent awake, since nobody wakes a sleeper as fast.
    pub fn nap(&self, waited: Duration) -> Option<Duration> {
        let early = self.differ.saturating_mul(2).saturating_add(LATE);
        if early > self.most || self.usual <= self.most {
            return None;
        }
        self.usual.checked_sub(early)?.checked_sub(waited).filter(|nap| *nap > LATE)
    }

    /// A nap lasted to its end, and what it was to precede had come: nobody knows how long ago, so what waits take is to be learned again.
    pub fn overslept(&mut self) {
        (self.usual, self.differ) = (Duration::ZERO, Duration::MAX);
    }

    /// After a nap: spins as long as may be; says whether it was `ready`. What it teaches is in [`Self::took`].
    pub fn after_nap(&self, ready: impl FnMut() -> bool) -> bool {
        Self::with_longest(self.most).until(ready)
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
            let before = started.elapsed();
            if before >= self.limit {
                break;
            }
            if before >= POLITE_AFTER {
                std::thread::yield_now();
                if started.elapsed() - before >= TAKEN {
                    break;
                }
            }
        }
        self.limit = (self.limit / 2).max(self.least);
        ready()
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
    fn waits_of_one_length_are_slept_through_until_shortly_before_their_end() {
        let mut spin = Spin::with_longest(Duration::from_micros(200));
        let usual = Duration::from_micros(1000);
        assert_eq!(spin.nap(Duration::ZERO), None);
        for _ in 0..40 {
            spin.took(usual);
        }
        let nap = spin.nap(Duration::from_micros(200)).unwrap();
        assert!(nap > usual / 2 && nap + Duration::from_micros(200) + LATE <= usual, "{nap:?}");
        assert_eq!(spin.nap(usual), None, "it is late already");
        spin.overslept();
        assert_eq!(spin.nap(Duration::ZERO), None, "it may have ended long before");
        for _ in 0..40 {
            spin.took(Duration::from_micros(190));
        }
        assert_eq!(spin.nap(Duration::ZERO), None, "a spin is long enough");
        for _ in 0..40 {
            spin.took(usual * 3);
            spin.took(usual);
        }
        assert_eq!(spin.nap(Duration::ZERO), None, "nobody knows when it ends");
        assert_eq!(Spin::never().nap(Duration::ZERO), None);
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
