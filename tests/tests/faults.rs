//! Faults on the device, and who notices them.

use anyhow::{Context, Result, bail, ensure};
use link::wire::fault::{Blame, CallRecord};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox};
use openmps_tests::{Puppet, process};
use rustix::process::{Pid, Signal, kill_process};

/// A program that ends with an illegal address in a kernel.
const FAULTY: &str = "errors";

#[test]
fn who_comes_right_after_a_fault_waits_for_the_new_context() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("cudart-13.0-static", FAULTY);
    for _ in 0..5 {
        let faulty =
            process::run(&mut sandbox.command(program.clone(), Runtime::OpenMps), PATIENCE)?;
        faulty.success()?;
        // In the words of the original's log, which scripts look for.
        for line in [
            format!("Client {{PID: {}, Context: 1}} encountered a fatal GPU error.", faulty.pid),
            "Server is handling a fatal GPU error.".to_owned(),
            format!("Client {{PID: {}, Context ID: 1}} on device 0 to be torn down", faulty.pid),
        ] {
            // The program may be gone before the server has heard of its fault.
            sandbox.wait_for_log(&line)?;
        }
        let faults = daemon.snapshot()?.faults;
        let fault = faults.last().context("the server remembers no fault")?;
        ensure!(fault.blame == Blame::Culprit && fault.accused[0].pid == faulty.pid, "{fault}");
        let mut next = daemon.puppet()?;
        next.must("open")?;
        next.must("work 2")?;
        next.dismiss()?;
    }
    Ok(())
}

#[test]
fn a_fault_is_told_with_its_client_kernel_and_launch() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut bystander = daemon.puppet()?;
    bystander.must("open")?;
    bystander.must("work 3")?;
    let mut culprit = daemon.puppet()?;
    culprit.must("open")?;
    culprit.must("work 2")?;
    culprit.expect("fault", "error 700")?;
    wait::until("the server remembers the fault", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| !snapshot.faults.is_empty())
    })?;
    let snapshot = daemon.snapshot()?;
    let fault = snapshot.faults.last().context("no fault")?;
    ensure!(fault.blame == Blame::Culprit && fault.accused.len() == 1, "{fault}");
    let accused = &fault.accused[0];
    ensure!((accused.pid, fault.code) == (culprit.pid(), 700), "{fault}");
    let [in_flight] = accused.in_flight.as_slice() else { bail!("{fault}") };
    let launch = in_flight.launch.as_ref().context("no launch")?;
    ensure!((launch.kernel.as_str(), launch.grid, launch.block) == ("poke", [1; 3], [1; 3]));
    let earlier = |call: &CallRecord| call.launch.as_ref().is_some_and(|it| it.kernel == "step");
    ensure!(accused.last_calls.iter().any(earlier), "{accused:?}");
    let line = format!("culprit {} had in flight: Launch poke grid (1,1,1)", culprit.pid());
    daemon.sandbox().wait_for_log(&line)
}

#[test]
fn who_has_copied_what_a_blocking_stream_made_has_nothing_in_flight() -> Result<()> {
    // Without quarantine each fault is among others.
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_QUARANTINE", "0")])?;
    let mut idle = daemon.puppet()?;
    idle.must("open")?;
    idle.must("keep copied")?;
    for _ in 0..16 {
        let mut culprit = daemon.puppet()?;
        culprit.must("open")?;
        culprit.must("keep poke")?;
        idle.must("copied")?;
        // At once, so that the server's thread has not looked at what has ended.
        culprit.expect("poke kept 16", "error 700")?;
        idle.must("copied").with_context(|| daemon.sandbox().last_log_lines())?;
    }
    idle.dismiss()
}

/// What each kind of fault gives the one who made it: CUDA's own error, by the software GPU.
const KINDS: [(&str, u32); 6] = [
    ("address", 700),
    ("misaligned", 716),
    ("trap", 719),
    ("assert", 710),
    ("stack", 700),
    ("shared", 700),
];

/// A client that does what it is told: `programs/process/faults.c`.
fn client(daemon: &Daemon) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "faults");
    let mut client = Puppet::spawn(&mut sandbox.command(program, Runtime::OpenMps))?;
    client.must("make")?;
    client.must("check")?;
    Ok(client)
}

/// The processes that a server counts kernels for right now.
fn is_attached(daemon: &Daemon, puppet: &Puppet) -> Result<bool> {
    let clients = daemon.snapshot()?.clients;
    Ok(clients.iter().any(|client| client.pid == puppet.pid() && client.kernels > 0))
}

#[test]
fn everything_that_an_idle_client_has_outlives_faults_of_every_kind() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut idle = [client(&daemon)?, client(&daemon)?];
    for idle in &idle {
        ensure!(is_attached(&daemon, idle)?, "client {} is not attached", idle.pid());
    }
    for (kind, error) in KINDS {
        let mut culprit = client(&daemon)?;
        culprit.expect(&format!("fault {kind}"), &format!("error {error}"))?;
        for idle in &mut idle {
            idle.must("check").with_context(|| format!("after {kind}"))?;
        }
        // It keeps its error, and begins anew when it resets its context.
        culprit.expect("sync", &format!("error {error}"))?;
        culprit.must("reset")?;
        culprit.must("check")?;
        culprit.dismiss()?;
    }
    let snapshot = daemon.snapshot()?;
    ensure!(snapshot.devices[0].faults == KINDS.len() as u64);
    for idle in &idle {
        ensure!(is_attached(&daemon, idle)?, "client {} is not attached", idle.pid());
    }
    idle.into_iter().try_for_each(Puppet::dismiss)?;
    wait::until("all memory goes back", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.devices[0].granted_bytes == 0)
    })
}

#[test]
fn a_variable_of_an_idle_client_keeps_its_value() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut idle = client(&daemon)?;
    idle.must("variable")?;
    for _ in 0..3 {
        idle.must("variable")?;
        wait::until("the variable is saved", PATIENCE, || {
            let snapshot = daemon.snapshot();
            snapshot.is_ok_and(|it| it.clients.iter().all(|one| !one.devices[0].unsaved))
        })?;
        client(&daemon)?.expect("fault trap", "error 719")?;
        idle.must("variable")?;
    }
    idle.dismiss()
}

#[test]
fn times_of_events_from_before_a_fault_are_refused_until_they_are_recorded_anew() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut idle = client(&daemon)?;
    idle.must("record")?;
    idle.must("elapsed")?;
    client(&daemon)?.expect("fault trap", "error 719")?;
    idle.expect("elapsed", "error 400")?;
    // An answer, no error of the context.
    idle.must("check")?;
    idle.must("record")?;
    idle.must("elapsed")?;
    idle.dismiss()
}

#[test]
fn an_endless_kernel_is_killed_with_its_client_and_others_go_on() -> Result<()> {
    let patience = [("OPENMPS_KILL_PATIENCE_MS", "300")];
    let daemon = Daemon::start_with(Sandbox::new()?, &patience)?;
    let mut idle = client(&daemon)?;
    let restarts = |daemon: &Daemon| -> Result<u64> { Ok(daemon.snapshot()?.devices[0].restarts) };
    // One that dies, as a lost container does.
    let mut endless = client(&daemon)?;
    endless.must("spin")?;
    endless.kill()?;
    wait::until("the executor is replaced", PATIENCE, || restarts(&daemon).is_ok_and(|n| n == 1))?;
    idle.must("check")?;
    // One that an administrator terminates.
    let mut endless = client(&daemon)?;
    endless.must("spin")?;
    let server = daemon.server()?.pid;
    let printed = daemon.shell(&format!("terminate_client {server} {}", endless.pid()))?;
    ensure!(printed.trim() == "0", "{printed}");
    endless.expect("sync", "error 810")?;
    wait::until("the executor is replaced", PATIENCE, || restarts(&daemon).is_ok_and(|n| n == 2))?;
    idle.must("check")?;
    // It keeps that error, whatever becomes of the executor.
    endless.expect("sync", "error 810")?;
    let mut next = client(&daemon)?;
    next.must("check")?;
    next.dismiss()?;
    idle.must("check")?;
    idle.dismiss()
}

#[test]
fn who_had_work_in_flight_is_told() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut idle, mut busy) = (client(&daemon)?, client(&daemon)?);
    busy.must("spin")?;
    let executor = daemon.snapshot()?.devices[0].executor_pid;
    let executor = Pid::from_raw(executor as i32).context("no executor")?;
    kill_process(executor, Signal::KILL)?;
    busy.expect("sync", "error 719")?;
    idle.must("check")?;
    busy.must("reset")?;
    busy.must("check")?;
    idle.dismiss()
}
