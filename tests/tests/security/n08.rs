//! Finding N8: what others have the daemon write fills the disk.

use std::fs;

use anyhow::{Result, ensure};
use link::wire::daemon::{ServerSnapshot, ToDaemon};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Liar, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("n08_commands_do_not_fill_the_control_log", commands),
    Test::new("n08_a_servers_words_do_not_fill_the_control_log", words),
];

/// What one user may have written at once, and in the minutes that a test may take.
const MOST_BYTES: u64 = 4 << 20;
/// Commands of others, after the flood.
const ROOTS: &str = "get_default_client_priority";
const VICTIMS: &str = "get_default_active_thread_percentage";

fn control_log(daemon: &Daemon) -> Result<(u64, String)> {
    let path = daemon.sandbox().log_directory().join("control.log");
    Ok((fs::metadata(&path)?.len(), fs::read_to_string(&path)?))
}

/// A command of this user, which is answered.
fn asks(daemon: &Daemon, uid: u32, line: &str) -> Result<()> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command_as(uid, sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.arg("control").args(line.split(' ')), PATIENCE)?.success()?;
    Ok(())
}

/// The flood has left something out, and neither root's lines nor another user's.
fn log_is_bounded_and_of_use(mut daemon: Daemon) -> Result<()> {
    asks(&daemon, 0, ROOTS)?;
    asks(&daemon, VICTIM, VICTIMS)?;
    let (bytes, text) = control_log(&daemon)?;
    ensure!(bytes < MOST_BYTES, "{bytes} bytes");
    for command in [ROOTS, VICTIMS] {
        let is_there = text.contains(&format!("Cmd:{command}\n"));
        ensure!(is_there, "{command} is missing: {}", daemon.sandbox().last_log_lines());
    }
    daemon.quit(PATIENCE)?;
    let (_, text) = control_log(&daemon)?;
    let told = "lines about user 20002 were left out";
    ensure!(text.contains(told), "{}", daemon.sandbox().last_log_lines());
    Ok(())
}

fn commands() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("stranger")?;
    for (count, length) in [("50", "190000"), ("4000", "200")] {
        let mut command = sandbox.command_as(ATTACKER, &program, Runtime::OpenMps);
        let command = command.arg("command").arg(sandbox.pipe_directory()).args([count, length]);
        let answered = Puppet::spawn(command)?.answer_within(PATIENCE)?;
        ensure!(answered == count, "{answered} commands of {count} were answered");
    }
    log_is_bounded_and_of_use(daemon)
}

fn words() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let mut command =
        sandbox.command_as(ATTACKER, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut client = Puppet::spawn(&mut command)?;
    client.must("open")?;
    let liar = Liar::in_place_of(daemon.server()?.pid, ServerSnapshot::default())?;
    let failed = ToDaemon::Failed { message: "F".repeat(2000) };
    for _ in 0..2500 {
        liar.say(&failed)?;
    }
    // It answers after all that.
    daemon.state()?;
    drop(liar);
    client.kill()?;
    log_is_bounded_and_of_use(daemon)
}
