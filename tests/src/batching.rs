//! Launches that are submitted together, or each by itself: every test holds either way, and
//! `cargo xtask test` runs them both ways.
//!
//! What the environment of the tests says goes to all daemons that they start. A test of one way
//! says so to its own daemon.

use std::env;
use std::ffi::OsString;

const VARIABLE: &str = "OPENMPS_BATCHING";

/// For a daemon whose clients' launches go together where they can.
pub const ON: (&str, &str) = (VARIABLE, "on");

/// For a daemon whose clients' launches go to the driver one by one.
pub const OFF: (&str, &str) = (VARIABLE, "off");

/// What the environment of the tests says.
pub fn of_this_run() -> Option<(&'static str, OsString)> {
    Some((VARIABLE, env::var_os(VARIABLE)?))
}
