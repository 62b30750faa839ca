//! What only the driver has (arrays, textures, surfaces, conditions of graphs), and faults of
//! others.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use std::path::PathBuf;

/// Host memory for the saved arrays of a client, in MiB.
const MOST_SAVED: &str = "OPENMPS_SAVED_ARRAYS_MIB";

fn start(daemon: &Daemon, program: &str) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", program);
    Puppet::spawn(&mut sandbox.command(program, Runtime::OpenMps))
}

/// `programs/process/opaque.c`, with everything made and checked.
fn opaque(daemon: &Daemon) -> Result<Puppet> {
    let mut client = start(daemon, "opaque")?;
    client.must("make")?;
    client.must("check")?;
    Ok(client)
}

/// Has a client make a fault, which is the only one in flight.
fn fault(daemon: &Daemon, kind: &str, error: u32) -> Result<()> {
    let mut culprit = start(daemon, "faults")?;
    culprit.must("make")?;
    culprit.expect(&format!("fault {kind}"), &format!("error {error}"))
}

fn wait_until_saved(daemon: &Daemon) -> Result<()> {
    wait::until("everything is saved", PATIENCE, || {
        let snapshot = daemon.snapshot();
        snapshot.is_ok_and(|it| {
            it.clients.iter().flat_map(|one| &one.devices).all(|device| !device.unsaved)
        })
    })
}

#[test]
fn arrays_textures_surfaces_and_conditions_outlive_faults_of_every_kind() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    // Their objects lie between each other's, and some values are free when the next executor
    // comes.
    let mut one = opaque(&daemon)?;
    let mut gone = start(&daemon, "opaque")?;
    gone.must("hold 9")?;
    let mut other = opaque(&daemon)?;
    gone.dismiss()?;
    one.must("hold 21")?;
    other.must("hold 4")?;
    let kinds = [("address", 700), ("misaligned", 716), ("trap", 719)];
    for (kind, error) in kinds.into_iter().chain([("assert", 710), ("stack", 700), ("shared", 700)])
    {
        wait_until_saved(&daemon)?;
        fault(&daemon, kind, error)?;
        for (name, client) in [("one", &mut one), ("other", &mut other)] {
            client.must("check").with_context(|| {
                format!("{name}, after {kind}: {}", daemon.sandbox().last_log_lines())
            })?;
        }
        // What changes from now on is saved again, and nobody is given another's values.
        one.must("draw")?;
        one.must("check")?;
        other.must("write")?;
        one.must("churn 20")?;
    }
    let devices = daemon.snapshot()?.devices;
    ensure!(devices[0].faults == 6 && devices[0].restarts == 6, "{devices:?}");
    for mut client in [one, other] {
        client.must("check")?;
        client.must("unmake")?;
        client.must("make")?;
        client.must("check")?;
        client.dismiss()?;
    }
    Ok(())
}

/// With so much host memory for copies.
fn is_told(most_mib: &str) -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[(MOST_SAVED, most_mib)])?;
    let mut idle = start(&daemon, "faults")?;
    idle.must("make")?;
    let mut unsaved = opaque(&daemon)?;
    fault(&daemon, "trap", 719)?;
    unsaved.expect("sync", "error 719").with_context(|| format!("with {most_mib} MiB"))?;
    idle.must("check")?;
    idle.dismiss()
}

#[test]
fn who_has_arrays_that_are_not_saved_is_told() -> Result<()> {
    is_told("0")?;
    // One of them is larger, all others are saved.
    is_told("4")
}

#[test]
fn who_made_arrays_and_wrote_none_goes_on() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[(MOST_SAVED, "0")])?;
    let mut idle = start(&daemon, "opaque")?;
    idle.must("hold 5")?;
    // Written, and destroyed since.
    idle.must("churn 3")?;
    fault(&daemon, "trap", 719)?;
    idle.must("churn 3").with_context(|| daemon.sandbox().last_log_lines())?;
    idle.dismiss()
}

/// Files of the keeper's whose names contain this, by their lengths in bytes.
fn kept_files(server: u32, name: &str) -> Result<Vec<u64>> {
    let mut lengths = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{server}/fd"))? {
        let path: PathBuf = entry?.path();
        // One that is closed meanwhile does not count.
        let Ok(target) = std::fs::read_link(&path) else { continue };
        if target.to_string_lossy().contains(name)
            && let Ok(status) = std::fs::metadata(&path)
        {
            lengths.push(status.len());
        }
    }
    Ok(lengths)
}

#[test]
fn a_journal_is_as_long_as_what_lives() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = opaque(&daemon)?;
    let server = daemon.server()?.pid;
    wait_until_saved(&daemon)?;
    let saved = kept_files(server, "openmps-array")?.len();
    ensure!(saved == 12, "one for each array: {saved}");
    client.must("churn 10000")?;
    wait_until_saved(&daemon)?;
    let journals = kept_files(server, "openmps-journal")?;
    ensure!(journals.iter().all(|length| *length <= 128 << 10), "{journals:?}");
    wait::until("copies of arrays go with them", PATIENCE, || {
        kept_files(server, "openmps-array").is_ok_and(|files| files.len() == 12)
    })?;
    fault(&daemon, "trap", 719)?;
    client.must("check")?;
    client.must("unmake")?;
    wait::until("the last copies go", PATIENCE, || {
        kept_files(server, "openmps-array").is_ok_and(|files| files.is_empty())
    })?;
    client.dismiss()
}

#[test]
fn a_client_of_two_devices_reaches_both_after_a_fault_of_either() -> Result<()> {
    const TWO: [(&str, &str); 1] = [("OPENMPS_SOFT_DEVICES", "2")];
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let start = |program: &str, device: Option<&str>| -> Result<Puppet> {
        let mut command =
            sandbox.command(sandbox.installation.program("process", program), Runtime::OpenMps);
        command.envs(TWO);
        if let Some(device) = device {
            command.env("CUDA_VISIBLE_DEVICES", device);
        }
        Puppet::spawn(&mut command)
    };
    let mut idle = start("peers", None)?;
    idle.must("make")?;
    idle.must("check")?;
    for device in ["0", "1", "0", "1"] {
        let mut culprit = start("faults", Some(device))?;
        culprit.must("make")?;
        culprit.expect("fault trap", "error 719")?;
        culprit.dismiss()?;
        idle.must("check").with_context(|| {
            format!("after a fault of device {device}: {}", sandbox.last_log_lines())
        })?;
    }
    let devices = daemon.snapshot()?.devices;
    ensure!(devices.iter().all(|device| device.faults == 2), "{devices:?}");
    // Nothing is counted twice: all of it comes back while the client is there.
    idle.must("unmake")?;
    idle.must("make")?;
    idle.must("check")?;
    idle.dismiss()?;
    wait::until("all memory has come back", PATIENCE, || {
        daemon
            .snapshot()
            .is_ok_and(|now| now.devices.iter().all(|device| device.granted_bytes == 0))
    })
}
