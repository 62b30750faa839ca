//! Who waits for a stranger's kernel: nobody who need not. The software GPU does as hardware does:
//! code is loaded when nothing runs in the context.

use anyhow::{Context as _, Result, ensure};
use link::wire::daemon::ClientDeviceSnapshot;
use openmps_tests::process::Running;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// A daemon, and a client whose kernel runs until it is told something.
fn with_hog() -> Result<(Daemon, Puppet)> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_STALLS", "1")])?;
    let mut hog = daemon.puppet()?;
    hog.must("open")?;
    Ok((daemon, hog))
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
    hog.must("hold")?;
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
    hog.must("hold")?;
    worker.must("work 3")?;
    ensure!(kernels(&daemon, worker.pid())? == 5);
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

/// The client's session.
fn session(daemon: &Daemon, pid: u32) -> Result<ClientDeviceSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let client = clients.into_iter().find(|client| client.pid == pid);
    client.and_then(|client| client.devices.into_iter().next()).context("it has no session")
}

/// Two clients hold a context each, in turns, so that programs that load code go to and fro.
#[test]
fn sessions_take_all_that_they_have_along() -> Result<()> {
    const MOVES: u64 = 6;
    let (daemon, mut first) = with_hog()?;
    first.must("hold")?;
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
        next.must("hold")?;
        held.must("that is enough")?;
        holds.reverse();
    }
    std::fs::write(&end, "")?;
    holds[0].must("that is enough")?;
    for program in programs {
        let finished = program.finish(PATIENCE)?;
        let said = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
        ensure!(said.ends_with("ok\n"), "{said}");
    }
    Ok(())
}
