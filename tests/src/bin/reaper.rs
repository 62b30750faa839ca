//! `reaper COMMAND...` runs a command as the first process of a container would: what loses its
//! parent becomes its child, in the same session.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

fn main() -> Result<ExitCode> {
    // Any number but none: it is asked for by being there.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("reaper COMMAND...")?;
    let status = Command::new(program).args(words).status()?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}
