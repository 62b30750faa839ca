//! Finding R2: a server that was killed while somebody traces it, and that nobody can wait for.
//!
//! It is traced by root here: that a user may be kept from that is another wall.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("r02_a_dead_server_whose_first_thread_is_traced_holds_up_nobody", first),
    Test::new("r02_a_dead_server_whose_threads_are_all_traced_holds_up_nobody", all),
];

fn first() -> Result<()> {
    hold("hold-first")
}

fn all() -> Result<()> {
    hold("hold-all")
}

fn hold(order: &str) -> Result<()> {
    // One user at a time: the next one waits for the end of the dead server.
    let mut daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let program = |name| sandbox.installation.own_program(name);
    let user = |uid| -> Result<Puppet> {
        let mut command = sandbox.command_as(uid, program("puppet")?, Runtime::OpenMps);
        let mut user = Puppet::spawn(&mut command)?;
        user.must("open").with_context(|| sandbox.last_log_lines())?;
        Ok(user)
    };
    let mut tracer = Puppet::spawn(&mut sandbox.command(program("attacker")?, Runtime::OpenMps))?;
    let client = user(ATTACKER)?;
    let server = daemon.server()?;
    ensure!(server.uid == ATTACKER, "{server:?}");
    tracer.expect(&format!("{order} {}", server.pid), "held")?;
    client.kill()?;
    let openmps = sandbox.installation.openmps();
    let mut shut = sandbox.command(openmps, Runtime::OpenMps);
    let line = format!("shutdown_server {} -f", server.pid);
    process::run(shut.arg("control").args(line.split(' ')), PATIENCE)?;
    user(VICTIM)?.dismiss()?;
    // What is left of it is there still.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid))?;
    ensure!(stat.contains(") Z "), "{stat}");
    daemon.quit(PATIENCE)?;
    tracer.kill()
}
