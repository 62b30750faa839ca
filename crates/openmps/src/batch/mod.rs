//! A node's part of a batch system: jobs that share GPUs, admitted by a prolog and dismissed by an
//! epilog, both run by root.
//!
//! The jobs of a GPU share one daemon, which comes with the first of them and goes with the last
//! ([`daemon`], [`leftovers`]). A job is a *group* of that daemon: its limits are those of all its
//! processes together. What is known of a job lies in a file ([`place`]), from which its tasks
//! learn their environment ([`task`]). [`admission`] is the prolog's work, [`dismissal`] the
//! epilog's, with the checks of NVIDIA's MPS guide (5.1.3.2): that no client and no daemon is left,
//! and that the devices still answer ([`health`]). What a request means is the batch system's own:
//! `crate::slurm`, `crate::pbs`.

pub(crate) mod admission;
pub(crate) mod bounded;
pub(crate) mod daemon;
pub(crate) mod dismissal;
pub(crate) mod gpus;
pub(crate) mod health;
pub(crate) mod leftovers;
pub(crate) mod options;
pub(crate) mod place;
pub(crate) mod task;

use std::io;
use std::path::PathBuf;

use control::trusted_path::PathError;
use serde::{Deserialize, Serialize};

use gpus::Gpus;

/// What is known of a job that shares GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Unique on the node; also the name of its group.
    pub(crate) name: String,
    /// Its user.
    pub(crate) uid: u32,
    /// Its GPUs on this node.
    pub(crate) gpus: Gpus,
    /// Per cent of the SMs of each of them; absent: all.
    pub(crate) percentage: Option<f64>,
    /// Device memory of all its processes together, on each GPU; absent: no limit.
    pub(crate) memory_bytes: Option<u64>,
    /// How many shards a GPU of this node has, if the job asked for shards.
    pub(crate) shards_per_gpu: Option<u32>,
    /// Why it must not run: its own mistake, which is no fault of the node.
    pub(crate) refusal: Option<String>,
}

/// How much memory a job may use that does not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MemoryRule {
    /// As much of the device's as it has of the multiprocessors.
    Share,
    /// As it likes.
    Unlimited,
}

/// Why the node cannot do its part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchError {
    /// A file.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file or directory that could be another's, or cannot be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Another prolog or epilog of the same GPU does not end.
    #[error("another prolog or epilog has held {} for {seconds} s: see what it waits for", path.display())]
    Busy {
        /// What is locked.
        path: PathBuf,
        /// For how long.
        seconds: u64,
    },
    /// The name cannot be a file's, or a group's.
    #[error("`{0}` cannot name a job")]
    Name(String),
    /// The daemon.
    #[error("{0}")]
    Daemon(String),
    /// The driver.
    #[error("the GPUs do not answer: {0}")]
    Driver(String),
}

/// An error of a file.
pub(crate) fn file(
    what: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> BatchError {
    let path = path.into();
    move |source| BatchError::File { what, path, source }
}
