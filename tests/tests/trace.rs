//! `openmps trace`: complete, and a trace by the format's rules, whatever is traced.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use openmps_tests::trace::Trace;
use openmps_tests::tracer::Tracer;
use openmps_tests::{Daemon, Runtime, Sandbox};
use openmps_tests::{batching, process, wait};

/// A hundred thousand launches on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
const MANY: u64 = 100_000;

/// `openmps trace` with the sandbox's environment, writing to this file.
fn tracer(sandbox: &Sandbox, output: &Path) -> Command {
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["trace", "-o"]).arg(output);
    command
}

fn output(sandbox: &Sandbox, name: &str) -> PathBuf {
    sandbox.log_directory().join(name)
}

fn traced(sandbox: &Sandbox) -> PathBuf {
    sandbox.installation.program("process", "traced")
}

#[test]
fn a_hundred_thousand_launches_are_all_there() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "many.json");
    let mut command = tracer(sandbox, &file);
    command.arg("--").arg(traced(sandbox)).arg(MANY.to_string());
    let finished = process::run(&mut command, LIMIT)?;
    finished.success()?;
    let trace = Trace::read(&file)?;
    ensure!(trace.other["lost_records"] == "0", "{}", trace.other);
    let kernels = trace.of("X", "kernel");
    ensure!(kernels.len() as u64 == MANY, "{} kernels", kernels.len());
    ensure!(trace.named("cuLaunchKernel").len() as u64 == MANY);
    // Each kernel, and each copy, has the call that has asked for it.
    let works = kernels.len() + trace.of("X", "copy").len();
    ensure!(trace.of("s", "launch").len() == works, "arrows are missing");
    for kernel in kernels {
        ensure!(kernel["name"] == "step" && kernel["args"]["grid"] == "32x1x1", "{kernel}");
        ensure!(kernel["args"]["queued_us"].as_f64().is_some(), "{kernel}");
    }
    Ok(())
}

#[test]
fn traced_launches_go_together_as_others_do() -> Result<()> {
    // Time is the work that is done: what a launch costs decides whether it may wait for others,
    // whatever else the machine does.
    let clock = ("OPENMPS_SOFT_CLOCK", "virtual");
    let daemon = Daemon::start_with(Sandbox::new()?, &[clock, batching::ON])?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "together.json");
    const LAUNCHES: usize = 4000;
    let again = || -> Result<bool> {
        let mut command = tracer(sandbox, &file);
        command.arg("--").arg(traced(sandbox)).arg(LAUNCHES.to_string());
        process::run(&mut command, LIMIT)?.success()?;
        let trace = Trace::read(&file)?;
        let kernels = trace.of("X", "kernel");
        let other = &trace.other;
        ensure!(kernels.len() == LAUNCHES, "{} kernels: {other}", kernels.len());
        // An event costs the device as much as a small kernel does: most kernels have none of their
        // own.
        let alone = |kernel: &&&serde_json::Value| kernel["args"]["timed_together"].is_null();
        let alone = kernels.iter().filter(alone).count();
        let chained = daemon.snapshot()?.devices.first().map_or(0, |one| one.chained_kernels_ever);
        println!("{alone} of {LAUNCHES} were timed alone, {chained} went together so far");
        Ok(chained > 0 && alone < LAUNCHES / 4)
    };
    // They do where the client is ahead of the server.
    let mut outcome = Ok(());
    wait::until("traced launches that go together", LIMIT, || {
        again().unwrap_or_else(|error| {
            outcome = Err(error);
            true
        })
    })?;
    outcome
}

#[test]
fn ranges_marks_and_threads_are_in_it() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "ranges.json");
    let mut command = tracer(sandbox, &file);
    process::run(command.arg("--").arg(traced(sandbox)).arg("20"), LIMIT)?.success()?;
    let trace = Trace::read(&file)?;
    let slice = |name: &str| -> Result<(f64, f64, i64)> {
        let found = trace.named(name);
        ensure!(found.len() == 1, "{} slices {name:?}", found.len());
        let of = |member: &str| found[0][member].as_f64().unwrap_or(f64::NAN);
        Ok((of("ts"), of("ts") + of("dur"), found[0]["tid"].as_i64().unwrap_or(0)))
    };
    let outer = slice("outer \"quoted\" ü")?;
    let inner = slice("inner")?;
    ensure!(outer.0 <= inner.0 && inner.1 <= outer.1 && outer.2 == inner.2);
    let launches = trace.named("cuLaunchKernel");
    let within = launches.iter().filter(|launch| {
        let ts = launch["ts"].as_f64().unwrap_or(0.0);
        inner.0 <= ts && ts <= inner.1
    });
    ensure!(within.count() == 10, "the launches of `inner` are not in it");
    ensure!(slice("before cuInit")?.0 < inner.0);
    ensure!(slice("thread")?.2 != inner.2, "the second thread has no track of its own");
    // A domain's ranges need not nest with others.
    ensure!(slice("registered")?.2 != inner.2);
    slice("left open")?;
    ensure!(trace.of("i", "nvtx").iter().any(|mark| mark["name"] == "a mark"));
    ensure!(trace.of("b", "nvtx").iter().any(|range| range["name"] == "started"));
    ensure!(trace.of("X", "copy").iter().all(|copy| copy["args"]["bytes"] == 16384));
    Ok(())
}

#[test]
fn a_running_client_is_traced_for_a_while_and_goes_on() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    puppet.must("work 3")?;
    for turn in 0..2 {
        let file = output(sandbox, &format!("turn-{turn}.json"));
        let tracer = Tracer::start(&daemon, &puppet, &file)?;
        puppet.must("work 2")?;
        let trace = tracer.end()?;
        let kernels = trace.of("X", "kernel").len();
        ensure!(kernels == 2, "{kernels} kernels");
        puppet.must("work 2")?;
    }
    puppet.dismiss()
}

#[test]
fn children_and_forks_are_traced_under_their_own_numbers() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "children.json");
    let program = traced(sandbox);
    let mut command = tracer(sandbox, &file);
    command.args(["--", "sh", "-c"]).arg(format!("{0} 4 & {0} 6; wait", program.display()));
    process::run(&mut command, LIMIT)?.success()?;
    let trace = Trace::read(&file)?;
    let mut pids: Vec<_> =
        trace.of("X", "kernel").iter().filter_map(|kernel| kernel["pid"].as_i64()).collect();
    ensure!(pids.len() == 10, "{} kernels", pids.len());
    pids.sort_unstable();
    pids.dedup();
    ensure!(pids.len() == 2, "{pids:?}");
    Ok(())
}

#[test]
fn a_killed_client_leaves_a_trace_that_is_whole() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "killed.json");
    let mut command = tracer(sandbox, &file);
    command.arg("--").arg(sandbox.installation.program("process", "endings")).arg("kill");
    let finished = process::run(&mut command, LIMIT)?;
    ensure!(finished.status.code() == Some(128 + 9), "{:?}", finished.status);
    let trace = Trace::read(&file)?;
    ensure!(!trace.of("X", "kernel").is_empty(), "no kernels");
    Ok(())
}

#[test]
fn what_runs_natively_is_said_to_have_no_trace() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let file = output(sandbox, "native.json");
    let mut command = tracer(sandbox, &file);
    command.env("CUDA_INJECTION64_PATH", "/opt/profiler/libprofiler.so");
    command.arg("--").arg(traced(sandbox)).arg("2");
    let finished = process::run(&mut command, LIMIT)?;
    finished.success()?;
    ensure!(finished.stderr.contains("of which there is nothing to trace"), "{}", finished.stderr);
    ensure!(Trace::read(&file)?.of("X", "driver").is_empty());
    let mut command = tracer(sandbox, &file);
    let finished = process::run(command.args(["--", "true"]), LIMIT)?;
    finished.success()?;
    ensure!(finished.stderr.contains("has not used CUDA"), "{}", finished.stderr);
    let mut command = tracer(sandbox, &file);
    let finished = process::run(command.args(["--client", "1"]), LIMIT)?;
    ensure!(finished.status.code() == Some(1), "{:?}", finished.status);
    ensure!(finished.stderr.contains("client"), "{}", finished.stderr);
    Ok(())
}
