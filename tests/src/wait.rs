//! Waiting for what another process does, never without a bound.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// For what should take milliseconds, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

const INTERVAL: Duration = Duration::from_millis(10);

/// Asks again and again until the answer is yes.
///
/// # Errors
/// When it is still no after `limit`; the message names `what`.
pub fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        if holds() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("still not after {limit:?}: {what}");
        }
        thread::sleep(INTERVAL);
    }
}
