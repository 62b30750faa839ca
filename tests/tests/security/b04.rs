//! Findings B4, B5 and B7 of the second review: one client takes all that there is for all clients
//! of a device.

use anyhow::{Context, Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("b04_all_contexts_of_a_device", contexts),
    Test::new("b05_all_windows_of_addresses", windows),
    Test::new("b07_all_addresses_to_reserve", reservations),
];

/// More windows than a server has for any device.
const MANY_SESSIONS: u32 = 700;

fn start(settings: &[(&str, &str)]) -> Result<Daemon> {
    let settings = [&[("OPENMPS_PROVISIONING", "multiuser")], settings].concat();
    Daemon::start_with(Sandbox::of_several_users()?, &settings)
}

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn attached(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let mut client = program(daemon, "attacker", uid)?;
    client.must("attach")?;
    Ok(client)
}

/// Over one connection, then by many processes of one user.
fn contexts() -> Result<()> {
    // A few processes are as many as 48.
    let daemon = start(&[("OPENMPS_CONTEXTS_PER_DEVICE", "8")])?;
    let mut attacker = attached(&daemon, ATTACKER)?;
    attacker.expect("contexts 48", "opened 3 then 808")?;
    let others = (0..4).map(|_| attached(&daemon, ATTACKER)).collect::<Result<Vec<_>>>()?;
    let mut late = program(&daemon, "attacker", ATTACKER)?;
    let answer = late.ask("attach")?;
    ensure!(answer.contains("808"), "{answer}");
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open").with_context(|| daemon.sandbox().last_log_lines())?;
    victim.must("work 1")?;
    drop(others);
    victim.dismiss()
}

/// Sessions of processes that have left stay as long as another uses their memory.
fn windows() -> Result<()> {
    let daemon = start(&[])?;
    let mut attacker = attached(&daemon, ATTACKER)?;
    attacker.tell(&format!("leave-behind {MANY_SESSIONS}"))?;
    let answer = attacker.answer_within(4 * openmps_tests::wait::PATIENCE)?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open").with_context(|| format!("{answer}: {}", last_lines(&daemon)))?;
    victim.must("work 1")?;
    ensure!(answer.contains(" then "), "{answer}");
    // They end with the one who uses their memory.
    drop(attacker);
    openmps_tests::wait::until("its user may come again", openmps_tests::wait::PATIENCE, || {
        attached(&daemon, ATTACKER).is_ok()
    })?;
    victim.dismiss()
}

fn reservations() -> Result<()> {
    let daemon = start(&[])?;
    let mut attacker = attached(&daemon, ATTACKER)?;
    let answer = attacker.ask("reserve-all")?;
    let mut victim = attached(&daemon, VICTIM)?;
    let got = victim.ask(&format!("reserve {}", 256u64 << 30))?;
    ensure!(got == "reserved 0", "{got} after {answer}");
    Ok(())
}

fn last_lines(daemon: &Daemon) -> String {
    daemon.sandbox().last_log_lines()
}
