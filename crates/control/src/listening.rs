//! Whether somebody listens at a socket of the file system.

use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Whether somebody has a path, by whatever kind of Unix socket. Nobody is waited for: one that has
/// no room for a connection listens, too.
///
/// # Errors
/// The kernel's, such as for the socket of another user; then nobody can tell.
pub fn listens(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        // The last is of other kinds than this one: whether they take connections is not said.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn who_listens_is_seen_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        for (name, kind) in [("stream", SocketType::STREAM), ("packets", SocketType::SEQPACKET)] {
            let path = directory.path().join(name);
            assert_eq!(listens(&path), Ok(false));
            let socket =
                socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            listen(&socket, 0).unwrap();
            // There is room for one, whom nobody takes: a connection that waits for room would wait
            // for ever.
            let _first = UnixStream::connect(&path);
            for _ in 0..2 {
                assert_eq!(listens(&path), Ok(true), "{name}");
            }
            drop(socket);
            assert_eq!(listens(&path), Ok(false), "{name}: its file is left");
        }
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert_eq!(listens(&directory.path().join("file")), Ok(false));
    }
}
