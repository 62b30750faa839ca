//! The archive for a user without root: `install.sh` copies it into a home directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::command::run_quietly;
use crate::paths::Paths;
use crate::system_tree::NAME;
use crate::tree::{self, EPOCH_SECONDS, Tree, VERSION, fresh_directory, install};

/// Packs a tree.
///
/// # Errors
/// When tar or gzip fails.
pub(crate) fn build(paths: &Paths, tree: &Tree) -> Result<PathBuf> {
    let folder = paths.target.join("tarball");
    fresh_directory(&folder)?;
    let name = format!("{NAME}-{VERSION}-x86_64");
    let root = folder.join(&name);
    tree::copy(&tree.root, &root)?;
    let libraries = root.join("lib/openmps");
    symlink("libcuda.so.1", libraries.join("libcuda.so"))?;
    fs::create_dir_all(libraries.join("bin"))?;
    symlink("../../../bin/openmps", libraries.join("bin/nvidia-cuda-mps-control"))?;
    // Batch systems call these as root.
    fs::remove_file(libraries.join("spank_openmps.so"))?;
    for hooks in ["slurm", "pbs"] {
        fs::remove_dir_all(libraries.join(hooks))?;
    }
    install(&paths.root.join("packaging/install.sh"), &root.join("install.sh"), 0o755)?;
    pack(&folder, &name, &paths.target.join("packages").join(format!("{name}.tar.gz")))
}

/// An archive of a directory that is the same bytes each time.
///
/// # Errors
/// When tar or gzip fails.
pub(crate) fn pack(folder: &Path, name: &str, to: &Path) -> Result<PathBuf> {
    let plain = to.with_extension("");
    run_quietly(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
            .arg(format!("--mtime=@{EPOCH_SECONDS}"))
            .arg("-C")
            .arg(folder)
            .arg("-cf")
            .arg(&plain)
            .arg(name),
    )?;
    run_quietly(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&plain))?;
    Ok(to.to_owned())
}

/// Installs it into a home, runs a program, installs it once more and removes it.
///
/// # Errors
/// What did not work.
pub(crate) fn check(paths: &Paths, archive: &Path) -> Result<()> {
    let folder = paths.target.join("tarball/check");
    fresh_directory(&folder)?;
    run_quietly(Command::new("tar").arg("-C").arg(&folder).arg("-xzf").arg(archive))?;
    let installer = folder.join(format!("{NAME}-{VERSION}-x86_64/install.sh"));
    let home = folder.join("home");
    fs::create_dir_all(home.join(".local/bin"))?;
    fs::write(home.join(".local/bin/mine"), "stays")?;
    let clean = |command: &mut Command| {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("mps"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.join("mps"));
        run_quietly(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let said = clean(&mut Command::new(&installer))?;
    ensure!(said.contains("export PATH="), "install.sh said {said}");
    // An upgrade, too.
    clean(&mut Command::new(&installer))?;
    let executable = home.join(".local/bin/openmps");
    let program = paths.target.join("programs/cudart-13.0-static/vector_add");
    let mut run = Command::new(&executable);
    let ran = clean(run.args(["run", "--softcuda", "--"]).arg(program));
    clean(Command::new(&executable).args(["control", "quit"]))?;
    let ran = ran?;
    ensure!(ran.contains("vector_add: ok"), "the program said {ran}");
    clean(Command::new(&installer).arg("--uninstall"))?;
    let left =
        run_quietly(Command::new("find").arg(&home).args(["-type", "f", "-o", "-type", "l"]))?;
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    ensure!(left.trim_end().ends_with("/bin/mine") && left.lines().count() == 1, "left: {left}");
    ensure!(!home.join(".local/lib/openmps").exists(), "directories are left");
    Ok(())
}
