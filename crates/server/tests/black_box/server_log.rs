//! What servers write to standard error: kept in a file per test, shown when the test fails.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::Mutex;

static LOG: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Starts the empty log of a test.
pub(crate) fn begin(test: &str) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("server-logs");
    fs::create_dir_all(&folder).expect("a folder for logs");
    let path = folder.join(format!("{test}.log"));
    File::create(&path).expect("an empty log");
    *LOG.lock().expect("no holder panics") = Some(path);
}

/// The log of the test that runs, for one more process to append to.
pub(crate) fn file() -> File {
    let log = LOG.lock().expect("no holder panics");
    let path = log.as_ref().expect("a test has begun");
    OpenOptions::new().append(true).open(path).expect("the test's log")
}

/// All that was written since the test began.
pub(crate) fn text() -> String {
    let log = LOG.lock().expect("no holder panics");
    log.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default()
}
