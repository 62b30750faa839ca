//! Finding T5: an executor that its user has stopped stays when its server is gone, with the GPU.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{PATIENCE, until};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("t05_a_stopped_executor_ends_with_its_server", stopped)];

fn stopped() -> Result<()> {
    // One user at a time: the GPU may be for one process alone. And as in a container, where what
    // is stopped and loses its parent is not ended by the kernel.
    let sandbox = Sandbox::of_several_users()?;
    let reaper = sandbox.installation.own_program("reaper")?;
    let mut daemon = Daemon::start_by(sandbox, &[reaper.as_os_str()], &[])?;
    let sandbox = daemon.sandbox();
    let open = |uid| -> Result<Puppet> {
        let program = sandbox.installation.own_program("puppet")?;
        let mut puppet = Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))?;
        puppet.must("open").with_context(|| sandbox.last_log_lines())?;
        Ok(puppet)
    };
    let attacker = open(ATTACKER)?;
    let server = daemon.server()?;
    ensure!(server.uid == ATTACKER, "{server:?}");
    let executor = daemon.snapshot()?.devices.first().context("no device")?.executor_pid;
    // What the user may do, done by root.
    let signal = |pid: u32, signal| -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(pid)?).context("no process")?;
        Ok(kill_process(pid, signal)?)
    };
    signal(executor, Signal::STOP)?;
    signal(server.pid, Signal::KILL)?;
    let place = format!("/proc/{executor}/exe");
    until("the stopped executor has ended", PATIENCE, || std::fs::read_link(&place).is_err())?;
    ensure!(!Path::new(&format!("/proc/{}/exe", server.pid)).exists(), "the server lives");
    attacker.kill()?;
    open(VICTIM)?.dismiss()?;
    daemon.quit(PATIENCE)
}
