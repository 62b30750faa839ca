//! Whose daemon it is that answers: what a client and a front end look at before they say a word.
//!
//! Whoever listens at the socket gets all that a program computes with. So a daemon is root's or
//! the program's own user's, in the kernel's word of who began to listen. In a user namespace all
//! users whom that does not map have one number ([`OVERFLOW_UID`]), root of the host and strangers
//! alike: there the *place* must vouch for the daemon. It does where nobody but an owner who is not
//! this user can have put the socket there; that is so in what the maker of a container has mounted
//! for it, and not below `/tmp`.

use crate::socket::{Connection, SocketError};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The user that stands for all whom a user namespace does not map, unless
/// `/proc/sys/kernel/overflowuid` has another number.
const OVERFLOW_UID: u32 = 65534;
/// The user namespace that maps all users, each to itself.
const WHOLE_MAP: [&str; 3] = ["0", "0", "4294967295"];
/// What others than a directory's owner may write.
const WRITABLE_BY_OTHERS: u16 = 0o022;

/// Why a daemon is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Untrusted {
    /// Somebody else's.
    #[error(
        "it is of user {uid}, who is neither root nor user {own}: remove it, or set CUDA_MPS_PIPE_DIRECTORY to a daemon of root's or of your own"
    )]
    User {
        /// Whose.
        uid: u32,
        /// Who this process is.
        own: u32,
    },
    /// Nobody can tell whose.
    #[error(
        "this user namespace hides whose it is, and anybody could have made it, as others than its owner may write {}: mount the daemon's directory itself here, read-only",
        open.display()
    )]
    Hidden {
        /// The directory on the way to it that is open to others.
        open: PathBuf,
    },
}

/// What came of the look.
#[derive(Debug, Error)]
pub enum TrustError {
    /// Not to be used.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The kernel did not say.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Looks whether the daemon at the other end of this connection to `socket` may be used.
///
/// # Errors
/// [`Untrusted`], and what the kernel says.
pub fn check_daemon(connection: &Connection, socket: &Path) -> Result<(), TrustError> {
    let own = rustix::process::geteuid().as_raw();
    let uid = connection.peer()?.uid;
    // Root's and this user's, which is all that is asked where no user is hidden.
    if uid == 0 || (uid == own && uid != OVERFLOW_UID) {
        return Ok(());
    }
    if is_hidden(uid) {
        let directory = socket.parent().unwrap_or(Path::new("/"));
        return vouched(directory).map_err(|open| Untrusted::Hidden { open }.into());
    }
    match uid == own {
        true => Ok(()),
        false => Err(Untrusted::User { uid, own }.into()),
    }
}

/// Whether this number stands for users whom this process's user namespace does not map.
fn is_hidden(uid: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let number = read("/proc/sys/kernel/overflowuid").trim().parse();
    uid == number.unwrap_or(OVERFLOW_UID)
        && !read("/proc/self/uid_map").split_whitespace().eq(WHOLE_MAP)
}

/// Whether the place of a daemon vouches for it; otherwise a directory that is open to others.
///
/// Both the path as it was given and the one that its links lead to: a link could have been another
/// one a moment ago.
fn vouched(directory: &Path) -> Result<(), PathBuf> {
    let real = fs::canonicalize(directory).map_err(|_| directory.to_owned())?;
    way_is_closed(directory)?;
    way_is_closed(&real)
}

/// Looks at every directory from the root down. What is above a mount does not matter: whoever
/// mounted it chose what is there.
fn way_is_closed(directory: &Path) -> Result<(), PathBuf> {
    let mut way: Vec<&Path> = directory.ancestors().collect();
    way.reverse();
    let mut open = None;
    for at in way {
        let found = Found::look(at).map_err(|_| at.to_owned())?;
        if found.is_mount {
            open = None;
        }
        if found.is_open && !(found.is_mount && found.is_read_only && at == directory) {
            open.get_or_insert_with(|| at.to_owned());
        }
    }
    open.map_or(Ok(()), Err)
}

/// What matters of a directory.
struct Found {
    /// Something was mounted just here.
    is_mount: bool,
    /// What was mounted cannot be written.
    is_read_only: bool,
    /// This user can write it, or others than its owner: if not here, then where it is mounted so
    /// that it can be written.
    is_open: bool,
}

impl Found {
    fn look(at: &Path) -> Result<Self, Errno> {
        let found = rustix::fs::statx(CWD, at, AtFlags::empty(), StatxFlags::MODE)?;
        let is_read_only = rustix::fs::statvfs(at)?.f_flag.contains(StatVfsMountFlags::RDONLY);
        let mount = StatxAttributes::MOUNT_ROOT;
        // Kernels before 5.8 do not say. Then what is read-only was mounted for this process, and
        // nothing else.
        let is_mount = match found.stx_attributes_mask.contains(mount) {
            true => found.stx_attributes.contains(mount),
            false => is_read_only,
        };
        let is_open = found.stx_mode & WRITABLE_BY_OTHERS != 0
            || rustix::fs::access(at, Access::WRITE_OK).is_ok();
        Ok(Self { is_mount, is_read_only, is_open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Listener;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_own_users_daemon_may_be_used() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let _listener = Listener::bind(&socket).unwrap();
        let connection = Connection::connect(&socket, std::time::Duration::ZERO).unwrap();
        check_daemon(&connection, &socket).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_write_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        let below = open.join("below");
        fs::create_dir_all(&below).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        // What is above it may be open, too, and is then named first.
        let named = way_is_closed(&below).unwrap_err();
        assert!(open.starts_with(&named), "{named:?}");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(vouched(&link).is_err(), "a link where others can write leads anywhere");
        assert!(vouched(&directory.path().join("nowhere")).is_err());
    }
}
