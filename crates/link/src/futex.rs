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
#[cfg(not(feature = "loom"))]
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
#[cfg(not(feature = "loom"))]
pub fn wake(word: &AtomicU32, count: u32) {
    use rustix::thread::futex;
    // The call fails for a bad address or flag only, which a reference and no flags are not.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}

#[cfg(feature = "loom")]
mod model {
    use crate::atomic::AtomicU32;
    use loom::sync::{Condvar, Mutex};
    use std::collections::BTreeMap;
    use std::sync::{Arc, PoisonError};

    loom::lazy_static! {
        /// Who sleeps on which word.
        static ref KERNEL: Mutex<BTreeMap<usize, Arc<Condvar>>> = Mutex::default();
    }

    fn address(word: &AtomicU32) -> usize {
        (&raw const *word).addr()
    }

    pub(super) fn wait(word: &AtomicU32, expected: u32) {
        let mut sleepers = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
        if word.seen_by_kernel() == expected {
            let queue = Arc::clone(sleepers.entry(address(word)).or_default());
            drop(queue.wait(sleepers));
        }
    }

    pub(super) fn wake(word: &AtomicU32) {
        let sleepers = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = sleepers.get(&address(word)) {
            queue.notify_all();
        }
    }
}

/// Sleeps while `word` is `expected`; the model knows no time.
#[cfg(feature = "loom")]
pub fn wait(word: &AtomicU32, expected: u32, _timeout: Duration) -> Woke {
    model::wait(word, expected);
    Woke::LookAgain
}

/// Wakes everybody who sleeps there: a sleeper may always wake for no reason.
#[cfg(feature = "loom")]
pub fn wake(word: &AtomicU32, _count: u32) {
    model::wake(word);
}
