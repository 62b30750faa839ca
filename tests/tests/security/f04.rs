//! Finding F4: memory that ends whoever touches it, given to the executor that others use.

use std::fs;

use anyhow::{Context, Result, ensure};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::alone("f04_a_lost_huge_page_under_a_copy", || lost_page(PINNED)),
    Test::alone("f04_a_lost_huge_page_under_code", || lost_page(PLAIN)),
];

/// Kinds of regions, as on the wire.
const PLAIN: u32 = link::wire::command::REGION_PLAIN;
const PINNED: u32 = link::wire::command::REGION_PINNED;
const POOL: &str = "/proc/sys/vm/nr_hugepages";

/// A pool of a single huge page, until this is dropped.
struct HugePage {
    before: String,
}

impl HugePage {
    fn new() -> Result<Self> {
        let before = fs::read_to_string(POOL)?;
        fs::write(POOL, "1")?;
        let page = Self { before };
        let pool = fs::read_to_string(POOL)?;
        ensure!(pool.trim() == "1", "this machine gives no huge page: the pool is {pool}");
        Ok(page)
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.trim());
    }
}

fn program(daemon: &Daemon, name: &str, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn lost_page(kind: u32) -> Result<()> {
    let _page = HugePage::new()?;
    let daemon =
        Daemon::start_with(Sandbox::of_several_users()?, &[("OPENMPS_PROVISIONING", "multiuser")])?;
    let mut victim = program(&daemon, "puppet", VICTIM)?;
    victim.must("open")?;
    victim.must("work 1")?;
    let executor = |daemon: &Daemon| -> Result<u32> {
        Ok(daemon.snapshot()?.devices.first().context("a device")?.executor_pid)
    };
    let before = executor(&daemon)?;
    let mut attacker = program(&daemon, "attacker", ATTACKER)?;
    attacker.must("attach")?;
    // Its session ends, whatever the order is answered with.
    let answer = attacker.ask(&format!("huge {kind}"))?;
    ensure!(!answer.contains("there is no huge page"), "{answer}");
    daemon
        .wait_gone(attacker.pid())
        .with_context(|| format!("{answer}\n{}", daemon.sandbox().last_log_lines()))?;
    victim.must("work 1")?;
    ensure!(
        executor(&daemon)? == before,
        "another executor serves: {}",
        daemon.sandbox().last_log_lines()
    );
    let snapshot = daemon.snapshot()?;
    ensure!(snapshot.faults.is_empty(), "{:?}", snapshot.faults);
    victim.dismiss()
}
