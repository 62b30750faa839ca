//! The Debian package in a fresh Debian: installed by apt with what it depends on, used, removed
//! and purged without a trace.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::fresh::{Fresh, Root, with_its_environment};
use crate::paths::Paths;

/// What happens inside.
const SCRIPT: &str = include_str!("deb_chroot.sh");
/// Longest that everything inside may take.
const LIMIT: &str = "300";

/// A client that works when it is told to.
const CLIENT: &str = "programs/process/live_shares";

/// Installs, uses, upgrades and removes the package in a fresh Debian; `next` is the one to upgrade
/// to.
///
/// # Errors
/// What did not work inside.
pub(crate) fn check(paths: &Paths, archive: &Path, package: &Path, next: &Path) -> Result<Fresh> {
    let root = Root::unpack(paths, archive, "fresh", package)?;
    let inside = root.path.join("package");
    fs::copy(next, inside.join("openmps-next.deb"))?;
    fs::copy(paths.target.join(CLIENT), inside.join("client"))?;
    run_inside(root, SCRIPT)
}

/// Runs a script as root of a fresh Debian, which then goes.
///
/// # Errors
/// What did not work inside.
pub(crate) fn run_inside(root: Root, script: &str) -> Result<Fresh> {
    fs::write(root.path.join("package/script.sh"), script)?;
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", LIMIT])
        // Processes that are left inside end with their name space, and so does the mount.
        .args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(format!("--root={}", root.path.display()))
        .args(["sh", "/package/script.sh"]);
    let output = with_its_environment(&mut command)
        .stdin(Stdio::null())
        .output()
        .context("cannot start unshare")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "in a fresh Debian ({}):\n{said}{complaints}",
        root.path.display()
    );
    root.remove()?;
    Ok(Fresh::Checked(said))
}
