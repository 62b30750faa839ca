//! `cargo xtask demo`: several CUDA programs on one device, first one after the other without
//! OpenMPS, then all at once through it. One of them has a mistake, which is to end nobody else.
//!
//! The demo succeeds only if every result is right and the same both times, and if the server's own
//! counters say that each of these processes was attached to it and that its kernels and copies
//! went through it.

mod interrupt;
mod programs;
mod session;
mod table;

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::command;
use crate::dist::{self, Build, Dist};
use crate::paths::Paths;
use programs::{DEMO, Finished, STRAY};
use session::Session;

/// What the demo is asked for.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Use what is already built
    #[arg(long)]
    built: bool,
}

/// Runs the demo.
///
/// # Errors
/// When something cannot be built or started, a result is wrong, or a program did not run under
/// OpenMPS.
pub(crate) fn run(paths: &Paths, options: &Demo) -> Result<()> {
    interrupt::catch();
    let dist = if options.built { Dist::at(paths) } else { build(paths)? };
    let session = Session::new(dist)?;
    let result = show(paths, &session);
    session.close()?;
    interrupt::check()?;
    result
}

fn build(paths: &Paths) -> Result<Dist> {
    println!("building OpenMPS and the demo's programs");
    let dist = dist::build(paths, Build::Native)?;
    command::run(command::cargo().current_dir(&paths.root).args([
        "build",
        "--release",
        "--package=demo-programs",
    ]))?;
    Ok(dist)
}

fn show(paths: &Paths, session: &Session) -> Result<()> {
    println!("\ndriver: {}", session.driver());
    println!("{} programs natively, one after the other, for their results", DEMO.len());
    let mut alone = Vec::new();
    for program in DEMO {
        alone.push(session.start_natively(paths, program)?.finish()?);
    }

    println!("all of them at once, under OpenMPS; one has a mistake (openmps run --isolate)");
    let start = Instant::now();
    // The first `openmps run` starts the daemon; the others find it.
    let running: Vec<_> =
        DEMO.iter().map(|program| session.start_shared(paths, program)).collect::<Result<_>>()?;
    let shared: Vec<Finished> =
        running.into_iter().map(|program| program.finish()).collect::<Result<_>>()?;
    let shared_ms = start.elapsed().as_secs_f64() * 1e3;

    let counted = session.counters()?;
    table::print(&shared, &counted);
    judge(&alone, &shared, &counted)?;
    println!(
        "\n{} processes shared one {}: every result right, every kernel counted by server {};\n\
         the mistake ended the program that made it, and nobody else",
        shared.len(),
        shared[0].report.device,
        counted.server_pid,
    );
    if session.has_gpu() {
        table::compare(&alone, &shared, shared_ms);
    } else {
        println!(
            "The software GPU shows that sharing works, not how fast: see docs/performance.md for an H200."
        );
    }
    println!("demo: success");
    Ok(())
}

fn judge(alone: &[Finished], shared: &[Finished], counted: &session::Counters) -> Result<()> {
    for (alone, shared) in alone.iter().zip(shared) {
        let report = &shared.report;
        ensure!(alone.report.right, "{} was wrong without OpenMPS", report.program);
        ensure!(report.right, "{} was wrong under OpenMPS", report.program);
        ensure!(
            report.checksum == alone.report.checksum,
            "{} gave another result under OpenMPS",
            report.program
        );
        ensure!(
            report.pid == shared.pid,
            "{} ran in a process that was not watched",
            report.program
        );
        let Some(client) = counted.client(report.pid) else {
            bail!("{}, process {}, was not attached to the server", report.program, report.pid);
        };
        ensure!(
            client.kernels == report.kernels,
            "the server ran {} kernels of {}, which launched {}",
            client.kernels,
            report.program,
            report.kernels
        );
        let is_culprit = report.program == STRAY;
        ensure!(
            client.fault.is_some() == is_culprit,
            "the server takes {} for the culprit of fault {:?}",
            report.program,
            client.fault
        );
    }
    Ok(())
}
