//! Faults on the device, and who notices them.

use anyhow::{Context, Result, bail, ensure};
use link::wire::fault::{Blame, CallRecord};
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox};

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
            wait::until(&line, PATIENCE, || sandbox.logs().contains(&line))
                .with_context(|| sandbox.last_log_lines())?;
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
    ensure!(daemon.sandbox().logs().contains(&line), "{}", daemon.sandbox().logs());
    Ok(())
}
