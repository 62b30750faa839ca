//! The sockets of groups that listen: see [`link::wire::group_socket`] for what they are for.
//!
//! The way to a directory is root's or the daemon's user's. It is given to a container, so nothing
//! in it is believed: what is in the way of a socket and is none, or is in use, stays, and the
//! request fails.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use link::socket::{Connection, Listener, SocketError};
use link::wire::DAEMON_SOCKET;
use link::wire::group_socket::GroupSocket;
use rustix::fs::Mode;

use crate::trusted_path::{Directory, Missing, Trust};

/// Whoever listens there answers a connection at once.
const LOOK_LIMIT: Duration = Duration::from_millis(100);

/// One socket. Its file goes when this is dropped; its directory stays, so that who has that
/// mounted finds the next daemon's socket in it.
#[derive(Debug)]
struct Open {
    listener: Listener,
    socket: Arc<GroupSocket>,
    path: PathBuf,
}

/// All that are open, by their directories.
#[derive(Debug, Default)]
pub(super) struct GroupSockets {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl GroupSockets {
    /// Opens a socket; `own` is the daemon's own directory.
    ///
    /// # Errors
    /// A message that says why not.
    pub(super) fn open(&mut self, socket: &GroupSocket, own: &Path) -> Result<(), String> {
        let directory = Path::new(&socket.directory);
        let failed = |error: io::Error| format!("cannot open {}: {error}", directory.display());
        let is_own = |directory: &Path| {
            directory == own
                || matches!(
                    (fs::canonicalize(directory), fs::canonicalize(own)),
                    (Ok(one), Ok(other)) if one == other
                )
        };
        if is_own(directory) {
            return Err(format!("{} is the daemon's own directory", directory.display()));
        }
        // Whoever could put another directory in its place would have root make and remove sockets
        // elsewhere.
        Directory::open(directory, Trust::of_places(), Missing::Make)
            .map_err(|error| error.to_string())?;
        let path = directory.join(DAEMON_SOCKET);
        make_way(&path)?;
        // The directory is the permission: whoever it was given to may connect, as any user.
        let mode = Mode::from_raw_mode(0o666);
        let listener = Listener::bind_with_mode(&path, mode).map_err(|error| match error {
            SocketError::Kernel(errno) => failed(errno.into()),
            other => failed(io::Error::other(other)),
        })?;
        listener.refuse_descriptors();
        let open = Open { listener, socket: Arc::new(socket.clone()), path };
        self.last += 1;
        self.open.insert(self.last, open);
        Ok(())
    }

    /// Closes the socket of a directory for good: that goes, too, if nothing else is in it.
    pub(super) fn close(&mut self, directory: &str) {
        self.open.retain(|_, open| open.socket.directory != directory);
        let _ = fs::remove_dir(directory);
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = (u64, &Listener)> {
        self.open.iter().map(|(id, open)| (*id, &open.listener))
    }

    /// One that poll named.
    pub(super) fn get(&self, id: u64) -> Option<(&Listener, Arc<GroupSocket>)> {
        self.open.get(&id).map(|open| (&open.listener, Arc::clone(&open.socket)))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the socket of a daemon that has died.
fn make_way(path: &Path) -> Result<(), String> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(format!("{} is in the way and no socket: remove it", path.display()));
    }
    if Connection::connect(path, LOOK_LIMIT).is_ok() {
        return Err(format!("another process listens at {}", path.display()));
    }
    fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))
}
