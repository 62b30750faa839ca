//! What is looked at, one function each.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::daemon::ServerStatus;
use link::wire::ui::DaemonState;
use rustix::fs::{Access, CWD, MemfdFlags};
use rustix::process::{Resource, geteuid, getrlimit};

use super::Finding;
use crate::installation::library_directory;

const CLIENT_LIBRARY: &str = "libcuda.so.1";
/// A daemon of few clients gets by with this many descriptors.
const FEW_DESCRIPTORS: u64 = 1024;

/// The configuration file.
pub(super) fn configuration(result: anyhow::Result<()>) -> Finding {
    const SUBJECT: &str = "configuration";
    match result {
        Ok(()) => Finding::ok(SUBJECT, "in order"),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("{error:#}"),
            "correct the file; openmps config --check FILE looks at it again",
        ),
    }
}

/// The libraries of this installation.
pub(super) fn libraries() -> Vec<Finding> {
    const SUBJECT: &str = "libraries";
    let directory = match library_directory() {
        Ok(directory) => directory,
        Err(error) => {
            return vec![Finding::problem(
                SUBJECT,
                format!("{error:#}"),
                "install OpenMPS whole, or set OPENMPS_LIB_DIR",
            )];
        }
    };
    let library = directory.join(CLIENT_LIBRARY);
    vec![match fs::File::open(&library) {
        Ok(_) => Finding::ok(SUBJECT, directory.display().to_string()),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("{} cannot be read: {error}", library.display()),
            "let all users read it",
        ),
    }]
}

/// Which driver library programs that are started from here find first.
pub(super) fn library_path() -> Finding {
    const SUBJECT: &str = "LD_LIBRARY_PATH";
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let first = std::env::split_paths(&path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(|directory| directory.join(CLIENT_LIBRARY))
        .find(|library| library.exists());
    let ours =
        library_directory().ok().and_then(|ours| ours.join(CLIENT_LIBRARY).canonicalize().ok());
    match first {
        Some(library) if library.canonicalize().ok() == ours => {
            Finding::ok(SUBJECT, "programs started from here find the client library")
        }
        Some(library) => Finding::note(
            SUBJECT,
            format!("programs started from here find {} first", library.display()),
            "start them with openmps run, or eval \"$(openmps env)\" last",
        ),
        None => Finding::note(
            SUBJECT,
            "programs started from here run natively",
            "start them with openmps run, or eval \"$(openmps env)\" first",
        ),
    }
}

/// Files in memory, through which clients and servers share rings and pinned memory; no `/dev/shm` is needed.
pub(super) fn shared_memory() -> Finding {
    const SUBJECT: &str = "shared memory";
    match rustix::fs::memfd_create(
        "openmps-doctor",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    ) {
        Ok(_) => Finding::ok(SUBJECT, "files in memory can be made (/dev/shm is not needed)"),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("memfd_create: {error}"),
            "allow memfd_create in the container's seccomp profile",
        ),
    }
}

/// Limits of open files.
pub(super) fn descriptors() -> Finding {
    const SUBJECT: &str = "open files";
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < FEW_DESCRIPTORS => Finding::problem(
            SUBJECT,
            format!("a process may have {most} at most; each client costs the server two"),
            "raise the hard limit: ulimit -Hn, or LimitNOFILE= of the service",
        ),
        Some(most) => Finding::ok(SUBJECT, format!("up to {most}")),
        None => Finding::ok(SUBJECT, "unlimited"),
    }
}

/// The directory of the daemon's socket.
pub(super) fn pipe_directory(directories: &Directories) -> Finding {
    const SUBJECT: &str = "pipe directory";
    let pipe = directories.pipe();
    let metadata = match fs::metadata(pipe) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match first_existing(pipe).filter(|above| may(above, Access::WRITE_OK)) {
                Some(_) => Finding::ok(SUBJECT, format!("{} will be made", pipe.display())),
                None => Finding::problem(
                    SUBJECT,
                    format!("{} does not exist and cannot be made", pipe.display()),
                    "set CUDA_MPS_PIPE_DIRECTORY to the daemon's, or to one that you may write",
                ),
            };
        }
        Err(error) => {
            return Finding::problem(
                SUBJECT,
                format!("{}: {error}", pipe.display()),
                "let users enter the directory (chmod a+x), or set CUDA_MPS_PIPE_DIRECTORY",
            );
        }
    };
    let socket = directories.socket();
    if !metadata.is_dir() {
        return Finding::problem(
            SUBJECT,
            format!("{} is no directory", pipe.display()),
            "set CUDA_MPS_PIPE_DIRECTORY to a directory",
        );
    }
    if socket.as_os_str().len() > 107 {
        return Finding::problem(
            SUBJECT,
            format!("{} is too long a path for a socket", socket.display()),
            "set CUDA_MPS_PIPE_DIRECTORY to a shorter path",
        );
    }
    if !socket.exists() && !may(pipe, Access::WRITE_OK) {
        return Finding::note(
            SUBJECT,
            format!(
                "{} belongs to user {}, and you may not write it",
                pipe.display(),
                metadata.uid()
            ),
            "its owner starts the daemon; or set CUDA_MPS_PIPE_DIRECTORY to a directory of yours",
        );
    }
    Finding::ok(SUBJECT, pipe.display().to_string())
}

/// NVIDIA's own daemon where ours would be.
pub(super) fn original_daemon(directories: &Directories) -> Finding {
    const SUBJECT: &str = "NVIDIA's MPS";
    let socket = directories.native_socket();
    match UnixStream::connect(&socket) {
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            Finding::ok(SUBJECT, "no daemon of NVIDIA's in the pipe directory")
        }
        // Other kinds of socket answer with a protocol error, and others' sockets are closed to us: somebody is there.
        _ => Finding::problem(
            SUBJECT,
            format!("NVIDIA's control daemon listens at {}", socket.display()),
            "stop it (echo quit | nvidia-cuda-mps-control), or give OpenMPS another CUDA_MPS_PIPE_DIRECTORY",
        ),
    }
}

/// The daemon, and what its servers say.
pub(super) fn daemon(directories: &Directories) -> Vec<Finding> {
    const SUBJECT: &str = "daemon";
    let state = Frontend::connect(directories).and_then(|mut frontend| frontend.state());
    match state {
        Ok(state) => {
            let mut findings = vec![owner(&state)];
            findings.extend(state.servers.iter().filter_map(|server| match server.status {
                ServerStatus::Active => None,
                ServerStatus::Initializing => Some(Finding::note(
                    "server",
                    format!("server {} is still starting", server.pid),
                    "clients wait for it; openmps logs shows what it does",
                )),
                ServerStatus::Fault => Some(Finding::problem(
                    "server",
                    format!("server {} handles a fatal fault of one of its clients", server.pid),
                    "new clients of that device wait until its present ones have ended: openmps ps lists them",
                )),
            }));
            if state.servers.is_empty() {
                findings.extend(last_failure(directories));
            }
            findings
        }
        Err(FrontendError::NoDaemon { .. }) => vec![Finding::note(
            SUBJECT,
            "none runs here: programs run natively",
            "openmps run starts one; nvidia-cuda-mps-control -d starts one for all",
        )],
        Err(error) => vec![Finding::problem(
            SUBJECT,
            error.to_string(),
            "run as the daemon's user, or ask its owner; or set CUDA_MPS_PIPE_DIRECTORY to a daemon of yours",
        )],
    }
}

fn owner(state: &DaemonState) -> Finding {
    const SUBJECT: &str = "daemon";
    let pid = state.daemon_pid;
    let uid = fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid());
    let us = geteuid().as_raw();
    match uid {
        Some(uid) if uid != 0 && uid != us => Finding::problem(
            SUBJECT,
            format!("process {pid} runs as user {uid}, who cannot serve user {us}"),
            "let root start the daemon, or set CUDA_MPS_PIPE_DIRECTORY to a daemon of yours",
        ),
        _ => Finding::ok(SUBJECT, format!("process {pid}, {} server(s)", state.servers.len())),
    }
}

/// Why the last server did not start, as its log says.
fn last_failure(directories: &Directories) -> Option<Finding> {
    const MARK: &str = "Server could not start: ";
    let log = fs::read_to_string(directories.server_log()).ok()?;
    let last = log
        .lines()
        .rev()
        .take(100)
        .find(|line| line.contains(MARK) || line.contains("Server has started"))?;
    let (_, why) = last.split_once(MARK)?;
    let why: String = why.chars().filter(|c| !c.is_control()).collect();
    Some(Finding::problem(
        "server",
        format!("the last one did not start: {why}"),
        "see openmps logs server",
    ))
}

/// Where the logs go.
pub(super) fn log_directory(directories: &Directories) -> Finding {
    const SUBJECT: &str = "log directory";
    let log = directories.log();
    let shown = log.display();
    let Some(there) = first_existing(log) else {
        return Finding::note(
            SUBJECT,
            format!("{shown} cannot be made"),
            "set CUDA_MPS_LOG_DIRECTORY",
        );
    };
    if !may(&there, Access::WRITE_OK) {
        return Finding::note(
            SUBJECT,
            format!("you may not write {shown}: a daemon of yours would have no logs"),
            "set CUDA_MPS_LOG_DIRECTORY to a directory of yours",
        );
    }
    match rustix::fs::statvfs(&there) {
        Ok(space) if space.f_bavail == 0 => Finding::problem(
            SUBJECT,
            format!("no space is left where {shown} is: log lines are lost"),
            "make room, or set CUDA_MPS_LOG_DIRECTORY",
        ),
        _ => Finding::ok(SUBJECT, shown.to_string()),
    }
}

/// The path itself, or the nearest directory above it that exists.
fn first_existing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|ancestor| ancestor.exists()).map(Path::to_owned)
}

/// Whether this user may do that, root's privileges included.
fn may(path: &Path, access: Access) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_encoded_bytes()) else { return false };
    rustix::fs::accessat(CWD, path, access, rustix::fs::AtFlags::EACCESS).is_ok()
}
