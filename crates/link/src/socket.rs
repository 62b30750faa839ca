//! Packets of JSON with descriptors beside them, over `SOCK_SEQPACKET` Unix sockets.
//!
//! A packet arrives whole or not at all, is at most [`MAX_PACKET_BYTES`] long, and carries at most
//! [`MAX_DESCRIPTORS`]. Sockets never block: every wait has a time limit. Descriptors are closed on
//! exec, and all that came with a packet that is refused are closed.

use crate::wire::MAX_PACKET_BYTES;
use crate::wire::daemon::Peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Descriptors that one packet may carry.
pub const MAX_DESCRIPTORS: usize = 8;

/// Packets that a connection is looked through for, when it is closed, before it counts as holding
/// descriptors.
const MOST_LEFT_BEHIND: usize = 64;

/// What went wrong on a socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The other side has closed.
    #[error("the other side has closed the connection")]
    Closed,
    /// Nothing came, or nothing could be sent, in time.
    #[error("the other side did not answer within {0:?}")]
    TimedOut(Duration),
    /// A packet was longer than [`MAX_PACKET_BYTES`].
    #[error("a packet is longer than {MAX_PACKET_BYTES} bytes")]
    TooLong,
    /// More descriptors than [`MAX_DESCRIPTORS`], or this process could take no more.
    #[error(
        "a packet's descriptors did not all arrive: more than {MAX_DESCRIPTORS}, or this process has too many open files"
    )]
    DescriptorsLost,
    /// Descriptors from a peer that is to send none.
    #[error("a packet came with descriptors, where none are wanted")]
    UnwantedDescriptors,
    /// Not the JSON that was expected.
    #[error("a packet is not understood: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    /// No such socket, or nobody listens.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: String,
        /// The kernel's word.
        source: Errno,
    },
    /// The kernel refused something else.
    #[error("socket: {0}")]
    Kernel(#[from] Errno),
}

/// The bytes of a packet, or what is wrong with it.
type Packet = Result<Vec<u8>, SocketError>;

/// A message and the descriptors that came with it.
#[derive(Debug)]
pub struct Received<T> {
    /// The message.
    pub message: T,
    /// Its descriptors, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

/// What a connection holds that nobody will receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// Nothing: it can be closed at once.
    Nothing,
    /// Perhaps descriptors, of which closing it closes the last copies.
    Descriptors,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.socket
    }
}

impl Connection {
    /// Connects to a listening socket.
    ///
    /// # Errors
    /// [`SocketError::Connect`] when nobody listens there, or its backlog stays full for `timeout`.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Connect { path: path.display().to_string(), source };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = new_socket().map_err(failed)?;
        let deadline = Instant::now() + timeout;
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => return Self::from_socket(socket),
                // A full backlog; there is nothing to poll for.
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(source) => return Err(failed(source)),
            }
        }
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// The kernel's.
    pub fn pair() -> Result<(Self, Self), SocketError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::from_socket(one)?, Self::from_socket(other)?))
    }

    /// Takes over a connected socket, for instance one received or inherited; makes it non-blocking
    /// and closed on exec.
    ///
    /// # Errors
    /// When the descriptor is no `SOCK_SEQPACKET` socket.
    pub fn from_socket(socket: OwnedFd) -> Result<Self, SocketError> {
        if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(SocketError::Kernel(Errno::PROTOTYPE));
        }
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        // The kernel doubles it, and caps it at its limit, which doubled holds a packet.
        sockopt::set_socket_send_buffer_size(&socket, MAX_PACKET_BYTES)?;
        Ok(Self { socket })
    }

    /// Who is at the other end, by the kernel's word, as of when it connected.
    ///
    /// # Errors
    /// The kernel's.
    pub fn peer(&self) -> Result<Peer, SocketError> {
        Ok(crate::peer::credentials(self.as_fd())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?)
    }

    /// Whether the other side has closed, or died. Does not wait.
    pub fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        match rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => false,
            Ok(_) => {
                polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
            }
            Err(_) => true,
        }
    }

    /// Sends one message with descriptors; waits for room, `timeout` at most.
    ///
    /// # Errors
    /// [`SocketError`]; nothing was sent then.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<(), SocketError> {
        let packet = serde_json::to_vec(message)?;
        if packet.len() > MAX_PACKET_BYTES {
            return Err(SocketError::TooLong);
        }
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(SocketError::DescriptorsLost);
        }
        let deadline = Instant::now() + timeout;
        loop {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty()
                && !control.push(SendAncillaryMessage::ScmRights(descriptors))
            {
                return Err(SocketError::DescriptorsLost);
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut control, flags)
            {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline, timeout)?,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Err(SocketError::Closed);
                }
                Err(Errno::MSGSIZE) => return Err(SocketError::TooLong),
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// Receives one message; waits for it, `timeout` at most.
    ///
    /// # Errors
    /// [`SocketError`]; after [`SocketError::NotUnderstood`], `TooLong` and `DescriptorsLost` the
    /// packet is gone.
    pub fn receive<T: DeserializeOwned>(
        &self,
        timeout: Duration,
    ) -> Result<Received<T>, SocketError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_receive()? {
                Some(received) => return Ok(received),
                None => self.wait(PollFlags::IN, deadline, timeout)?,
            }
        }
    }

    /// As [`Self::receive`], but the message stays for whoever receives next; its descriptors are
    /// copies.
    ///
    /// # Errors
    /// As for [`Self::receive`]; the packet stays, whatever it is.
    pub fn peek<T: DeserializeOwned>(&self, timeout: Duration) -> Result<Received<T>, SocketError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.look(RecvFlags::PEEK)? {
                Some(received) => return Ok(received),
                None => self.wait(PollFlags::IN, deadline, timeout)?,
            }
        }
    }

    /// As [`Self::peek`], but descriptors are given to the caller whatever came with them, and are
    /// never closed here.
    pub fn peek_apart<T: DeserializeOwned>(
        &self,
        timeout: Duration,
    ) -> (Result<T, SocketError>, Vec<OwnedFd>) {
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_receive_packet(RecvFlags::PEEK) {
                Ok(Some(Received { message: Ok(packet), descriptors })) => {
                    return (serde_json::from_slice(&packet).map_err(Into::into), descriptors);
                }
                Ok(Some(Received { message: Err(error), descriptors })) => {
                    return (Err(error), descriptors);
                }
                Ok(None) => {}
                Err(error) => return (Err(error), Vec::new()),
            }
            if let Err(error) = self.wait(PollFlags::IN, deadline, timeout) {
                return (Err(error), Vec::new());
            }
        }
    }

    /// Receives one message if one is there.
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<Received<T>>, SocketError> {
        self.look(RecvFlags::empty())
    }

    /// Receives one message, if one is there, of a peer that is to send no descriptors.
    ///
    /// # Errors
    /// As for [`Self::receive`]. A packet with descriptors stays, so that they are not closed here,
    /// whatever that takes: the connection is of no more use.
    pub fn try_hear<T: DeserializeOwned>(&self) -> Result<Option<T>, SocketError> {
        let packet = self.try_hear_packet()?;
        Ok(packet.map(|packet| serde_json::from_slice(&packet)).transpose()?)
    }

    /// The same, for who reads the packet's text in a way of its own.
    ///
    /// # Errors
    /// As for [`Self::try_hear`].
    pub fn try_hear_packet(&self) -> Result<Option<Vec<u8>>, SocketError> {
        let mut packet = vec![0; MAX_PACKET_BYTES + 1];
        let Some((bytes, flags)) = self.take_bare(&mut packet, RecvFlags::PEEK)? else {
            return Ok(None);
        };
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(SocketError::UnwantedDescriptors);
        }
        // The same packet, as nobody else receives here: it holds no descriptor.
        self.take_bare(&mut [0], RecvFlags::empty())?;
        if bytes == 0 {
            return Err(SocketError::Closed);
        }
        if flags.contains(ReturnFlags::TRUNC) || bytes > MAX_PACKET_BYTES {
            return Err(SocketError::TooLong);
        }
        packet.truncate(bytes);
        Ok(Some(packet))
    }

    /// Ends the connection both ways, for all processes that have it, and says what it holds.
    pub fn shut_down(&self) -> Queued {
        if rustix::net::shutdown(&self.socket, Shutdown::Both).is_err() {
            return Queued::Descriptors;
        }
        // From here on nothing more comes.
        for _ in 0..MOST_LEFT_BEHIND {
            match self.take_bare(&mut [0], RecvFlags::PEEK) {
                Ok(Some((_, flags))) if flags.contains(ReturnFlags::CTRUNC) => break,
                Ok(Some((0, _)) | None) | Err(SocketError::Closed) => return Queued::Nothing,
                Ok(Some(_)) => {}
                Err(_) => break,
            }
            if self.take_bare(&mut [0], RecvFlags::empty()).is_err() {
                break;
            }
        }
        Queued::Descriptors
    }

    /// Has the kernel refuse descriptors that are sent to this end, if it can (Linux 6.16). Nothing
    /// may rely on it.
    pub fn refuse_descriptors(&self) {
        crate::peer::refuse_descriptors(self.as_fd());
    }

    /// Receives a packet, or looks at it, without room for descriptors: those that are with it show
    /// as [`ReturnFlags::CTRUNC`], and are closed unless it stays.
    fn take_bare(
        &self,
        packet: &mut [u8],
        flags: RecvFlags,
    ) -> Result<Option<(usize, ReturnFlags)>, SocketError> {
        let flags = flags | RecvFlags::DONTWAIT;
        loop {
            let buffers = &mut [IoSliceMut::new(packet)];
            let mut control = RecvAncillaryBuffer::default();
            match rustix::net::recvmsg(&self.socket, buffers, &mut control, flags) {
                Ok(result) => return Ok(Some((result.bytes, result.flags))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(SocketError::Closed),
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn look<T: DeserializeOwned>(
        &self,
        flags: RecvFlags,
    ) -> Result<Option<Received<T>>, SocketError> {
        let Some(Received { message, descriptors }) = self.try_receive_packet(flags)? else {
            return Ok(None);
        };
        Ok(Some(Received { message: serde_json::from_slice(&message?)?, descriptors }))
    }

    /// A packet, or what is wrong with it, and what came with it.
    fn try_receive_packet(
        &self,
        flags: RecvFlags,
    ) -> Result<Option<Received<Packet>>, SocketError> {
        // One byte more: a packet of the very limit and a cut one would look alike to a short
        // buffer on old kernels.
        let mut packet = vec![0; MAX_PACKET_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let result = loop {
            let buffers = &mut [IoSliceMut::new(&mut packet)];
            match rustix::net::recvmsg(&self.socket, buffers, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(SocketError::Closed),
                other => break other?,
            }
        };
        // Taken out before any check, so that nobody loses them.
        let descriptors: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        packet.truncate(result.bytes);
        let message = if result.bytes == 0 {
            Err(SocketError::Closed)
        } else if result.flags.contains(ReturnFlags::TRUNC) || result.bytes > MAX_PACKET_BYTES {
            Err(SocketError::TooLong)
        } else if result.flags.contains(ReturnFlags::CTRUNC) {
            Err(SocketError::DescriptorsLost)
        } else {
            Ok(packet)
        };
        Ok(Some(Received { message, descriptors }))
    }

    fn wait(
        &self,
        events: PollFlags,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(), SocketError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.socket, events)];
        match rustix::event::poll(&mut polled, Some(&limit)) {
            Ok(0) => Err(SocketError::TimedOut(timeout)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Listens at `path`, where no file may be.
    ///
    /// # Errors
    /// The kernel's: `ADDRINUSE` when there is a file, `NAMETOOLONG` beyond 107 bytes.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let socket = new_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(Self { socket })
    }

    /// Listens at a new file of this mode, whatever the mask says.
    ///
    /// The directory may be another user's, who can put something else in the file's place: what is
    /// changed is the socket that was made, or nothing. By its path, a link to any file would do
    /// for having root change that file's mode.
    ///
    /// # Errors
    /// The kernel's; `NOTSOCK` if something else is there by then.
    pub fn bind_with_mode(path: &Path, mode: Mode) -> Result<Self, SocketError> {
        let listener = Self::bind(path)?;
        set_mode(path, mode)?;
        Ok(listener)
    }

    /// Has the kernel refuse descriptors that are sent to connections that are made from now on, if
    /// it can (Linux 6.16). Nothing may rely on it.
    pub fn refuse_descriptors(&self) {
        crate::peer::refuse_descriptors(self.as_fd());
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// The kernel's, `MFILE` among them.
    pub fn try_accept(&self) -> Result<Option<Connection>, SocketError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => Ok(Some(Connection::from_socket(socket)?)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(other) => Err(other.into()),
        }
    }
}

/// Changes the mode of a socket that this user has made, and of nothing else that may be in its
/// place by now.
fn set_mode(path: &Path, mode: Mode) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&made)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1;
    if !is_ours {
        return Err(Errno::NOTSOCK);
    }
    // What a descriptor without access names can be changed through its link alone.
    rustix::fs::chmod(format!("/proc/self/fd/{}", made.as_raw_fd()), mode)
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_mode_is_given_to_a_socket_and_not_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode();
        let (socket, secret) = (directory.path().join("socket"), directory.path().join("secret"));
        let _listener = Listener::bind_with_mode(&socket, Mode::from_raw_mode(0o666)).unwrap();
        assert_eq!(mode(&socket) & 0o777, 0o666, "whatever the mask is");
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let (link, hard) = (directory.path().join("link"), directory.path().join("hard"));
        symlink(&secret, &link).unwrap();
        std::fs::hard_link(&socket, &hard).unwrap();
        for in_its_place in [&link, &secret, &hard] {
            let all = Mode::from_raw_mode(0o777);
            assert_eq!(set_mode(in_its_place, all), Err(Errno::NOTSOCK), "{in_its_place:?}");
        }
        assert_eq!(mode(&secret) & 0o777, 0o600);
        assert_eq!(mode(&socket) & 0o777, 0o666);
    }
}
