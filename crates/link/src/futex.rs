//! Sleeping on a word of shared memory, always with a time limit.
//!
//! The words lie in files that two processes map, so the futexes are not process-private. Under the
//! model checker a wait has no time limit: a wake-up that gets lost then shows as a deadlock.

use crate::atomic::AtomicU32;
use std::time::Duration;

/// Why [`wait`] returned. Neither says what the word is now: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woke {
    /// Somebody called [`wake`], the word differed from the start, or a signal came.
    LookAgain,
    /// The time was up.
    TimedOut,
}

/// Sleeps while `word` is `expected`, at most for `timeout`.
#[cfg(not(feature = "shuttle"))]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Woke {
    use rustix::thread::futex;
    let timeout = rustix::fs::Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match futex::wait(word, futex::Flags::empty(), expected, Some(&timeout)) {
        Err(rustix::io::Errno::TIMEDOUT) => Woke::TimedOut,
        _ => Woke::LookAgain,
    }
}

/// Wakes up to `count` threads, of any process, that sleep on `word`.
#[cfg(not(feature = "shuttle"))]
pub fn wake(word: &AtomicU32, count: u32) {
    use rustix::thread::futex;
    // The call fails for a bad address or flag only, which a reference and no flags are not.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

#[cfg(feature = "shuttle")]
mod model {
    use crate::atomic::{AtomicU32, Ordering};
    use shuttle::sync::{Condvar, Mutex};

    shuttle::lazy_static! {
        static ref KERNEL: Mutex<()> = Mutex::new(());
        static ref SLEEPERS: Condvar = Condvar::new();
    }

    pub(super) fn wait(word: &AtomicU32, expected: u32) {
        let guard = KERNEL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if word.load(Ordering::SeqCst) == expected {
            drop(SLEEPERS.wait(guard));
        }
    }

    pub(super) fn wake() {
        let _guard = KERNEL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        SLEEPERS.notify_all();
    }
}

/// Sleeps while `word` is `expected`; the model knows no time.
#[cfg(feature = "shuttle")]
pub fn wait(word: &AtomicU32, expected: u32, _timeout: Duration) -> Woke {
    model::wait(word, expected);
    Woke::LookAgain
}

/// Wakes everybody: a sleeper may always wake for no reason.
#[cfg(feature = "shuttle")]
pub fn wake(_word: &AtomicU32, _count: u32) {
    model::wake();
}
