//! The daemon that the jobs of a set of GPUs share: started, told their limits, ended; and whatever
//! of it would stay behind.

use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use control::daemon::{BackgroundStart, start_in_background};
use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::group_socket::{GroupSocket, SocketDomain};
use link::wire::shares::{LimitChange, MemoryLimit, NewLimits, Target};
use link::wire::ui::{EndedClient, UiRequest};

use super::gpus::Gpus;
use super::leftovers::Leftovers;
use super::{BatchError, Job};
use crate::installation::{self, NATIVE_DRIVER_VARIABLE};

/// Clients that are still there after that are ended by the daemon.
const QUIT_SECONDS: u32 = 5;
/// A daemon that has not ended after that is killed.
const QUIT_LIMIT: Duration = Duration::from_secs(20);

/// Whose clients are served at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sharing {
    /// All users, each with a server of its own: what one does wrong the others do not feel, and
    /// the GPU's time is sliced between them.
    Isolated,
    /// All users in one server: their kernels run at the same time, in one address space.
    Together,
}

/// Whether a daemon was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It answers.
    Running,
    /// It was started.
    Started,
}

/// Starts the daemon of these GPUs unless it answers.
pub(crate) fn ensure(
    directories: &Directories,
    gpus: &Gpus,
    sharing: Sharing,
) -> Result<Found, BatchError> {
    match Frontend::connect(directories) {
        Ok(_) => return Ok(Found::Running),
        Err(FrontendError::NoDaemon { .. }) => {}
        Err(error) => return Err(BatchError::Daemon(error.to_string())),
    }
    // Servers of one that was killed would have the devices' memory.
    if let Some(leftovers) = Leftovers::of(directories) {
        leftovers.end().map_err(BatchError::Daemon)?;
    }
    let wrong = |error: anyhow::Error| BatchError::Daemon(format!("{error:#}"));
    let environment = [
        ("CUDA_MPS_PIPE_DIRECTORY", OsString::from(directories.pipe())),
        ("CUDA_MPS_LOG_DIRECTORY", directories.log().into()),
        ("CUDA_VISIBLE_DEVICES", gpus.to_string().into()),
        // As the batch system counts, which is as /dev/nvidiaN do.
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()),
        (NATIVE_DRIVER_VARIABLE, installation::daemon_driver().map_err(wrong)?.into()),
        ("OPENMPS_LIB_DIR", installation::library_directory().map_err(wrong)?.into()),
    ];
    let option = match sharing {
        Sharing::Isolated => "--concurrent",
        Sharing::Together => "--multiuser-server",
    };
    let start = BackgroundStart {
        program: std::env::current_exe()
            .map_err(|error| BatchError::Daemon(format!("cannot find this executable: {error}")))?,
        name: installation::ORIGINAL_NAME.to_owned(),
        arguments: vec!["-d".into(), option.into()],
        environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
        without: std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| is_of_a_job(name))
            .collect(),
    };
    let warnings = start_in_background(&start)
        .map_err(|error| BatchError::Daemon(format!("the daemon did not start: {error}")))?;
    eprint!("{warnings}");
    Ok(Found::Started)
}

/// Whether a variable is of the job that happens to be the first: it would limit all later ones, or
/// let a clean-up of that job find the daemon.
fn is_of_a_job(name: &std::ffi::OsStr) -> bool {
    const PREFIXES: [&str; 6] =
        ["SLURM_", "SLURMD_", "SPANK_", "PBS_", "CUDA_MPS_", "CUDA_VISIBLE_"];
    const NAMES: [&str; 3] = ["GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"];
    let name = name.to_string_lossy();
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&&*name)
}

/// Opens a job's socket, whose clients share its limits, whatever they say.
pub(crate) fn admit(directories: &Directories, job: &Job, pipe: &Path) -> Result<(), BatchError> {
    // Before the socket is there, so that nobody comes in before the limits.
    limit(directories, &job.name, job.percentage, job.memory_bytes)?;
    let socket = GroupSocket {
        directory: pipe.to_string_lossy().into_owned(),
        group: job.name.clone(),
        devices: Vec::new(),
        domain: SocketDomain::Server,
        weight: None,
    };
    ask(directories, &UiRequest::OpenSocket(socket))
        .map_err(|why| BatchError::Daemon(format!("{} gets no socket: {why}", job.name)))
}

/// Closes a job's socket and takes its limits away.
pub(crate) fn dismiss(directories: &Directories, job: &Job, pipe: &Path) -> Result<(), BatchError> {
    let directory = pipe.to_string_lossy().into_owned();
    let closed = ask(directories, &UiRequest::CloseSocket { directory });
    limit(directories, &job.name, None, None)?;
    closed.map_err(|why| BatchError::Daemon(format!("the socket of {}: {why}", job.name)))
}

fn limit(
    directories: &Directories,
    name: &str,
    percentage: Option<f64>,
    memory_bytes: Option<u64>,
) -> Result<(), BatchError> {
    let change = LimitChange {
        target: Target::Group(name.to_owned()),
        limits: NewLimits {
            percentage: Some(percentage.unwrap_or(100.0)),
            memory: Some(MemoryLimit { device: None, limit_bytes: memory_bytes }),
            weight: None,
        },
    };
    ask(directories, &UiRequest::Limit(change))
        .map_err(|why| BatchError::Daemon(format!("the limits of {name} cannot be set: {why}")))
}

/// Asks the daemon for a change; the error is its refusal.
fn ask(directories: &Directories, request: &UiRequest) -> Result<(), String> {
    let mut daemon = Frontend::connect(directories).map_err(|error| error.to_string())?;
    let report = daemon.change_shares(request).map_err(|error| error.to_string())??;
    report.refused.into_iter().next().map_or(Ok(()), Err)
}

/// Has the daemon kill the processes that it has attached itself by a job's socket; returns those
/// that were attached. None without a daemon.
pub(crate) fn end_clients(
    directories: &Directories,
    pipe: &Path,
) -> Result<Vec<EndedClient>, BatchError> {
    let ended = match Frontend::connect(directories) {
        Ok(mut daemon) => daemon.end_clients(&pipe.to_string_lossy()),
        Err(FrontendError::NoDaemon { .. }) => return Ok(Vec::new()),
        Err(error) => Err(error),
    };
    ended.map_err(|error| BatchError::Daemon(error.to_string()))?.map_err(BatchError::Daemon)
}

/// Ends the daemon and its servers, with force where they do not end by themselves. The error names
/// what is still there.
pub(crate) fn stop(directories: &Directories) -> Result<(), String> {
    // Known by what the daemon leaves behind only as long as it is there.
    let leftovers = Leftovers::of(directories);
    let (done, is_done) = mpsc::channel();
    let own = directories.clone();
    // A daemon that hangs must not hold the epilog up: the thread ends with the process.
    thread::spawn(move || {
        let said = match Frontend::connect(&own) {
            Ok(mut daemon) => daemon.command(&format!("quit -t {QUIT_SECONDS}")).err(),
            Err(FrontendError::NoDaemon { .. }) => None,
            Err(error) => Some(error),
        };
        let _ = done.send(said.map(|error| error.to_string()));
    });
    match is_done.recv_timeout(QUIT_LIMIT) {
        Ok(None) => {}
        Ok(Some(complaint)) => eprintln!("openmps: {complaint}"),
        Err(_) => eprintln!("openmps: the daemon did not quit within {QUIT_LIMIT:?}: it is killed"),
    }
    leftovers.map_or(Ok(()), |leftovers| leftovers.end_those_that_stay())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_brings_is_not_the_daemons() {
        for name in ["SLURM_JOB_ID", "SPANK_OPENMPS_MEMORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] {
            assert!(is_of_a_job(name.as_ref()), "{name}");
        }
        for name in ["PATH", "OPENMPS_CONTEXTS_PER_DEVICE", "CUDA_DEVICE_MAX_CONNECTIONS"] {
            assert!(!is_of_a_job(name.as_ref()), "{name}");
        }
    }
}
