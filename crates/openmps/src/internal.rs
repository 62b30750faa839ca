//! Processes that the daemon and its servers start from this same executable.

use std::ffi::OsString;
use std::process::ExitCode;

use link::user::{BecomeError, User};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::cli::{Executor, Server};

/// Whether this process is one that is to be closed to debuggers before it has anything that they
/// could take.
pub(crate) fn is_server_or_executor(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|word| word == "server" || word == "executor")
}

/// Makes a server that root's daemon has started its user's.
///
/// # Errors
/// [`BecomeError`]: the process is still root's, or half of it, and must end.
pub(crate) fn become_its_user(arguments: &[OsString]) -> Result<(), BecomeError> {
    let Some(user) = User::of_arguments(arguments)? else { return Ok(()) };
    user.become_it()?;
    if is_debuggable() {
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
    Ok(())
}

/// Shuts this process to other processes of its user: they can neither trace it nor take its
/// descriptors nor read its memory. A second line: nothing counts on it.
pub(crate) fn shut_to_debuggers() {
    if !is_debuggable() {
        // Refused by no kernel.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

fn is_debuggable() -> bool {
    settings::Variables::of_environment().is_on(&settings::DEBUGGABLE)
}

/// A server of one user.
///
/// # Errors
/// Those of the server.
pub(crate) fn server(options: Server) -> anyhow::Result<ExitCode> {
    if let Some(user) = options.user {
        // Such as `--user=...`, which is no argument that the daemon gives.
        anyhow::ensure!(!rustix::process::geteuid().is_root(), "did not become user {user}");
    }
    let options = server::keeper::Options::from_environment(options.control_fd, options.faults_fd)
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
