//! Finding R5: any user's server gets root's tracer of another user's client, and what it answers
//! commands root's terminal.

use anyhow::{Result, ensure};
use link::is_printable;
use link::wire::daemon::ServerSnapshot;
use openmps_tests::process::Finished;
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Liar, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("r05_a_tracer_comes_to_no_other_users_server", tracer)];

fn client(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command_as(uid, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut client = Puppet::spawn(&mut command)?;
    client.must("open")?;
    Ok(client)
}

/// Root traces a client for a second.
fn traced(daemon: &Daemon, client: u32) -> Result<Finished> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let file = sandbox.directory().join(format!("{client}.json"));
    command.args(["trace", "--seconds", "1", "--client", &client.to_string(), "-o"]).arg(file);
    process::run(&mut command, PATIENCE)
}

fn tracer() -> Result<()> {
    let concurrent = [("OPENMPS_PROVISIONING", "concurrent")];
    let daemon = Daemon::start_with(Sandbox::of_several_users()?, &concurrent)?;
    let attackers = client(&daemon, ATTACKER)?;
    let liar = Liar::in_place_of(daemon.server()?.pid, ServerSnapshot::default())?;
    let victims = client(&daemon, VICTIM)?;
    let finished = traced(&daemon, victims.pid())?;
    let told = finished.success()?.to_owned() + &finished.stderr;
    ensure!(told.contains("1 client(s)") && !told.contains("lies"), "{told}");
    // The attacker's own client: its server is asked, and may answer, but not with all characters.
    let finished = traced(&daemon, attackers.pid())?;
    let told = &finished.stderr;
    ensure!(!finished.status.success() && told.contains("lies]0;told"), "{told}");
    ensure!(told.lines().all(|line| line.chars().all(is_printable)), "{told:?}");
    drop(liar);
    attackers.kill()?;
    victims.dismiss()
}
