//! What contexts may reach of each other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What contexts may reach of each other.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// (who reaches, whose memory), by handles of contexts.
    enabled: Mutex<BTreeSet<(usize, usize)>>,
    /// Whether anything was ever allowed: most programs allow nothing, and pay nothing.
    is_used: AtomicBool,
}

impl Peers {
    /// The pairs, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeSet<(usize, usize)>> {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is allowed.
    pub(super) fn note_use(&self) {
        // Relaxed: whoever allows access has done so before it allocates what is to be reached.
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// A context has ended.
    pub(crate) fn forget(&self, context: usize) {
        self.lock().retain(|&(viewer, owner)| viewer != context && owner != context);
    }

    /// Whether anything was ever allowed.
    pub(super) fn is_used(&self) -> bool {
        // Relaxed: see `note_use`.
        self.is_used.load(Ordering::Relaxed)
    }
}
