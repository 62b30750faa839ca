//! Running other programs with errors that say what was run and what came of it.

use std::env;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;

use crate::paths::Paths;

/// The cargo that started us, so that a `+toolchain` or a wrapper stays in force.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a command that shares our terminal.
///
/// # Errors
/// When it cannot be started or does not exit with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a command silently; its output is shown only when it fails.
///
/// # Errors
/// When it cannot be started or does not exit with 0; the message ends with what it printed.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Output> {
    let line = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!(
            "`{line}` failed: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }
    Ok(output)
}

/// What cargo says of the workspace, as far as the caller wants to know it; `more` are further
/// arguments of `cargo metadata`.
///
/// # Errors
/// When cargo fails, or does not say what the caller needs.
pub(crate) fn metadata<T: DeserializeOwned>(paths: &Paths, more: &[&str]) -> Result<T> {
    let mut cargo = cargo();
    cargo.current_dir(&paths.root).args(["metadata", "--format-version=1"]).args(more);
    let output = run_quietly(&mut cargo)?;
    serde_json::from_slice(&output.stdout).context("what cargo metadata says is not understood")
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Whether a command is there and exits with 0.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
