//! Attached or native: the one choice of a process, and `openmps run`, which makes it for a
//! command.

use std::fs;

use anyhow::{Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

#[test]
fn without_a_daemon_a_program_runs_natively() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut puppet = Puppet::start(&sandbox, Runtime::OpenMps)?;
    puppet.must("open")?;
    puppet.must("work 3")?;
    puppet.dismiss()?;
    ensure!(sandbox.processes().is_empty(), "something was started: {:?}", sandbox.processes());
    Ok(())
}

#[test]
fn what_a_dead_daemon_leaves_behind_does_not_stop_a_program() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let left = daemon.sandbox().pipe_directory().join(link::wire::DAEMON_SOCKET);
    ensure!(left.exists());
    let sandbox = Sandbox::new()?;
    // A socket file behind which nobody listens any more, as after kill -9.
    drop(std::os::unix::net::UnixListener::bind(
        sandbox.pipe_directory().join(link::wire::DAEMON_SOCKET),
    )?);
    let mut puppet = Puppet::start(&sandbox, Runtime::OpenMps)?;
    puppet.must("open")?;
    puppet.must("work 1")?;
    puppet.dismiss()
}

#[test]
fn an_attached_program_is_listed_with_its_kernels_and_then_gone() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 7")?;
    let snapshot = daemon.snapshot()?;
    let listed = snapshot.clients.iter().find(|client| client.pid == puppet.pid());
    ensure!(listed.is_some_and(|client| client.kernels == 7), "{snapshot:?}");
    ensure!(snapshot.clients_ever == 1, "{snapshot:?}");

    let pid = puppet.pid();
    puppet.dismiss()?;
    daemon.wait_gone(pid)?;
    ensure!(daemon.departed(pid)?.kernels == 7);
    Ok(())
}

#[test]
fn the_original_shell_names_server_and_client() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    let server = daemon.server()?.pid;
    ensure!(daemon.shell("get_server_list")?.trim() == server.to_string());
    ensure!(daemon.shell(&format!("get_server_status {server}"))?.trim() == "ACTIVE");
    let clients = daemon.shell(&format!("get_client_list {server}"))?;
    ensure!(clients.trim() == puppet.pid().to_string(), "{clients:?}");
    puppet.dismiss()
}

#[test]
fn run_starts_what_is_missing_and_returns_the_exit_code() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let openmps = sandbox.installation.openmps();
    let run = |words: &[&str]| {
        let mut command = sandbox.command(&openmps, Runtime::OpenMps);
        command.env_remove("LD_LIBRARY_PATH").args(["run", "--"]).args(words);
        process::run(&mut command, PATIENCE)
    };
    let exit = run(&["sh", "-c", "echo to stdout; exit 7"])?;
    ensure!(exit.status.code() == Some(7), "{exit:?}");
    ensure!(exit.stdout == "to stdout\n", "{exit:?}");

    let program = sandbox.installation.program("rust", "cudarc");
    let cuda = run(&[&program.to_string_lossy()])?;
    ensure!(cuda.success()?.starts_with("cudarc: ok"), "{cuda:?}");
    let state = process::run(
        sandbox.command(&openmps, Runtime::OpenMps).args(["status", "--json"]),
        PATIENCE,
    )?;
    ensure!(state.success()?.contains("cudarc"), "the program was not attached: {state:?}");
    Ok(())
}

#[test]
fn run_forwards_signals() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mark = sandbox.log_directory().join("mark");
    let script =
        format!("trap 'exit 9' TERM; : > {}; while :; do sleep 0.05; done", mark.display());
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let running = process::Running::start(command.args(["run", "--", "sh", "-c", &script]))?;
    wait::until("the script runs", PATIENCE, || fs::exists(&mark).unwrap_or(false))?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(running.pid())?);
    rustix::process::kill_process(
        pid.ok_or_else(|| anyhow::anyhow!("no process id"))?,
        rustix::process::Signal::TERM,
    )?;
    let finished = running.finish(PATIENCE)?;
    ensure!(finished.status.code() == Some(9), "{finished:?}");
    Ok(())
}

#[test]
fn quit_ends_daemon_and_servers() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.dismiss()?;
    daemon.quit(PATIENCE)?;
    wait::until("no process of it is left", PATIENCE, || daemon.sandbox().processes().is_empty())?;
    ensure!(!daemon.sandbox().pipe_directory().join(link::wire::DAEMON_SOCKET).exists());
    Ok(())
}
