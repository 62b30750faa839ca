//! Findings B6 and B11 of the second review: memory that costs its client nothing, and those that
//! take it much.

use anyhow::{Context, Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("b06_code_without_pages", code),
    Test::new("b11_files_that_pass_for_device_memory", device_memory),
];

const MIB: u64 = 1 << 20;

fn start() -> Result<Daemon> {
    Daemon::start_with(Sandbox::of_several_users()?, &[("OPENMPS_PROVISIONING", "multiuser")])
}

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

/// The most that the executor ever had.
fn peak_bytes(daemon: &Daemon) -> Result<u64> {
    let executor = daemon.snapshot()?.devices.first().context("a device")?.executor_pid;
    let status = std::fs::read_to_string(format!("/proc/{executor}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 =
        line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?.parse()?;
    Ok(kib << 10)
}

fn code() -> Result<()> {
    let daemon = start()?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    victim.must("work 1")?;
    let before = peak_bytes(&daemon)?;
    let mut attacker = program(&daemon, "attacker", ATTACKER)?;
    let answer = attacker.ask(&format!("load-nothing 2 {}", 400 * MIB))?;
    let grown = peak_bytes(&daemon)?.saturating_sub(before);
    ensure!(grown < 200 * MIB, "{answer}, and the executor has grown by {} MiB", grown / MIB);
    ensure!(answer == "loaded [1, 1]", "{answer}");
    victim.must("work 1")?;
    victim.dismiss()
}

fn device_memory() -> Result<()> {
    let daemon = start()?;
    let mut attacker = program(&daemon, "attacker", ATTACKER)?;
    attacker.must("attach")?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    let before = victim.ask("free-bytes")?;
    let answer = attacker.ask(&format!("import-made-up 8 {}", 1024 * MIB))?;
    ensure!(victim.ask("free-bytes")? == before, "{answer}: {before} bytes were free");
    victim.must("allocate 4194304")?;
    victim.must("work 1")?;
    victim.dismiss()
}
