//! What NVIDIA's MPS does, by its guide and by the binaries of its newer releases: users' own
//! servers, names of processes, scripts, variables.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

const ALICE: u32 = 20_003;
const BOB: u32 = 20_004;
const TERMINATED: &str = "error 810";

/// One line for the control utility, as a user types it.
fn shell_as(daemon: &Daemon, uid: u32, line: &str) -> Result<String> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command_as(uid, sandbox.installation.openmps(), Runtime::OpenMps);
    let finished = process::run(command.arg("control").args(line.split_whitespace()), PATIENCE)?;
    Ok(finished.stdout)
}

fn servers(daemon: &Daemon) -> Result<Vec<String>> {
    Ok(daemon.shell("get_server_list")?.lines().map(str::to_owned).collect())
}

/// Needs root, whose daemon it is that serves others.
#[test]
fn a_user_starts_and_stops_a_server_of_his_own_under_roots_daemon() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root");
        return Ok(());
    }
    let sandbox = Sandbox::of_several_users()?;
    let daemon = Daemon::start_with(sandbox, &[("OPENMPS_PROVISIONING", "concurrent")])?;
    for uid in [ALICE, BOB] {
        let said = shell_as(&daemon, uid, &format!("start_server -uid {uid}"))?;
        ensure!(said.is_empty(), "{said}");
    }
    let said = shell_as(&daemon, ALICE, &format!("start_server -uid {BOB}"))?;
    let refused = format!("Insufficient privileges for UID {ALICE}. Only the root user may ");
    ensure!(said == format!("{refused}start server for another user.\n"), "{said}");
    let mut of_users = Vec::new();
    wait::until("both servers are active", PATIENCE, || {
        let state = daemon.state();
        of_users = state.map(|state| state.servers).unwrap_or_default();
        let is_active = |pid: u32| {
            daemon.shell(&format!("get_server_status {pid}")).is_ok_and(|said| said == "ACTIVE\n")
        };
        of_users.len() == 2 && of_users.iter().all(|server| is_active(server.pid))
    })?;
    let server_of = |uid: u32| {
        let found = of_users.iter().find(|server| server.uid == uid).map(|server| server.pid);
        found.with_context(|| format!("user {uid} has no server"))
    };
    let (own, other) = (server_of(ALICE)?, server_of(BOB)?);
    let said = shell_as(&daemon, ALICE, &format!("shutdown_server {other} -f"))?;
    ensure!(said == format!("{refused}shutdown another user's server.\n"), "{said}");
    let said = shell_as(&daemon, ALICE, &format!("terminate_client {other} 1"))?;
    ensure!(said == format!("{refused}terminate clients on another user's server.\n"), "{said}");
    let said = shell_as(&daemon, ALICE, &format!("shutdown_server {own}"))?;
    ensure!(said.is_empty(), "{said}");
    wait::until("the user's own server has gone", PATIENCE, || {
        servers(&daemon).is_ok_and(|left| left == [other.to_string()])
    })
}

#[test]
fn a_terminated_client_makes_no_context_again() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_DEVICES", "2")])?;
    let (mut puppet, mut other) = (daemon.puppet()?, daemon.puppet()?);
    for puppet in [&mut puppet, &mut other] {
        puppet.must("open")?;
        puppet.must("work 1")?;
        puppet.must("context")?;
    }
    let server = daemon.server()?.pid;
    ensure!(daemon.shell(&format!("terminate_client {server} {}", puppet.pid()))? == "0\n");
    puppet.expect("work 1", TERMINATED)?;
    puppet.expect("context", TERMINATED)?;
    // On a device that it had no context on, too.
    puppet.expect("open 1", TERMINATED)?;
    other.must("work 1")?;
    other.must("context")?;
    other.must("open 1")?;
    // Another process is another client.
    let mut next = daemon.puppet()?;
    next.must("open")?;
    next.must("work 1")
}

/// A script, as bytes, for the control utility.
fn script(sandbox: &Sandbox, text: &[u8]) -> Result<String> {
    let alias = sandbox.installation.openmps().with_file_name("nvidia-cuda-mps-control");
    let mut command = sandbox.command(alias, Runtime::OpenMps);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("no standard input")?.write_all(text)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_line_that_is_no_text_does_not_end_a_script() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let text = b"get_default_client_priority\n\xff\xfe\nget_default_active_thread_percentage\r\n";
    let said = script(daemon.sandbox(), text)?;
    ensure!(said == "0\nUnknown command \"\u{fffd}\u{fffd}\"\n100.0\n", "{said:?}");
    Ok(())
}

#[test]
fn daemon_and_servers_are_shown_under_the_originals_name() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    for pid in [daemon.pid(), daemon.server()?.pid] {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
        ensure!(name == "nvidia-cuda-mps\n", "process {pid}: {name}");
    }
    Ok(())
}

fn control(sandbox: &Sandbox, variables: &[(&str, &str)], words: &[&str]) -> Result<Finished> {
    let alias = sandbox.installation.openmps().with_file_name("nvidia-cuda-mps-control");
    let mut command = sandbox.command(alias, Runtime::OpenMps);
    process::run(command.envs(variables.iter().copied()).args(words), PATIENCE)
}

/// No daemon is started, and none is spoken to, where something else was meant.
#[test]
fn what_there_is_not_is_said() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let three = [("CUDA_MPS_PROTOCOL_VERSION", "3")];
    for (variables, words, named) in [
        (&three[..], &["-d"][..], "CUDA_MPS_PROTOCOL_VERSION"),
        (&[], &["-d", "get_server_list"], "get_server_list"),
    ] {
        let finished = control(&sandbox, variables, words)?;
        ensure!(finished.status.code() == Some(1), "{words:?}: {finished:?}");
        ensure!(finished.stderr.contains(named), "{words:?}: {finished:?}");
        ensure!(sandbox.processes().is_empty(), "{words:?} started a daemon");
    }
    let daemon = Daemon::start(sandbox)?;
    let finished = control(daemon.sandbox(), &three, &["get_server_list"])?;
    ensure!(finished.status.code() == Some(1), "{finished:?}");
    let two = [("CUDA_MPS_PROTOCOL_VERSION", "2")];
    control(daemon.sandbox(), &two, &["get_server_list"])?.success()?;
    let said = daemon.shell("start_server -uid 0 -mlopart")?;
    ensure!(said == "-mlopart is not supported: no server was started\n", "{said}");
    ensure!(servers(&daemon)?.is_empty());
    // A program that wants SMs for itself alone gets no others.
    let mut partitioned = daemon.puppet_with(&[("CUDA_MPS_SM_PARTITION", "GPU-1/Dx4A")])?;
    partitioned.expect("open", "error 915")?;
    // A server's lines come by a pipe, which the daemon may read after the program has its answer.
    daemon.sandbox().wait_for_log("CUDA_MPS_SM_PARTITION=GPU-1/Dx4A")?;
    let mut plain: Puppet = daemon.puppet_with(&[("CUDA_MPS_SM_PARTITION", "")])?;
    plain.must("open")
}
