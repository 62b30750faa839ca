//! Finding T1: a server that begins its program again after it has become its user is open to that
//! user.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("t01_a_server_does_not_begin_again_for_a_changed_file", changed)];

/// Settings that are written after the daemon has started are not for its servers.
fn changed() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let file = sandbox.directory().join("config.toml");
    std::fs::write(&file, "[daemon]\nprovisioning = \"concurrent\"\n")?;
    let place = file.display().to_string();
    let mut daemon = Daemon::start_with(sandbox, &[("OPENMPS_CONFIG", &place)])?;
    let sandbox = daemon.sandbox();
    let puppet = |uid| -> Result<Puppet> {
        let program = sandbox.installation.own_program("puppet")?;
        let mut puppet = Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))?;
        puppet.must("open")?;
        Ok(puppet)
    };
    let early = puppet(VICTIM)?;
    OpenOptions::new()
        .append(true)
        .open(&file)?
        .write_all(b"[faults]\nkill_patience_ms = 500\n")?;
    let late = puppet(ATTACKER)?;
    ensure!(!sandbox.logs().contains("--user"), "{}", sandbox.logs());
    early.dismiss()?;
    late.dismiss()?;
    daemon.quit(PATIENCE)
}
