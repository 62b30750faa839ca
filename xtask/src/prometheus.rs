//! What reads our metrics in the tests: Prometheus and promtool, from this system's Debian,
//! unpacked under `target/debian/prometheus` and not installed.

use crate::debian::{self, Packages, Unpacked};
use crate::paths::Paths;

/// Fetches it, or says that there will be none: the tests then say what they could not try. Its
/// pages for browsers, which it depends on, are not needed.
pub(crate) fn ensure(paths: &Paths) {
    let folder = paths.target.join("debian").join("prometheus");
    match debian::ensure_in(&folder, Packages::Only(&["prometheus"])) {
        Ok(Unpacked::At(_)) => {}
        Ok(Unpacked::Skipped(why)) => println!("no Prometheus in tests: {why}"),
        Err(error) => println!("no Prometheus in tests: {error:#}"),
    }
}
