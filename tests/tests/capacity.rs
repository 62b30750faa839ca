//! As many clients as a device takes, and one more.

use anyhow::{Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Sandbox};

/// Contexts per device, as the original has it since Volta.
const MAX_CLIENTS: usize = 48;
const MPS_MAX_CLIENTS_REACHED: &str = "error 808";

#[test]
fn clients_up_to_the_limit_work_at_once_and_the_next_is_refused() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppets = (0..MAX_CLIENTS).map(|_| daemon.puppet()).collect::<Result<Vec<Puppet>>>()?;
    all(&mut puppets, "open")?;
    all(&mut puppets, "work 4")?;
    let snapshot = daemon.snapshot()?;
    for puppet in &puppets {
        let listed = snapshot.clients.iter().find(|client| client.pid == puppet.pid());
        ensure!(listed.is_some_and(|client| client.kernels == 4), "{listed:?}");
    }

    let mut refused = daemon.puppet()?;
    refused.expect("open", MPS_MAX_CLIENTS_REACHED)?;
    let pid = refused.pid();
    wait::until("the log names the refused process", PATIENCE, || {
        daemon.sandbox().logs().contains(&pid.to_string())
    })?;
    refused.dismiss()?;
    all(&mut puppets, "work 1")?;

    // Whoever leaves makes room.
    if let Some(leaver) = puppets.pop() {
        let pid = leaver.pid();
        leaver.dismiss()?;
        daemon.wait_gone(pid)?;
    }
    let mut next = daemon.puppet()?;
    next.must("open")?;
    next.must("work 1")?;
    Ok(())
}

/// Gives all an order at once and wants `ok` of each.
fn all(puppets: &mut [Puppet], order: &str) -> Result<()> {
    for puppet in puppets.iter_mut() {
        puppet.tell(order)?;
    }
    for puppet in puppets {
        let answer = puppet.answer_within(4 * PATIENCE)?;
        ensure!(answer == "ok", "{order:?} was answered {answer:?}");
    }
    Ok(())
}
