//! Streams that are held because a host function of theirs has not returned.
//!
//! Work that follows a host function in its stream must not start before it. The executor holds no
//! stream for a client, so this process does: who posts work to a held stream waits until the
//! function has returned. Posts then stay in the order in which they were made, also between
//! streams, which holding them in a queue of our own would not give: a wait could overtake the
//! record that it waits for.

use crate::result::Result;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Whether a stream is ordered with a default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordered {
    /// With the one in that slot; a default stream with itself.
    With(u32),
    Alone,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    /// Functions that have not returned; a hint that spares the lock.
    total: AtomicU32,
    held: Mutex<HashMap<u32, Held>>,
    lowered: Condvar,
}

#[derive(Debug)]
struct Held {
    functions: u32,
    ordered: Ordered,
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Held>> {
        self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A host function was enqueued in a stream.
    pub(crate) fn raise(&self, slot: u32, ordered: Ordered) {
        let mut held = self.lock();
        held.entry(slot).or_insert(Held { functions: 0, ordered }).functions += 1;
        // Release: with the Acquire in `wait`, for threads that learn of the function otherwise
        // than by the lock.
        self.total.fetch_add(1, Ordering::Release);
    }

    /// A host function of a stream has returned.
    pub(crate) fn lower(&self, slot: u32) {
        let mut held = self.lock();
        if let Some(gate) = held.get_mut(&slot) {
            gate.functions -= 1;
            if gate.functions == 0 {
                held.remove(&slot);
            }
            self.total.fetch_sub(1, Ordering::Release);
        }
        drop(held);
        self.lowered.notify_all();
    }

    /// Whether no host function is due.
    pub(crate) fn are_open(&self) -> bool {
        // Acquire: with the Releases in `raise` and `lower`, before which the functions' work was
        // posted.
        self.total.load(Ordering::Acquire) == 0
    }

    /// Whether a stream's next work must wait.
    pub(crate) fn is_held(&self, slot: u32, ordered: Ordered) -> bool {
        // Acquire: with the Release in `raise`.
        self.total.load(Ordering::Acquire) != 0 && holds(&self.lock(), slot, ordered)
    }

    /// Waits until a stream's next work may be posted, as long as `check` finds nothing wrong.
    pub(crate) fn wait(&self, slot: u32, ordered: Ordered, check: impl Fn() -> Result) -> Result {
        self.wait_while(|held| holds(held, slot, ordered), check)
    }

    /// Waits until no stream is held.
    pub(crate) fn wait_all(&self, check: impl Fn() -> Result) -> Result {
        self.wait_while(|held| !held.is_empty(), check)
    }

    fn wait_while(
        &self,
        holds: impl Fn(&HashMap<u32, Held>) -> bool,
        check: impl Fn() -> Result,
    ) -> Result {
        // Acquire: with the Release in `raise`.
        if self.total.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut held = self.lock();
        while holds(&held) {
            check()?;
            held = self
                .lowered
                .wait_timeout(held, CHECK_INTERVAL)
                .unwrap_or_else(|e| e.into_inner())
                .0;
        }
        Ok(())
    }
}

/// A default stream waits for all streams that are ordered with it, and they for it.
fn holds(held: &HashMap<u32, Held>, slot: u32, ordered: Ordered) -> bool {
    held.contains_key(&slot)
        || held.values().any(|gate| gate.ordered == Ordered::With(slot))
        || matches!(ordered, Ordered::With(default) if held.contains_key(&default))
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::command::LEGACY_STREAM;

    #[test]
    fn a_function_holds_its_stream_and_those_ordered_with_it() {
        let gates = Gates::default();
        gates.raise(3, Ordered::With(LEGACY_STREAM));
        assert!(gates.is_held(3, Ordered::With(LEGACY_STREAM)));
        assert!(!gates.is_held(4, Ordered::With(LEGACY_STREAM)));
        assert!(gates.is_held(LEGACY_STREAM, Ordered::With(LEGACY_STREAM)));
        gates.lower(3);
        assert!(!gates.is_held(3, Ordered::With(LEGACY_STREAM)));
        gates.raise(LEGACY_STREAM, Ordered::With(LEGACY_STREAM));
        assert!(gates.is_held(4, Ordered::With(LEGACY_STREAM)));
        assert!(!gates.is_held(4, Ordered::Alone));
        gates.lower(LEGACY_STREAM);
        gates.raise(5, Ordered::Alone);
        assert!(!gates.is_held(LEGACY_STREAM, Ordered::With(LEGACY_STREAM)));
    }

    #[test]
    fn who_waits_goes_on_when_the_function_has_returned() {
        let gates = Gates::default();
        gates.raise(1, Ordered::Alone);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gates.wait(1, Ordered::Alone, || Ok(())));
            gates.lower(1);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert_eq!(gates.wait_all(|| Ok(())), Ok(()));
    }
}
