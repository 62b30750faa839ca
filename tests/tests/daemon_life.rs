//! The daemon's end and return while clients run, its view of the devices, and what our own
//! commands show of all that.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use link::wire::ui::{DaemonState, ServerState};
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn clients_outlive_the_daemon_and_a_new_one_serves_new_clients() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut old_client = daemon.puppet()?;
    old_client.must("open")?;
    let old_server = daemon.server()?.pid;
    daemon.kill()?;
    old_client.must("work 3")?;
    daemon.start_again()?;
    old_client.must("work 3")?;
    let mut new_client = daemon.puppet()?;
    new_client.must("open")?;
    new_client.must("work 3")?;
    ensure!(daemon.server()?.pid != old_server, "the old server is not the new daemon's");
    old_client.dismiss()?;
    // No test's process: who adopted it reaps it, or not; then it is a zombie without an
    // executable.
    wait::until("the old server ends with its last client", PATIENCE, || {
        std::fs::read_link(format!("/proc/{old_server}/exe")).is_err()
    })?;
    new_client.must("work 3")?;
    new_client.dismiss()
}

#[test]
fn a_server_that_was_wanted_beforehand_has_an_executor_for_the_first_client() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_PREWARM", "self")])?;
    let mut found = None;
    wait::until("an executor before any client", PATIENCE, || {
        let is_there = |server: &ServerState| {
            server.snapshot.devices.first().is_some_and(|device| device.executor_pid != 0)
        };
        found = daemon.server().ok().filter(is_there);
        found.is_some()
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    let early = found.context("a server that was found")?;
    ensure!(early.snapshot.clients_ever == 0, "{early:?}");
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must("work 3")?;
    let now = daemon.server()?;
    let (was, is) = (&early.snapshot.devices[0], &now.snapshot.devices[0]);
    ensure!(now.pid == early.pid && is.executor_pid == was.executor_pid, "{early:?} {now:?}");
    ensure!(is.domains.is_empty() && is.kernels_ever == 3, "{now:?}");
    ensure!(now.snapshot.clients[0].pid == client.pid(), "{now:?}");
    client.dismiss()
}

#[test]
fn devices_are_counted_anew_at_the_daemon_and_at_the_client() -> Result<()> {
    let devices = [("OPENMPS_SOFT_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", "2,1")];
    let daemon = Daemon::start_with(Sandbox::new()?, &devices)?;
    let mut first = daemon.puppet()?;
    first.must("open")?;
    let all = daemon.snapshot()?.devices;
    ensure!(all.len() == 2, "the daemon was given two of three devices: {all:?}");
    // The client counts what the daemon left it: its second device is the server's second.
    let sandbox = daemon.sandbox();
    let puppet = sandbox.installation.puppet()?;
    let mut by_number = sandbox.command(&puppet, Runtime::OpenMps);
    let mut second = Puppet::spawn(by_number.env("CUDA_VISIBLE_DEVICES", "1"))?;
    second.must("open")?;
    let mut by_uuid = sandbox.command(&puppet, Runtime::OpenMps);
    // The software GPU's differ in their last digit.
    let uuid = all[1].uuid.as_str();
    let mut third = Puppet::spawn(by_uuid.env("CUDA_VISIBLE_DEVICES", uuid))?;
    third.must("open")?;
    let clients = daemon.snapshot()?.clients;
    let device_of = |pid: u32| {
        let client = clients.iter().find(|client| client.pid == pid);
        client.and_then(|client| client.contexts.first()).map(|context| context.device)
    };
    ensure!(device_of(first.pid()) == Some(0), "{clients:?}");
    ensure!(device_of(second.pid()) == Some(1), "{clients:?}");
    ensure!(device_of(third.pid()) == Some(1), "{clients:?}");
    for puppet in [first, second, third] {
        puppet.dismiss()?;
    }
    Ok(())
}

#[test]
fn a_device_that_may_not_be_used_is_respected_and_named() -> Result<()> {
    let daemon =
        Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_COMPUTE_MODE", "prohibited")])?;
    let mut client = daemon.puppet()?;
    let refused = client.tell("open").and_then(|()| client.answer_within(PATIENCE))?;
    ensure!(refused.starts_with("error "), "{refused}");
    daemon.sandbox().wait_for_log("could not start")
}

#[test]
fn directories_may_be_on_another_file_system() -> Result<()> {
    let elsewhere = Path::new("/dev/shm");
    if !elsewhere.is_dir() {
        return Ok(());
    }
    let directory = tempfile::tempdir_in(elsewhere)?;
    let sandbox = Sandbox::new()?;
    let run = |program: PathBuf, arguments: &[&str]| {
        let mut command = sandbox.command(program, Runtime::OpenMps);
        command
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", directory.path())
            .env("CUDA_MPS_LOG_DIRECTORY", directory.path());
        process::run(&mut command, PATIENCE)
    };
    let openmps = sandbox.installation.openmps();
    run(openmps.clone(), &["control", "-d"])?.success()?;
    let program = sandbox.installation.program("cudart-13.0-static", "vector_add");
    let ran = run(program, &[])?;
    ran.success()?;
    let status = run(openmps.clone(), &["status", "--json"])?;
    ensure!(status.success()?.contains(&format!("\"pid\": {}", ran.pid)), "{status:?}");
    run(openmps, &["control", "quit"])?.success()?;
    let left: Vec<_> = std::fs::read_dir(directory.path())?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.ends_with(".log"))
        .collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

#[test]
fn our_own_commands_show_what_runs() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must("work 20")?;
    let run = |arguments: &[&str]| {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        process::run(command.args(arguments), PATIENCE)
    };
    let pid = client.pid().to_string();
    for arguments in [&["ps"][..], &["top", "--once", "--interval", "0.1"]] {
        let shown = run(arguments)?;
        ensure!(shown.success()?.contains(&pid), "{arguments:?}: {shown:?}");
    }
    let shown = run(&["logs", "-n", "1000", "server"])?;
    ensure!(shown.success()?.contains("Server has started"), "{shown:?}");
    let looked = run(&["doctor", "--json"])?;
    let findings: serde_json::Value = serde_json::from_str(looked.success()?)?;
    ensure!(findings["schema"] == 1, "{findings}");
    let daemon_line =
        findings["findings"].as_array().into_iter().flatten().find(|f| f["subject"] == "daemon");
    ensure!(daemon_line.is_some_and(|finding| finding["verdict"] == "ok"), "{findings}");
    client.dismiss()?;
    // What is wrong is found, named, and is the exit status.
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["doctor"]).env("OPENMPS_NATIVE_DRIVER", "/nowhere/libcuda.so.1");
    let looked = process::run(&mut command, PATIENCE)?;
    ensure!(looked.status.code() == Some(1) && looked.stdout.contains("/nowhere"), "{looked:?}");
    Ok(())
}

#[test]
fn a_server_that_stands_still_is_said_to_be_silent() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let server = daemon.server()?;
    ensure!(!server.silent && server.snapshot.clients.len() == 1, "{server:?}");
    let pid = Pid::from_raw(server.pid.cast_signed()).context("no process id")?;
    kill_process(pid, Signal::STOP)?;
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let shown = process::run(command.args(["status", "--json"]), PATIENCE)?;
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let top = process::run(command.args(["top", "--once", "--interval", "0.1"]), PATIENCE)?;
    kill_process(pid, Signal::CONT)?;
    let state: DaemonState = serde_json::from_str(shown.success()?)?;
    let last = &state.servers[0];
    ensure!(last.silent && last.snapshot.clients.len() == 1, "{shown:?}");
    ensure!(top.success()?.contains("SILENT"), "{top:?}");
    for shown in [shown, top] {
        ensure!(shown.stderr.contains("does not answer"), "{shown:?}");
    }
    client.must("work 1")?;
    let clients = daemon.snapshot()?.clients;
    ensure!(clients[0].kernels == 1, "{clients:?}");
    client.dismiss()
}

#[test]
fn a_configuration_file_sets_what_variables_do_not() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let file = sandbox.log_directory().join("config.toml");
    let openmps = |text: &str, arguments: &[&str]| {
        std::fs::write(&file, text)?;
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        process::run(command.args(arguments).env("OPENMPS_CONFIG", &file), PATIENCE)
    };
    let shown = openmps("[limits]\nactive_thread_percentage = 40\n", &["config"])?;
    let line = shown.success()?.lines().find(|line| line.starts_with("limits.active_thread"));
    ensure!(line.is_some_and(|line| line.contains("40") && line.ends_with("file")), "{shown:?}");
    let refused = openmps("[limits]\nactive_thread_percent = 40\n", &["ps"])?;
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    ensure!(refused.stderr.contains("active_thread_percent"), "{refused:?}");
    Ok(())
}
