//! Finding F15: host memory that a client has the executor make.

use anyhow::{Context, Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[Test::new("f15_pinned_memory_without_pages", sparse)];

const MIB: u64 = 1 << 20;

fn attached(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("attacker")?;
    let mut attacker = Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))?;
    attacker.must("attach")?;
    Ok(attacker)
}

/// Bytes of shared memory that the executor has pages of.
fn shared_bytes(daemon: &Daemon) -> Result<u64> {
    let executor = daemon.snapshot()?.devices.first().context("a device")?.executor_pid;
    let status = std::fs::read_to_string(format!("/proc/{executor}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    let kib: u64 =
        line.and_then(|line| line.split_whitespace().next()).context("no RssShmem")?.parse()?;
    Ok(kib << 10)
}

/// All sessions of a user together, and no other's.
fn sparse() -> Result<()> {
    let daemon = Daemon::start_with(
        Sandbox::of_several_users()?,
        &[("OPENMPS_PROVISIONING", "multiuser"), ("OPENMPS_PINNED_LIMIT", "64M")],
    )?;
    let mut one = attached(&daemon, ATTACKER)?;
    one.expect(&format!("pin {}", 512 * MIB), "pinned 2")?;
    one.expect(&format!("pin {}", 40 * MIB), "pinned 0")?;
    let mut other = attached(&daemon, ATTACKER)?;
    other.expect(&format!("pin {}", 40 * MIB), "pinned 2")?;
    let shared = shared_bytes(&daemon)?;
    ensure!(shared < 256 * MIB, "the executor has {shared} bytes of clients'");
    let mut victim = attached(&daemon, VICTIM)?;
    victim.expect(&format!("pin {}", 40 * MIB), "pinned 0")?;
    drop(one);
    // What a session had is free once it has ended.
    openmps_tests::wait::until("there is room again", openmps_tests::wait::PATIENCE, || {
        other.ask(&format!("pin {}", 40 * MIB)).is_ok_and(|answer| answer == "pinned 0")
    })
}
