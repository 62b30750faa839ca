//! Descriptors whose closing takes as long as their sender likes.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Result;
use link::socket::Connection;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

/// Much longer than any test waits.
const LINGER: Duration = Duration::from_secs(600);
const BUFFER_BYTES: usize = 4096;

/// The other end of a lingering socket: it reads nothing.
#[derive(Debug)]
pub(crate) struct Lingering {
    _reader: TcpStream,
}

/// A socket with something to send that is never read.
fn make() -> Result<(OwnedFd, Lingering)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    sockopt::set_socket_recv_buffer_size(&listener, BUFFER_BYTES)?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    sockopt::set_socket_send_buffer_size(&sender, BUFFER_BYTES)?;
    let (reader, _) = listener.accept()?;
    sender.set_nonblocking(true)?;
    while sender.write(&[0; BUFFER_BYTES]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(LINGER))?;
    Ok((sender.into(), Lingering { _reader: reader }))
}

/// Sends so many packets with a lingering socket each, of which no copy stays here. A packet that
/// is refused goes without.
pub(crate) fn send(
    connection: &Connection,
    packet: &[u8],
    count: u64,
    readers: &mut Vec<Lingering>,
) -> Result<String> {
    let mut taken = 0;
    for _ in 0..count {
        let (socket, reader) = make()?;
        readers.push(reader);
        let descriptors = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(connection, &[IoSlice::new(packet)], &mut control, flags);
        // Here it is closed last only if the other side was quicker, or never got it: that is not
        // to hold up this process.
        std::thread::spawn(move || drop(socket));
        match sent {
            Ok(_) => taken += 1,
            Err(Errno::PERM) => {
                let mut none = SendAncillaryBuffer::default();
                let _ = sendmsg(connection, &[IoSlice::new(packet)], &mut none, flags);
            }
            // It has hung up, or has no room: what was sent is there.
            Err(_) => break,
        }
    }
    Ok(format!("sent {taken}"))
}
