//! `cargo xtask build`: the layout that an installation has, under `target/dist`.
//!
//! ```text
//! commit                             what was built, as git describes it, where git knows
//! bin/openmps                        the executable
//! bin/nvidia-cuda-mps-control     -> openmps, the original's front end by name
//! lib/openmps/libcuda.so.1           the client library, as CUDA programs ask for it
//! lib/openmps/libcuda.so          -> libcuda.so.1
//! lib/openmps/libsoftcuda.so         the software GPU's driver
//! lib/openmps/spank_openmps.so       the plugin for Slurm
//! lib/softcuda/libcuda.so.1       -> ../openmps/libsoftcuda.so, to run programs on it without
//!                                 OpenMPS
//! ```

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::paths::Paths;
use crate::portable;
use crate::same_build;

/// An installation in the build directory.
pub(crate) struct Dist {
    /// Holds `bin` and `lib`.
    pub(crate) root: PathBuf,
}

impl Dist {
    /// The layout's place in the build directory, whether it is there or not.
    pub(crate) fn at(paths: &Paths) -> Self {
        Self { root: paths.target.join("dist") }
    }

    /// What was compiled.
    pub(crate) fn binaries(&self) -> Vec<PathBuf> {
        let lib = self.client_directory();
        let libraries = ["libcuda.so.1", "libsoftcuda.so", "spank_openmps.so"];
        let executable = self.root.join("bin/openmps");
        [executable].into_iter().chain(libraries.map(|library| lib.join(library))).collect()
    }

    /// A directory in which the software GPU's driver has the name that programs open.
    pub(crate) fn softcuda_directory(&self) -> PathBuf {
        self.root.join("lib/softcuda")
    }

    /// The directory that holds the client library as `libcuda.so` and `libcuda.so.1`.
    pub(crate) fn client_directory(&self) -> PathBuf {
        self.root.join("lib/openmps")
    }
}

/// For which systems the product is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// For this one: with Rust alone.
    Native,
    /// For all: what is tested and what ships.
    Portable,
}

/// Compiles the product and lays it out.
///
/// # Errors
/// When cargo fails, a file of the portable build needs too much, or the directory cannot be
/// written.
pub(crate) fn build(paths: &Paths, build: Build) -> Result<Dist> {
    let dist = Dist::at(paths);
    let built = match build {
        Build::Native => {
            let packages = portable::PACKAGES.map(|package| format!("--package={package}"));
            let mut cargo = command::cargo();
            command::run(
                cargo.current_dir(&paths.root).args(["build", "--release"]).args(packages),
            )?;
            paths.target.join("release")
        }
        Build::Portable => portable::build(paths)?,
    };
    let bin = dist.root.join("bin");
    let lib = dist.client_directory();
    let softcuda = dist.softcuda_directory();
    for directory in [&bin, &lib, &softcuda] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    install(&built.join("openmps"), &bin.join("openmps"))?;
    link(Path::new("openmps"), &bin.join("nvidia-cuda-mps-control"))?;
    install(&built.join("libcuda.so"), &lib.join("libcuda.so.1"))?;
    link(Path::new("libcuda.so.1"), &lib.join("libcuda.so"))?;
    install(&built.join("libsoftcuda.so"), &lib.join("libsoftcuda.so"))?;
    install(&built.join("libspank_openmps.so"), &lib.join("spank_openmps.so"))?;
    link(Path::new("../openmps/libsoftcuda.so"), &softcuda.join("libcuda.so.1"))?;
    if build == Build::Portable {
        portable::check(&dist.binaries())?;
        same_build::check_paths(paths, &dist.binaries())?;
    }
    note_commit(paths, &dist.root.join("commit"))?;
    Ok(dist)
}

/// Notes what was built, for what measures it elsewhere; without git nothing, rather than what an
/// earlier build had.
fn note_commit(paths: &Paths, at: &Path) -> Result<()> {
    let described = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(&paths.root)
        .output();
    match described {
        Ok(output) if output.status.success() => fs::write(at, output.stdout),
        _ => match fs::remove_file(at) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
    .with_context(|| format!("cannot write {}", at.display()))
}

/// Copies under another name first, so that a running process keeps the file that it has mapped.
fn install(from: &Path, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh)
        .with_context(|| format!("cannot copy {} to {}", from.display(), fresh.display()))?;
    fs::rename(&fresh, to).with_context(|| format!("cannot replace {}", to.display()))
}

fn link(target: &Path, at: &Path) -> Result<()> {
    if at.read_link().is_ok_and(|present| present == target) {
        return Ok(());
    }
    symlink(target, at).with_context(|| format!("cannot link {}", at.display()))
}
