//! What is looked at, one function each.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use control::listening::listens;
use control::trusted_path::{Directory, Missing, PathError, Trust, regular_file};
use link::wire::daemon::ServerStatus;
use rustix::fs::{Access, CWD, MemfdFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};

use super::{Finding, runtime, tested};
use crate::installation::library_directory;
use crate::natives::{Native, natives};
use crate::program;
use crate::show::bytes;

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

/// A program that is to be a client.
pub(super) fn program(word: &OsStr) -> Finding {
    const SUBJECT: &str = "program";
    match program::find_servable(word) {
        Ok(path) => Finding::ok(SUBJECT, format!("{} can be a client", path.display())),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("{}: {error}", word.to_string_lossy()),
            "name a program that can be executed, and that is for glibc",
        ),
    }
}

/// The CUDA runtimes of a program that is named, otherwise of this machine.
pub(super) fn runtimes(program: Option<&OsStr>) -> Vec<Finding> {
    match program.map(program::find) {
        Some(Ok(path)) => runtime::of_program(&path),
        // What is wrong with it is said already.
        Some(Err(_)) => Vec::new(),
        None => runtime::of_machine(),
    }
}

/// What the daemon needs of the kernel that older ones do not have.
pub(super) fn kernel() -> Finding {
    const SUBJECT: &str = "kernel";
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Err(Errno::NOSYS) => Finding::problem(
            SUBJECT,
            format!("Linux {release} has no descriptors of processes, which the daemon needs"),
            "use Linux 5.3 or later",
        ),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("Linux {release}: pidfd_open: {error}"),
            "allow pidfd_open in the container's seccomp profile",
        ),
        Ok(_) => tested::kernel(&release).finding(SUBJECT, format!("Linux {release}")),
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

/// Which driver library programs that are started from here find first; `search_path` is their
/// `LD_LIBRARY_PATH`.
pub(super) fn library_path(search_path: &OsStr) -> Finding {
    const SUBJECT: &str = "LD_LIBRARY_PATH";
    let real = |library: &Path| library.canonicalize().ok();
    let ours = library_directory().ok().and_then(|ours| real(&ours.join(CLIENT_LIBRARY)));
    let found: Vec<PathBuf> = std::env::split_paths(search_path)
        .filter(|directory| !directory.as_os_str().is_empty())
        .map(|directory| directory.join(CLIENT_LIBRARY))
        .filter(|library| library.exists())
        .collect();
    let place = found.iter().position(|library| ours.is_some() && real(library) == ours);
    match (place, found.first()) {
        (Some(0), _) => Finding::ok(SUBJECT, "programs started from here find the client library"),
        (Some(_), Some(first)) => Finding::problem(
            SUBJECT,
            format!(
                "{} is found before the client library: programs run natively",
                first.display()
            ),
            "start them with openmps run, or eval \"$(openmps env)\" last",
        ),
        (None, Some(first)) => Finding::note(
            SUBJECT,
            format!("programs started from here find {} first", first.display()),
            "start them with openmps run, or eval \"$(openmps env)\" last",
        ),
        (_, None) => Finding::note(
            SUBJECT,
            "programs started from here run natively",
            "start them with openmps run, or eval \"$(openmps env)\" first",
        ),
    }
}

/// Files in memory, through which clients and servers share rings and pinned memory. They need no
/// `/dev/shm`, which programs may need all the same: containers have little of it.
pub(super) fn shared_memory(mount: &Path) -> Vec<Finding> {
    const SUBJECT: &str = "shared memory";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let files = match rustix::fs::memfd_create("openmps-doctor", flags) {
        Ok(_) => Finding::ok(SUBJECT, "files in memory can be made"),
        Err(error) => Finding::problem(
            SUBJECT,
            format!("memfd_create: {error}"),
            "allow memfd_create in the container's seccomp profile",
        ),
    };
    vec![files, shared_memory_mount(mount)]
}

fn shared_memory_mount(mount: &Path) -> Finding {
    const SUBJECT: &str = "/dev/shm";
    /// What container runtimes give unless asked for more.
    const CONTAINERS_SHARE_BYTES: u64 = 64 << 20;
    let advice = "OpenMPS does not need it; give it to programs that do (NCCL, PyTorch): docker run --shm-size or --ipc=host";
    let shown = mount.display();
    match rustix::fs::statvfs(mount) {
        Err(error) => Finding::note(SUBJECT, format!("{shown}: {error}"), advice),
        Ok(_) if !may(mount, Access::WRITE_OK) => {
            Finding::note(SUBJECT, format!("you may not write {shown}"), advice)
        }
        Ok(space) => {
            let all_bytes = space.f_blocks.saturating_mul(space.f_frsize);
            let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
            let text = format!("{} of {} are free", bytes(free_bytes), bytes(all_bytes));
            match all_bytes <= CONTAINERS_SHARE_BYTES || free_bytes == 0 {
                true => Finding::note(SUBJECT, text, advice),
                false => Finding::ok(SUBJECT, text),
            }
        }
    }
}

/// Limits of open files.
pub(super) fn descriptors() -> Finding {
    const SUBJECT: &str = "open files";
    // The soft limit is raised by daemon and server.
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
    if let Some(who) =
        stranger(metadata.uid(), metadata.mode(), rustix::process::geteuid().as_raw())
    {
        return Finding::problem(
            SUBJECT,
            format!("{} is {who}'s to change, who could stand in for the daemon", pipe.display()),
            "let root make it anew (rm -r, then start the daemon), or set CUDA_MPS_PIPE_DIRECTORY to a directory that root or you alone may write",
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
        return Finding::problem(
            SUBJECT,
            format!(
                "no daemon runs in {}, which belongs to user {}, and you may not write it",
                pipe.display(),
                metadata.uid()
            ),
            "its owner starts a daemon there or removes it; or set CUDA_MPS_PIPE_DIRECTORY to a directory of yours",
        );
    }
    if may(pipe, Access::WRITE_OK)
        && let Some(refused) = refused(pipe, Trust::of_places())
    {
        return Finding::problem(
            SUBJECT,
            format!("a daemon of yours would refuse it: {refused}"),
            "see there; or set CUDA_MPS_PIPE_DIRECTORY",
        );
    }
    Finding::ok(SUBJECT, pipe.display().to_string())
}

/// Who besides root and us may put sockets into a directory of that owner and mode. Outside of a
/// container's user namespace root may be the owner, too: there nobody can tell.
fn stranger(owner: u32, mode: u32, us: u32) -> Option<String> {
    const OVERFLOW_UID: u32 = 65534;
    const GROUP_OR_OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    match owner {
        owner if ![0, us, OVERFLOW_UID].contains(&owner) => Some(format!("user {owner}")),
        _ if mode & GROUP_OR_OTHERS_WRITE != 0 && mode & STICKY == 0 => {
            Some("another user".to_owned())
        }
        _ => None,
    }
}

/// NVIDIA's own daemon where ours would be.
pub(super) fn original_daemon(directories: &Directories) -> Finding {
    const SUBJECT: &str = "NVIDIA's MPS";
    let socket = directories.native_socket();
    match listens(&socket) {
        Ok(false) => Finding::ok(SUBJECT, "no daemon of NVIDIA's in the pipe directory"),
        // Others' sockets are closed to us: somebody is there.
        Ok(true) | Err(_) => Finding::problem(
            SUBJECT,
            format!("NVIDIA's control daemon listens at {}", socket.display()),
            "stop it (echo quit | nvidia-cuda-mps-control), or give OpenMPS another CUDA_MPS_PIPE_DIRECTORY",
        ),
    }
}

/// Programs that were to be clients, as they have the library, and are none.
pub(super) fn native_processes(directories: &Directories) -> Vec<Finding> {
    let found = natives(directories).unwrap_or_default();
    let note = |native: Native| {
        Finding::note(
            "native process",
            format!(
                "process {} ({}) of user {} has the library of OpenMPS and is no client",
                native.pid, native.command, native.uid
            ),
            "it found no daemon when it started, or has not begun to use CUDA: start it again, with the daemon's CUDA_MPS_PIPE_DIRECTORY",
        )
    };
    let mut findings: Vec<Finding> = found.into_iter().map(note).collect();
    if findings.len() > MOST_NATIVES {
        let more = findings.len() - MOST_NATIVES;
        findings.truncate(MOST_NATIVES);
        let text = format!("{more} more processes have the library and are no clients");
        findings.push(Finding::note("native process", text, "openmps ps --native lists all"));
    }
    findings
}

/// Native processes that are named.
const MOST_NATIVES: usize = 3;

/// The daemon, and what its servers say.
pub(super) fn daemon(directories: &Directories) -> Vec<Finding> {
    const SUBJECT: &str = "daemon";
    let state = Frontend::connect(directories).and_then(|mut frontend| frontend.state());
    match state {
        Ok(state) => {
            let what = format!("process {}, {} server(s)", state.daemon_pid, state.servers.len());
            let mut findings = vec![Finding::ok(SUBJECT, what)];
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
        Err(FrontendError::NoDaemon { .. }) => vec![nobody(directories)],
        Err(error) => vec![Finding::problem(
            SUBJECT,
            error.to_string(),
            "run as the daemon's user, or ask its owner; or set CUDA_MPS_PIPE_DIRECTORY to a daemon of yours",
        )],
    }
}

fn nobody(directories: &Directories) -> Finding {
    const SUBJECT: &str = "daemon";
    let elsewhere = daemons_elsewhere(directories, Path::new(UNIX_SOCKETS));
    match elsewhere.as_slice() {
        [] => Finding::note(
            SUBJECT,
            "none runs here: programs run natively",
            "openmps run starts one for you; as root, openmps control -d or systemctl start openmps starts one for all users",
        ),
        [first, ..] => {
            let all: Vec<String> =
                elsewhere.iter().map(|path| path.display().to_string()).collect();
            Finding::note(
                SUBJECT,
                format!("none runs here, but in {}: programs run natively", all.join(", ")),
                format!(
                    "set CUDA_MPS_PIPE_DIRECTORY={} for daemon and programs alike",
                    first.display()
                ),
            )
        }
    }
}

/// The Unix sockets of this network namespace, with their paths; every user may read it.
const UNIX_SOCKETS: &str = "/proc/net/unix";

/// Other directories with a daemon's socket that is open.
fn daemons_elsewhere(directories: &Directories, list: &Path) -> Vec<PathBuf> {
    let list = fs::read_to_string(list).unwrap_or_default();
    // The path is the last field, and may have spaces: nothing before it has a slash.
    let paths = list.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let mut found: Vec<PathBuf> = paths
        .filter(|path| path.file_name() == Some(OsStr::new(link::wire::DAEMON_SOCKET)))
        .filter_map(|path| path.parent().map(Path::to_owned))
        .filter(|directory| directory != directories.pipe())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Why the last server did not start, as its log says.
fn last_failure(directories: &Directories) -> Option<Finding> {
    const MARK: &str = "Server could not start: ";
    let log = end_of(regular_file(&directories.server_log()).ok()?).ok()?;
    let last = log
        .lines()
        .rev()
        .take(100)
        .find(|line| line.contains(MARK) || line.contains("Server has started"))?;
    let (_, why) = last.split_once(MARK)?;
    let why = link::printable(why);
    Some(Finding::problem(
        "server",
        format!("the last one did not start: {why}"),
        "see openmps logs server",
    ))
}

/// The last lines of a log, which may be long.
fn end_of(mut log: File) -> io::Result<String> {
    const MOST_BYTES: u64 = 1 << 20;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES)))?;
    let mut bytes = Vec::new();
    log.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
            format!("you may not write {shown}: a daemon that you start by hand has no logs"),
            "set CUDA_MPS_LOG_DIRECTORY to a directory of yours; a daemon of openmps run logs to its pipe directory",
        );
    }
    if let Some(refused) = refused(log, Trust::of_logs()) {
        return Finding::problem(
            SUBJECT,
            format!("a daemon of yours would have no logs: {refused}"),
            "see there; or set CUDA_MPS_LOG_DIRECTORY",
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

/// Why a daemon of this user does not use a directory that is there.
fn refused(path: &Path, trust: Trust) -> Option<PathError> {
    Directory::open(path, trust, Missing::Report).err().filter(|error| !error.is_not_found())
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

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn daemons_in_other_directories_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("unix");
        let socket = link::wire::DAEMON_SOCKET;
        let line = |path: &str| format!("ffff: 00000002 00000000 00010000 0005 01 4711 {path}\n");
        let text = ["/tmp/here", "/var/a place", "/tmp/nvidia-mps"]
            .map(|path| line(&format!("{path}/{socket}")))
            .concat();
        fs::write(&list, text + &line("@abstract") + &line("/run/other")).unwrap();
        let directories = Directories::from_variables(|_| Some("/tmp/here".into()));
        let found = daemons_elsewhere(&directories, &list);
        assert_eq!(found, [Path::new("/tmp/nvidia-mps"), Path::new("/var/a place")]);
        assert!(daemons_elsewhere(&directories, Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn whoever_could_stand_in_for_the_daemon_is_named() {
        assert_eq!(stranger(0, 0o40755, 1000), None);
        assert_eq!(stranger(1000, 0o40700, 1000), None);
        assert_eq!(stranger(65534, 0o40755, 1000), None);
        assert_eq!(stranger(1001, 0o40755, 1000).as_deref(), Some("user 1001"));
        assert_eq!(stranger(1001, 0o40755, 0).as_deref(), Some("user 1001"));
        assert!(stranger(0, 0o40777, 1000).is_some());
        assert_eq!(stranger(0, 0o41777, 1000), None);
    }

    #[test]
    fn a_missing_mount_of_shared_memory_is_explained() {
        let finding = shared_memory_mount(Path::new("/nowhere"));
        assert!(finding.verdict == Verdict::Note && finding.advice.contains("--shm-size"));
    }
}
