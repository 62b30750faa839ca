//! `cargo xtask slurm`: a Slurm for the test bed (`tests/testbeds/slurm`), out of Debian's
//! packages, under `target/debian/slurm`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use crate::debian::{self, Unpacked};
use crate::paths::Paths;

const PACKAGES: [&str; 4] = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"];
/// The daemons look at their own names; Debian gives them these by update-alternatives.
const DAEMONS: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];

/// Fetches and unpacks Slurm.
///
/// # Errors
/// When apt cannot fetch it.
pub(crate) fn ensure(paths: &Paths) -> Result<Unpacked> {
    let unpacked = debian::ensure(paths, "slurm", &PACKAGES)?;
    if let Unpacked::At(root) = &unpacked {
        for daemon in DAEMONS {
            name(&root.join("usr/sbin"), daemon)?;
        }
    }
    Ok(unpacked)
}

fn name(directory: &Path, daemon: &str) -> Result<()> {
    let (packaged, wanted) = (format!("{daemon}-wlm"), directory.join(daemon));
    if fs::symlink_metadata(&wanted).is_ok() {
        return Ok(());
    }
    symlink(packaged, &wanted).with_context(|| format!("cannot make {}", wanted.display()))
}
