//! The life of processes, and what they share: forks, programs that replace themselves, every kind
//! of end, signals, threads that die, libraries that are closed.
//!
//! The programs are `programs/process`; each says which processes worked and with how many kernels,
//! and the server must have counted just that. Natively on the software GPU they behave alike.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

/// The programs take a second or two on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// What one process says that it has done.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    pid: u32,
    kernels: u64,
}

fn run(sandbox: &Sandbox, runtime: Runtime, words: &[&str]) -> Result<Finished> {
    let (name, arguments) = words.split_first().context("no program")?;
    let mut command = sandbox.command(sandbox.installation.program("process", name), runtime);
    process::run(command.args(arguments), LIMIT)
}

fn ran(printed: &str) -> Result<Vec<Ran>> {
    let mut found = Vec::new();
    for line in printed.lines() {
        if let ["ran", pid, kernels] = line.split(' ').collect::<Vec<_>>()[..] {
            found.push(Ran { pid: pid.parse()?, kernels: kernels.parse()? });
        }
    }
    Ok(found)
}

/// Runs a program natively and under OpenMPS: it succeeds in both, so many processes of it work,
/// and the server has counted their kernels.
fn succeeds(words: &[&str], processes: usize) -> Result<()> {
    let sandbox = Sandbox::new()?;
    for runtime in [Runtime::Softcuda, Runtime::OpenMps] {
        let finished = run(&sandbox, runtime, words)?;
        ensure!(ran(finished.success()?)?.len() == processes, "{finished:?}");
    }
    let daemon = Daemon::start(sandbox)?;
    let mut witness = witness(&daemon)?;
    let finished = run(daemon.sandbox(), Runtime::OpenMps, words)?;
    let found = ran(finished.success()?)?;
    ensure!(found.len() == processes, "{finished:?}");
    for Ran { pid, kernels } in found {
        let counted = daemon.departed(pid)?.kernels;
        ensure!(counted == kernels, "process {pid}: {counted} kernels counted, {kernels} launched");
    }
    dismiss(&daemon, witness.must("work 2").map(|()| witness)?)
}

/// A client that must never notice what others do.
fn witness(daemon: &Daemon) -> Result<Puppet> {
    let mut witness = daemon.puppet()?;
    witness.must("open")?;
    witness.must("work 2")?;
    Ok(witness)
}

/// The witness is the only client left, and has no reason to complain.
fn dismiss(daemon: &Daemon, mut witness: Puppet) -> Result<()> {
    wait::until("only the witness is left", PATIENCE, || {
        daemon.snapshot().is_ok_and(|s| s.clients.iter().all(|client| client.pid == witness.pid()))
    })?;
    witness.must("work 2")?;
    witness.dismiss()
}

/// A panic inside the library is an error of the call, and the program's own exceptions and ends of
/// threads are as without it.
#[test]
fn what_unwinds_the_stack_leaves_the_library_and_the_program_in_order() -> Result<()> {
    succeeds(&["unwinding"], 1)
}

#[test]
fn forks_before_anything_of_cuda() -> Result<()> {
    succeeds(&["fork", "before"], 4)
}

#[test]
fn forks_after_the_library_was_opened() -> Result<()> {
    succeeds(&["fork", "library"], 4)
}

#[test]
fn forks_after_the_drivers_version_was_asked_for() -> Result<()> {
    succeeds(&["fork", "version"], 4)
}

#[test]
fn a_child_of_an_initialised_process_has_no_driver_and_does_no_harm() -> Result<()> {
    succeeds(&["fork", "after"], 1)
}

#[test]
fn forks_while_other_threads_are_in_calls() -> Result<()> {
    succeeds(&["fork", "threads"], 1)
}

#[test]
fn a_program_executed_by_a_forked_child_starts_afresh() -> Result<()> {
    succeeds(&["fork", "exec"], 5)
}

#[test]
fn a_killed_parent_is_gone_although_its_child_lives() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = witness(&daemon)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "fork");
    // Its lines of output come as answers to no order.
    let mut parent = Puppet::spawn(sandbox.command(program, Runtime::OpenMps).arg("orphan"))?;
    let mut lines = [String::new(), String::new(), String::new()];
    for line in &mut lines {
        *line = parent.answer_within(PATIENCE)?;
    }
    let child = lines.iter().find_map(|line| line.strip_prefix("child "));
    let child = Pid::from_raw(child.context("no child")?.parse()?).context("no process id")?;
    let pid = parent.pid();
    let process = Pid::from_raw(i32::try_from(pid)?).context("no process id")?;
    // The puppet stays until the end of this test: with it the child's input would end, and so
    // would the child.
    kill_process(process, Signal::KILL)?;
    daemon.wait_gone(pid)?;
    ensure!(daemon.departed(pid)?.kernels == 2);
    rustix::process::test_kill_process(child).context("the child should have lived on")?;
    witness.must("work 2")?;
    kill_process(child, Signal::KILL)?;
    drop(parent);
    dismiss(&daemon, witness)
}

/// How a process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
}

fn end_of(status: ExitStatus) -> Option<End> {
    status.code().map(End::Exit).or(status.signal().map(End::Signal))
}

/// Ends with work in flight, in the same way natively and under OpenMPS.
fn ends(way: &str, expected: End, processes: usize) -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = witness(&daemon)?;
    let free_bytes = witness.ask("free-bytes")?;
    for runtime in [Runtime::Softcuda, Runtime::OpenMps] {
        let finished = run(daemon.sandbox(), runtime, &["endings", way])?;
        ensure!(end_of(finished.status) == Some(expected), "{runtime:?}: {finished:?}");
        let found = ran(&finished.stdout)?;
        ensure!(found.len() == processes, "{finished:?}");
        if runtime == Runtime::OpenMps {
            for Ran { pid, kernels } in found {
                daemon.wait_gone(pid)?;
                // What was in flight may have been run, or not.
                let counted = departed_kernels(&daemon, pid)?;
                ensure!(counted.iter().all(|&counted| counted >= kernels), "{counted:?}");
                ensure!(counted.len() == processes, "{counted:?}");
            }
        }
        witness.must("work 3")?;
    }
    wait::until("their memory is free again", PATIENCE, || {
        witness.ask("free-bytes").is_ok_and(|now| now == free_bytes)
    })?;
    dismiss(&daemon, witness)
}

/// A process that executes itself is two clients with one id.
fn departed_kernels(daemon: &Daemon, pid: u32) -> Result<Vec<u64>> {
    daemon.departed(pid)?;
    let departed = daemon.snapshot()?.departed;
    Ok(departed.iter().filter(|client| client.pid == pid).map(|client| client.kernels).collect())
}

#[test]
fn ends_by_returning() -> Result<()> {
    ends("return", End::Exit(0), 1)
}

#[test]
fn ends_in_another_thread() -> Result<()> {
    ends("exit-thread", End::Exit(0), 1)
}

#[test]
fn ends_after_its_main_thread() -> Result<()> {
    ends("main-leaves", End::Exit(0), 1)
}

#[test]
fn ends_without_exit_handlers() -> Result<()> {
    ends("quick", End::Exit(7), 1)
}

#[test]
fn ends_by_signals() -> Result<()> {
    let ways = [
        ("abort", libc::SIGABRT),
        ("kill", libc::SIGKILL),
        ("segv", libc::SIGSEGV),
        ("term", libc::SIGTERM),
    ];
    for (way, signal) in ways {
        ends(way, End::Signal(signal), 1).with_context(|| way.to_owned())?;
    }
    Ok(())
}

#[test]
fn a_process_that_replaces_itself_is_another_client() -> Result<()> {
    ends("exec", End::Exit(0), 2)
}

#[test]
fn calls_in_a_storm_of_signals() -> Result<()> {
    succeeds(&["signals", "storm"], 1)
}

#[test]
fn waits_go_on_after_a_handled_signal() -> Result<()> {
    succeeds(&["signals", "handled"], 1)
}

#[test]
fn the_librarys_threads_take_no_signals_of_the_program() -> Result<()> {
    succeeds(&["signals", "threads"], 1)
}

#[test]
fn an_interrupt_ends_a_program_that_waits() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let witness = witness(&daemon)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "signals");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let running = process::Running::start(command.arg("interrupt"))?;
    let pid = running.pid();
    wait::until("its kernels run", PATIENCE, || {
        daemon.snapshot().is_ok_and(|s| s.clients.iter().any(|c| c.pid == pid && c.kernels > 200))
    })?;
    kill_process(Pid::from_raw(pid.cast_signed()).context("no process id")?, Signal::INT)?;
    let finished = running.finish(PATIENCE)?;
    if finished.status.signal() != Some(libc::SIGINT) {
        bail!("it ended otherwise: {finished:?}");
    }
    daemon.wait_gone(pid)?;
    dismiss(&daemon, witness)
}

#[test]
fn threads_that_die_with_a_context_current() -> Result<()> {
    succeeds(&["threads"], 1)
}

#[test]
fn the_library_is_closed_and_opened_again() -> Result<()> {
    succeeds(&["reload"], 1)
}

#[test]
fn what_no_mps_serves_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    run(&sandbox, Runtime::Softcuda, &["refused", "native"])?.success()?;
    let daemon = Daemon::start(sandbox)?;
    let mut command = daemon
        .sandbox()
        .command(daemon.sandbox().installation.program("process", "refused"), Runtime::OpenMps);
    let finished = process::run(command.arg("client").env("OPENMPS_LOG", "error"), LIMIT)?;
    let found = ran(finished.success()?)?;
    ensure!(found.len() == 1 && daemon.departed(found[0].pid)?.kernels == 2, "{finished:?}");
    for reason in ["cuCtxCreate of the API before CUDA 4.0", "dynamic parallelism"] {
        ensure!(finished.stderr.contains(reason), "{finished:?}");
    }
    Ok(())
}

#[test]
fn memory_goes_between_a_client_and_a_native_process() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for runtime in [Runtime::Softcuda, Runtime::OpenMps] {
        run(&sandbox, runtime, &["share", "native"])?.success()?;
    }
    let daemon = Daemon::start(sandbox)?;
    let finished = run(daemon.sandbox(), Runtime::OpenMps, &["share", "client"])?;
    let found = ran(finished.success()?)?;
    ensure!(found.len() == 1, "{finished:?}");
    ensure!(daemon.departed(found[0].pid)?.kernels == found[0].kernels);
    ensure!(daemon.snapshot()?.clients_ever == 1, "the other process was attached, too");
    Ok(())
}
