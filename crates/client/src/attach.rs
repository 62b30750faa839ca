//! Finding the daemon.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Directory of the daemon's socket, as for the original.
const PIPE_DIRECTORY_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";

/// Why this process is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// Nobody listens: the process is native.
    #[error("no daemon at {}: {reason}", path.display())]
    NoDaemon {
        /// Where one would be.
        path: PathBuf,
        /// What connecting said.
        reason: Errno,
    },
}

fn socket_path() -> PathBuf {
    let directory = std::env::var_os(PIPE_DIRECTORY_VARIABLE).filter(|d| !d.is_empty());
    let directory = directory.unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into());
    Path::new(&directory).join(link::wire::DAEMON_SOCKET)
}

fn open_socket(path: &Path) -> Result<OwnedFd, AttachError> {
    let no_daemon = |reason| AttachError::NoDaemon { path: path.to_owned(), reason };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(no_daemon)?;
    let address = SocketAddrUnix::new(path).map_err(no_daemon)?;
    rustix::net::connect(&socket, &address).map_err(no_daemon)?;
    Ok(socket)
}

/// Connects to the daemon.
pub(crate) fn connect() -> Result<core::convert::Infallible, AttachError> {
    let path = socket_path();
    let _socket = open_socket(&path)?;
    Err(AttachError::NoDaemon { path, reason: Errno::PROTO })
}
