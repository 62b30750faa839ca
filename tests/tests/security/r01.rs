//! Finding R1: who stops the own server while it starts stops root's daemon.

use anyhow::{Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[Test::new("r01_a_stopped_server_stops_nobody_else", stop)];

/// A user of this test alone, as all processes of the user may be stopped.
const STOPPER: u32 = 20_017;
/// Most of the attempts succeed where they can, so these are many.
const COUNT: &str = "12";

fn stop() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let mut daemon = Daemon::start_with(sandbox, &[("OPENMPS_PROVISIONING", "concurrent")])?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(STOPPER, program, Runtime::OpenMps);
    command.arg("halt").arg(sandbox.pipe_directory()).arg(COUNT);
    let mut stopper = Puppet::spawn(&mut command)?;
    let halted = stopper.answer_within(PATIENCE)?;
    // Only servers that run their program can be stopped, and there were some.
    ensure!(halted.starts_with("0 ") && halted != "0 0", "stopped before and after: {halted}");
    let openmps = sandbox.installation.openmps();
    let mut list = sandbox.command(openmps, Runtime::OpenMps);
    process::run(list.args(["control", "get_server_list"]), PATIENCE)?.success()?;
    let puppet = sandbox.installation.own_program("puppet")?;
    let mut victim = Puppet::spawn(&mut sandbox.command_as(VICTIM, puppet, Runtime::OpenMps))?;
    victim.must("open")?;
    victim.dismiss()?;
    daemon.quit(PATIENCE)
}
