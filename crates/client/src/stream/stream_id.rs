//! Ids of streams, as `cuStreamGetId` tells them.

use std::sync::atomic::{AtomicU64, Ordering};

/// An id for a stream: no two of a process have the same.
pub(crate) fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
