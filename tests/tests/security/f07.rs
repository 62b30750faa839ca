//! Finding F7: a user's debugger drains another user's server.

use anyhow::{Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f07_a_debugger_drains_no_other_users_server", of_another),
    Test::new("f07_a_drain_ends_with_the_debugger", of_ones_own),
];

fn process(daemon: &Daemon, uid: u32, program: &str) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(program)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn client(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let mut puppet = process(daemon, uid, "puppet")?;
    puppet.must("open")?;
    Ok(puppet)
}

fn of_another() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let mut working = client(&daemon, VICTIM)?;
    let server = daemon.server()?.pid;
    let mut debugger = process(&daemon, ATTACKER, "wire")?;
    debugger.must("debugged")?;
    client(&daemon, VICTIM)?.dismiss()?;
    ensure!(daemon.server()?.pid == server, "{:?}", daemon.state()?);
    working.must("work 1")?;
    debugger.dismiss()?;
    working.dismiss()
}

fn of_ones_own() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let mut working = client(&daemon, VICTIM)?;
    let server = daemon.server()?.pid;
    let mut debugger = process(&daemon, VICTIM, "wire")?;
    debugger.must("debugged")?;
    // It waits for a server of its own user, to which nobody is attached meanwhile.
    let told = "Waiting for current clients to finish";
    openmps_tests::wait::until(
        "the server is told to stop",
        openmps_tests::wait::PATIENCE,
        || daemon.sandbox().logs().contains(told),
    )?;
    debugger.dismiss()?;
    client(&daemon, VICTIM)?.dismiss()?;
    ensure!(daemon.server()?.pid == server, "{:?}", daemon.state()?);
    working.must("work 1")?;
    working.dismiss()
}
