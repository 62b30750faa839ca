//! OpenMPS on Kubernetes: a device plugin that offers shares of a node's GPUs as resources.
//!
//! `kubelet` registers and serves an endpoint per resource (`endpoint`); `node` answers it, with
//! the decisions of [`ledger`] (pure), records on disk and the OpenMPS `daemon`, which gives each
//! container a socket and limits of its own. The kubelet's interfaces are in [`api`]. Purpose and
//! use: `docs/kubernetes.md`. This crate alone uses tokio, for tonic's sake; what talks to the
//! daemon blocks, on threads for that.

pub mod api;
pub mod config;
mod daemon;
mod endpoint;
mod kubelet;
pub mod ledger;
#[cfg(test)]
#[path = "../../control/tests/mutated/mod.rs"]
mod mutated;
mod node;
mod records;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use control::directories::Directories;
use tokio::signal::unix::{SignalKind, signal};

use config::{Config, ConfigError};
use daemon::Daemon;
use node::Node;
use records::Records;
pub use records::RecordsError;

/// Longest time that work for a kubelet that asks no more is waited for at the end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What a plugin is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file, if any.
    pub config: Option<PathBuf>,
    /// Where the daemon is.
    pub directories: Directories,
    /// The kubelet's directory of plugins' sockets.
    pub plugin_directory: PathBuf,
    /// The kubelet's socket that lists pods' devices.
    pub pod_resources: PathBuf,
    /// Where containers' sockets are, at the same path for the daemon and on the host.
    pub sockets: PathBuf,
    /// Where the records are.
    pub state: PathBuf,
    /// Between two looks at the daemon.
    pub daemon_interval: Duration,
    /// Between two looks at the kubelet's list.
    pub list_interval: Duration,
}

/// Why the plugin does not run.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The records.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The system.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

/// Writes a line to standard error, where a container's log comes from.
macro_rules! log {
    ($($argument:tt)*) => {
        eprintln!("openmps device plugin: {}", format_args!($($argument)*))
    };
}
pub(crate) use log;

/// Runs until SIGTERM or SIGINT. Containers keep what they have, then and when it is killed.
///
/// # Errors
/// [`PluginError`].
pub fn run(options: Options) -> Result<(), PluginError> {
    let config = Config::read(options.config.as_deref())?;
    let (records, recorded) = Records::open(&options.state)?;
    log!("{} allocations are recorded in {}", recorded.len(), options.state.display());
    let sockets = std::path::absolute(&options.sockets)
        .map_err(|source| PluginError::System { what: "find the directory for sockets", source })?;
    let daemon = Daemon::new(options.directories.clone(), sockets, config.domain);
    let node = Arc::new(Node::new(config, daemon, records, recorded));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| PluginError::System { what: "start its runtime", source })?;
    let ended = runtime.block_on(serve(node, options));
    runtime.shutdown_timeout(END_LIMIT);
    ended
}

async fn serve(node: Arc<Node>, options: Options) -> Result<(), PluginError> {
    let catch = |kind| {
        signal(kind).map_err(|source| PluginError::System { what: "take over signals", source })
    };
    let (mut terminate, mut interrupt) =
        (catch(SignalKind::terminate())?, catch(SignalKind::interrupt())?);
    // Before anybody is told of devices: which there are, and who has them if the records are lost.
    // A kubelet that is not there asks for none either.
    look(&node).await;
    if let Err(line) = list(&node, &options).await {
        log!("{line}");
    }
    let offers: Vec<_> = node
        .resources()
        .map(|resource| {
            let directory = options.plugin_directory.clone();
            tokio::spawn(kubelet::offer(Arc::clone(&node), resource.to_owned(), directory))
        })
        .collect();
    let daemon = tokio::spawn(watch_daemon(Arc::clone(&node), options.daemon_interval));
    let list = tokio::spawn(watch_list(Arc::clone(&node), options));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    log!("stopping; containers keep what they have");
    for task in offers.into_iter().chain([daemon, list]) {
        task.abort();
        let _ = task.await;
    }
    Ok(())
}

async fn watch_daemon(node: Arc<Node>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        look(&node).await;
    }
}

async fn look(node: &Arc<Node>) {
    let node = Arc::clone(node);
    if let Err(error) = tokio::task::spawn_blocking(move || node.look_at_daemon()).await {
        log!("{error}");
    }
}

async fn watch_list(node: Arc<Node>, options: Options) {
    let mut said = String::new();
    loop {
        tokio::time::sleep(options.list_interval).await;
        let line = list(&node, &options).await.err().unwrap_or_default();
        if line != said && !line.is_empty() {
            log!("{line}");
        }
        said = line;
    }
}

/// Asks the kubelet who has what, and has the node's books follow; the error is for the log.
async fn list(node: &Arc<Node>, options: &Options) -> Result<(), String> {
    let resources: Vec<String> = node.resources().map(str::to_owned).collect();
    let known_before = node.allocation_ids();
    let owners = kubelet::list(&options.pod_resources, &resources).await.map_err(|error| {
        format!("{error}: until it lists them, shares of containers that have ended stay taken")
    })?;
    let node = Arc::clone(node);
    let done = tokio::task::spawn_blocking(move || node.reconcile(&owners, &known_before)).await;
    done.map_err(|error| error.to_string())
}
