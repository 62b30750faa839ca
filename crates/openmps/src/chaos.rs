//! `openmps bench chaos`: good clients beside bad ones.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bench::chaos::bad::{self, BadTask};
use bench::chaos::good::{self, GoodTask};
use bench::chaos::harness::{self, Plan};
use bench::chaos::kind::Kind;
use bench::chaos::tally::Tally;
use bench::driver::Driver;
use bench::peer::{Peer, Places, nvidia_is_installed};
use clap::{Args, ValueEnum};

use crate::installation::{self, DriverWish};
use crate::output;

/// Make every kind of fault beside well-behaved clients, and count what that costs them.
///
/// The good clients compare every word of their results with what the processor computes; half of
/// the time they have work in flight, else none. The command fails when a result was wrong, a
/// client without work in flight got an error or hung, or something was left over.
#[derive(Debug, Args)]
pub(crate) struct Chaos {
    /// How long faults are made, in minutes, those of earlier runs with the same --state included.
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// End this run after so many minutes, whatever is left to do.
    #[arg(long, value_name = "MINUTES", requires = "state")]
    this_run: Option<f64>,
    /// End after so many faults; 0: when the time is up.
    #[arg(long, default_value_t = 0, value_name = "N")]
    faults: u64,
    /// Good clients.
    #[arg(long, default_value_t = 8, value_name = "N")]
    clients: usize,
    /// How many of them are PyTorch programs, run by the `python3` on the PATH.
    #[arg(long, default_value_t = 0, value_name = "N")]
    torch: usize,
    /// Kinds of faults [default: all].
    #[arg(long, value_delimiter = ',', value_parser = kind, value_name = "KIND,...")]
    kinds: Option<Vec<Kind>>,
    /// Clients that make faults at the same time.
    #[arg(long, default_value_t = 1, value_name = "N")]
    side_by_side: usize,
    /// Between two faults, in milliseconds.
    #[arg(long, default_value_t = 100, value_name = "MILLISECONDS")]
    rest_ms: u64,
    /// Clients of which nothing is heard for so many seconds hang: they are killed, and counted.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    patience_s: u64,
    /// The way to share the device.
    #[arg(long, default_value = "openmps", value_parser = peer, value_name = "none,nvidia,openmps")]
    peer: Peer,
    /// Let the software GPU do the work.
    #[arg(long, conflicts_with = "native_driver")]
    softcuda: bool,
    /// Let this driver library do the work.
    #[arg(long, value_name = "PATH")]
    native_driver: Option<PathBuf>,
    /// Keep what was counted in this file, and go on from what it has.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Have the daemon write its logs here, and leave them.
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Print JSON with a `schema` number instead of text.
    #[arg(long)]
    json: bool,
}

/// What a client of a chaos run is.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Good,
    Bad,
    Probe,
}

/// One client of a chaos run; started by it.
#[derive(Debug, Args)]
pub(crate) struct ChaosWorker {
    /// Driver library to open.
    #[arg(long)]
    driver: PathBuf,
    /// The file of the board.
    #[arg(long)]
    board: PathBuf,
    /// What it is.
    #[arg(long)]
    role: Role,
    /// Its number, if good.
    #[arg(long, default_value_t = 0)]
    index: usize,
    /// What it does, if bad.
    #[arg(long, value_parser = kind)]
    kind: Option<Kind>,
    /// What is random about that.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The daemon's directory, if bad.
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// Makes the faults, prints the tally.
///
/// # Errors
/// A peer that cannot be started, good clients that do not work undisturbed, a state that cannot be
/// read or written.
pub(crate) fn chaos(options: Chaos) -> anyhow::Result<ExitCode> {
    let libraries = installation::library_directory()?;
    let wish = match (options.softcuda, options.native_driver) {
        (true, _) => DriverWish::Software,
        (false, Some(path)) => DriverWish::Path(path),
        (false, None) => DriverWish::None,
    };
    let native = installation::native_driver(wish, &libraries)?;
    let software = native.path().starts_with(&libraries);
    if options.peer == Peer::Nvidia && (software || !nvidia_is_installed()) {
        bail!(
            "the peer `nvidia` needs NVIDIA's driver and its nvidia-cuda-mps-control on the PATH"
        );
    }
    if options.torch > options.clients {
        bail!(
            "--torch says how many of the --clients are PyTorch programs: {} at most",
            options.clients
        );
    }
    let kinds = options.kinds.unwrap_or_else(|| {
        Kind::ALL.into_iter().filter(|kind| kind.is_for(options.peer)).collect()
    });
    if let Some(kind) = kinds.iter().find(|kind| !kind.is_for(options.peer)) {
        bail!("{} is an attack on OpenMPS, none on {}", kind.name(), options.peer.name());
    }
    let mut tally = match &options.state {
        Some(path) if path.exists() => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} is no state of a chaos run", path.display()))?
        }
        _ => Tally::default(),
    };
    if !tally.peer.is_empty() && tally.peer != options.peer.name() {
        bail!("the state is of a run under {}, not {}", tally.peer, options.peer.name());
    }
    let left_s = options.minutes * 60.0 - tally.seconds;
    let this_run_s = options.this_run.map_or(left_s, |minutes| left_s.min(minutes * 60.0));
    let duration = Duration::try_from_secs_f64(this_run_s).unwrap_or_default();
    if !duration.is_zero() && (options.faults == 0 || tally.fault_count() < options.faults) {
        let plan = Plan {
            places: Places {
                openmps: std::env::current_exe().context("cannot find this executable")?,
                client_library: libraries.join("libcuda.so.1"),
                native_driver: native.path().as_os_str().to_owned(),
                logs: options.logs,
            },
            peer: options.peer,
            good: options.clients - options.torch,
            torch: options.torch,
            kinds,
            side_by_side: options.side_by_side.max(1),
            duration,
            most_faults: options.faults,
            rest: Duration::from_millis(options.rest_ms),
            patience: Duration::from_secs(options.patience_s),
        };
        let began = Instant::now();
        harness::run(&plan, &mut tally, &|line| {
            eprintln!("{:6.1} s  {line}", began.elapsed().as_secs_f64());
        })?;
        if let Some(path) = &options.state {
            output::write(path, &serde_json::to_string(&tally)?)?;
        }
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&tally)?),
        false => print!("{}", tally.text()),
    }
    Ok(if tally.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Works as one client.
///
/// # Errors
/// What the driver refused.
pub(crate) fn worker(options: ChaosWorker) -> anyhow::Result<ExitCode> {
    let ChaosWorker { driver, board, role, index, kind, seed, directory } = options;
    let driver = driver.into_os_string();
    match role {
        Role::Good => Ok(good::run(&GoodTask { driver, board, index })?),
        Role::Bad => {
            let kind = kind.context("a bad client needs --kind")?;
            let directory = directory.context("a bad client needs --directory")?;
            Ok(bad::run(&BadTask { driver, board, kind, seed, directory })?)
        }
        Role::Probe => {
            println!("{}", Driver::open(&driver)?.free_bytes()?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn kind(name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
        format!("kinds are {}", names.join(", "))
    })
}

fn peer(name: &str) -> Result<Peer, String> {
    let peer = Peer::from_name(name).filter(|peer| *peer != Peer::Passthrough);
    peer.ok_or_else(|| "peers are none, nvidia and openmps".to_owned())
}
