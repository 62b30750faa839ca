//! The pipe directory of a daemon: one daemon per directory, whatever an earlier one left behind.
//!
//! What says that a daemon lives is a lock that the kernel drops with its process. Socket and pid
//! file of one that died are replaced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use link::socket::{Listener, SocketError};
use link::wire::DAEMON_SOCKET;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::StartError;
use crate::directories::{Directories, LOCK, PID_FILE};
use crate::listening::listens;
use crate::trusted_path::{Directory, Missing, PathError, Trust};

/// A directory that is ours; its files go when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    listener: Listener,
    _files: Files,
}

/// The daemon's files, some of them not there yet.
#[derive(Debug)]
struct Files {
    pipe: Directory,
    _lock: File,
}

impl Claim {
    /// Takes the pipe directory, making it if need be.
    pub(super) fn take(directories: &Directories) -> Result<Self, StartError> {
        let untrusted =
            |source| StartError::PipeDirectory { path: directories.pipe().to_owned(), source };
        // The default directory lies in /tmp, where anybody may have made it before root does.
        let pipe = Directory::open(directories.pipe(), Trust::of_places(), Missing::Make)
            .map_err(untrusted)?;
        // Before anything is made: its pid file has the name of ours.
        refuse_native_daemon(directories)?;
        let lock = take_lock(&pipe, directories)?;
        let files = Files { pipe, _lock: lock };
        // Before the socket: who is answered finds the pid file.
        let file = make_pid_file(&files.pipe).map_err(untrusted)?;
        writeln!(&file, "{}", std::process::id()).map_err(in_file(&directories.pid_file()))?;
        files.pipe.remove(DAEMON_SOCKET).map_err(untrusted)?;
        // Root serves everybody; a user's daemon only that user, so others are kept out by the file
        // system already.
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        let socket = directories.socket();
        let listener = Listener::bind_with_mode(&socket, Mode::from_raw_mode(mode))
            .map_err(into_io)
            .map_err(in_file(&socket))?;
        listener.refuse_descriptors();
        Ok(Claim { listener, _files: files })
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Still locked: nobody else can have put theirs in our place.
        for name in [DAEMON_SOCKET, PID_FILE, LOCK] {
            let _ = self.pipe.remove(name);
        }
    }
}

fn make_pid_file(pipe: &Directory) -> Result<File, PathError> {
    pipe.remove(PID_FILE)?;
    pipe.file(PID_FILE, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o644)
}

fn in_file(path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::File { path, source }
}

fn take_lock(pipe: &Directory, directories: &Directories) -> Result<File, StartError> {
    let path = directories.lock();
    loop {
        let file = match pipe.file(LOCK, OFlags::WRONLY | OFlags::CREATE, 0o600) {
            // A daemon that was ending has removed it between two looks.
            Err(PathError::Names { names: 0, .. }) => continue,
            // As in the default directory after root's daemon has ended.
            Err(PathError::System { ref source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                return Err(StartError::Denied { path: directories.pipe().to_owned() });
            }
            opened => opened.map_err(|source| StartError::PipeDirectory {
                path: directories.pipe().to_owned(),
                source,
            })?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(directories.pid_file())
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                return Err(StartError::AlreadyRunning {
                    path: directories.pipe().to_owned(),
                    pid,
                });
            }
            Err(source) => return Err(StartError::File { path, source: source.into() }),
        }
        // A daemon that was ending removes the file with its lock held: then ours is a file that
        // nobody else sees.
        let ours = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let there = fs::symlink_metadata(&path).map(|metadata| (metadata.dev(), metadata.ino()));
        if let (Ok(ours), Ok(there)) = (ours, there)
            && ours == there
        {
            return Ok(file);
        }
    }
}

/// NVIDIA's programs would meet its daemon, ours would meet us: nobody could tell which is in use.
fn refuse_native_daemon(directories: &Directories) -> Result<(), StartError> {
    match listens(&directories.native_socket()) {
        Ok(true) => Err(StartError::NativeDaemon { path: directories.pipe().to_owned() }),
        Ok(false) | Err(_) => Ok(()),
    }
}

fn into_io(error: SocketError) -> io::Error {
    match error {
        SocketError::Kernel(errno) => errno.into(),
        other => io::Error::other(other),
    }
}
