//! Launches that are submitted together: the same results as one by one, on the client's share of the SMs, and counted.

use anyhow::{Context, Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Runtime, Sandbox};

/// SMs that a quarter of the software GPU has.
const QUARTER: u32 = 20;

/// What the program prints under a daemon with these variables, and how many of its kernels were submitted together.
fn run(
    variables: &[(&str, &str)],
    of_client: &[(&str, &str)],
    arguments: &[&str],
) -> Result<(String, u64)> {
    let daemon = Daemon::start_with(Sandbox::new()?, variables)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("cudart-13.0-static", "many_launches");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    command.envs(of_client.iter().copied()).args(arguments);
    let finished = process::run(&mut command, PATIENCE)?;
    let printed = finished.success().with_context(|| sandbox.last_log_lines())?.to_owned();
    let kernels = daemon.departed(finished.pid)?.kernels;
    ensure!(kernels >= 1000, "only {kernels} kernels ran in the server");
    Ok((printed, daemon.snapshot()?.devices[0].chained_kernels_ever))
}

#[test]
fn launches_that_go_together_give_what_single_ones_give() -> Result<()> {
    let (together, chained) = run(&[], &[], &[])?;
    ensure!(chained > 0, "no launches went together");
    let (single, chained) = run(&[("OPENMPS_BATCHING", "off")], &[], &[])?;
    ensure!(chained == 0, "{chained} launches went together, although that was switched off");
    ensure!(together == single && together.contains(": ok"), "{together} {single}");
    Ok(())
}

#[test]
fn launches_that_go_together_keep_to_the_clients_share() -> Result<()> {
    let quarter = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")];
    let (printed, chained) = run(&[], &quarter, &["sms"])?;
    ensure!(chained > 0, "no launches went together");
    ensure!(printed.trim() == format!("many_launches: on {QUARTER} SMs of {QUARTER}"), "{printed}");
    Ok(())
}
