//! Faults on the device, and who notices them.

use anyhow::{Context, Result};
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
        let mut next = daemon.puppet()?;
        next.must("open")?;
        next.must("work 2")?;
        next.dismiss()?;
    }
    Ok(())
}
