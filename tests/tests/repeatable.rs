//! Kernels that a client has declared repeatable: in flight when an executor ends, they are run
//! again, and nothing else is.

use anyhow::{Context, Result, ensure};
use link::wire::fault::Blame;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

/// A client that has made what it works with: `programs/process/faults.c`.
fn client(daemon: &Daemon, repeatable: &str) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "faults");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let mut client = Puppet::spawn(command.env("OPENMPS_REPEATABLE", repeatable))?;
    client.must("make")?;
    client.must("check")?;
    client.must("ready")?;
    Ok(client)
}

/// The kernels of `begin`.
const DECLARED: &str = "other,ga?ed,a*r,tick";

#[test]
fn a_declared_kernel_in_flight_is_run_again_after_a_neighbours_fault() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut idle = client(&daemon, "")?;
    for _ in 0..2 {
        let mut declared = client(&daemon, DECLARED)?;
        let mut culprit = client(&daemon, "")?;
        declared.must("begin")?;
        culprit.must("ambush")?;
        culprit.expect("spring", "error 719")?;
        // What had ended before, `tick`, has run once; what had begun, twice.
        declared.expect("end", "runs 2 ticks 1")?;
        declared.must("check")?;
        idle.must("check")?;
        culprit.dismiss()?;
        declared.dismiss()?;
    }
    idle.dismiss()
}

#[test]
fn a_declared_kernel_in_flight_is_run_again_as_often_as_executors_die() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut declared = client(&daemon, "*")?;
    declared.must("begin")?;
    for _ in 0..2 {
        let restarts = daemon.snapshot()?.devices[0].restarts;
        let executor = daemon.snapshot()?.devices[0].executor_pid;
        let executor = Pid::from_raw(executor as i32).context("no executor")?;
        kill_process(executor, Signal::KILL)?;
        openmps_tests::wait::until("another one", openmps_tests::wait::PATIENCE, || {
            daemon.snapshot().is_ok_and(|it| {
                it.devices[0].restarts > restarts && it.devices[0].executor_pid != 0
            })
        })?;
        declared.must("started again")?;
    }
    declared.expect("end", "runs 3 ticks 1")?;
    declared.must("check")?;
    declared.dismiss()
}

#[test]
fn what_is_not_declared_is_reported() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    // All but one of its kernels, and none.
    for names in ["gated,tick", "", "after,tick,gate,gated2"] {
        let mut busy = client(&daemon, names)?;
        let mut culprit = client(&daemon, "")?;
        busy.must("begin")?;
        culprit.must("ambush")?;
        culprit.expect("spring", "error 719")?;
        // Both had work in flight, and no driver says whose kernel it was.
        busy.expect("end", "error 719")?;
        busy.must("reset")?;
        busy.dismiss()?;
    }
    Ok(())
}

#[test]
fn a_declared_kernel_that_faults_is_found_out_and_others_lose_nothing() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut declared = client(&daemon, DECLARED)?;
    let mut culprit = client(&daemon, "*")?;
    declared.must("begin")?;
    culprit.must("ambush")?;
    culprit.tell("spring")?;
    declared.tell("end")?;
    let told = culprit.answer_within(openmps_tests::wait::PATIENCE)?;
    ensure!(told == "error 719", "who did it was told {told}");
    let told = declared.answer_within(openmps_tests::wait::PATIENCE)?;
    ensure!(told.starts_with("runs ") && told.ends_with(" ticks 1"), "the other was told {told}");
    let faults = daemon.snapshot()?.faults;
    let last = faults.last().context("no fault")?;
    ensure!(last.blame == Blame::Culprit && last.accused[0].pid == culprit.pid(), "{last}");
    declared.must("check")?;
    declared.dismiss()
}
