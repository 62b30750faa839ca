//! Processes that the daemon and its servers start from this same executable.

use std::process::ExitCode;

use crate::cli::{Executor, Server};

/// A server of one user.
///
/// # Errors
/// Those of the server.
pub(crate) fn server(_options: Server) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no server yet")
}

/// An executor of one device.
///
/// # Errors
/// Those of the executor.
pub(crate) fn executor(_options: Executor) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no executor yet")
}
