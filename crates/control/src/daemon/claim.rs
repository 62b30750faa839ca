//! The pipe directory of a daemon: one daemon per directory, whatever an earlier one left behind.
//!
//! What says that a daemon lives is a lock that the kernel drops with its process. Socket and pid file of one that died
//! are replaced.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use link::socket::{Listener, SocketError};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;

use super::StartError;
use crate::directories::Directories;

/// A directory that is ours; its files go when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    listener: Listener,
    _files: Files,
}

/// The daemon's files, some of them not there yet.
#[derive(Debug)]
struct Files {
    directories: Directories,
    _lock: File,
}

impl Claim {
    /// Takes the pipe directory, making it if need be.
    pub(super) fn take(directories: &Directories) -> Result<Self, StartError> {
        let pipe = directories.pipe();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(pipe)
            .map_err(|source| StartError::PipeDirectory { path: pipe.to_owned(), source })?;
        refuse_foreign(pipe, rustix::process::geteuid().as_raw())?;
        // Before anything is made: its pid file has the name of ours.
        refuse_native_daemon(directories)?;
        let lock = take_lock(directories)?;
        let files = Files { directories: directories.clone(), _lock: lock };
        // Before the socket: who is answered finds the pid file.
        let pid_file = directories.pid_file();
        write_pid_file(&pid_file).map_err(in_file(&pid_file))?;
        let socket = directories.socket();
        remove_stale(&socket).map_err(in_file(&socket))?;
        // Root serves everybody; a user's daemon only that user, so others are kept out by the file system already.
        let mode = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        let listener = Listener::bind_with_mode(&socket, Mode::from_raw_mode(mode))
            .map_err(into_io)
            .map_err(in_file(&socket))?;
        Ok(Claim { listener, _files: files })
    }

    pub(super) fn listener(&self) -> &Listener {
        &self.listener
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Still locked: nobody else can have put theirs in our place.
        let directories = &self.directories;
        for path in [directories.socket(), directories.pid_file(), directories.lock()] {
            let _ = fs::remove_file(path);
        }
    }
}

fn write_pid_file(path: &Path) -> io::Result<()> {
    remove_stale(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    writeln!(file, "{}", std::process::id())
}

fn in_file(path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::File { path, source }
}

fn take_lock(directories: &Directories) -> Result<File, StartError> {
    let path = directories.lock();
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .map_err(|source| StartError::PipeDirectory {
                path: directories.pipe().to_owned(),
                source,
            })?;
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
        // A daemon that was ending removes the file with its lock held: then ours is a file that nobody else sees.
        let ours = file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        let there = fs::symlink_metadata(&path).map(|metadata| (metadata.dev(), metadata.ino()));
        if let (Ok(ours), Ok(there)) = (ours, there)
            && ours == there
        {
            return Ok(file);
        }
    }
}

/// The default directory lies in /tmp, where anybody may have made it before root does.
fn refuse_foreign(pipe: &Path, euid: u32) -> Result<(), StartError> {
    let uid = fs::metadata(pipe).map_err(in_file(pipe))?.uid();
    match euid == 0 && uid != 0 {
        true => Err(StartError::ForeignDirectory { path: pipe.to_owned(), uid }),
        false => Ok(()),
    }
}

/// NVIDIA's programs would meet its daemon, ours would meet us: nobody could tell which is in use.
fn refuse_native_daemon(directories: &Directories) -> Result<(), StartError> {
    match UnixStream::connect(directories.native_socket()) {
        // Other kinds of socket answer with a protocol error.
        Ok(_) => Err(StartError::NativeDaemon { path: directories.pipe().to_owned() }),
        Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => {
            Err(StartError::NativeDaemon { path: directories.pipe().to_owned() })
        }
        Err(_) => Ok(()),
    }
}

fn into_io(error: SocketError) -> io::Error {
    match error {
        SocketError::Kernel(errno) => errno.into(),
        other => io::Error::other(other),
    }
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_serves_from_no_directory_of_another_user() {
        let directory = tempfile::tempdir().unwrap();
        let me = rustix::process::geteuid();
        let other = 12345;
        if me.is_root() {
            std::os::unix::fs::chown(directory.path(), Some(other), None).unwrap();
        }
        let owner = if me.is_root() { other } else { me.as_raw() };
        let refused = refuse_foreign(directory.path(), 0).unwrap_err().to_string();
        assert!(refused.contains(&format!("belongs to user {owner}")), "{refused}");
        // A user's daemon serves that user alone, who knows whose directory it is.
        refuse_foreign(directory.path(), owner).unwrap();
    }
}
