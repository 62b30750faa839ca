//! A program that faults, and is started again: its second and later faults cost nobody else.

use anyhow::{Context as _, Result, ensure};
use link::wire::daemon::ClientSnapshot;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Sandbox};

/// A client that has its code, and can have work in flight for as long as it is to.
fn innocent(daemon: &Daemon) -> Result<Puppet> {
    let mut innocent = daemon.puppet()?;
    innocent.must("open")?;
    innocent.must("work 1")?;
    innocent.must("keep hold")?;
    Ok(innocent)
}

/// A program that has worked, and is about to fault.
fn bad(daemon: &Daemon) -> Result<Puppet> {
    let mut bad = daemon.puppet()?;
    bad.must("open")?;
    bad.must("work 1")?;
    bad.must("keep poke")?;
    Ok(bad)
}

fn fault(bad: &mut Puppet) -> Result<()> {
    bad.expect("poke kept 16", "error 700")
}

fn client(daemon: &Daemon, puppet: &Puppet) -> Result<ClientSnapshot> {
    let clients = daemon.snapshot()?.clients;
    clients.into_iter().find(|client| client.pid == puppet.pid()).context("it has left")
}

/// Where it is apart from others, if it is.
fn domain(daemon: &Daemon, puppet: &Puppet) -> Result<Option<String>> {
    Ok(client(daemon, puppet)?.domain)
}

/// Has an innocent's kernel run until it is told something.
fn hold(daemon: &Daemon, innocent: &mut Puppet) -> Result<()> {
    innocent.must("hold")?;
    let kernel = || {
        let device = client(daemon, innocent).ok()?.devices.into_iter().next()?;
        Some(device.running?.launch?.kernel)
    };
    wait::until("its kernel is in flight", PATIENCE, || {
        kernel().is_some_and(|kernel| kernel == "wait_for")
    })
}

/// An innocent and a program are suspects of one fault: both kernels are new to their clients.
fn make_suspects(daemon: &Daemon) -> Result<()> {
    let (mut first, mut bad) = (innocent(daemon)?, bad(daemon)?);
    hold(daemon, &mut first)?;
    fault(&mut bad)?;
    first.expect("that is enough", "error 700")?;
    bad.dismiss()?;
    first.dismiss()
}

#[test]
fn the_second_and_later_faults_of_a_program_cost_nobody_else() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut innocents = [innocent(&daemon)?, innocent(&daemon)?];
    // Nobody else has anything in flight, so it is known who made the first.
    fault(&mut bad(&daemon)?)?;
    for _ in 0..3 {
        let mut bad = bad(&daemon)?;
        let apart = domain(&daemon, &bad)?;
        innocents.iter_mut().try_for_each(|innocent| hold(&daemon, innocent))?;
        fault(&mut bad)?;
        for innocent in &mut innocents {
            innocent.must("that is enough").with_context(|| daemon.sandbox().last_log_lines())?;
        }
        ensure!(apart.is_some_and(|it| it.starts_with("quarantine")), "it is among others");
        bad.dismiss()?;
    }
    for innocent in &mut innocents {
        innocent.must("work 3")?;
        ensure!(domain(&daemon, innocent)?.is_none(), "it was moved");
    }
    ensure!(daemon.snapshot()?.devices[0].faults == 4);
    wait::until("the context apart is given up", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.devices[0].domains.is_empty())
    })
}

#[test]
fn with_the_setting_0_a_program_that_has_faulted_stays_among_others() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_QUARANTINE", "0")])?;
    fault(&mut bad(&daemon)?)?;
    let (mut innocent, mut bad) = (innocent(&daemon)?, bad(&daemon)?);
    hold(&daemon, &mut innocent)?;
    fault(&mut bad)?;
    ensure!(domain(&daemon, &bad)?.is_none());
    innocent.expect("that is enough", "error 700")
}

#[test]
fn the_next_fault_decides_between_suspects_and_who_is_cleared_comes_back() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    make_suspects(&daemon)?;
    let (mut again, mut culprit) = (innocent(&daemon)?, bad(&daemon)?);
    let apart = domain(&daemon, &again)?.context("a suspect is among others")?;
    ensure!(domain(&daemon, &culprit)?.is_some_and(|it| it != apart), "suspects are together");
    hold(&daemon, &mut again)?;
    fault(&mut culprit)?;
    again.must("that is enough").with_context(|| daemon.sandbox().last_log_lines())?;
    wait::until("it comes back", PATIENCE, || {
        domain(&daemon, &again).is_ok_and(|domain| domain.is_none())
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    again.must("work 3")?;
    ensure!(client(&daemon, &again)?.devices[0].relocations == 2);
    culprit.dismiss()?;
    // The culprit's code is not cleared.
    let (innocent, culprit) = (innocent(&daemon)?, bad(&daemon)?);
    ensure!(domain(&daemon, &innocent)?.is_none() && domain(&daemon, &culprit)?.is_some());
    Ok(())
}

#[test]
fn who_has_run_its_kernel_before_is_no_suspect_beside_one_who_has_not() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut first, mut culprit) = (innocent(&daemon)?, bad(&daemon)?);
    hold(&daemon, &mut first)?;
    first.must("that is enough")?;
    hold(&daemon, &mut first)?;
    fault(&mut culprit)?;
    first.expect("that is enough", "error 700")?;
    let (again, culprit) = (innocent(&daemon)?, bad(&daemon)?);
    ensure!(domain(&daemon, &again)?.is_none() && domain(&daemon, &culprit)?.is_some());
    Ok(())
}

#[test]
fn a_suspect_that_works_is_cleared_without_another_fault() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_QUARANTINE_MS", "20000")])?;
    make_suspects(&daemon)?;
    let mut again = innocent(&daemon)?;
    ensure!(domain(&daemon, &again)?.is_some());
    // Its kernel, which did nothing wrong.
    hold(&daemon, &mut again)?;
    again.must("that is enough")?;
    wait::until("it is cleared, and comes back", PATIENCE, || {
        domain(&daemon, &again).is_ok_and(|domain| domain.is_none())
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    again.must("work 3")?;
    daemon.sandbox().wait_for_log("is over: its code has worked")
}

#[test]
fn another_instance_that_had_the_code_before_the_fault_goes_apart_with_it() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut innocent, mut second) = (innocent(&daemon)?, bad(&daemon)?);
    // With an address of its own the kernel is harmless.
    second.must("allocate 4096")?;
    let address = second.ask("address")?;
    second.must(&format!("poke kept {address}"))?;
    fault(&mut bad(&daemon)?)?;
    wait::until("it goes apart", PATIENCE, || {
        domain(&daemon, &second).is_ok_and(|domain| domain.is_some())
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    second.must(&format!("poke kept {address}"))?;
    hold(&daemon, &mut innocent)?;
    fault(&mut second)?;
    innocent.must("that is enough").with_context(|| daemon.sandbox().last_log_lines())
}

#[test]
fn who_finds_no_context_apart_runs_among_others() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_QUARANTINE", "1")])?;
    make_suspects(&daemon)?;
    let (mut again, mut bad) = (innocent(&daemon)?, bad(&daemon)?);
    ensure!(domain(&daemon, &again)?.is_some());
    ensure!(domain(&daemon, &bad)?.is_none(), "there is one context apart, and it is taken");
    daemon.sandbox().wait_for_log("contexts apart are taken")?;
    hold(&daemon, &mut again)?;
    fault(&mut bad)?;
    // The suspect was apart from it.
    again.must("that is enough").with_context(|| daemon.sandbox().last_log_lines())
}

#[test]
fn a_kernel_that_runs_for_too_long_ends_its_client_and_the_next_time_alone() -> Result<()> {
    let settings = [("OPENMPS_LONGEST_KERNEL_MS", "1500"), ("OPENMPS_KILL_PATIENCE_MS", "100")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let mut idle = innocent(&daemon)?;
    let mut hog = innocent(&daemon)?;
    let ended = |kernels: usize| {
        wait::until("the kernel is ended", PATIENCE, || {
            daemon.snapshot().is_ok_and(|snapshot| snapshot.faults.len() == kernels)
        })
        .with_context(|| daemon.sandbox().last_log_lines())
    };
    hold(&daemon, &mut hog)?;
    ended(1)?;
    daemon.sandbox().wait_for_log("has run a kernel for longer than 1500 ms")?;
    hog.expect("that is enough", "error 702")?;
    idle.must("work 3")?;
    hog.dismiss()?;
    let mut hog = innocent(&daemon)?;
    ensure!(domain(&daemon, &hog)?.is_some(), "it is among others");
    // With work in flight, of short kernels.
    let mut busy = daemon.puppet()?;
    busy.must("open")?;
    hold(&daemon, &mut hog)?;
    busy.must("churn")?;
    ended(2)?;
    hog.expect("that is enough", "error 702")?;
    let before = client(&daemon, &busy)?.kernels;
    wait::until("the other one goes on", PATIENCE, || {
        client(&daemon, &busy).is_ok_and(|client| client.kernels > before)
    })?;
    idle.must("work 3")
}
