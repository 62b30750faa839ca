//! Finding F14: where root's daemon puts its socket, its lock and its pid file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox, process};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f14_a_pipe_directory_is_no_link", no_link),
    Test::new("f14_a_pipe_directory_of_roots_is_no_link_either", no_link_of_roots),
    Test::new("f14_a_link_on_the_way_is_roots", no_link_on_the_way),
    Test::new("f14_a_pipe_directory_is_not_in_anothers_directory", no_foreign_parent),
    Test::new("f14_a_pipe_directory_is_not_where_all_may_write", no_parent_for_all),
    Test::new("f14_a_lock_is_roots", no_foreign_lock),
    Test::new("f14_a_groups_socket_is_not_in_anothers_directory", no_foreign_group_socket),
];

/// Root's daemon refuses `pipe`, says `why`, and has made nothing in `untouched`.
fn is_refused(sandbox: &Sandbox, pipe: &Path, why: &str, untouched: &Path) -> Result<()> {
    let listed = || -> Result<Vec<_>> {
        let mut names: Vec<_> = fs::read_dir(untouched)?.flatten().map(|it| it.path()).collect();
        names.sort();
        Ok(names)
    };
    let before = listed()?;
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["control", "-f"]).env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let running = process::Running::start(&mut command)?;
    let socket = pipe.join(link::wire::DAEMON_SOCKET);
    let mut has_ended = false;
    wait::until("the daemon refuses or serves", PATIENCE, || {
        has_ended = has_ended_by_itself(running.pid());
        has_ended || socket.exists()
    })?;
    if !has_ended {
        bail!("root serves from {}", pipe.display());
    }
    let refused = running.finish(PATIENCE)?;
    ensure!(!refused.status.success() && refused.stderr.contains(why), "{why}: {refused:?}");
    ensure!(listed()? == before, "{:?}", listed()?);
    Ok(())
}

/// Whether a child of this process is a zombie, or gone.
fn has_ended_by_itself(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.contains("State:") || status.contains("State:\tZ")
}

fn as_attacker(sandbox: &Sandbox, script: &str) -> Result<()> {
    let mut shell = sandbox.command_as(ATTACKER, "/bin/sh", Runtime::Softcuda);
    shell.args(["-e", "-c", script]).current_dir(sandbox.directory());
    process::run(&mut shell, PATIENCE)?.success().map(drop)
}

/// A directory as `/tmp` is.
fn for_all(sandbox: &Sandbox, mode: u32) -> Result<std::path::PathBuf> {
    let directory = sandbox.directory().join("for-all");
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(mode))?;
    Ok(directory)
}

fn no_link() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let (target, directory) = (sandbox.pipe_directory(), for_all(&sandbox, 0o1777)?);
    as_attacker(&sandbox, "ln -s $PWD/pipe for-all/nvidia-mps")?;
    is_refused(&sandbox, &directory.join("nvidia-mps"), "is a symbolic link", &target)
}

fn no_link_of_roots() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let link = sandbox.directory().join("nvidia-mps");
    std::os::unix::fs::symlink(sandbox.pipe_directory(), &link)?;
    is_refused(&sandbox, &link, "is a symbolic link", &sandbox.pipe_directory())
}

/// Links of root's on the way are followed, those of others are not.
fn no_link_on_the_way() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let directory = for_all(&sandbox, 0o1777)?;
    as_attacker(&sandbox, "ln -s $PWD for-all/theirs")?;
    let target = sandbox.pipe_directory();
    is_refused(&sandbox, &directory.join("theirs/pipe"), "belongs to user 20002", &target)?;
    let ours = directory.join("ours");
    std::os::unix::fs::symlink("..", &ours)?;
    let pipe = ours.join("pipe").to_str().context("no text")?.to_owned();
    let daemon = Daemon::start_with(sandbox, &[("CUDA_MPS_PIPE_DIRECTORY", &pipe)])?;
    daemon.state().map(drop)
}

fn no_foreign_parent() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let pipe = sandbox.directory_of(ATTACKER, "attackers")?.join("mps");
    fs::create_dir(&pipe)?;
    is_refused(&sandbox, &pipe, "attackers belongs to user 20002", &pipe)
}

fn no_parent_for_all() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let pipe = for_all(&sandbox, 0o777)?.join("mps");
    fs::create_dir(&pipe)?;
    is_refused(&sandbox, &pipe, "chmod", &pipe)
}

/// Whoever holds the lock could keep root's daemon from starting, or let a second one start beside
/// it.
fn no_foreign_lock() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let pipe = for_all(&sandbox, 0o1777)?;
    as_attacker(&sandbox, "touch for-all/openmps-control.lock")?;
    is_refused(&sandbox, &pipe, "openmps-control.lock belongs to user 20002", &pipe)
}

fn no_foreign_group_socket() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let attackers = sandbox.directory_of(ATTACKER, "attackers")?;
    let daemon = Daemon::start(sandbox)?;
    let sandbox = daemon.sandbox();
    for place in [attackers.clone(), attackers.join("tenant")] {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.arg("socket").arg(&place).args(["--group", "tenant"]);
        let refused = process::run(&mut command, PATIENCE)?;
        ensure!(!refused.status.success(), "it is open: {}", place.display());
        ensure!(refused.stderr.contains("attackers belongs to user 20002"), "{refused:?}");
        ensure!(fs::read_dir(&attackers)?.count() == 0, "root has made something there");
    }
    Ok(())
}
