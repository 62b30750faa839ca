//! Finding S1 of the third review: kernels reach the words that say how far clients' streams are.
//! So a client that was terminated says that its kernel has ended, and goes on.

use std::fs;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("s01_a_terminated_kernel_that_says_it_has_ended_is_ended", forged),
    Test::new("s01_a_terminated_client_is_not_served_by_the_next_executor", inherited),
    Test::new("s01_a_guards_record_does_not_tell_where_the_words_are", apart),
];

/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`.
const TERMINATED: &str = "error 810";
/// What its stream has reached when the kernel says so.
const VALUE: u64 = 5;

fn start() -> Result<Daemon> {
    let settings = [("OPENMPS_PROVISIONING", "multiuser"), ("OPENMPS_KILL_PATIENCE_MS", "300")];
    Daemon::start_with(Sandbox::of_several_users()?, &settings)
}

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn executor(daemon: &Daemon) -> Result<u32> {
    Ok(daemon.snapshot()?.devices.first().context("a device")?.executor_pid)
}

fn is_replaced(daemon: &Daemon, before: u32) -> bool {
    executor(daemon).is_ok_and(|now| now != before && now != 0)
}

/// Parts of completion files that an executor has mapped: offset in the file, and address.
fn mappings(executor: u32) -> Result<Vec<(u64, u64)>> {
    let maps = fs::read_to_string(format!("/proc/{executor}/maps"))?;
    let lines = maps.lines().filter(|line| line.contains("openmps-completion"));
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let at = words.next().and_then(|range| range.split_once('-'))?.0;
        let offset = words.nth(1)?;
        Some((u64::from_str_radix(offset, 16).ok()?, u64::from_str_radix(at, 16).ok()?))
    };
    lines.map(|line| parse(line).with_context(|| line.to_owned())).collect()
}

fn terminate(daemon: &Daemon, client: &Puppet) -> Result<()> {
    let server = daemon.server()?.pid;
    let printed = daemon.shell(&format!("terminate_client {server} {}", client.pid()))?;
    ensure!(printed.trim() == "0", "{printed}");
    Ok(())
}

fn is_told(attacker: &mut Puppet) -> bool {
    attacker.ask("error").is_ok_and(|answer| answer == TERMINATED)
}

/// It knows where its word is: the test tells it, which could not be found out in any other way
/// than by chance.
fn forged() -> Result<()> {
    let daemon = start()?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    victim.must("work 1")?;
    let executor = executor(&daemon)?;
    let before = mappings(executor)?;
    let mut attacker = program(&daemon, "attacker", ATTACKER)?;
    attacker.must("attach")?;
    attacker.must("load")?;
    let new = mappings(executor)?.into_iter().find(|it| it.0 == 0 && !before.contains(it));
    let (_, word) = new.context("the attacker's words")?;
    attacker.must(&format!("forge {word} {VALUE}"))?;
    attacker.expect(&format!("signal {VALUE}"), "pinged 0")?;
    terminate(&daemon, &attacker)?;
    wait::until("the executor is replaced", PATIENCE, || is_replaced(&daemon, executor))
        .with_context(|| daemon.sandbox().last_log_lines())?;
    victim.must("work 1")?;
    victim.dismiss()
}

/// What it was told of its end lies in its own memory, where it takes that back before the executor
/// ends.
fn inherited() -> Result<()> {
    let daemon = start()?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    let mut attacker = program(&daemon, "attacker", ATTACKER)?;
    attacker.must("attach")?;
    attacker.expect("signal 1", "pinged 0")?;
    let executor = executor(&daemon)?;
    terminate(&daemon, &attacker)?;
    wait::until("it is told", PATIENCE, || is_told(&mut attacker))?;
    attacker.must("forget-error")?;
    let process = i32::try_from(executor).ok().and_then(Pid::from_raw);
    kill_process(process.context("an executor")?, Signal::KILL)?;
    wait::until("the executor is replaced", PATIENCE, || is_replaced(&daemon, executor))
        .with_context(|| daemon.sandbox().last_log_lines())?;
    victim.must("work 1")?;
    wait::until("it is told again", PATIENCE, || is_told(&mut attacker))?;
    victim.dismiss()
}

/// Guarded kernels have their record's address in a table that they can read.
fn apart() -> Result<()> {
    const CLIENTS: usize = 4;
    /// A kernel cannot try as many addresses: the first wrong one ends the context.
    const NEAR_BYTES: u64 = 1 << 20;
    let daemon = start()?;
    let sandbox = daemon.sandbox();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let puppet = sandbox.installation.puppet()?;
        let mut command = sandbox.command_as(VICTIM, puppet, Runtime::OpenMps);
        let mut client = Puppet::spawn(command.env("OPENMPS_GUARD", "1"))?;
        client.must("open")?;
        client.must("work 1")?;
        clients.push(client);
    }
    let parts = mappings(executor(&daemon)?)?;
    // What was mapped once holds both, the record behind the words.
    ensure!(parts.len() == 2 * CLIENTS, "words and records are not apart: {parts:x?}");
    for (index, one) in parts.iter().enumerate() {
        let near = parts[..index].iter().find(|other| one.1.abs_diff(other.1) < NEAR_BYTES);
        ensure!(near.is_none(), "{one:x?} is near {near:x?}");
    }
    clients.into_iter().try_for_each(Puppet::dismiss)
}
