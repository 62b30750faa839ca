//! Driver calls that wait for running kernels, and keep others from submitting meanwhile, on a
//! software GPU that does as hardware does.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Sandbox};

const MEETINGS: u32 = 100;

#[test]
fn a_kernel_that_waits_for_a_later_launch_gets_it_beside_clients_that_load_and_leave() -> Result<()>
{
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_STALLS", "1")])?;
    let mut meeting = daemon.puppet()?;
    meeting.must("open")?;
    let mut loading = daemon.puppet()?;
    loading.must("open")?;
    // Loads and unloads a module again and again.
    loading.must("churn")?;
    let kernels = |pid: u32| -> Result<u64> {
        let clients = daemon.snapshot()?.clients;
        Ok(clients.iter().find(|client| client.pid == pid).context("it has left")?.kernels)
    };
    for _ in 0..3 {
        let before = kernels(loading.pid())?;
        meeting.tell(&format!("meet {MEETINGS}"))?;
        // Ends with unregistrations and unloads.
        let mut leaving = daemon.puppet()?;
        leaving.must("open")?;
        leaving.must("work 1")?;
        leaving.dismiss()?;
        let answer = meeting.answer_within(4 * PATIENCE)?;
        ensure!(answer == "ok", "the meetings were answered {answer:?}");
        wait::until("the loading client gets on", PATIENCE, || {
            kernels(loading.pid()).is_ok_and(|now| now > before)
        })?;
    }
    meeting.dismiss()
}

#[test]
fn loads_wait_their_turn_beside_clients_that_are_never_idle() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_STALLS", "1")])?;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut puppet = daemon.puppet()?;
        puppet.must("open")?;
        puppet.tell("work 20000")?;
        busy.push(puppet);
    }
    let mut loading = daemon.puppet()?;
    loading.must("open")?;
    for _ in 0..5 {
        loading.must("work 1")?;
    }
    loading.dismiss()?;
    for mut puppet in busy {
        ensure!(puppet.answer_within(8 * PATIENCE)? == "ok", "a busy client's result is wrong");
        puppet.dismiss()?;
    }
    Ok(())
}
