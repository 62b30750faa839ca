//! Ctrl-C: a flag that every wait of the demo looks at, so that it can clean up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    // Relaxed: the flag stands alone, no other memory goes with it; partner: the load in `check`.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM only set the flag.
pub(crate) fn catch() {
    let handler = note as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic, which is safe in a signal
        // handler.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Whether the demo was told to stop, as an error.
///
/// # Errors
/// When it was.
pub(crate) fn check() -> Result<()> {
    // Relaxed: see `note`.
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted; daemon and temporary files are removed");
    }
    Ok(())
}
