//! Who is at the other end of a Unix socket, in the kernel's word.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::wire::daemon::{Namespaces, Peer};

/// The peer's credentials as they were when it connected.
///
/// The process id is 0 for a peer whose PID namespace this process cannot see into, which is why
/// this is not rustix's `socket_peercred`: its result cannot hold a 0.
///
/// # Errors
/// Those of `getsockopt`.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut size_bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to a ucred and to its size, and the kernel writes no more than that
    // size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut size_bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it was zeroed at first, and a ucred has no invalid values.
    let libc::ucred { pid, uid, gid } = unsafe { credentials.assume_init() };
    let pid = u32::try_from(pid).unwrap_or(0);
    Ok(Peer { pid, uid, gid, namespaces: Namespaces::Shared, counts_for: None })
}

/// The process that connected.
#[derive(Debug)]
pub enum PeerProcess {
    /// As a descriptor, which no later process can take the place of.
    Held(OwnedFd),
    /// It has been reaped: its number may be another's.
    Gone,
    /// The kernel does not tell: before 6.5.
    Untold,
}

/// The peer's process.
pub fn process(socket: BorrowedFd<'_>) -> PeerProcess {
    /// `SO_PEERPIDFD` of `asm-generic/socket.h`.
    const PEER_PIDFD: libc::c_int = 77;
    let mut descriptor: libc::c_int = -1;
    let mut size_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers are to an int and to its size, and the kernel writes no more than that
    // size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            (&raw mut descriptor).cast(),
            &raw mut size_bytes,
        )
    };
    if result == 0 && descriptor >= 0 {
        // SAFETY: the kernel has just made this descriptor for us, closed on exec.
        return PeerProcess::Held(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOPROTOOPT) => PeerProcess::Untold,
        _ => PeerProcess::Gone,
    }
}

/// Has the kernel refuse descriptors that are sent to this socket, and to those that will be made
/// for connections to it; kernels before 6.16 go on as before.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) {
    /// `SO_PASSRIGHTS` of `asm-generic/socket.h`.
    const PASS_RIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    let size_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to an int of that size, which the kernel reads.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PASS_RIGHTS,
            (&raw const off).cast(),
            size_bytes,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(credentials(one.as_fd()).unwrap().pid, std::process::id());
    }
}
