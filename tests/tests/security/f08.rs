//! Finding F8: one client has the executor map more than its kernel allows.

use anyhow::{Context, Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[Test::new("f08_one_page_mapped_again_and_again", mapped)];

/// `vm.max_map_count` of most machines, which the attack is made for.
const USUAL_MAPPINGS: usize = 65_530;

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

/// Two sessions of one user that map what they can leave room for another user's.
fn mapped() -> Result<()> {
    let daemon =
        Daemon::start_with(Sandbox::of_several_users()?, &[("OPENMPS_PROVISIONING", "multiuser")])?;
    let mut attackers = Vec::new();
    for _ in 0..2 {
        let mut attacker = program(&daemon, "attacker", ATTACKER)?;
        attacker.must("attach")?;
        // Two mappings each: so many that there is room for both, and for nobody else.
        attacker.tell("map 16200")?;
        attackers.push(attacker);
    }
    let mut answers = Vec::new();
    for attacker in &mut attackers {
        answers.push(attacker.answer_within(8 * openmps_tests::wait::PATIENCE)?);
    }
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open").with_context(|| daemon.sandbox().last_log_lines())?;
    victim.must("allocate 4194304")?;
    victim.must("work 2")?;
    let executor = daemon.snapshot()?.devices.first().context("a device")?.executor_pid;
    let maps = std::fs::read_to_string(format!("/proc/{executor}/maps"))?.lines().count();
    let most: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count")?.trim().parse()?;
    ensure!(maps < most / 4 * 3, "the executor has {maps} of {most} mappings");
    // Some machines allow so many that nobody is refused for that.
    if most <= USUAL_MAPPINGS {
        ensure!(answers.iter().all(|answer| answer.ends_with("then 2")), "{answers:?}");
        // Who asks for more than its part is told so, once.
        let logs = daemon.sandbox().logs();
        let told = logs.matches("gets no more host memory").count();
        ensure!((1..=2).contains(&told), "told {told}: {}", daemon.sandbox().last_log_lines());
    } else {
        // Or another limit was the first.
        let is_well = |answer: &String| answer == "mapped 16200" || answer.ends_with("then 2");
        ensure!(answers.iter().all(is_well), "{answers:?}");
    }
    // What it gives up can be had again.
    drop(attackers);
    let mut later = program(&daemon, "attacker", ATTACKER)?;
    later.must("attach")?;
    openmps_tests::wait::until("there is room again", openmps_tests::wait::PATIENCE, || {
        later.ask("map 1").is_ok_and(|answer| answer == "mapped 1")
    })
}
