//! Findings B1 to B3 of the second review: a client hides that its kernel runs, so that somebody
//! else is named, or nobody ends it.

use anyhow::{Context, Result, ensure};
use link::wire::fault::{Blame, FaultReport};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("b01_a_kernel_behind_a_forged_signal_is_ended", endless),
    Test::new("b02_a_forged_signal_names_nobody_else", || hidden(Hiding::ForgedSignal)),
    Test::new("b03_many_calls_behind_a_bad_kernel_hide_nothing", || hidden(Hiding::ManyCalls)),
];

/// The greatest that a client may ask for.
const LAST_SIGNAL: u64 = (1 << 62) - 1;

fn start() -> Result<Daemon> {
    let settings = [("OPENMPS_PROVISIONING", "multiuser"), ("OPENMPS_KILL_PATIENCE_MS", "300")];
    Daemon::start_with(Sandbox::of_several_users()?, &settings)
}

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn attached(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let mut client = program(daemon, "attacker", uid)?;
    client.must("attach")?;
    // Now: a load waits for kernels that run.
    client.must("load")?;
    Ok(client)
}

fn executor(daemon: &Daemon) -> Result<u32> {
    Ok(daemon.snapshot()?.devices.first().context("a device")?.executor_pid)
}

/// A kernel without end, of which signals say that it has ended, and whose client leaves.
fn endless() -> Result<()> {
    let daemon = start()?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    victim.must("work 1")?;
    // What cannot be a number of a piece of work, and one that goes back.
    for orders in [&["signal 4611686018427387904"][..], &["signal 5", "signal 4"]] {
        let mut attacker = attached(&daemon, ATTACKER)?;
        let (last, first) = orders.split_last().context("an order")?;
        first.iter().try_for_each(|order| attacker.expect(order, "pinged 0"))?;
        let answer = attacker.ask(last)?;
        ensure!(answer != "pinged 0", "{last} was taken after {first:?}");
    }
    let before = executor(&daemon)?;
    let mut attacker = attached(&daemon, ATTACKER)?;
    attacker.expect(&format!("signal {LAST_SIGNAL}"), "pinged 0")?;
    attacker.must("spin")?;
    // It ends the session, where it is not taken.
    attacker.ask("signal 1")?;
    drop(attacker);
    wait::until("the executor is replaced", PATIENCE, || {
        executor(&daemon).is_ok_and(|now| now != before && now != 0)
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    victim.must("work 1")?;
    victim.dismiss()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hiding {
    ForgedSignal,
    ManyCalls,
}

/// A kernel that faults when its client wants it, beside another's that runs.
fn hidden(hiding: Hiding) -> Result<()> {
    let daemon = start()?;
    let mut victim = attached(&daemon, VICTIM)?;
    let mut attacker = attached(&daemon, ATTACKER)?;
    victim.must("spin")?;
    victim.expect("signal 1", "pinged 0")?;
    if hiding == Hiding::ForgedSignal {
        attacker.expect(&format!("signal {LAST_SIGNAL}"), "pinged 0")?;
    }
    attacker.must("late")?;
    match hiding {
        // It ends the session, where it is not taken.
        Hiding::ForgedSignal => drop(attacker.ask("signal 1")?),
        Hiding::ManyCalls => {
            attacker.expect("signal 1", "pinged 0")?;
            attacker.expect("events 40", "pinged 0")?;
        }
    }
    attacker.must("go")?;
    let mut fault: Option<FaultReport> = None;
    wait::until("the fault is reported", PATIENCE, || {
        fault = daemon.snapshot().ok().and_then(|snapshot| snapshot.faults.first().cloned());
        fault.is_some()
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    let fault = fault.context("a fault")?;
    let is_accused = |uid| fault.accused.iter().any(|accused| accused.uid == uid);
    ensure!(is_accused(ATTACKER), "{fault}");
    ensure!(fault.blame == Blame::Suspects || !is_accused(VICTIM), "{fault}");
    Ok(())
}
