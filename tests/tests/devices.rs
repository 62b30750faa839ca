//! Several devices in one server: a client on two of them, copies between them, and memory of one
//! in kernels of the other.

use anyhow::{Context, Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox};

const TWO: [(&str, &str); 1] = [("OPENMPS_SOFT_DEVICES", "2")];

/// Runs the program `two_devices` on a machine with two devices.
fn two_devices(
    sandbox: &Sandbox,
    runtime: Runtime,
    arguments: &[&str],
) -> Result<process::Finished> {
    let program = sandbox.installation.program("process", "two_devices");
    let mut command = sandbox.command(program, runtime);
    process::run(command.envs(TWO).args(arguments), 2 * PATIENCE)
}

#[test]
fn one_client_works_on_two_devices_as_it_does_natively() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let native = two_devices(daemon.sandbox(), Runtime::Softcuda, &[])?;
    ensure!(native.success()?.starts_with("peer access: yes"), "{}", native.stdout);
    let attached = two_devices(daemon.sandbox(), Runtime::OpenMps, &[])?;
    let printed = attached.success().with_context(|| daemon.sandbox().last_log_lines())?;
    ensure!(printed == native.stdout, "{printed}natively\n{}", native.stdout);
    ensure!(daemon.departed(attached.pid)?.kernels > 0);
    let devices = daemon.snapshot()?.devices;
    ensure!(devices.len() == 2 && devices.iter().all(|device| device.kernels_ever > 0));
    wait::until("all memory has come back", PATIENCE, || {
        daemon
            .snapshot()
            .is_ok_and(|now| now.devices.iter().all(|device| device.granted_bytes == 0))
    })
}

#[test]
fn kernels_reach_another_devices_memory_only_where_that_is_allowed() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    for runtime in [Runtime::Softcuda, Runtime::OpenMps] {
        let finished = two_devices(daemon.sandbox(), runtime, &["trespass"])?;
        ensure!(finished.success()? == "refused\n", "{runtime:?}: {}", finished.stdout);
    }
    // The other device and the next client have nothing of it.
    let after = two_devices(daemon.sandbox(), Runtime::OpenMps, &[])?;
    after.success().with_context(|| daemon.sandbox().last_log_lines()).map(drop)
}

#[test]
fn a_stream_that_waits_for_a_device_that_fails_does_not_wait_for_ever() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let finished = two_devices(daemon.sandbox(), Runtime::OpenMps, &["failure"])?;
    let printed = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
    ensure!(printed == "ended\n", "{printed}");
    two_devices(daemon.sandbox(), Runtime::OpenMps, &[])?.success().map(drop)
}

#[test]
fn a_domain_of_its_own_has_peers_too() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "two_devices");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    command.envs(TWO).env("OPENMPS_ISOLATE", "two");
    let finished = process::run(&mut command, 2 * PATIENCE)?;
    ensure!(finished.success()?.ends_with("copies afterwards: right\n"), "{}", finished.stdout);
    Ok(())
}

#[test]
fn clients_that_are_killed_leave_nothing_on_either_device() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "two_devices");
    for _ in 0..3 {
        let mut command = sandbox.command(&program, Runtime::OpenMps);
        let mut running = process::Running::start(command.envs(TWO))?;
        let pid = running.pid();
        wait::until("kernels run on both devices", PATIENCE, || {
            let clients = daemon.snapshot().map(|now| now.clients).unwrap_or_default();
            let client = clients.into_iter().find(|client| client.pid == pid);
            let ended =
                daemon.snapshot().is_ok_and(|now| now.departed.iter().any(|c| c.pid == pid));
            ended
                || client.is_some_and(|client| {
                    client.devices.iter().filter(|d| d.kernels > 0).count() == 2
                })
        })?;
        // It may just have ended by itself.
        let _ = running.kill();
        drop(running);
    }
    wait::until("all memory has come back", PATIENCE, || {
        daemon.snapshot().is_ok_and(|now| {
            now.clients.is_empty() && now.devices.iter().all(|device| device.granted_bytes == 0)
        })
    })?;
    two_devices(sandbox, Runtime::OpenMps, &[])?.success().map(drop)
}
