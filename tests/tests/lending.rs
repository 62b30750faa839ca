//! Memory and events that one client has from another (`cuIpc*`), where a device has two contexts:
//! who opens them goes to where they are (`programs/process/lend.c`).

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use link::wire::daemon::ClientDeviceSnapshot;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// So long something does not happen.
const WHILE: Duration = Duration::from_millis(300);

fn start(daemon: &Daemon) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "lend");
    Puppet::spawn(&mut sandbox.command(program, Runtime::OpenMps))
}

/// A daemon whose software GPU loads code when nothing runs in the context, and a client that can
/// hold one.
fn with_hog() -> Result<(Daemon, Puppet)> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_STALLS", "1")])?;
    let mut hog = daemon.puppet()?;
    hog.must("open")?;
    Ok((daemon, hog))
}

fn session(daemon: &Daemon, client: &Puppet) -> Result<ClientDeviceSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let found = clients.into_iter().find(|it| it.pid == client.pid());
    found.and_then(|it| it.devices.into_iter().next()).context("it has no session")
}

fn is_in_second_context(daemon: &Daemon, client: &Puppet) -> Result<bool> {
    Ok(session(daemon, client)?.is_in_second_context)
}

/// A kernel of the hog's runs, and whoever starts does so in the second context.
fn hold(daemon: &Daemon, hog: &mut Puppet) -> Result<()> {
    hog.must("hold")?;
    wait::until("newcomers start in the second context", PATIENCE, || {
        let newcomer = daemon.puppet().and_then(|mut newcomer| {
            newcomer.must("open")?;
            newcomer.must("work 1")?;
            is_in_second_context(daemon, &newcomer)
        });
        newcomer.is_ok_and(|is_there| is_there)
    })
}

/// One fills what it has from the other, which sees it.
fn share(owner: &mut Puppet, borrower: &mut Puppet, handles: &str) -> Result<()> {
    borrower.must(&format!("borrow {handles}"))?;
    borrower.must("fill 7")?;
    owner.expect("read", "7")?;
    owner.must("work")?;
    borrower.must("give back")
}

/// Its owner was there before the kernel, which ends while the other one waits to load code there.
#[test]
fn a_newcomer_opens_what_is_shared_in_the_other_context() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let mut owner = start(&daemon)?;
    owner.must("work")?;
    let handles = owner.ask("lend")?;
    hold(&daemon, &mut hog)?;
    let mut borrower = start(&daemon)?;
    borrower.must("work")?;
    ensure!(is_in_second_context(&daemon, &borrower)? && !is_in_second_context(&daemon, &owner)?);
    borrower.tell(&format!("borrow {handles}"))?;
    // It is not refused. If it began beside the kernel, it has left something there, and does not
    // come back before the kernel has ended.
    ensure!(borrower.answer_within(WHILE).is_err(), "code cannot be loaded beside the kernel");
    hog.must("that is enough")?;
    let answer = borrower.answer_within(PATIENCE)?;
    ensure!(answer == "ok", "{answer}: {}", daemon.sandbox().last_log_lines());
    ensure!(!is_in_second_context(&daemon, &borrower)?);
    borrower.must("fill 5")?;
    owner.expect("read", "5")?;
    borrower.must("give back")?;
    // Once more, and from where it is now.
    share(&mut owner, &mut borrower, &handles)
}

/// As programs of one job do: each shares something first, then opens what the others have. What
/// nobody has opened yet goes along.
#[test]
fn who_shares_something_too_takes_it_along() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let mut one = start(&daemon)?;
    let of_one = one.ask("lend")?;
    hold(&daemon, &mut hog)?;
    let mut other = start(&daemon)?;
    let of_other = other.ask("lend")?;
    ensure!(is_in_second_context(&daemon, &other)? && !is_in_second_context(&daemon, &one)?);
    hog.must("that is enough")?;
    other.must(&format!("borrow {of_one}"))?;
    one.must(&format!("borrow {of_other}"))?;
    ensure!(!is_in_second_context(&daemon, &other)? && !is_in_second_context(&daemon, &one)?);
    other.must("fill 11")?;
    one.expect("read", "11")?;
    one.must("fill 12")?;
    other.expect("read", "12")?;
    for client in [&mut one, &mut other] {
        client.must("give back")?;
    }
    Ok(())
}

/// What is shared can be opened by the same handles after a stranger's fault.
#[test]
fn what_nobody_has_opened_yet_outlives_a_fault() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut owner, mut borrower) = (start(&daemon)?, start(&daemon)?);
    let handles = owner.ask("lend")?;
    owner.must("fill 3")?;
    owner.expect("read", "3")?;
    let mut culprit = daemon.puppet()?;
    culprit.must("open")?;
    culprit.expect("fault", "error 700")?;
    owner.expect("read", "3")?;
    share(&mut owner, &mut borrower, &handles)?;
    ensure!(daemon.snapshot()?.devices[0].faults == 1);
    owner.must("work")
}

/// Kernels of the other one may go on in the old context, and would write to memory that is
/// somebody else's by then.
#[test]
fn what_is_open_costs_both_sides_at_a_fault() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut owner, mut borrower, mut alone) = (start(&daemon)?, start(&daemon)?, start(&daemon)?);
    let handles = owner.ask("lend")?;
    borrower.must(&format!("borrow {handles}"))?;
    alone.must("work")?;
    let mut culprit = daemon.puppet()?;
    culprit.must("open")?;
    culprit.expect("fault", "error 700")?;
    // They end by the first call that fails.
    ensure!(owner.ask("read").is_err() && borrower.ask("work").is_err());
    alone.must("work")
}

/// Who has lent something, and has it back, is not concerned by what others have open.
#[test]
fn who_has_taken_back_what_it_lent_outlives_a_fault() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut owner, mut borrower, mut before) = (start(&daemon)?, start(&daemon)?, start(&daemon)?);
    let handles = before.ask("lend")?;
    borrower.must(&format!("borrow {handles}"))?;
    borrower.must("give back")?;
    before.must("take back")?;
    before.must("fill 3")?;
    before.expect("read", "3")?;
    let handles = owner.ask("lend")?;
    borrower.must(&format!("borrow {handles}"))?;
    let mut culprit = daemon.puppet()?;
    culprit.must("open")?;
    culprit.expect("fault", "error 700")?;
    before.expect("read", "3")?;
    ensure!(owner.ask("read").is_err() && borrower.ask("work").is_err());
    before.must("work")
}

fn children(server: u32) -> Result<Vec<i32>> {
    let listed = fs::read_to_string(format!("/proc/{server}/task/{server}/children"))?;
    Ok(listed.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Stops the next executor that a server starts beside these, as soon as it is there.
fn stop_next_executor(server: u32, before: &[i32]) -> Result<Pid> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(new) = children(server)?.into_iter().find(|pid| !before.contains(pid)) {
            let pid = Pid::from_raw(new).context("a process")?;
            kill_process(pid, Signal::STOP)?;
            return Ok(pid);
        }
    }
    bail!("the server started no executor")
}

/// Who opens what is in a context that is being made again waits until that is done.
#[test]
fn what_is_shared_can_be_opened_while_its_context_recovers_from_a_fault() -> Result<()> {
    // What takes over is started when it is needed.
    let settings = [("OPENMPS_SOFT_STALLS", "1"), ("OPENMPS_STANDBY", "0")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let (mut hog, mut culprit) = (daemon.puppet()?, daemon.puppet()?);
    hog.must("open")?;
    culprit.must("open")?;
    let mut owner = start(&daemon)?;
    let handles = owner.ask("lend")?;
    owner.must("fill 3")?;
    owner.expect("read", "3")?;
    hold(&daemon, &mut hog)?;
    let mut borrower = start(&daemon)?;
    borrower.must("work")?;
    ensure!(is_in_second_context(&daemon, &borrower)? && !is_in_second_context(&daemon, &owner)?);
    hog.must("that is enough")?;
    let server = daemon.server()?.pid;
    let before = children(server)?;
    let next = thread::spawn(move || stop_next_executor(server, &before));
    culprit.tell("fault")?;
    let next = next.join().map_err(|_| anyhow!("the thread that stops it"))??;
    borrower.tell(&format!("borrow {handles}"))?;
    let early = borrower.answer_within(4 * WHILE);
    kill_process(next, Signal::CONT)?;
    ensure!(early.is_err(), "it was not waited for: {early:?}");
    let answer = borrower.answer_within(PATIENCE)?;
    ensure!(answer == "ok", "{answer}: {}", daemon.sandbox().last_log_lines());
    ensure!(!is_in_second_context(&daemon, &borrower)?);
    borrower.must("fill 7")?;
    owner.expect("read", "7")?;
    borrower.must("give back")
}

/// Nobody has such a thing: it is not looked for again and again.
#[test]
fn a_handle_of_what_is_gone_is_refused() -> Result<()> {
    let (daemon, mut hog) = with_hog()?;
    let mut owner = start(&daemon)?;
    let handles = owner.ask("lend")?;
    hold(&daemon, &mut hog)?;
    let mut borrower = start(&daemon)?;
    owner.dismiss()?;
    hog.must("that is enough")?;
    for _ in 0..3 {
        borrower.expect(&format!("borrow {handles}"), "error 1")?;
        borrower.must("work")?;
    }
    ensure!(session(&daemon, &borrower)?.relocations <= 3);
    Ok(())
}
