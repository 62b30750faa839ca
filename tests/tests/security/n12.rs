//! Finding N12, and what else root writes or reads where others have a hand in.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Runtime, Sandbox};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[
    Test::new("n12_a_specification_is_not_written_through_links", specification),
    Test::new("n12_metrics_are_not_served_through_links", metrics),
    Test::new("n12_logs_are_files_or_not_read", logs),
];

/// A directory that root alone may enter.
fn private(sandbox: &Sandbox) -> Result<PathBuf> {
    let directory = sandbox.directory().join("private");
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
    Ok(directory)
}

fn is_empty(directory: &Path) -> Result<()> {
    if let Some(entry) = fs::read_dir(directory)?.next() {
        anyhow::bail!("root has made {}", entry?.path().display());
    }
    Ok(())
}

/// Does as the attacker does in a shell.
fn attack(sandbox: &Sandbox, script: &str) -> Result<()> {
    let mut shell = sandbox.command_as(ATTACKER, "/bin/sh", Runtime::Softcuda);
    shell.args(["-e", "-c", script]).current_dir(sandbox.directory());
    process::run(&mut shell, PATIENCE)?.success().map(drop)
}

/// What root runs.
fn root(sandbox: &Sandbox, words: &[&str], variables: &[(&str, &Path)]) -> Result<Finished> {
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(words).envs(variables.iter().copied()), PATIENCE)
}

fn specification() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let private = private(&sandbox)?;
    let theirs = sandbox.directory_of(ATTACKER, "theirs")?;
    let for_all = sandbox.directory().join("for-all");
    fs::create_dir(&for_all)?;
    fs::set_permissions(&for_all, Permissions::from_mode(0o1777))?;
    let script = "for directory in theirs for-all; do
                      for name in openmps.json openmps.new openmps.json.new; do
                          ln -s $PWD/private/made $directory/$name
                      done
                  done";
    attack(&sandbox, script)?;
    let written = theirs.join("openmps.json");
    let refused = root(&sandbox, &["cdi", "-o", written.to_str().context("no text")?], &[])?;
    is_empty(&private)?;
    ensure!(!refused.status.success(), "{refused:?}");
    ensure!(refused.stderr.contains("theirs belongs to user 20002"), "{refused:?}");
    // Where nobody can rename what is root's, the links are replaced.
    let written = for_all.join("openmps.json");
    root(&sandbox, &["cdi", "-o", written.to_str().context("no text")?], &[])?.success()?;
    is_empty(&private)?;
    ensure!(fs::symlink_metadata(&written)?.is_file(), "{} is a link", written.display());
    Ok(())
}

fn metrics() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let private = private(&sandbox)?;
    sandbox.directory_of(ATTACKER, "theirs")?;
    attack(&sandbox, "ln -s $PWD/private theirs/link")?;
    let address = format!("unix:{}/theirs/link/metrics", sandbox.directory().display());
    let started = root(&sandbox, &["control", "-f"], &[("OPENMPS_METRICS", address.as_ref())]);
    is_empty(&private)?;
    let refused = started?;
    ensure!(refused.stderr.contains("theirs belongs to user 20002"), "{refused:?}");
    Ok(())
}

/// A pipe that nobody writes to would be waited for.
fn logs() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let theirs = sandbox.directory_of(ATTACKER, "theirs")?;
    attack(
        &sandbox,
        "mkfifo theirs/control.log && ln -s $PWD/theirs/control.log theirs/server.log",
    )?;
    for (log, why) in [("control", "is no regular file"), ("server", "is a symbolic link")] {
        let refused = root(&sandbox, &["logs", log], &[("CUDA_MPS_LOG_DIRECTORY", &theirs)])?;
        ensure!(!refused.status.success() && refused.stderr.contains(why), "{refused:?}");
    }
    Ok(())
}
