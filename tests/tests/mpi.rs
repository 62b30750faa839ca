//! MPI ranks that share a device, started by a real Open MPI (Debian's): the same result for any number of them, and every rank is a client.
//!
//! `programs/mpi/jacobi.cu` shares a plate among its ranks, which exchange their edges after every step. Where there is no Open MPI, as on a system without apt, the tests say so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::process;
use openmps_tests::{Daemon, Runtime, Sandbox};

/// Eight ranks on two busy processors, which wait for each other at every step.
const LIMIT: Duration = Duration::from_secs(300);
const SIDE: &str = "96";
const STEPS: u64 = 12;

/// What the ranks of one run were, and what they found.
struct Run {
    pids: Vec<u32>,
    checksum: String,
}

fn mpirun(sandbox: &Sandbox) -> Option<PathBuf> {
    let programs = sandbox.installation.program("mpi", "jacobi");
    let mpirun = programs.ancestors().nth(3)?.join("openmpi/mpirun");
    let is_there = mpirun.exists() && programs.exists();
    if !is_there {
        println!("skipped: there is no Open MPI ({})", mpirun.display());
    }
    is_there.then_some(mpirun)
}

fn run(sandbox: &Sandbox, mpirun: &Path, runtime: Runtime, ranks: usize) -> Result<Run> {
    let mut command: Command = sandbox.command(mpirun, runtime);
    // Sockets of its own lie there, whose paths must be short.
    command.env("TMPDIR", "/tmp").args(["-n", &ranks.to_string()]);
    command.arg(sandbox.installation.program("mpi", "jacobi"));
    let finished = process::run(command.args([SIDE, &STEPS.to_string()]), LIMIT)?;
    let printed = finished.success()?;
    let line = |start: &str| {
        let found = printed.lines().find_map(|line| line.strip_prefix(start));
        found.with_context(|| format!("no line {start:?} in {printed:?}"))
    };
    let pids =
        line("jacobi: pids ")?.split(' ').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let said = line("jacobi: ok ")?;
    ensure!(pids.len() == ranks && said.starts_with(&format!("ranks={ranks} ")), "{printed}");
    let checksum = said.split(' ').find_map(|word| word.strip_prefix("checksum="));
    Ok(Run { pids, checksum: checksum.context("no checksum")?.to_owned() })
}

#[test]
fn any_number_of_ranks_finds_the_same_and_each_is_a_client() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let Some(mpirun) = mpirun(sandbox) else { return Ok(()) };
    let alone = run(sandbox, &mpirun, Runtime::Softcuda, 1)?;
    for ranks in [1, 2, 4, 8] {
        let found = run(sandbox, &mpirun, Runtime::OpenMps, ranks)?;
        ensure!(
            found.checksum == alone.checksum,
            "{ranks} ranks: {} instead of {}",
            found.checksum,
            alone.checksum
        );
        for pid in found.pids {
            let counted = daemon.departed(pid)?;
            // Both edges, and what lies between them.
            ensure!(counted.kernels == 3 * STEPS, "rank {pid}: {counted:?}");
            ensure!(counted.copied_bytes > 0, "rank {pid}: {counted:?}");
        }
    }
    Ok(())
}

#[test]
fn ranks_share_what_each_is_given_of_the_device() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let Some(mpirun) = mpirun(sandbox) else { return Ok(()) };
    let alone = run(sandbox, &mpirun, Runtime::Softcuda, 1)?;
    // As the guide advises for N ranks: twice an equal part.
    daemon.shell("set_default_active_thread_percentage 50")?;
    let found = run(sandbox, &mpirun, Runtime::OpenMps, 4)?;
    ensure!(found.checksum == alone.checksum, "{} instead of {}", found.checksum, alone.checksum);
    for pid in found.pids {
        let counted = daemon.departed(pid)?;
        ensure!(counted.active_thread_percentage == 50.0, "rank {pid}: {counted:?}");
    }
    Ok(())
}
