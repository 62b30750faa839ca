//! Reservations that were announced to an executor, and that its thread has not made yet: whose
//! session opens behind them waits until they are there, since it may be for one of them.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The thread makes partitions, too, and a driver may have it wait for a kernel.
const LONGEST: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Announced {
    /// One was announced.
    pub(crate) fn add(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// One is made, or cannot be.
    pub(crate) fn settle(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        self.changed.notify_all();
    }

    /// Waits until all are made, for [`LONGEST`] at most.
    pub(crate) fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(count, LONGEST, |count| *count > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn who_comes_behind_waits_until_all_are_made() {
        let announced = Announced::default();
        announced.wait();
        announced.add();
        announced.add();
        let is_made = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                announced.wait();
                is_made.load(Ordering::SeqCst)
            });
            announced.settle();
            std::thread::sleep(Duration::from_millis(20));
            is_made.store(true, Ordering::SeqCst);
            announced.settle();
            assert!(waiting.join().unwrap(), "it went on before");
        });
    }
}
