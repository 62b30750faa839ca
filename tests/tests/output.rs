//! What kernels print reaches the program that launched them, and no other.

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Runtime, Sandbox};

const PRINTS: &str = "device_printf";
const AT_ONCE: usize = 6;

#[test]
fn programs_that_print_at_once_get_their_own_text() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("cudart-13.0-static", PRINTS);
    let run = |runtime| process::run(&mut sandbox.command(program.clone(), runtime), PATIENCE);
    let native = run(Runtime::Softcuda)?;
    ensure!(native.success()?.lines().count() > 1, "natively nothing was printed: {native:?}");
    let attached: Vec<Finished> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| run(Runtime::OpenMps))).collect();
        started.into_iter().map(|run| run.join().expect("no panic")).collect::<Result<_>>()
    })?;
    for finished in attached {
        let text = finished.success().with_context(|| sandbox.last_log_lines())?;
        ensure!(text == native.stdout, "natively\n{}under OpenMPS\n{text}", native.stdout);
        ensure!(daemon.departed(finished.pid)?.kernels > 0, "its kernels ran elsewhere");
    }
    Ok(())
}
