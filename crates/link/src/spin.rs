//! How long to spin before sleeping.
//!
//! Spinning saves the two to fifty microseconds of a futex round trip when the answer is near, and
//! takes a core from whoever computes it when it is not. So the time allowed depends on how many
//! cores there are, grows when spinning met its event, and shrinks when it did not. A spin of more
//! than some microseconds gives the core to others in between, which costs nothing where nobody
//! wants it: clients and the threads that serve them may be more than there are cores. Where one of
//! the others keeps it, the spin ends. Where more clients are at work than there are cores nobody
//! spins ([`Cores::Wanted`]).
//!
//! Who sleeps is woken late, so how long a wait took that was slept through does not say whether a
//! spin would have met its end. It is tried now and then, and the more rarely the more often it was
//! in vain: else a waiter that once sleeps, and is woken late each time, would sleep for ever. The
//! bounds are measured choices, not promises.
//!
//! A spin of this length is right where each client may have its core or two. Where each may have
//! several, one that is woken late loses more than a spin costs ([`Cores::Plenty`]).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// From then on a spin lets others have the core in between.
const POLITE_AFTER: Duration = Duration::from_micros(5);
/// Whoever got it and kept it for so long computes: it is better to sleep, since the end of a sleep
/// interrupts it.
const TAKEN: Duration = Duration::from_micros(50);
/// Longest spin where others want the core.
const WANTED: Duration = Duration::from_micros(2);

/// Longest time that one wait may spin on this machine.
pub fn longest() -> Duration {
    Duration::from_micros(longest_us(cores()))
}

/// Cores that this process may use.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

fn longest_us(cores: usize) -> u64 {
    match cores {
        0 | 1 => 0,
        2 | 3 => 20,
        4..=7 => 60,
        _ => 200,
    }
}

/// A sleep that is to end at a certain time ends so much earlier, at least: systems end them late.
const LATE: Duration = Duration::from_micros(70);
/// After so many naps in vain what waits take has changed.
const MOST_OVERSLEEPS: u32 = 6;
/// A wait that was slept through may have been so many times shorter than it took to find its end.
const DOUBTED: u32 = 4;
/// Doubted waits between two trials, at most.
const RAREST: u32 = 64;

/// Where there are cores in plenty a spin may last so many times longer: as natively, where who
/// waits spins as long as it takes.
const PLENTY: u32 = 10;

/// Whether there are cores for threads that only look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// Several for each client that has work.
    Plenty,
    /// Nobody waits for the core of one that spins.
    #[default]
    Spare,
    /// More threads have work than there are cores: who waits sleeps.
    Wanted,
}

/// One waiter's memory of whether spinning paid, and of how long its waits are that are too long
/// for it.
#[derive(Clone, Debug)]
pub struct Spin {
    limit: Duration,
    least: Duration,
    /// Where cores are spare; see [`Spin::most`].
    spare_most: Duration,
    /// What long waits take, by how much they differ from that, and by how much they end before.
    usual: Duration,
    differ: Duration,
    early: Duration,
    /// By how much naps end late here, and whether the last one was later than that.
    late: Duration,
    was_late: bool,
    /// Naps, one after the other, that did not end before what they were to precede.
    oversleeps: u32,
    /// Doubted waits since the last trial, and how many make the next one.
    doubts: u32,
    rarity: u32,
    /// The next spin, or the last one, is a trial.
    trial: bool,
    /// The next spin is for something that was announced.
    announced: bool,
    cores: Cores,
}

impl Default for Spin {
    fn default() -> Self {
        Self::with_longest(longest())
    }
}

impl Spin {
    /// Spins never longer than `most`, and after many failures a sixteenth of it.
    pub fn with_longest(most: Duration) -> Self {
        Self {
            limit: most,
            least: most / 16,
            spare_most: most,
            usual: Duration::ZERO,
            differ: Duration::MAX,
            early: Duration::ZERO,
            late: LATE,
            was_late: false,
            oversleeps: 0,
            doubts: 0,
            rarity: 1,
            trial: false,
            announced: false,
            cores: Cores::Spare,
        }
    }

    /// The longest spin now.
    fn most(&self) -> Duration {
        match self.cores {
            Cores::Plenty => self.spare_most * PLENTY,
            Cores::Spare | Cores::Wanted => self.spare_most,
        }
    }

    /// Never spins.
    pub fn never() -> Self {
        Self::with_longest(Duration::ZERO)
    }

    /// What was not met by spinning was seen `waited` after the wait began, most of it slept. Where
    /// the longest spin would have met it, the next wait spins as long: without this a waiter whose
    /// limit has once fallen below its usual wait would sleep for ever after. Where it might have,
    /// that is tried.
    pub fn came_after(&mut self, waited: Duration) {
        // Where cores are wanted all waits are long.
        if self.cores == Cores::Wanted {
            return;
        }
        if waited <= self.most() {
            self.limit = (self.limit * 4).max(waited).min(self.most());
        } else if waited <= self.most() * DOUBTED {
            self.doubts += 1;
            if self.doubts >= self.rarity {
                self.doubts = 0;
                self.rarity = (self.rarity * 2).min(RAREST);
                self.limit = self.most();
                self.trial = true;
            }
        }
    }

    /// Somebody woke this waiter for what is about to come: the next spin is as long as may be, and
    /// where it is in vain it teaches nothing.
    pub fn announced(&mut self) {
        self.announced = true;
    }

    #[cfg(all(test, not(feature = "loom")))]
    pub(crate) fn is_announced(&self) -> bool {
        self.announced
    }

    /// A wait that was too long for spinning took so long. Two alike say what is usual. Who was
    /// woken late has measured too much, so that a shorter wait counts for more than a longer one.
    pub fn took(&mut self, waited: Duration) {
        // After naps that were too long, this is the first that was measured.
        if std::mem::take(&mut self.oversleeps) > 0 || self.usual.is_zero() {
            self.usual = waited;
            return;
        }
        let off = waited.abs_diff(self.usual);
        // One that is far off is no worse than one that no spin would have met.
        let counted = off.min(self.most() / 2);
        self.differ = match self.differ {
            Duration::MAX => counted,
            before => (before * 3 + counted) / 4,
        };
        let is_early = waited < self.usual;
        self.early = (self.early * 3 + if is_early { off } else { Duration::ZERO }) / 4;
        self.usual = match is_early {
            true => waited,
            false if self.is_regular() => self.usual + counted / 8,
            false => self.usual + off / 4,
        };
    }

    /// Whether a spin around the usual time would meet what is waited for.
    fn is_regular(&self) -> bool {
        self.differ.saturating_mul(2).saturating_add(self.late) <= self.most()
    }

    /// How long to sleep, after `waited`, until spinning is likely to meet the event: where waits
    /// longer than any spin take much the same time. The last part of such a wait is better spent
    /// awake, since nobody wakes a sleeper as fast.
    pub fn nap(&self, waited: Duration) -> Option<Duration> {
        let early = self.early * 2 + self.late;
        if !self.is_regular()
            || early > self.most()
            || self.usual <= self.most()
            || self.cores == Cores::Wanted
        {
            return None;
        }
        self.usual.checked_sub(early)?.checked_sub(waited).filter(|nap| *nap > LATE)
    }

    /// A nap that was to last so long has `lasted` to its end.
    pub fn napped(&mut self, nap: Duration, lasted: Duration) {
        let late = lasted.saturating_sub(nap);
        self.was_late = late > self.late;
        self.late = match self.was_late {
            true => late.min(self.most() / 2).max(LATE),
            false => ((self.late * 15 + late) / 16).max(LATE),
        };
    }

    /// What a nap was to precede had come by its end, `waited` after the wait began, nobody knows
    /// how long ago. Unless the nap ended late, the next one is shorter; after some of them what
    /// waits take is to be learned again.
    pub fn overslept(&mut self, waited: Duration) {
        self.came_after(waited);
        self.usual = self.usual.min(waited);
        if std::mem::take(&mut self.was_late) {
            return;
        }
        self.oversleeps += 1;
        if self.oversleeps < MOST_OVERSLEEPS {
            self.usual = self.usual.saturating_sub(self.late * self.oversleeps.min(2));
            return;
        }
        self.oversleeps = 0;
        (self.usual, self.differ, self.early) = (Duration::ZERO, Duration::MAX, Duration::ZERO);
    }

    /// After a nap: spins as long as may be; says whether it was `ready`. What it teaches is in
    /// [`Self::took`].
    pub fn after_nap(&self, ready: impl FnMut() -> bool) -> bool {
        let mut spin = Self::with_longest(self.spare_most);
        spin.announced();
        spin.until(self.cores, ready)
    }

    /// Spins until `ready` or until this waiter's present limit; says whether it was `ready`.
    pub fn until(&mut self, cores: Cores, mut ready: impl FnMut() -> bool) -> bool {
        self.cores = cores;
        if ready() {
            return true;
        }
        if cfg!(feature = "loom") || self.most().is_zero() {
            return false;
        }
        self.spin(ready, &Machine { began: Instant::now() })
    }

    fn spin(&mut self, mut ready: impl FnMut() -> bool, clock: &impl Clock) -> bool {
        let announced = std::mem::take(&mut self.announced);
        let limit = if announced { self.most() } else { self.limit.min(self.most()) };
        loop {
            for _ in 0..32 {
                clock.pause();
                if ready() {
                    if self.cores != Cores::Wanted {
                        self.limit = (self.limit * 2).min(self.most());
                        (self.doubts, self.rarity, self.trial) = (0, 1, false);
                    }
                    return true;
                }
            }
            let before = clock.elapsed();
            if self.cores == Cores::Wanted && before >= WANTED.min(self.most()) {
                // It teaches nothing for other times.
                return ready();
            }
            if before >= limit {
                break;
            }
            if before >= POLITE_AFTER {
                clock.give_way();
                if clock.elapsed() - before >= TAKEN {
                    // Nobody knows whether a spin would have met it.
                    return ready();
                }
            }
        }
        if !announced {
            self.limit = match std::mem::take(&mut self.trial) {
                true => self.least,
                false => (self.limit / 2).max(self.least),
            };
        }
        ready()
    }
}

/// What a spin knows of time: the machine's, or a test's.
trait Clock {
    /// Since the spin began.
    fn elapsed(&self) -> Duration;
    /// Between two looks.
    fn pause(&self);
    /// Lets others have the core.
    fn give_way(&self);
}

struct Machine {
    began: Instant,
}

impl Clock for Machine {
    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn pause(&self) {
        core::hint::spin_loop();
    }

    fn give_way(&self) {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
