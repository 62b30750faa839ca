//! `openmps bench`: the peers of this machine, measured in one run.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bench::peer::{Peer, Places, nvidia_is_installed};
use bench::report::Report;
use bench::runner::{self, Plan};
use bench::worker::{self, Task};
use bench::workload::Workload;
use clap::{Args, Subcommand};

use crate::chaos::{self, Chaos};
use crate::installation::{self, DriverWish};
use crate::output;

/// Measure small kernels and driver calls beside the other ways to share a device.
///
/// Every peer runs the same client program: `none` is the native driver alone, `nvidia` NVIDIA's
/// MPS where it is installed, `openmps` this project, `passthrough` its library where no daemon
/// runs. The peers take turns, and the whole is repeated; the table shows medians, and each peer's
/// rate over the first peer's and over NVIDIA's MPS. The others show nanoseconds, and each peer's
/// over the same two: `post` of calls that hand work over, `calls` of those that need no device,
/// `memory` of copies, allocations and module loads, `start` from a process's `cuInit` to the end
/// of its first kernel, the server being up. One run measures what it is told and keeps nothing:
/// bench/table.py in the sources measures all that is promised about speed, in parts, and goes on
/// where it stopped.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// What the clients do.
    #[arg(long, value_delimiter = ',', default_value = "lat,empty", value_parser = workload, value_name = "tiny,empty,lat,infer,fill,work,mixed,load,reload,starts,post,calls,memory,start")]
    workload: Vec<Workload>,
    /// How many clients at once.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8", value_name = "N,...")]
    clients: Vec<usize>,
    /// Let one more client do this all the time; it is not measured.
    #[arg(long, value_parser = workload, value_name = "WORKLOAD")]
    beside: Option<Workload>,
    /// Give each client this share of the SMs, in percent; one client with all of them is measured
    /// too, for `% each`.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100), value_name = "PERCENT,...")]
    sm_percent: Vec<u32>,
    /// Ways to share [default: none, nvidia where it is installed, openmps].
    #[arg(long, value_delimiter = ',', value_parser = peer, value_name = "none,nvidia,openmps,passthrough")]
    peers: Option<Vec<Peer>>,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// How long each run lasts, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Let the software GPU do the work.
    #[arg(long, conflicts_with = "native_driver")]
    softcuda: bool,
    /// Let this driver library do the work.
    #[arg(long, value_name = "PATH")]
    native_driver: Option<PathBuf>,
    /// Write everything measured to this file, as JSON with a `schema` number.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is done instead of measuring.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    Chaos(Chaos),
}

/// One client of a bench; started by it.
#[derive(Debug, Args)]
pub(crate) struct BenchWorker {
    /// Driver library to open.
    #[arg(long)]
    driver: PathBuf,
    /// What to do.
    #[arg(long, value_parser = workload)]
    workload: Workload,
    /// For how long, in milliseconds.
    #[arg(long)]
    duration_ms: u64,
}

/// Measures, prints the table and writes the report.
///
/// # Errors
/// A peer that cannot be started, a worker that fails, a report that cannot be written.
pub(crate) fn bench(options: Bench) -> anyhow::Result<ExitCode> {
    if let Some(BenchCommand::Chaos(options)) = options.command {
        return chaos::chaos(options);
    }
    let libraries = installation::library_directory()?;
    let wish = match (options.softcuda, options.native_driver) {
        (true, _) => DriverWish::Software,
        (false, Some(path)) => DriverWish::Path(path),
        (false, None) => DriverWish::None,
    };
    let native = installation::native_driver(wish, &libraries)?;
    let software = native.path().starts_with(&libraries);
    let peers = match options.peers {
        Some(peers) if peers.contains(&Peer::Nvidia) && (software || !nvidia_is_installed()) => {
            bail!(
                "the peer `nvidia` needs NVIDIA's driver and its nvidia-cuda-mps-control on the PATH"
            )
        }
        Some(peers) => peers,
        None => Peer::ALL
            .into_iter()
            .filter(|&peer| peer != Peer::Passthrough)
            .filter(|&peer| peer != Peer::Nvidia || (!software && nvidia_is_installed()))
            .collect(),
    };
    let plan = Plan {
        places: Places {
            openmps: std::env::current_exe().context("cannot find this executable")?,
            client_library: libraries.join("libcuda.so.1"),
            native_driver: native.path().as_os_str().to_owned(),
            logs: None,
        },
        peers,
        workloads: options.workload,
        clients: options.clients,
        beside: options.beside,
        sm_percentages: options.sm_percent,
        repeats: options.repeat,
        duration_ms: options.duration_ms,
    };
    let measurements = runner::run(&plan, |measurement| {
        eprint!(
            "{} {} clients={} sm-percent={} repeat={}",
            measurement.peer.name(),
            measurement.workload.name(),
            measurement.clients,
            measurement.sm_percent,
            measurement.repeat + 1,
        );
        match measurement.calls.len() {
            0 => eprintln!(" kernels/s={:.0}", measurement.kernels_per_second),
            calls => eprintln!(" {calls} calls"),
        }
    })?;
    let report = Report::new(&plan, measurements);
    print!("{}", report.table());
    if let Some(path) = options.json {
        let text = serde_json::to_string_pretty(&report)?;
        output::write(&path, &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Works as one client.
///
/// # Errors
/// What the driver refused.
pub(crate) fn worker(options: BenchWorker) -> anyhow::Result<ExitCode> {
    worker::run(&Task {
        driver: options.driver.into_os_string(),
        workload: options.workload,
        duration_ms: options.duration_ms,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn workload(name: &str) -> Result<Workload, String> {
    Workload::from_name(name)
        .ok_or_else(|| format!("workloads are {}", Workload::ALL.map(Workload::name).join(", ")))
}

fn peer(name: &str) -> Result<Peer, String> {
    Peer::from_name(name)
        .ok_or_else(|| "peers are none, nvidia, openmps and passthrough".to_owned())
}
