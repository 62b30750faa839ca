//! Processes that the daemon and its servers start from this same executable.

use std::ffi::OsString;
use std::process::ExitCode;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::cli::{Executor, Server};

/// `1`: servers, executors and root's daemon leave core dumps, and debuggers of their users may look into them.
const DEBUGGABLE_VARIABLE: &str = "OPENMPS_DEBUGGABLE";

/// Whether this process is one that is to be closed to debuggers before it has anything that they could take.
pub(crate) fn is_server_or_executor(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|word| word == "server" || word == "executor")
}

/// Shuts this process to other processes of its user: they can neither trace it nor take its descriptors nor read its memory. A second line: nothing counts on it.
pub(crate) fn shut_to_debuggers() {
    if std::env::var_os(DEBUGGABLE_VARIABLE).is_none_or(|value| value != "1") {
        // Refused by no kernel.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// A server of one user.
///
/// # Errors
/// Those of the server.
pub(crate) fn server(options: Server) -> anyhow::Result<ExitCode> {
    let options = server::keeper::Options::from_environment(options.control_fd)
        .map_err(anyhow::Error::msg)?;
    Ok(server::keeper::run(&options))
}

/// An executor of one device.
///
/// # Errors
/// Those of the executor.
pub(crate) fn executor(options: Executor) -> anyhow::Result<ExitCode> {
    Ok(server::executor::main(options.arguments))
}
