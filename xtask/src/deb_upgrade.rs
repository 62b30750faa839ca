//! The Debian package of another build, to upgrade to: the same files with another version, and
//! with another version of the protocol in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use link::wire::PROTOCOL_VERSION;

use crate::command::run_quietly;
use crate::paths::Paths;
use crate::system_tree::NAME;
use crate::tree::{VERSION, fresh_directory, write};

/// What speaks the protocol. The client library has versions of its own, which stay.
const SPEAKER: &str = "usr/bin/openmps";

/// Makes it of a package.
///
/// # Errors
/// When dpkg fails, or the package is not of these sources.
pub(crate) fn build(paths: &Paths, package: &Path) -> Result<PathBuf> {
    let root = paths.target.join("deb/next");
    fresh_directory(&root)?;
    run_quietly(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&root))?;
    let file = root.join(SPEAKER);
    let mut bytes = fs::read(&file)?;
    change_protocol(&mut bytes)
        .with_context(|| format!("{} is not of these sources", file.display()))?;
    fs::write(&file, bytes)?;
    let control = root.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let is = format!("Version: {VERSION}\n");
    ensure!(text.contains(&is), "no version in {text}");
    write(&control, text.replace(&is, &format!("Version: {VERSION}+next\n")).as_bytes())?;
    let next = paths.target.join(format!("deb/{NAME}-next.deb"));
    // Nobody gets it: it need not be small.
    let mut pack = Command::new("dpkg-deb");
    run_quietly(
        pack.args(["--root-owner-group", "-Zgzip", "-z1", "--build"]).arg(&root).arg(&next),
    )?;
    fs::remove_dir_all(&root)?;
    Ok(next)
}

fn change_protocol(bytes: &mut [u8]) -> Result<()> {
    let (ours, theirs) = (PROTOCOL_VERSION.to_le_bytes(), (!PROTOCOL_VERSION).to_le_bytes());
    let mut at = 0;
    let mut is_there = false;
    while let Some(found) = bytes[at..].windows(ours.len()).position(|window| window == ours) {
        at += found;
        bytes[at..at + theirs.len()].copy_from_slice(&theirs);
        is_there = true;
    }
    ensure!(is_there, "it does not have the version of the protocol");
    Ok(())
}
