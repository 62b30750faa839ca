//! Clients and servers that die at any moment.

use std::time::Duration;

use anyhow::{Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Sandbox};

/// What CUDA promises is nothing; what we promise is an error from the next call within this time,
/// if the machine runs whoever wants to run.
const SERVER_DEATH_LIMIT: Duration = Duration::from_secs(1);
const SLICE: Duration = Duration::from_millis(10);

/// An answer within [`SERVER_DEATH_LIMIT`], by slices: one that ends late, since the machine stood
/// still or ran others, counts once.
fn answer_in_time(puppet: &mut Puppet) -> Result<String> {
    let slices = SERVER_DEATH_LIMIT.as_millis() / SLICE.as_millis();
    let answer = (1..slices).find_map(|_| puppet.answer_within(SLICE).ok());
    answer.map_or_else(|| puppet.answer_within(SLICE), Ok)
}

/// Where in its life each victim is killed: after so many milliseconds of work. Spread like this
/// the deaths meet module loads, copies, launches and waits.
const MOMENTS_MS: [u64; 8] = [0, 1, 3, 7, 13, 29, 53, 97];

#[test]
fn killed_clients_leave_nothing_and_others_never_notice() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = daemon.puppet()?;
    witness.must("open")?;
    witness.must("work 2")?;
    let free_bytes = witness.ask("free-bytes")?;

    for moment in MOMENTS_MS {
        let mut victim = daemon.puppet()?;
        victim.must("open")?;
        victim.must("allocate 50000000")?;
        victim.must("churn")?;
        witness.tell("work 20")?;
        std::thread::sleep(Duration::from_millis(moment));
        let pid = victim.pid();
        victim.kill()?;
        ensure!(witness.answer_within(PATIENCE)? == "ok", "the witness had a wrong result");
        daemon.wait_gone(pid)?;
    }
    wait::until("the victims' memory is free again", PATIENCE, || {
        witness.ask("free-bytes").is_ok_and(|now| now == free_bytes)
    })?;
    witness.must("work 2")?;
    witness.dismiss()
}

#[test]
fn a_client_killed_before_it_opens_a_context_leaves_nothing() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut keeper = daemon.puppet()?;
    keeper.must("open")?;
    for _ in 0..10 {
        let mut victim = daemon.puppet()?;
        victim.tell("open")?;
        victim.kill()?;
    }
    wait::until("only one client is left", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.clients.len() == 1)
    })?;
    keeper.must("work 2")?;
    keeper.dismiss()
}

#[test]
fn a_dead_server_is_an_error_and_never_a_hang() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut idle = daemon.puppet()?;
    idle.must("open")?;
    let mut busy = daemon.puppet()?;
    busy.must("open")?;
    busy.tell("work 100000000")?;
    wait::until("kernels run", PATIENCE, || {
        daemon.snapshot().is_ok_and(|s| s.clients.iter().any(|client| client.kernels > 10))
    })?;

    daemon.kill_server()?;
    idle.tell("work 1")?;
    for (who, puppet) in [("busy", &mut busy), ("idle", &mut idle)] {
        let answer = answer_in_time(puppet)?;
        ensure!(answer.starts_with("error "), "the {who} client was told {answer:?}");
    }
    // Exit handlers make calls too: they must neither hang nor crash.
    idle.dismiss()?;
    busy.dismiss()?;

    // The daemon starts another server for whoever comes next.
    let mut next = daemon.puppet()?;
    next.must("open")?;
    next.must("work 2")?;
    next.dismiss()
}
