//! The browser that a test has draw the page of `openmps top --web`: the system's, or Debian's,
//! unpacked under `target/debian/chromium` and not installed.

use std::path::Path;

use crate::debian::{self, Unpacked};
use crate::paths::Paths;

/// Fetches it where the system has none, or says that there will be none.
pub(crate) fn ensure(paths: &Paths) {
    if Path::new("/usr/bin/chromium").exists() {
        return;
    }
    match debian::ensure(paths, "chromium", &["chromium"]) {
        Ok(Unpacked::At(_)) => {}
        Ok(Unpacked::Skipped(why)) => println!("no Chromium in tests: {why}"),
        Err(error) => println!("no Chromium in tests: {error:#}"),
    }
}
