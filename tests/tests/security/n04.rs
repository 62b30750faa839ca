//! Finding N4: questions of many front ends have another user's server hung up, and its clients
//! with it.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("n04_questions_without_end_cost_no_server_its_life", asked)];

/// More than the messages that the daemon keeps for a server, and the seven hundred that its socket
/// takes.
const QUESTIONS: &str = "5200";

fn asked() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command_as(VICTIM, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut victim = Puppet::spawn(&mut command)?;
    victim.must("open")?;
    // As one that is held up for some seconds: in a frozen control group, or on a machine that
    // swaps.
    let server = daemon.server()?.pid;
    let pid = i32::try_from(server).ok().and_then(Pid::from_raw).context("a process id")?;
    kill_process(pid, Signal::STOP)?;
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
    let mut stranger =
        Puppet::spawn(command.arg("look").arg(sandbox.pipe_directory()).arg(QUESTIONS))?;
    let asked = stranger.answer_within(PATIENCE * 2)?;
    kill_process(pid, Signal::CONT)?;
    ensure!(asked == QUESTIONS, "{asked} questions were taken");
    victim.must("work 2").with_context(|| sandbox.last_log_lines())?;
    let now = daemon.server()?;
    ensure!(now.pid == server && now.snapshot.clients.len() == 1, "{now:?}");
    let mut command = sandbox.command_as(VICTIM, sandbox.installation.puppet()?, Runtime::OpenMps);
    Puppet::spawn(&mut command)?.must("open")
}
