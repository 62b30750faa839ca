//! Files that are to be executed, made by a process of their own: what this one has open for
//! writing is open in whatever another test's thread starts at that moment, too, and a file that
//! somebody may write is not executed (`ETXTBSY`).

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Writes a script that everybody may execute.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, script: &str) -> Result<()> {
    let mut install = install(Path::new("/dev/stdin"), path);
    let mut child = install.stdin(Stdio::piped()).spawn().context("cannot start install")?;
    child.stdin.take().context("no pipe")?.write_all(script.as_bytes())?;
    ensure!(child.wait()?.success(), "cannot write {}", path.display());
    Ok(())
}

/// Copies an executable, or a library.
///
/// # Errors
/// When it cannot be copied.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = install(from, to).status().context("cannot start install")?;
    ensure!(status.success(), "cannot copy {} to {}", from.display(), to.display());
    Ok(())
}

fn install(from: &Path, to: &Path) -> Command {
    let mut command = Command::new("install");
    command.args(["-m", "755", "--"]).args([from, to]);
    command
}
