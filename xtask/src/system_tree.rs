//! The files of a system's package, the same for `.deb` and `.rpm`:
//!
//! ```text
//! /usr/bin/openmps
//! /usr/lib/openmps/libcuda.so.1, libcuda.so, libsoftcuda.so      off the default library path
//! /usr/lib/openmps/bin/nvidia-cuda-mps-control -> openmps         off the default path: NVIDIA's
//!                                                                 own may be installed
//! /usr/lib/openmps/slurm/{prolog,epilog,task_prolog}, spank_openmps.so
//! /usr/lib/openmps/pbs/{prologue,epilogue}
//! /usr/lib/systemd/system/openmps.service, /usr/lib/tmpfiles.d/openmps.conf
//! /usr/share/{doc,man,bash-completion,zsh,fish}
//! /etc/openmps/config.toml
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

use crate::paths::Paths;
use crate::tree::{self, Tree, fresh_directory, install};

/// Of both kinds of package.
pub(crate) const NAME: &str = "openmps";
pub(crate) const SUMMARY: &str = "share a GPU between CUDA programs";
pub(crate) const DESCRIPTION: [&str; 3] = [
    "An open implementation of NVIDIA's Multi-Process Service: a control daemon, a",
    "server that owns the GPU's context, and a libcuda.so.1 for the programs, which",
    "are not changed. Where there is no GPU, a software GPU does the work.",
];
/// What an administrator changes.
pub(crate) const SETTINGS: &str = "/etc/openmps/config.toml";

/// Lays the files out under `root`, which is emptied first.
///
/// # Errors
/// When one is missing.
pub(crate) fn build(paths: &Paths, tree: &Tree, root: &Path) -> Result<()> {
    fresh_directory(root)?;
    tree::copy(&tree.root, &root.join("usr"))?;
    let libraries = root.join("usr/lib/openmps");
    symlink("libcuda.so.1", libraries.join("libcuda.so"))?;
    fs::create_dir_all(libraries.join("bin"))?;
    symlink("../../../bin/openmps", libraries.join("bin/nvidia-cuda-mps-control"))?;
    let packaging = paths.root.join("packaging");
    for (from, to) in [
        ("systemd/openmps.service", "usr/lib/systemd/system/openmps.service"),
        ("systemd/tmpfiles.conf", "usr/lib/tmpfiles.d/openmps.conf"),
        ("config.toml", SETTINGS.trim_start_matches('/')),
    ] {
        install(&packaging.join(from), &root.join(to), 0o644)?;
    }
    Ok(())
}
