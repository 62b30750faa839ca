//! The daemon around [`crate::core`]: one thread, one poll loop.
//!
//! - [`accounts`]: what the system says of users;
//! - [`control_log`]: its own log;
//! - [`claim`]: the directory, its lock, socket and pid file;
//! - [`client_processes`]: whether those that were handed on still run;
//! - [`detach`] for `-d`;
//! - [`environment`]: the variables of other users' servers;
//! - [`group_sockets`]: sockets whose clients are of one group;
//! - [`held`]: descriptors that it holds for others;
//! - [`long_answer`]: answers longer than a packet;
//! - [`origin`]: where a peer comes from;
//! - [`connections`]: clients and front ends, which are hostile until proven otherwise;
//! - [`servers`]: server processes;
//! - [`server_log`]: what they write, and [`server_budget`] how much of it;
//! - [`rate`]: how much of what others cause is written;
//! - [`signals`];
//! - [`event_loop`]: polls all of it.

mod accounts;
mod claim;
mod client_processes;
mod connections;
mod control_log;
mod detach;
mod environment;
mod event_loop;
mod group_sockets;
mod held;
mod long_answer;
mod notify;
mod origin;
mod rate;
mod server_budget;
mod server_log;
mod servers;
mod signals;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::core::Provisioning;
use crate::directories::Directories;
use crate::log::Echo;
use crate::trusted_path::PathError;

pub use detach::{BackgroundStart, is_background_half, keep_descriptors, start_in_background};
pub use event_loop::run;

/// What a daemon is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its directories.
    pub directories: Directories,
    /// Whose clients get a server when.
    pub provisioning: Provisioning,
    /// Devices that were looked at before the start; see [`crate::core::Config::ready_devices`].
    pub ready_devices: Vec<link::wire::daemon::DeviceSnapshot>,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<crate::http::Address>,
    /// Whether log lines go to standard output too.
    pub echo: Echo,
    /// How servers are started.
    pub server: ServerCommand,
}

/// How a server process is started; `--control-fd N` is added.
#[derive(Debug, Clone)]
pub struct ServerCommand {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Added to its environment.
    pub environment: Vec<(String, OsString)>,
    /// `/dev/userfaultfd`, where servers are to hand it on; `--faults-fd N` is added.
    pub faults: Option<Arc<OwnedFd>>,
}

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The pipe directory cannot be made or written, or others could change what is in it.
    #[error("Cannot access CUDA_MPS_PIPE_DIRECTORY={}: {source}", path.display())]
    PipeDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: PathError,
    },
    /// The pipe directory is there, and this user may not write it.
    #[error(
        "Cannot access CUDA_MPS_PIPE_DIRECTORY={}: you may not write it, as it is another user's: have its owner start a daemon there or remove it, or set CUDA_MPS_PIPE_DIRECTORY to a directory of yours",
        path.display()
    )]
    Denied {
        /// The directory.
        path: PathBuf,
    },
    /// Another daemon lives in the pipe directory.
    #[error(
        "An instance of this daemon is already running in {} ({}): stop it with quit, or set CUDA_MPS_PIPE_DIRECTORY to another directory",
        path.display(),
        pid.map_or_else(|| "process unknown".to_owned(), |pid| format!("process {pid}"))
    )]
    AlreadyRunning {
        /// The directory.
        path: PathBuf,
        /// Its process, if the pid file says.
        pid: Option<u32>,
    },
    /// NVIDIA's own daemon lives in the pipe directory.
    #[error(
        "NVIDIA's MPS control daemon is running in {}: stop it with quit, or set CUDA_MPS_PIPE_DIRECTORY to another directory",
        path.display()
    )]
    NativeDaemon {
        /// The directory.
        path: PathBuf,
    },
    /// Metrics cannot be served there.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// Where.
        address: crate::http::Address,
        /// Why not.
        source: io::Error,
    },
    /// A profile's socket cannot be opened.
    #[error("cannot serve a profile: {reason}")]
    Profile {
        /// Why not.
        reason: String,
    },
    /// A file of the daemon's cannot be made.
    #[error("cannot make {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something of the system that does not normally fail.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The background process failed.
    #[error("{said}")]
    Background {
        /// Why, in its words.
        said: String,
    },
}

impl StartError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
        move |source| StartError::System { what, source }
    }
}
