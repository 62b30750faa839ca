//! Attaching: from the daemon's socket to the server's welcome.
//!
//! The daemon hands our socket on to the user's server, which may have to be started first; so the
//! answer may take seconds. The protocol is `link::wire::attach`.

pub(crate) mod choice;
pub(crate) mod health;
pub(crate) mod native;
pub(crate) mod tools;
pub(crate) mod visible;

use cuda_abi::types::CUresult;
use link::printable;
use link::socket::{Connection, SocketError};
use link::trust::{TrustError, check_daemon};
use link::wire::DAEMON_SOCKET;
use link::wire::attach::{ClientHello, Hello, HelloReply, Refusal, RequestedLimits, Welcome};
use link::wire::version::Versions;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The newest CUDA version whose functions we have; attached programs are never told of a newer
/// driver.
pub(crate) const NEWEST_VERSION: i32 = 13000;

/// Directory of the daemon's socket, as for the original.
const PIPE_DIRECTORY_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";
/// Where a container has its socket (`openmps cdi`, the device plugin). What is started in it
/// later, as by `docker exec`, lacks the variables of its devices.
const CONTAINER_PIPE_DIRECTORY: &str = "/run/openmps";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server may have to be started, with a context on every device.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(120);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Why this process is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// Nobody listens: the process is native.
    #[error("no daemon at {}", .0.display())]
    NoDaemon(PathBuf),
    /// Somebody listens who may not have this program's data; standard error says who.
    #[error("there is no daemon but such as are not used")]
    Untrusted,
    /// Somebody listens and does not answer as a daemon does.
    #[error("the daemon at {} gave no welcome: {source}", path.display())]
    Connection {
        /// Where.
        path: PathBuf,
        /// What happened.
        source: SocketError,
    },
    /// The server uses a version that was not offered.
    #[error(
        "the server uses version {used} of the client wire, and this library speaks {library}: update OpenMPS where the daemon runs, and restart the daemon (systemctl restart openmps)"
    )]
    Version {
        /// The server's.
        used: u32,
        /// This library's.
        library: Versions,
    },
    /// The server said no.
    #[error("refused with CUDA result {code}: {message}")]
    Refused {
        /// For the program.
        code: u32,
        /// For the user.
        message: String,
    },
}

impl AttachError {
    /// What `cuInit` returns.
    pub(crate) fn code(&self) -> CUresult {
        match self {
            Self::NoDaemon(_) => CUresult::ERROR_NO_DEVICE,
            Self::Connection { source: SocketError::TimedOut(_), .. } => {
                CUresult::ERROR_MPS_SERVER_NOT_READY
            }
            Self::Connection { .. } | Self::Version { .. } | Self::Untrusted => {
                CUresult::ERROR_MPS_CONNECTION_FAILED
            }
            Self::Refused { code, .. } => CUresult(*code),
        }
    }
}

impl AttachError {
    /// Whether daemon and library speak no version in common, as after an upgrade. The program's
    /// user must hear of that: nothing else says it.
    pub(crate) fn is_of_another_version(&self) -> bool {
        // The daemon refuses nothing else with this code.
        let refused = CUresult::ERROR_MPS_RPC_FAILURE.0;
        matches!(self, Self::Version { .. })
            || matches!(self, Self::Refused { code, .. } if *code == refused)
    }
}

/// A connection to the server, and what it said.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) connection: Connection,
    pub(crate) welcome: Welcome,
}

/// Connects to the daemon and waits for the server's welcome.
pub(crate) fn connect() -> Result<Attachment, AttachError> {
    let paths = socket_paths(std::env::var_os(PIPE_DIRECTORY_VARIABLE));
    let nobody = || AttachError::NoDaemon(paths.first().cloned().unwrap_or_default());
    let (path, connection) = reach_daemon(&paths)?.ok_or_else(nobody)?;
    let failed = |source| AttachError::Connection { path: path.clone(), source };
    let library = Versions::ours();
    connection.send(&Hello::Client(hello(library)), &[], SEND_TIMEOUT).map_err(failed)?;
    let started = Instant::now();
    let reply = connection.receive::<HelloReply>(WELCOME_TIMEOUT).map_err(failed)?;
    crate::info!("the server answered after {} ms", started.elapsed().as_millis());
    match reply.message {
        HelloReply::Welcome(Welcome { version: used, .. }) if !library.range().contains(&used) => {
            Err(AttachError::Version { used, library })
        }
        HelloReply::Welcome(welcome) => Ok(Attachment { connection, welcome }),
        HelloReply::Refused(refusal) => {
            Err(AttachError::Refused { code: refusal.code, message: refusal.message })
        }
        HelloReply::Native => {
            let message = "the daemon sent what answers another question".to_owned();
            Err(AttachError::Refused { code: CUresult::ERROR_MPS_RPC_FAILURE.0, message })
        }
    }
}

/// Waits until the devices are free for a process under a debugger: until no client and no server
/// is left, or there is no daemon.
pub(crate) fn await_release(debugger: &str) -> Result<(), AttachError> {
    let paths = socket_paths(std::env::var_os(PIPE_DIRECTORY_VARIABLE));
    let Some((path, connection)) = reach_daemon(&paths)? else { return Ok(()) };
    let hello = Hello::Debugged { versions: Versions::ours(), debugger: debugger.to_owned() };
    let failed = |source| AttachError::Connection { path: path.clone(), source };
    connection.send(&hello, &[], SEND_TIMEOUT).map_err(failed)?;
    crate::warn!(
        "waiting until all clients of {} have left, to run under {debugger}",
        path.display()
    );
    loop {
        match connection.receive::<HelloReply>(WELCOME_TIMEOUT) {
            // Other clients may run for days; whoever gives up ends this process.
            Err(SocketError::TimedOut(_)) => crate::warn!("still waiting for clients to leave"),
            // A daemon that ends lets everybody go.
            Err(SocketError::Closed) => return Ok(()),
            Err(source) => return Err(failed(source)),
            Ok(reply) => match reply.message {
                HelloReply::Refused(refusal) => {
                    let Refusal { code, message } = refusal;
                    return Err(AttachError::Refused { code, message });
                }
                HelloReply::Native | HelloReply::Welcome(_) => return Ok(()),
            },
        }
    }
}

/// The connection to the first daemon of these places that may be used, and where it is; nothing if
/// there is none at all.
///
/// A daemon that may not be used is no reason to run natively: the program's user counts on one.
fn reach_daemon(paths: &[PathBuf]) -> Result<Option<(PathBuf, Connection)>, AttachError> {
    let mut is_refused = false;
    for path in paths {
        let failed = |source| AttachError::Connection { path: path.clone(), source };
        let why = match Connection::connect(path, CONNECT_TIMEOUT) {
            Ok(connection) => match check_daemon(&connection, path) {
                Ok(()) => return Ok(Some((path.clone(), connection))),
                Err(TrustError::Untrusted(why)) => why.to_string(),
                Err(TrustError::Socket(source)) => return Err(failed(source)),
            },
            Err(SocketError::Connect { source: Errno::ACCESS, .. }) => match owner(path) {
                Some(uid) => closed_to_us(uid),
                None => continue,
            },
            Err(SocketError::Connect { source, .. }) if means_nobody(source) => continue,
            Err(source) => return Err(failed(source)),
        };
        let place = printable(&path.to_string_lossy());
        crate::log::tell(format_args!("the daemon at {place} is not used: {why}"));
        is_refused = true;
    }
    if is_refused { Err(AttachError::Untrusted) } else { Ok(None) }
}

/// Whose socket this is; nothing if there is none, or none that can be seen.
fn owner(socket: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(socket).ok()?;
    found.file_type().is_socket().then(|| found.uid())
}

fn closed_to_us(uid: u32) -> String {
    format!(
        "it is of user {uid} and for that user alone: set CUDA_MPS_PIPE_DIRECTORY to a daemon of root's or of your own, or to a directory without one to run natively"
    )
}

/// No socket, a stale one, a path that cannot name one: as if there were no daemon.
fn means_nobody(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::PROTOTYPE
    )
}

/// Where a daemon may listen: in the directory of the variable, or else in the places that need
/// none.
fn socket_paths(variable: Option<OsString>) -> Vec<PathBuf> {
    let socket = |directory: &OsStr| Path::new(directory).join(DAEMON_SOCKET);
    match variable.filter(|directory| !directory.is_empty()) {
        Some(directory) => vec![socket(&directory)],
        None => [DEFAULT_PIPE_DIRECTORY, CONTAINER_PIPE_DIRECTORY]
            .map(|directory| socket(OsStr::new(directory)))
            .to_vec(),
    }
}

fn hello(versions: Versions) -> ClientHello {
    let variable = |name: &str| std::env::var(name).ok();
    ClientHello {
        versions,
        pid: std::process::id(),
        pid_namespace: pid_namespace().unwrap_or(0),
        command: command(),
        limits: RequestedLimits {
            active_thread_percentage: process_percentage(),
            pinned_device_mem_limit: memory_limits(variable),
            memory_limit: variable("OPENMPS_MEMORY_LIMIT").filter(|limit| !limit.is_empty()),
            client_priority: variable("CUDA_MPS_CLIENT_PRIORITY"),
            weight: variable("OPENMPS_WEIGHT"),
            latency: variable("OPENMPS_LATENCY"),
            guard: variable("OPENMPS_GUARD"),
            repeatable: variable("OPENMPS_REPEATABLE").filter(|names| !names.is_empty()),
            visible_devices: variable("CUDA_VISIBLE_DEVICES"),
            device_max_connections: variable("CUDA_DEVICE_MAX_CONNECTIONS"),
            per_context_partitioning: partitioning().map(str::to_owned),
            isolation: variable("OPENMPS_ISOLATE"),
            group: variable("OPENMPS_GROUP").filter(|name| !name.is_empty()),
            reservation: variable("OPENMPS_RESERVATION").filter(|name| !name.is_empty()),
            sm_partition: variable("CUDA_MPS_SM_PARTITION").filter(|name| !name.is_empty()),
        },
    }
}

const PERCENTAGE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// Set to 1 before the process starts, it lets [`context_percentage`] differ from context to
/// context (MPS guide, 4.2.6).
const PARTITIONING_VARIABLE: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";

/// The share that the environment asks for now, for the context that is being made; `None` unless
/// shares are per context.
pub(crate) fn context_percentage() -> Option<String> {
    if partitioning().is_some_and(|value| value.trim() == "1") {
        std::env::var(PERCENTAGE_VARIABLE).ok()
    } else {
        None
    }
}

/// The share of the whole process. Where shares are per context it is what the environment said
/// when the process started, since such programs set the variable before each context, the first
/// one before `cuInit`, too.
fn process_percentage() -> Option<String> {
    let now = || std::env::var(PERCENTAGE_VARIABLE).ok();
    if partitioning().is_none_or(|value| value.trim() != "1") {
        return now();
    }
    // Of a process that may not read its own: as it is now, so that no limit is lost.
    let Ok(environment) = std::fs::read("/proc/self/environ") else { return now() };
    initial_value(&environment, PERCENTAGE_VARIABLE)
}

/// A variable in a process's first environment, `NAME=VALUE` with a zero byte behind each.
fn initial_value(environment: &[u8], name: &str) -> Option<String> {
    let mut entries = environment.split(|&byte| byte == 0);
    let value =
        |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(Vec::from);
    entries.find_map(value).and_then(|value| String::from_utf8(value).ok())
}

/// [`PARTITIONING_VARIABLE`] as it was when the process attached: a later change has no effect.
fn partitioning() -> Option<&'static str> {
    static AT_START: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    AT_START.get_or_init(|| std::env::var(PARTITIONING_VARIABLE).ok()).as_deref()
}

/// The guide uses both names; the smaller limit holds, so both are sent.
fn memory_limits(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let names = ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_DEVICE_MEM_LIMIT"];
    let set: Vec<String> = names.into_iter().filter_map(variable).collect();
    (!set.is_empty()).then(|| set.join(","))
}

fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|m| m.ino())
}

/// The command line, shortened: it is for people's eyes.
fn command() -> String {
    const LONGEST: usize = 200;
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_start_are_found_by_their_whole_name() {
        let environment = b"AB=1\0A=2\0\0A=3\0C";
        let found = ["A", "AB", "B", "C"].map(|name| initial_value(environment, name));
        assert_eq!(found, [Some("2".into()), Some("1".into()), None, None]);
    }

    #[test]
    fn the_variable_alone_counts_where_it_is_set() {
        let paths = |variable: Option<&str>| socket_paths(variable.map(OsString::from));
        assert_eq!(paths(Some("/a")), [Path::new("/a").join(DAEMON_SOCKET)]);
        let places = ["/tmp/nvidia-mps", "/run/openmps"].map(|d| Path::new(d).join(DAEMON_SOCKET));
        assert_eq!(paths(None), places);
        assert_eq!(paths(Some("")), places);
    }
}
