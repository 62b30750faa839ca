//! What runs containers in the tests: crun, from this system's Debian, unpacked under
//! `target/debian/containers` and not installed.

use crate::debian::{self, Unpacked};
use crate::paths::Paths;

/// Fetches what is missing, or says that there will be no containers: the tests then say what they
/// could not try.
pub(crate) fn ensure(paths: &Paths) {
    match debian::ensure(paths, "containers", &["crun"]) {
        Ok(Unpacked::At(_)) => {}
        Ok(Unpacked::Skipped(why)) => println!("no containers in tests: {why}"),
        Err(error) => println!("no containers in tests: {error:#}"),
    }
}
