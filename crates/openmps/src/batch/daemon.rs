//! The daemon that the jobs of a set of GPUs share: started, told their limits, ended; and whatever of it would stay behind.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use control::daemon::{BackgroundStart, start_in_background};
use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::daemon::ClientSnapshot;
use link::wire::group_socket::{GroupSocket, SocketDomain};
use link::wire::shares::{LimitChange, MemoryLimit, NewLimits, Target};
use link::wire::ui::UiRequest;
use rustix::process::{Pid, Signal, kill_process};

use super::gpus::Gpus;
use super::{BatchError, Job};
use crate::installation::{self, NATIVE_DRIVER_VARIABLE};
use crate::original;

/// Clients that are still there after that are ended by the daemon.
const QUIT_SECONDS: u32 = 5;
/// A daemon that has not ended after that is killed.
const QUIT_LIMIT: Duration = Duration::from_secs(20);
/// What is killed is gone after that, or never.
const KILL_LIMIT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(2);

/// Whose clients are served at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Sharing {
    /// All users, each with a server of its own: what one does wrong the others do not feel, and the GPU's time is sliced between them.
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
    end_leftovers(directories.pipe()).map_err(BatchError::Daemon)?;
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
        name: original::NAME.to_owned(),
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

/// Whether a variable is of the job that happens to be the first: it would limit all later ones, or let a clean-up of that job find the daemon.
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

/// The daemon's clients, by its servers' word of this moment; none without a daemon.
pub(crate) fn clients(directories: &Directories) -> Result<Vec<ClientSnapshot>, BatchError> {
    let state = match Frontend::connect(directories) {
        Ok(mut daemon) => daemon.state(),
        Err(FrontendError::NoDaemon { .. }) => return Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let state = state.map_err(|error| BatchError::Daemon(error.to_string()))?;
    if let Some(silent) = state.servers.iter().find(|server| server.silent) {
        return Err(BatchError::Daemon(format!("server {} does not answer", silent.pid)));
    }
    Ok(state.servers.into_iter().flat_map(|server| server.snapshot.clients).collect())
}

/// Ends the daemon and its servers, with force where they do not end by themselves. The error names what is still there.
pub(crate) fn stop(directories: &Directories) -> Result<(), String> {
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
    // Those that quit are on their way out.
    if wait_until_gone(directories.pipe(), KILL_LIMIT).is_empty() {
        return Ok(());
    }
    end_leftovers(directories.pipe())
}

/// Kills what runs of a daemon that does not answer; the error names what does not go.
fn end_leftovers(pipe: &Path) -> Result<(), String> {
    let found = processes_of(pipe);
    if found.is_empty() {
        return Ok(());
    }
    for pid in found {
        // One that has ended meanwhile is what was wanted.
        let _ = kill_process(pid, Signal::KILL);
    }
    match wait_until_gone(pipe, KILL_LIMIT).as_slice() {
        [] => Ok(()),
        left => {
            let left: Vec<String> = left.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
            Err(format!("MPS did not quit: process {} cannot be killed", left.join(", ")))
        }
    }
}

fn wait_until_gone(pipe: &Path, limit: Duration) -> Vec<Pid> {
    let deadline = Instant::now() + limit;
    loop {
        let left = processes_of(pipe);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        thread::sleep(INTERVAL);
    }
}

/// Processes of this executable that were started for this pipe directory: a daemon, its servers, their executors.
fn processes_of(pipe: &Path) -> Vec<Pid> {
    let Ok(ours) = std::env::current_exe() else { return Vec::new() };
    let mut mark = b"CUDA_MPS_PIPE_DIRECTORY=".to_vec();
    mark.extend(pipe.as_os_str().as_bytes());
    let me = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(number) = number.filter(|number| number.cast_unsigned() != me) else { continue };
        // What has ended has no executable; one that was replaced by an upgrade has a remark behind its name.
        let Ok(executable) = fs::read_link(entry.path().join("exe")) else { continue };
        if !executable.as_os_str().as_bytes().starts_with(ours.as_os_str().as_bytes()) {
            continue;
        }
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark) {
            found.extend(Pid::from_raw(number));
        }
    }
    found
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

    #[test]
    fn processes_are_found_by_their_directory() {
        assert!(processes_of(Path::new("/nowhere/at/all")).is_empty());
    }
}
