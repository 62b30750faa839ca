//! Finding N7: one user's clients take all places in which clients wait for a server.

use std::fs;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[Test::new("n07_one_users_queue_leaves_others_theirs", queue)];

/// Somebody else.
const BYSTANDER: u32 = 20_003;
/// More than may wait.
const MANY: usize = 1100;

fn puppet(sandbox: &Sandbox, uid: u32) -> Result<Puppet> {
    let program = sandbox.installation.puppet()?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn queue() -> Result<()> {
    // One user's server at a time.
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let mut victim = puppet(sandbox, VICTIM)?;
    victim.must("open")?;
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
    let many = MANY.to_string();
    let mut stranger = Puppet::spawn(command.arg("wait").arg(sandbox.pipe_directory()).arg(&many))?;
    ensure!(stranger.answer_within(PATIENCE)? == many, "not all were taken");
    let log = sandbox.log_directory().join("control.log");
    let heard = || fs::read_to_string(&log).map_or(0, |log| log.matches("user 20002: ").count());
    wait::until("the daemon has heard all", PATIENCE, || heard() >= MANY)
        .with_context(|| sandbox.last_log_lines())?;
    let mut waiting = Vec::new();
    for uid in [BYSTANDER, 0] {
        let mut puppet = puppet(sandbox, uid)?;
        puppet.tell("open")?;
        sandbox.wait_for_log(&format!("NEW CLIENT {} from user {uid}: ", puppet.pid()))?;
        waiting.push(puppet);
    }
    // They are served when it is their turn.
    drop(stranger);
    drop(victim);
    for mut puppet in waiting {
        let opened = puppet.answer_within(PATIENCE)?;
        ensure!(opened == "ok", "{opened}: {}", sandbox.last_log_lines());
        puppet.dismiss()?;
    }
    // Who has too many waiting is told so, and why.
    let told = "1024 clients of user 20002 wait for a server already, refused";
    ensure!(sandbox.logs().contains(told), "{}", sandbox.last_log_lines());
    Ok(())
}
