//! However a daemon ends, nothing stays behind: no process, no file but logs, and the directory
//! takes the next daemon.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// Files of the pipe directory.
fn files(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.pipe_directory()).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// No process of the sandbox, clients included, and an empty pipe directory.
fn nothing_is_left(daemon: &Daemon) -> Result<()> {
    let sandbox = daemon.sandbox();
    // Who adopted the server reaps it, or not: a zombie has no environment.
    wait::until("all processes have ended", PATIENCE, || sandbox.processes().is_empty())?;
    ensure!(files(sandbox).is_empty(), "left behind: {:?}", files(sandbox));
    Ok(())
}

fn worker(daemon: &Daemon) -> Result<Puppet> {
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 3")?;
    Ok(puppet)
}

#[test]
fn quit_lets_clients_finish() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = worker(&daemon)?;
    let quit = daemon.start_shell("quit")?;
    wait::until("the server is told to stop", PATIENCE, || {
        daemon.sandbox().logs().contains("Waiting for current clients to finish")
    })?;
    client.must("work 3")?;
    // A program that starts now must not wait for a daemon that is about to go.
    let mut late = daemon.puppet()?;
    let refused = late.ask("open")?;
    ensure!(refused.starts_with("error "), "{refused}");
    late.dismiss()?;
    client.dismiss()?;
    let quit = quit.finish(PATIENCE)?;
    ensure!(quit.success()?.is_empty(), "{quit:?}");
    daemon.wait_for_exit(PATIENCE)?;
    nothing_is_left(&daemon)
}

#[test]
fn quit_with_a_timeout_does_not_wait_longer() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = worker(&daemon)?;
    let mut idle = worker(&daemon)?;
    client.must("churn")?;
    let quit = daemon.start_shell("quit -t 1")?.finish(PATIENCE)?;
    // Not every server ended by itself: so the exit status says, as the original's manual has it.
    ensure!(quit.status.code() == Some(1), "{quit:?}");
    daemon.wait_for_exit(PATIENCE)?;
    let told = idle.ask("work 1")?;
    ensure!(told.starts_with("error "), "a client without a server goes on: {told}");
    idle.dismiss()?;
    client.kill()?;
    nothing_is_left(&daemon)
}

#[test]
fn a_killed_daemon_leaves_files_that_hinder_nobody() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = worker(&daemon)?;
    daemon.kill()?;
    client.must("work 3")?;
    // What it left: its own files, which say nothing true any more.
    ensure!(!files(daemon.sandbox()).is_empty(), "a killed process cleans nothing up");
    client.dismiss()?;
    wait::until("the server ends with its last client", PATIENCE, || {
        daemon.sandbox().processes().is_empty()
    })?;
    daemon.start_again()?;
    worker(&daemon)?.dismiss()?;
    daemon.shell("quit")?;
    daemon.wait_for_exit(PATIENCE)?;
    nothing_is_left(&daemon)
}

#[test]
fn a_second_daemon_leaves_the_first_alone() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = worker(&daemon)?;
    let before = files(daemon.sandbox());
    let sandbox = daemon.sandbox();
    for option in ["-d", "-f"] {
        let mut second = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let second = process::run(second.args(["control", option]), PATIENCE)?;
        ensure!(second.status.code() == Some(1), "{second:?}");
        let said = format!("already running in {}", sandbox.pipe_directory().display());
        ensure!(second.stderr.contains(&said), "{second:?}");
        ensure!(second.stderr.contains(&daemon.pid().to_string()), "{second:?}");
    }
    ensure!(files(sandbox) == before, "the second changed {before:?} to {:?}", files(sandbox));
    client.must("work 3")?;
    client.dismiss()?;
    daemon.shell("quit")?;
    daemon.wait_for_exit(PATIENCE)?;
    nothing_is_left(&daemon)
}

#[test]
fn a_stale_pid_file_is_replaced() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pid_file = sandbox.pipe_directory().join("nvidia-cuda-mps-control.pid");
    // Of a process that lives, which makes it no daemon.
    fs::write(&pid_file, "1\n")?;
    let mut daemon = Daemon::start(sandbox)?;
    ensure!(fs::read_to_string(&pid_file)?.trim() == daemon.pid().to_string());
    daemon.shell("quit")?;
    daemon.wait_for_exit(PATIENCE)?;
    nothing_is_left(&daemon)
}

/// What `ps aux | grep nvidia-cuda-mps` of an epilog looks for: there while the daemon runs, and
/// not after.
#[test]
fn batch_systems_see_daemon_and_server_in_ps() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let alias = sandbox.installation.openmps().with_file_name("nvidia-cuda-mps-control");
    let run = |words: &[&str]| {
        process::run(sandbox.command(&alias, Runtime::OpenMps).args(words), PATIENCE)
    };
    run(&["-d"])?.success()?;
    let uid = rustix::process::geteuid().as_raw().to_string();
    run(&["start_server", "-uid", &uid])?.success()?;
    let names = || -> Vec<String> {
        let name = |pid: &rustix::process::Pid| {
            let path = Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("cmdline");
            let line = fs::read(path).unwrap_or_default();
            String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or(&[]))
                .into_owned()
        };
        sandbox.processes().iter().map(name).collect()
    };
    wait::until("both are seen", PATIENCE, || {
        ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"]
            .iter()
            .all(|wanted| names().iter().any(|name| name == wanted))
    })?;
    run(&["quit"])?.success()?;
    wait::until("neither is seen", PATIENCE, || names().is_empty())
}
