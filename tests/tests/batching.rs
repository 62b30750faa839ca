//! Launches, and small copies, that are submitted together: the same results as one by one,
//! whatever comes between them, on the client's share of the SMs, and counted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait;
use openmps_tests::{Daemon, Runtime, Sandbox};
use openmps_tests::{batching, process};

/// SMs that a quarter of the software GPU has.
const QUARTER: u32 = 20;
/// Time is the work that is done: what a launch costs decides whether it may wait for others,
/// whatever else the machine does.
const CLOCK: (&str, &str) = ("OPENMPS_SOFT_CLOCK", "virtual");

/// Of a run, which takes a second, or many on a busy machine; and until launches go together, which
/// depends on who is run when.
const LIMIT: Duration = Duration::from_secs(300);

/// What a program prints, attached with these variables and arguments.
fn run(daemon: &Daemon, variables: &[(&str, &str)], program: &[&str]) -> Result<String> {
    let sandbox = daemon.sandbox();
    let mut command = command(sandbox, Runtime::OpenMps, program);
    command.envs(variables.iter().copied());
    let finished = process::run(&mut command, LIMIT)?;
    let printed = finished.success().with_context(|| sandbox.last_log_lines())?.to_owned();
    let kernels = daemon.departed(finished.pid)?.kernels;
    ensure!(kernels >= 1000, "only {kernels} kernels ran in the server");
    Ok(printed)
}

/// A program and its arguments.
fn command(sandbox: &Sandbox, runtime: Runtime, program: &[&str]) -> Command {
    let (name, arguments) = program.split_first().unwrap_or((&"", &[]));
    let path = sandbox.installation.program("cudart-13.0-static", name);
    let mut command = sandbox.command(path, runtime);
    command.args(arguments);
    command
}

fn chained(daemon: &Daemon) -> Result<u64> {
    Ok(daemon.snapshot()?.devices[0].chained_kernels_ever)
}

/// Runs the program until launches have gone together, which they do where the client is ahead of
/// the server; each run is to print the same.
fn run_until_chained(
    daemon: &Daemon,
    variables: &[(&str, &str)],
    program: &[&str],
) -> Result<String> {
    let first = run(daemon, variables, program)?;
    let mut outcome = Ok(());
    wait::until("launches that go together", LIMIT, || {
        let again = || -> Result<bool> {
            if chained(daemon)? > 0 {
                return Ok(true);
            }
            let printed = run(daemon, variables, program)?;
            ensure!(printed == first, "{printed} after {first}");
            Ok(false)
        };
        again().unwrap_or_else(|error| {
            outcome = Err(error);
            true
        })
    })?;
    outcome?;
    // With chains from the first launch on.
    let printed = run(daemon, variables, program)?;
    ensure!(printed == first, "{printed} after {first}");
    Ok(printed)
}

#[test]
fn launches_that_go_together_give_what_single_ones_give() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::ON])?;
    let together = run_until_chained(&daemon, &[], &["many_launches"])?;
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::OFF])?;
    let single = run(&daemon, &[], &["many_launches"])?;
    let chained = chained(&daemon)?;
    ensure!(chained == 0, "{chained} launches went together, although that was switched off");
    ensure!(together == single && together.contains(": ok"), "{together} {single}");
    Ok(())
}

#[test]
fn launches_that_go_together_keep_to_the_clients_share() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::ON])?;
    let quarter = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")];
    let printed = run_until_chained(&daemon, &quarter, &["many_launches", "sms"])?;
    ensure!(printed.trim() == format!("many_launches: on {QUARTER} SMs of {QUARTER}"), "{printed}");
    Ok(())
}

#[test]
fn small_copies_that_go_with_launches_give_what_single_ones_give() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::ON])?;
    let mut printed = run(&daemon, &[], &["many_launches", "copies"])?;
    let mut outcome = Ok(());
    // They do where the client is just ahead of the server, so perhaps not in the first run.
    wait::until("copies that go with launches, and their signals", LIMIT, || {
        let mut again = || -> Result<bool> {
            let snapshot = daemon.snapshot()?;
            let device = &snapshot.devices[0];
            if device.chained_copies_ever > 0 && device.chained_signals_ever > 0 {
                return Ok(true);
            }
            printed = run(&daemon, &[], &["many_launches", "copies"])?;
            Ok(false)
        };
        again().unwrap_or_else(|error| {
            outcome = Err(error);
            true
        })
    })?;
    outcome?;
    ensure!(
        printed == run(&daemon, &[], &["many_launches", "copies"])? && printed.contains(": ok"),
        "{printed}"
    );
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::OFF])?;
    let single = run(&daemon, &[], &["many_launches", "copies"])?;
    let chained = daemon.snapshot()?.devices[0].chained_copies_ever;
    ensure!(chained == 0, "{chained} copies went with launches, although that was switched off");
    ensure!(printed == single, "{printed} {single}");
    Ok(())
}

/// Several clients at once whose runs of launches are interrupted by all else that streams take:
/// each computes what it does natively.
fn run_mixed(daemon: &Daemon, variables: &[(&str, &str)]) -> Result<()> {
    let one = |seed: &str| -> Result<()> {
        let program = ["mixed_commands", seed];
        let attached = run(daemon, variables, &program)?;
        let mut native = command(daemon.sandbox(), Runtime::Softcuda, &program);
        let native = process::run(&mut native, LIMIT)?;
        let expected = native.success()?;
        ensure!(attached == expected, "{attached} natively {expected}");
        Ok(())
    };
    thread::scope(|scope| {
        let running = ["1", "2", "3"].map(|seed| scope.spawn(move || one(seed)));
        running.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
    })
}

/// The same until launches have gone together, and once more.
fn run_mixed_until_chained(variables: &[(&str, &str)]) -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::ON])?;
    let mut outcome = Ok(());
    wait::until("interrupted launches that go together", LIMIT, || {
        outcome = run_mixed(&daemon, variables);
        outcome.is_err() || chained(&daemon).is_ok_and(|launches| launches > 0)
    })?;
    outcome?;
    run_mixed(&daemon, variables)
}

#[test]
fn launches_between_all_else_that_streams_take_give_what_they_give_natively() -> Result<()> {
    run_mixed_until_chained(&[])
}

#[test]
fn they_do_on_a_quarter_of_the_sms() -> Result<()> {
    run_mixed_until_chained(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")])
}

#[test]
fn they_do_one_by_one() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[CLOCK, batching::OFF])?;
    run_mixed(&daemon, &[])?;
    ensure!(chained(&daemon)? == 0, "launches went together, although that was switched off");
    Ok(())
}

#[test]
fn what_the_tests_are_told_their_executors_are_told() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let executor = daemon.snapshot()?.devices[0].executor_pid;
    let environment = std::fs::read(format!("/proc/{executor}/environ"))?;
    let told = |(name, value): (&str, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let told = batching::of_this_run().map(told);
    let mut variables = environment.split(|&byte| byte == 0);
    let has = variables.find(|variable| variable.starts_with(b"OPENMPS_BATCHING="));
    ensure!(has == told.as_deref(), "{has:?}, {told:?}");
    client.dismiss()
}
