//! The flag by which one side tells the other that it sleeps.
//!
//! A sleeper raises the flag, looks once more for what it waits for, and only then sleeps on the
//! flag. Whoever makes something to be found first publishes it and then looks at the flag. Each
//! does "write mine, fence, read the other's", so at least one of them sees the other's write
//! (Dekker's argument), and no wake-up is lost. While nobody sleeps, ringing is a fence and a load.

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::futex::{self, Woke};
use std::time::Duration;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// One such flag: [`crate::wire::layout::Shared::consumer_asleep`] or `producer_asleep`. One
/// sleeper at a time.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a>(&'a AtomicU32);

impl<'a> Doorbell<'a> {
    /// The doorbell on `flag`.
    pub fn new(flag: &'a AtomicU32) -> Self {
        Self(flag)
    }

    /// Wakes the sleeper if there is one. Call it after publishing what the sleeper's `ready` looks
    /// at.
    pub fn ring(self) {
        // Partner: the fence in `sleep`. Orders the caller's publication before the look at the
        // flag.
        fence(Ordering::SeqCst);
        // Relaxed, all: the fence above orders them. The exchange has one of several ringers wake,
        // and none lower a flag that was lowered and raised again since the look.
        let is_asleep = || self.0.load(Ordering::Relaxed) != AWAKE;
        let lower = || self.0.compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed);
        if is_asleep() && lower().is_ok() {
            futex::wake(self.0, 1);
        }
    }

    /// Sleeps until rung, `timeout` at most, unless `ready`. May wake early: the caller looks
    /// again.
    pub fn sleep(self, timeout: Duration, ready: impl FnOnce() -> bool) -> Woke {
        self.0.store(ASLEEP, Ordering::Relaxed);
        // Partner: the fence in `ring`. Orders raising the flag before the last look.
        fence(Ordering::SeqCst);
        let woke = if ready() { Woke::LookAgain } else { futex::wait(self.0, ASLEEP, timeout) };
        // Relaxed: a ringer that still sees the flag raised wakes nobody, at worst. A swap comes
        // after what ringers have written for the model checker, too; it does not know that no
        // store can come in between a ringer's read and its write.
        self.0.swap(AWAKE, Ordering::Relaxed);
        woke
    }
}
