//! Whether the thread runs a host function of a stream, where CUDA allows no calls.

use crate::thread::here::here;
use std::sync::atomic::{AtomicU32, Ordering};

/// Threads that run a host function: spares others the look at their own.
static CALLBACKS: AtomicU32 = AtomicU32::new(0);

/// Whether this thread runs one.
#[inline(always)]
pub(crate) fn is_running() -> bool {
    // Relaxed: a thread that runs one has counted itself, and of others it need not know.
    CALLBACKS.load(Ordering::Relaxed) != 0 && here(|here| here.in_callback.get())
}

/// Runs a host function of a stream.
pub(crate) fn run(body: impl FnOnce()) {
    /// Ends it, also by a panic.
    struct InCallback;
    impl Drop for InCallback {
        fn drop(&mut self) {
            here(|here| here.in_callback.set(false));
            CALLBACKS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    // Relaxed: see `is_running`; also above.
    CALLBACKS.fetch_add(1, Ordering::Relaxed);
    here(|here| here.in_callback.set(true));
    let _ends = InCallback;
    body();
}
