//! Points in a stream that become done: what an event records and a stream waits for.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const PENDING: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

/// One recorded point. Shared by the event, the recording stream and every stream that waits.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    state: AtomicU8,
    time_ns: AtomicU64,
    /// Streams whose head waits for this marker; touched only with the engine's lock held.
    waiting: Mutex<Vec<u64>>,
}

/// How far a marker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkerState {
    Pending,
    /// Reached, at this time of the device's clock.
    Done {
        time_ns: u64,
    },
    /// Never reached: its context failed first.
    Failed,
}

impl Marker {
    pub(crate) fn state(&self) -> MarkerState {
        // Acquire: partner of the Release in `resolve`; the time and all work before are visible.
        match self.state.load(Ordering::Acquire) {
            PENDING => MarkerState::Pending,
            // Relaxed: ordered by the load above.
            DONE => MarkerState::Done { time_ns: self.time_ns.load(Ordering::Relaxed) },
            _ => MarkerState::Failed,
        }
    }

    pub(crate) fn is_resolved(&self) -> bool {
        self.state() != MarkerState::Pending
    }

    /// Resolves the marker and returns the streams that waited for it.
    pub(crate) fn resolve(&self, outcome: MarkerState) -> Vec<u64> {
        let state = match outcome {
            MarkerState::Pending => return Vec::new(),
            MarkerState::Done { time_ns } => {
                // Relaxed: published by the Release below.
                self.time_ns.store(time_ns, Ordering::Relaxed);
                DONE
            }
            MarkerState::Failed => FAILED,
        };
        // Release: partner of the Acquire in `state`.
        self.state.store(state, Ordering::Release);
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that `stream`'s head waits; called with the engine's lock held.
    pub(crate) fn wait_for(&self, stream: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}
