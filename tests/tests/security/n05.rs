//! Findings N5 and N6: a user's server that stands still, or never says that a client has left,
//! fills the daemon's descriptors.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, Result, ensure};
use link::wire::daemon::ServerSnapshot;
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Liar, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("n05_a_server_that_stands_still_leaves_the_daemon_descriptors", stands_still),
    Test::new("n06_a_server_that_forgets_nobody_leaves_the_daemon_descriptors", forgets_nobody),
];

/// Of the daemon's; where there are more, the attacks only take longer.
const DESCRIPTORS: usize = 1024;
/// Attempts, which would take more.
const MANY: &str = "1500";

fn start() -> Result<Daemon> {
    let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    let words = ["/bin/sh", "-c", &limited, "sh"].map(OsStr::new);
    let concurrent = [("OPENMPS_PROVISIONING", "concurrent")];
    Daemon::start_by(Sandbox::of_several_users()?, &words, &concurrent)
}

/// Attacks, and says how many attempts were made.
fn attack(sandbox: &Sandbox, how: &str) -> Result<Puppet> {
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
    let mut stranger = Puppet::spawn(command.arg(how).arg(sandbox.pipe_directory()).arg(MANY))?;
    stranger.answer_within(PATIENCE * 2)?;
    Ok(stranger)
}

/// Root commands, and another user's program is served.
fn others_go_on(daemon: &Daemon) -> Result<()> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(["control", "get_server_list"]), PATIENCE)?.success()?;
    let mut command = sandbox.command_as(VICTIM, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut victim = Puppet::spawn(&mut command)?;
    victim.must("open").with_context(|| sandbox.last_log_lines())?;
    victim.must("work 2")?;
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?.count();
    ensure!(open < DESCRIPTORS * 3 / 4, "the daemon has {open} descriptors");
    Ok(())
}

fn stands_still() -> Result<()> {
    let daemon = start()?;
    let _attacker = attack(daemon.sandbox(), "stop")?;
    others_go_on(&daemon)
}

fn forgets_nobody() -> Result<()> {
    let daemon = start()?;
    let sandbox = daemon.sandbox();
    let mut command =
        sandbox.command_as(ATTACKER, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut client = Puppet::spawn(&mut command)?;
    client.must("open")?;
    let liar = Liar::in_place_of(daemon.server()?.pid, ServerSnapshot::default())?;
    let attacker = attack(sandbox, "come")?;
    others_go_on(&daemon)?;
    // What the daemon can see for itself it needs no server for: with the process that came so
    // often all that is kept for it goes.
    drop(attacker);
    let folder = format!("/proc/{}/fd", daemon.pid());
    openmps_tests::wait::until("the daemon has let go of all", PATIENCE, || {
        fs::read_dir(&folder).is_ok_and(|open| open.count() < 128)
    })?;
    drop(liar);
    client.kill()
}
