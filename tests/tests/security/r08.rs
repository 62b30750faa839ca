//! Finding R8: where users have their turns, one who stops the own server keeps all others waiting,
//! without a client there.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("r08_a_stopped_server_without_clients_makes_way", stopped)];

fn stopped() -> Result<()> {
    // One user's server at a time.
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let puppet = |uid| -> Result<Puppet> {
        let program = sandbox.installation.puppet()?;
        Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
    };
    let mut attacker = puppet(ATTACKER)?;
    attacker.must("open")?;
    let server = daemon.server()?;
    ensure!(server.uid == ATTACKER, "{server:?}");
    attacker.dismiss()?;
    let pid = i32::try_from(server.pid).ok().and_then(Pid::from_raw).context("a process id")?;
    // As its user may.
    kill_process(pid, Signal::STOP)?;
    let mut victim = puppet(VICTIM)?;
    victim.tell("open")?;
    let opened = victim.answer_within(PATIENCE).with_context(|| sandbox.last_log_lines())?;
    ensure!(opened == "ok", "{opened}: {}", sandbox.last_log_lines());
    victim.must("work 1")?;
    victim.dismiss()
}
