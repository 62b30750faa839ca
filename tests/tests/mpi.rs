//! MPI ranks that share a device, started by a real Open MPI: the same result for any number of
//! them, and every rank is a client.
//!
//! `programs/mpi/jacobi.cu` shares a plate among its ranks, which exchange their edges after every
//! step: through host memory, by Debian's Open MPI, and straight between device buffers, by one
//! whose UCX has CUDA transports. Where there is no Open MPI, as on a system without apt, the tests
//! say so.

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
    /// What they, and MPI, printed.
    printed: String,
}

impl Run {
    fn ensure_same(&self, alone: &Self, what: &str) -> Result<()> {
        let (found, expected) = (&self.checksum, &alone.checksum);
        ensure!(found == expected, "{what}: {found} instead of {expected}");
        Ok(())
    }
}

/// Where edges lie that are exchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Halo {
    Staged,
    Device,
}

fn mpirun(sandbox: &Sandbox, halo: Halo) -> Option<PathBuf> {
    let programs = sandbox.installation.program("mpi", "jacobi");
    let folder = match halo {
        Halo::Staged => "openmpi",
        Halo::Device => "openmpi-cuda",
    };
    let mpirun = programs.ancestors().nth(3)?.join(folder).join("mpirun");
    let is_there = mpirun.exists() && programs.exists();
    if !is_there {
        println!("skipped: there is no Open MPI ({})", mpirun.display());
    }
    is_there.then_some(mpirun)
}

fn run(sandbox: &Sandbox, mpirun: &Path, runtime: Runtime, ranks: usize) -> Result<Run> {
    run_with(sandbox, mpirun, runtime, ranks, Halo::Staged, &[])
}

fn run_with(
    sandbox: &Sandbox,
    mpirun: &Path,
    runtime: Runtime,
    ranks: usize,
    halo: Halo,
    variables: &[(&str, &str)],
) -> Result<Run> {
    let mut command: Command = sandbox.command(mpirun, runtime);
    command.envs(variables.iter().copied());
    // Sockets of its own lie there, whose paths must be short.
    command.env("TMPDIR", "/tmp").args(["-n", &ranks.to_string()]);
    command.arg(sandbox.installation.program("mpi", "jacobi"));
    let (option, word) = match halo {
        Halo::Staged => ("--staged", "halo=staged"),
        Halo::Device => ("--device", "halo=device"),
    };
    command.arg(option);
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
    ensure!(said.contains(word), "{printed}");
    let checksum = said.split(' ').find_map(|word| word.strip_prefix("checksum="));
    Ok(Run {
        pids,
        checksum: checksum.context("no checksum")?.to_owned(),
        printed: format!("{printed}{}", finished.stderr),
    })
}

#[test]
fn any_number_of_ranks_finds_the_same_and_each_is_a_client() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let Some(mpirun) = mpirun(sandbox, Halo::Staged) else { return Ok(()) };
    let alone = run(sandbox, &mpirun, Runtime::Softcuda, 1)?;
    for ranks in [1, 2, 4, 8] {
        let found = run(sandbox, &mpirun, Runtime::OpenMps, ranks)?;
        found.ensure_same(&alone, &format!("{ranks} ranks"))?;
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
    let Some(mpirun) = mpirun(sandbox, Halo::Staged) else { return Ok(()) };
    let alone = run(sandbox, &mpirun, Runtime::Softcuda, 1)?;
    // As the guide advises for N ranks: twice an equal part.
    daemon.shell("set_default_active_thread_percentage 50")?;
    let found = run(sandbox, &mpirun, Runtime::OpenMps, 4)?;
    found.ensure_same(&alone, "4 ranks")?;
    for pid in found.pids {
        let counted = daemon.departed(pid)?;
        ensure!(counted.active_thread_percentage == 50.0, "rank {pid}: {counted:?}");
    }
    Ok(())
}

/// UCX sends small messages through host memory; larger ones it writes to memory of the other rank
/// that it has opened by its IPC handle, which must be seen.
#[test]
fn device_buffers_go_from_rank_to_rank() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let Some(mpirun) = mpirun(sandbox, Halo::Device) else { return Ok(()) };
    let alone = run(sandbox, &mpirun, Runtime::Softcuda, 1)?;
    let by_handle =
        [("UCX_RNDV_THRESH", "0"), ("UCX_RNDV_SCHEME", "put_zcopy"), ("UCX_PROTO_INFO", "used")];
    let through_host = [("UCX_TLS", "self,sm,cuda_copy")];
    for (ranks, variables) in [(2, by_handle.as_slice()), (4, &through_host), (4, &[])] {
        let found = run_with(sandbox, &mpirun, Runtime::OpenMps, ranks, Halo::Device, variables)?;
        found.ensure_same(&alone, &format!("{ranks} ranks, {variables:?}"))?;
        for pid in found.pids {
            let counted = daemon.departed(pid)?;
            ensure!(counted.kernels == 3 * STEPS, "rank {pid}: {counted:?}");
        }
        let is_by_handle = found.printed.contains("cuda_ipc/cuda");
        ensure!(is_by_handle || variables != by_handle, "{}", found.printed);
    }
    Ok(())
}
