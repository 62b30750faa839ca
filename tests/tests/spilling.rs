//! Programs that together want more memory than the device has, by each policy: every word stays
//! right, and who must wait does.

use anyhow::{Result, ensure};
use link::wire::daemon::WaitReason;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// Of the device; each of two programs takes more than half of it.
const DEVICE_MIB: &str = "192";
const OUT_OF_MEMORY: &str = "error 2";

fn daemon(policy: &str) -> Result<Daemon> {
    let sandbox = Sandbox::new()?;
    let machine = sandbox.log_directory().join("machine").display().to_string();
    let variables = [
        ("OPENMPS_MEMORY_POLICY", policy),
        ("OPENMPS_SOFT_MACHINE", machine.as_str()),
        ("OPENMPS_SOFT_MEMORY_MIB", DEVICE_MIB),
    ];
    Daemon::start_with(sandbox, &variables)
}

fn hoard(daemon: &Daemon) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "hoard");
    Puppet::spawn(&mut sandbox.command(program, Runtime::OpenMps))
}

fn spilled_bytes(daemon: &Daemon, puppet: &Puppet) -> Result<u64> {
    let snapshot = daemon.snapshot()?;
    let found = snapshot.clients.iter().find(|client| client.pid == puppet.pid());
    Ok(found.map_or(0, |client| client.devices.iter().map(|on| on.spilled_bytes).sum()))
}

fn ends_with_nothing_left(daemon: &Daemon) -> Result<()> {
    wait::until("all memory has come back", PATIENCE, || {
        daemon.snapshot().is_ok_and(|now| {
            now.devices.iter().all(|device| device.granted_bytes + device.spilled_bytes == 0)
        })
    })
}

#[test]
fn idle_programs_make_room_and_lose_nothing() -> Result<()> {
    let daemon = daemon("spill")?;
    let (mut one, mut two) = (hoard(&daemon)?, hoard(&daemon)?);
    one.must("take 2 30")?;
    one.must("pieces 3 20")?;
    two.must("take 1 50")?;
    two.must("pieces 1 60")?;
    ensure!(spilled_bytes(&daemon, &one)? > 0 && spilled_bytes(&daemon, &two)? == 0);
    for _ in 0..3 {
        one.must("work")?;
        ensure!(spilled_bytes(&daemon, &two)? > 0, "both cannot be there");
        two.must("work")?;
        ensure!(spilled_bytes(&daemon, &one)? > 0, "both cannot be there");
    }
    one.must("look")?;
    two.must("look")?;
    // What rests in the host can be given up there.
    one.must("free")?;
    two.must("look")?;
    one.dismiss()?;
    two.dismiss()?;
    ends_with_nothing_left(&daemon)
}

#[test]
fn an_allocation_waits_until_there_is_room() -> Result<()> {
    let daemon = daemon("queue")?;
    let (mut one, mut two, mut third) = (hoard(&daemon)?, hoard(&daemon)?, hoard(&daemon)?);
    one.must("take 2 60")?;
    third.must("take 1 4")?;
    two.tell("pieces 1 100")?;
    wait::until("it is said what it waits for", PATIENCE, || {
        let clients = daemon.snapshot().unwrap_or_default().clients;
        let waiting = clients.iter().find(|client| client.pid == two.pid());
        waiting.is_some_and(|client| client.devices[0].waits_for == Some(WaitReason::Memory))
    })?;
    // The others go on meanwhile.
    one.must("work")?;
    third.must("look")?;
    one.must("free")?;
    let answer = two.answer_within(PATIENCE)?;
    ensure!(answer == "ok", "{answer}");
    two.must("work")?;
    two.must("look")?;
    drop((one, two, third));
    ends_with_nothing_left(&daemon)
}

#[test]
fn an_allocation_is_refused_where_nothing_else_is_said() -> Result<()> {
    let daemon = daemon("fail")?;
    let (mut one, mut two) = (hoard(&daemon)?, hoard(&daemon)?);
    one.must("take 1 110")?;
    two.expect("take 1 110", OUT_OF_MEMORY)?;
    two.expect("pieces 1 110", OUT_OF_MEMORY)?;
    two.must("take 1 50")?;
    for puppet in [&mut one, &mut two] {
        puppet.must("work")?;
        puppet.must("look")?;
    }
    Ok(())
}
