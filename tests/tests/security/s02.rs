//! Finding S2: sessions that have ended wait for another user's kernel, and keep what they had
//! meanwhile.

use anyhow::{Context, Result};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("s02_ended_sessions_keep_no_memory_while_anothers_kernel_runs", memory)];

/// More than half of the device's memory.
const MUCH_BYTES: u64 = 640 << 20;

fn memory() -> Result<()> {
    let settings = [("OPENMPS_PROVISIONING", "multiuser"), ("OPENMPS_SOFT_MEMORY_MIB", "1024")];
    let daemon = Daemon::start_with(Sandbox::of_several_users()?, &settings)?;
    let program = |name: &str, uid| -> Result<Puppet> {
        let sandbox = daemon.sandbox();
        let program = sandbox.installation.own_program(name)?;
        Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
    };
    let mut attacker = program("attacker", ATTACKER)?;
    ["attach", "load", "spin"].iter().try_for_each(|order| attacker.must(order))?;
    for round in 0..3 {
        let mut victim = program("puppet", VICTIM)?;
        victim.must("open")?;
        let mut answer = String::new();
        let allocated = wait::until("memory for the next program", PATIENCE, || {
            answer = victim.ask(&format!("allocate {MUCH_BYTES}")).unwrap_or_default();
            answer == "ok"
        });
        let said = || format!("{answer} in round {round}: {}", daemon.sandbox().last_log_lines());
        allocated.with_context(said)?;
        // What it had goes with its session.
        victim.kill()?;
    }
    // It still runs, and ends as it is to.
    attacker.must("go")?;
    attacker.expect("signal 1", "pinged 0")
}
