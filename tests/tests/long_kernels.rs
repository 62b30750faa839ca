//! Who waits for a stranger's kernel: nobody who need not. The software GPU does as hardware does:
//! code is loaded when nothing runs in the context.

use anyhow::{Context as _, Result, ensure};
use link::wire::daemon::{ClientDeviceSnapshot, WaitReason};
use openmps_tests::process::Running;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// A daemon, and a client whose kernel runs until it is told something.
fn with_hog() -> Result<(Daemon, Puppet)> {
    let settings = [("OPENMPS_SOFT_STALLS", "1"), ("OPENMPS_KILL_PATIENCE_MS", "200")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let mut hog = daemon.puppet()?;
    hog.must("open")?;
    Ok((daemon, hog))
}

/// Has a kernel of the client's run until it is told something. Its answer says only that the
/// launch was taken: code that somebody else loads might still come before the kernel.
fn hold(daemon: &Daemon, puppet: &mut Puppet) -> Result<()> {
    let pid = puppet.pid();
    let before = kernels(daemon, pid)?;
    puppet.must("hold")?;
    wait::until("its kernel is on the device", PATIENCE, || {
        kernels(daemon, pid).is_ok_and(|kernels| kernels > before)
    })
}

/// The client's kernels so far, by the server's count.
fn kernels(daemon: &Daemon, pid: u32) -> Result<u64> {
    let clients = daemon.snapshot()?.clients;
    Ok(clients.iter().find(|client| client.pid == pid).context("it has left")?.kernels)
}

fn second_executor(daemon: &Daemon) -> Result<u32> {
    Ok(daemon.snapshot()?.devices[0].second_executor_pid)
}

#[test]
fn a_program_that_starts_beside_an_endless_kernel_works_at_once() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    hold(&daemon, &mut hog)?;
    let mut newcomer = daemon.puppet()?;
    newcomer.must("open")?;
    newcomer.must("work 3")?;
    ensure!(kernels(&daemon, newcomer.pid())? == 3);
    ensure!(second_executor(&daemon)? != 0);
    newcomer.dismiss()?;
    hog.must("that is enough")?;
    Ok(())
}

#[test]
fn a_client_at_work_calls_a_kernel_for_the_first_time_beside_an_endless_one() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let mut worker = daemon.puppet()?;
    worker.must("open")?;
    worker.must("allocate 4194304")?;
    worker.must("work 2")?;
    let address = worker.ask("address")?;
    hold(&daemon, &mut hog)?;
    // The hog has this code, too: it is loaded anew.
    worker.must("meet 1")?;
    ensure!(kernels(&daemon, worker.pid())? == 4);
    ensure!(session(&daemon, worker.pid())?.relocations == 1);
    ensure!(worker.ask("address")? == address);
    // What it had in the other context is cleared away when the kernel has ended.
    hog.must("that is enough")?;
    worker.must("free")?;
    worker.must("work 1")?;
    worker.dismiss()?;
    wait::until("the second context is given up", PATIENCE, || {
        second_executor(&daemon).is_ok_and(|pid| pid == 0)
    })?;
    hog.must("work 1")
}

/// What is killed for its endless kernel is the context that the others have left.
#[test]
fn who_has_left_survives_the_context_that_it_was_in() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let mut worker = daemon.puppet()?;
    worker.must("open")?;
    worker.must("allocate 4194304")?;
    worker.must("work 1")?;
    hold(&daemon, &mut hog)?;
    worker.must("meet 1")?;
    ensure!(session(&daemon, worker.pid())?.relocations == 1);
    hog.kill()?;
    wait::until("another executor has taken the place of the first", PATIENCE, || {
        daemon.snapshot().is_ok_and(|it| it.devices[0].restarts == 1 && !it.devices[0].failed)
    })?;
    worker.must("work 2")?;
    // Into the new one, and with what it had from the start.
    let mut second = daemon.puppet()?;
    second.must("open")?;
    ensure!(session(&daemon, second.pid())?.is_in_second_context, "most others are there");
    hold(&daemon, &mut second)?;
    worker.must("meet 1")?;
    let moved = session(&daemon, worker.pid())?;
    ensure!((moved.relocations, moved.is_in_second_context) == (2, false), "{moved:?}");
    worker.must("free")?;
    second.must("that is enough")
}

#[test]
fn with_the_setting_off_clients_wait() -> Result<()> {
    let settings = [("OPENMPS_SOFT_STALLS", "1"), ("OPENMPS_SECOND_CONTEXT", "off")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let mut hog = daemon.puppet()?;
    hog.must("open")?;
    hold(&daemon, &mut hog)?;
    let mut newcomer = daemon.puppet()?;
    newcomer.must("open")?;
    newcomer.tell("work 1")?;
    wait::until("it is said what the client waits for", PATIENCE, || {
        session(&daemon, newcomer.pid()).is_ok_and(|it| it.waits_for == Some(WaitReason::Load))
    })?;
    daemon.sandbox().wait_for_log("waits for kernels that do not end")?;
    hog.must("that is enough")?;
    ensure!(newcomer.answer_within(PATIENCE)? == "ok");
    ensure!(second_executor(&daemon)? == 0);
    Ok(())
}

/// Contexts have the device in turns: when no kernel is in the way any more, those who went come
/// back, at rest or at work.
#[test]
fn when_it_is_calm_sessions_come_together_again() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let (mut resting, mut working) = (daemon.puppet()?, daemon.puppet()?);
    for client in [&mut resting, &mut working] {
        client.must("open")?;
        client.must("allocate 4194304")?;
        client.must("work 1")?;
    }
    hold(&daemon, &mut hog)?;
    for client in [&mut resting, &mut working] {
        client.must("meet 1")?;
        ensure!(session(&daemon, client.pid())?.is_in_second_context);
    }
    working.must("churn")?;
    hog.must("that is enough")?;
    wait::until("both are back, and the second context is gone", PATIENCE, || {
        let is_back = |client: &Puppet| {
            session(&daemon, client.pid()).is_ok_and(|it| !it.is_in_second_context)
        };
        is_back(&resting) && is_back(&working) && second_executor(&daemon).is_ok_and(|pid| pid == 0)
    })?;
    let before = kernels(&daemon, working.pid())?;
    wait::until("who is at work goes on", PATIENCE, || {
        kernels(&daemon, working.pid()).is_ok_and(|kernels| kernels > before + 10)
    })?;
    resting.must("free")?;
    resting.must("work 1")?;
    hog.must("work 1")
}

/// The client's session.
fn session(daemon: &Daemon, pid: u32) -> Result<ClientDeviceSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let client = clients.into_iter().find(|client| client.pid == pid);
    client.and_then(|client| client.devices.into_iter().next()).context("it has no session")
}

/// What cannot be taken along keeps its session where it is, and is named.
#[test]
fn who_cannot_go_waits_and_says_why() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let sandbox = daemon.sandbox();
    let end = sandbox.directory().join("end");
    let program = sandbox.installation.program("driver-api", "wanderer");
    let mut command = sandbox.command(&program, Runtime::OpenMps);
    let keeping = Running::start(command.arg("keeping").arg(&end))?;
    wait::until("it counts", PATIENCE, || {
        kernels(&daemon, keeping.pid()).is_ok_and(|kernels| kernels > 2)
    })?;
    hold(&daemon, &mut hog)?;
    wait::until("it is said why it stays", PATIENCE, || {
        session(&daemon, keeping.pid())
            .is_ok_and(|it| it.stays_for.as_deref() == Some("variables of its code"))
    })?;
    sandbox.wait_for_log("kernels could have stored the address of ticks")?;
    hog.must("that is enough")?;
    std::fs::write(&end, "")?;
    let finished = keeping.finish(PATIENCE)?;
    ensure!(finished.success()?.contains("wanderer: ok"));
    Ok(())
}

/// Two clients hold a context each, in turns, so that programs that load code go to and fro.
#[test]
fn sessions_take_all_that_they_have_along() -> Result<()> {
    const MOVES: u64 = 6;
    let (daemon, mut first) = with_hog()?;
    hold(&daemon, &mut first)?;
    let mut second = daemon.puppet()?;
    wait::until("a client begins in the second context", PATIENCE, || {
        second.must("open").is_ok()
            && second.must("work 1").is_ok()
            && session(&daemon, second.pid()).is_ok_and(|session| session.is_in_second_context)
    })?;
    let sandbox = daemon.sandbox();
    let end = sandbox.directory().join("end");
    let program = sandbox.installation.program("driver-api", "wanderer");
    let programs: Result<Vec<Running>> = (0..2)
        .map(|_| {
            let mut command = sandbox.command(&program, Runtime::OpenMps);
            Running::start(command.arg("until").arg(&end))
        })
        .collect();
    let programs = programs?;
    let all_are = |in_second: bool| {
        let is = |program: &Running| {
            session(&daemon, program.pid()).is_ok_and(|it| it.is_in_second_context == in_second)
        };
        wait::until("the programs have gone to the other context", PATIENCE, || {
            programs.iter().all(is)
        })
        .with_context(|| daemon.sandbox().last_log_lines())
    };
    let mut holds = [first, second];
    for number in 0..MOVES {
        all_are(number % 2 == 0)?;
        let [held, next] = &mut holds;
        hold(&daemon, next)?;
        held.must("that is enough")?;
        holds.reverse();
    }
    std::fs::write(&end, "")?;
    holds[0].must("that is enough")?;
    for program in programs {
        let finished = program.finish(PATIENCE)?;
        let said = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
        ensure!(said.contains("wanderer: ok"), "{said}");
    }
    Ok(())
}
