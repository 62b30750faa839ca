//! Finding R3: one user has many ids, and takes all connections that there are for guests.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("r03_the_ids_of_a_users_namespace_have_one_users_connections", namespace),
    Test::new("r03_subordinate_ids_outside_of_namespaces_have_one_users_connections", file),
];

/// Of the daemon's, so that a few hundred connections are all that it takes.
const DESCRIPTORS: usize = 1024;
/// Subordinate ids of the attacker, which are nobody else's.
const FIRST: u32 = 300_000;
/// Each takes half of what the earlier ones have left, so after these nothing is.
const IDS: &str = "12";

/// A daemon that is started after a command of the shell.
fn start(sandbox: Sandbox, before: &str) -> Result<Daemon> {
    let script = format!("ulimit -n {DESCRIPTORS}; {before} exec \"$@\"");
    let words = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", &script, "sh"].map(OsStr::new);
    Daemon::start_by(sandbox, &words, &[])
}

fn stranger(sandbox: &Sandbox, uid: u32, how: &str, first: u32) -> Result<Command> {
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(uid, program, Runtime::OpenMps);
    command.arg(how).arg(sandbox.pipe_directory()).arg(first.to_string()).arg(IDS);
    Ok(command)
}

/// Others get in meanwhile: the first of the ids has what one user may have, and the others
/// nothing.
fn others_go_on(daemon: &Daemon, taken: &str) -> Result<()> {
    let sandbox = daemon.sandbox();
    let mut victim = Puppet::spawn(&mut sandbox.command_as(
        VICTIM,
        sandbox.installation.puppet()?,
        Runtime::OpenMps,
    ))?;
    victim.must("open").with_context(|| format!("{taken}: {}", sandbox.last_log_lines()))?;
    victim.must("work 1")?;
    victim.dismiss()?;
    let (first, rest) = taken.split_once(' ').context("of one id alone")?;
    ensure!(first.parse::<u32>()? > 50 && rest.split(' ').all(|count| count == "0"), "{taken}");
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(["control", "get_server_list"]), PATIENCE)?.success()?;
    Ok(())
}

/// As rootless containers have them: the user makes the namespace, and `newuidmap`, root's program,
/// gives it ids.
fn namespace() -> Result<()> {
    let daemon = start(Sandbox::of_several_users()?, "")?;
    let mut stranger = Puppet::spawn(&mut stranger(daemon.sandbox(), ATTACKER, "contained", 0)?)?;
    let apart = stranger.answer_within(PATIENCE)?;
    ensure!(apart == "apart", "{apart}");
    fs::write(format!("/proc/{}/uid_map", stranger.pid()), format!("0 {FIRST} 100"))?;
    let taken = stranger.ask("mapped")?;
    others_go_on(&daemon, &taken)
}

/// A program that sets its user id, which the user has made in such a namespace, runs with that id
/// everywhere.
fn file() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let file = sandbox.directory().join("subuid");
    fs::write(&file, format!("{ATTACKER}:{FIRST}:65536\n"))?;
    let shown = format!("mount --bind {} /etc/subuid &&", file.display());
    let daemon = start(sandbox, &shown)?;
    let mut stranger = Puppet::spawn(&mut stranger(daemon.sandbox(), 0, "crowd", FIRST)?)?;
    let taken = stranger.answer_within(PATIENCE)?;
    others_go_on(&daemon, &taken)
}
