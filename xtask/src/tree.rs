//! The files of an installation, from which every kind of package is made.
//!
//! ```text
//! bin/openmps
//! lib/openmps/libcuda.so.1, libsoftcuda.so, spank_openmps.so
//! lib/openmps/slurm/{prolog,epilog,task_prolog}, lib/openmps/pbs/{prologue,epilogue}
//! share/man/man1/*.1.gz
//! share/bash-completion/completions, share/zsh/..., share/fish/...
//! share/doc/openmps
//! ```
//!
//! Nothing in it names this machine or this day, so that packages of the same binaries are the same
//! bytes. Symbolic links are left to the kinds of package that can have them. Debug information
//! lies apart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::run_quietly;
use crate::dist::Dist;
use crate::paths::Paths;

/// What batch systems call on a node.
const HOOKS: [&str; 5] =
    ["slurm/prolog", "slurm/epilog", "slurm/task_prolog", "pbs/prologue", "pbs/epilogue"];
/// The version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where packages say that their files are from: 2020. It differs from no build to the next.
pub(crate) const EPOCH_SECONDS: u64 = 1_577_836_800;

/// The files and their debug information.
pub(crate) struct Tree {
    /// Holds `bin`, `lib` and `share`.
    pub(crate) root: PathBuf,
    /// Holds a `.debug` file for each binary.
    pub(crate) debug: PathBuf,
}

impl Tree {
    /// The directory of the libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.root.join("lib/openmps")
    }
}

/// Lays out the files of what is in `dist`.
///
/// # Errors
/// When one is missing, or a tool that prepares them.
pub(crate) fn build(paths: &Paths, dist: &Dist) -> Result<Tree> {
    let folder = paths.target.join("packages");
    let tree = Tree { root: folder.join("tree"), debug: folder.join("debug") };
    for directory in [&tree.root, &tree.debug] {
        fresh_directory(directory)?;
    }
    for binary in dist.binaries() {
        let place = binary.strip_prefix(&dist.root)?;
        let to = tree.root.join(place);
        let mode = if place.starts_with("bin") { 0o755 } else { 0o644 };
        install(&binary, &to, mode)?;
        strip(&to, &tree.debug)?;
    }
    let packaging = paths.root.join("packaging");
    for hook in HOOKS {
        install(&packaging.join(hook), &tree.libraries().join(hook), 0o755)?;
    }
    documents(paths, &dist.root.join("bin/openmps"), &tree.root)?;
    Ok(tree)
}

/// Debug information goes to a file of its own, which debuggers find by the name that is left.
fn strip(binary: &Path, debug: &Path) -> Result<()> {
    let name = binary.file_name().context("a file has a name")?;
    let apart = debug.join(name).with_added_extension("debug");
    let objcopy = |option: &str, files: &[&Path]| {
        run_quietly(Command::new("objcopy").arg(option).args(files)).map(drop)
    };
    objcopy("--only-keep-debug", &[binary, &apart])?;
    run_quietly(Command::new("strip").arg("--strip-unneeded").arg(binary))?;
    objcopy(&format!("--add-gnu-debuglink={}", apart.display()), &[binary])
}

/// Manual pages and completions come from the executable, so they agree with its help.
fn documents(paths: &Paths, executable: &Path, root: &Path) -> Result<()> {
    let manual = root.join("share/man/man1");
    run_quietly(Command::new(executable).args(["man", "--directory"]).arg(&manual))?;
    for entry in fs::read_dir(&manual)? {
        run_quietly(Command::new("gzip").args(["-9", "-n"]).arg(entry?.path()))?;
    }
    for (shell, place) in [
        ("bash", "bash-completion/completions/openmps"),
        ("zsh", "zsh/vendor-completions/_openmps"),
        ("fish", "fish/vendor_completions.d/openmps.fish"),
        // These two look for a file of the command's name.
        ("bash", "bash-completion/completions/nvidia-cuda-mps-control"),
        ("fish", "fish/vendor_completions.d/nvidia-cuda-mps-control.fish"),
    ] {
        let script = run_quietly(Command::new(executable).args(["completions", shell]))?.stdout;
        write(&root.join("share").join(place), &script)?;
    }
    let doc = root.join("share/doc/openmps");
    // With the pages that the first one leads to.
    let pages =
        ["README.md", "ARCHITECTURE.md", "COMPATIBILITY.md", "COVERAGE-PTX.md", "SECURITY.md"];
    for file in pages {
        install(&paths.root.join(file), &doc.join(file), 0o644)?;
    }
    install_tree(&paths.root.join("docs"), &doc.join("docs"))?;
    let mut copyright = Vec::new();
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        copyright.extend(fs::read(paths.root.join(file))?);
        copyright.push(b'\n');
    }
    write(&doc.join("copyright"), &copyright)
}

/// Makes a directory that is empty.
pub(crate) fn fresh_directory(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}

/// Copies a file and what is above it.
pub(crate) fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let directory = to.parent().context("a file lies in a directory")?;
    fs::create_dir_all(directory)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Installs the files of a directory and of those below it, for all to read.
fn install_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            install_tree(&source, &target)?;
        } else {
            install(&source, &target, 0o644)?;
        }
    }
    Ok(())
}

/// Writes a file and what is above it.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file lies in a directory")?)?;
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

/// A directory with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    run_quietly(Command::new("cp").args(["-a", "-T"]).arg(from).arg(to)).map(drop)
}
