//! Processes that the daemon and its servers start from this same executable.

use std::process::ExitCode;

use crate::cli::{Executor, Server};

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
