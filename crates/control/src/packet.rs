//! Packets of JSON over `SOCK_SEQPACKET` sockets, at most one descriptor beside each: see `link::wire`.
//!
//! Nothing here blocks: the sockets are non-blocking and the caller polls.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use link::wire::MAX_PACKET_BYTES;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with, socketpair, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Room in the kernel for one packet of the largest size; doubled by the kernel for its own needs.
const SOCKET_BUFFER_BYTES: usize = MAX_PACKET_BYTES;

/// What arrived.
#[derive(Debug)]
pub(crate) enum Received<T> {
    /// A message.
    Message(T),
    /// Bytes that are no message.
    Garbage,
    /// The peer has closed.
    Closed,
    /// Nothing yet.
    Nothing,
}

/// A socket that listens at `path`.
///
/// # Errors
/// Those of `socket`, `bind` and `listen`; a path longer than 107 bytes is `InvalidInput`.
pub(crate) fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::bind(&socket, &address(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// A connection to the socket at `path`; blocking.
///
/// # Errors
/// Those of `socket` and `connect`.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &address(path)?)?;
    enlarge(&socket);
    Ok(socket)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("{} is too long for a socket: use a shorter directory", path.display()),
        )
    })
}

/// Both ends of a connection.
///
/// # Errors
/// Those of `socketpair`.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    enlarge(&ours);
    enlarge(&theirs);
    Ok((ours, theirs))
}

/// The next connection, or `None` if there is none.
///
/// # Errors
/// Those of `accept`.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, FLAGS) {
        Ok(socket) => {
            enlarge(&socket);
            Ok(Some(socket))
        }
        Err(
            rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED,
        ) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A smaller buffer than wanted only means that a large packet is refused later.
fn enlarge(socket: &OwnedFd) {
    let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

/// The bytes of a message.
///
/// # Errors
/// `InvalidData` if it is larger than a packet may be.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is larger than a packet may be",
        ));
    }
    Ok(bytes)
}

/// Sends one packet, with a descriptor beside it if there is one.
///
/// # Errors
/// Those of `sendmsg`; `WouldBlock` when the peer does not read.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives one packet into `buffer` (of [`MAX_PACKET_BYTES`]) and reads it. Descriptors that come with it are closed: nobody
/// sends the daemon any.
///
/// # Errors
/// Those of `recvmsg`, without the ones that [`Received`] names.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Received<T>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let message = match result {
        Ok(message) => message,
        Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::Closed),
        Err(error) => return Err(error.into()),
    };
    drop(control);
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Garbage);
    }
    if message.bytes == 0 {
        // An empty packet looks the same, and says as little.
        return Ok(Received::Closed);
    }
    let bytes = buffer.get(..message.bytes).unwrap_or_default();
    Ok(serde_json::from_slice(bytes).map_or(Received::Garbage, Received::Message))
}

/// Waits until the socket can be read or `timeout` has passed; whether it can be read.
///
/// # Errors
/// Those of `poll`.
pub(crate) fn wait_readable(
    socket: &OwnedFd,
    timeout: Option<std::time::Duration>,
) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, poll};
    let start = std::time::Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        let spec = left.and_then(|left| rustix::event::Timespec::try_from(left).ok());
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        match poll(&mut fds, spec.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
