//! Garbage on sockets: in place of a greeting, in place of requests of a client that was welcomed,
//! and with descriptors that nobody asked for.

use super::raw_session::{RawError, attach};
use super::{Random, mutate};
use link::socket::{Connection, SocketError};
use link::wire::attach::{ClientReply, RequestedLimits};
use link::wire::version::Versions;
use link::wire::{MAX_PACKET_BYTES, PROTOCOL_VERSION};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

/// Longest that a socket may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Strangers, and then packets of a client that was welcomed.
const PACKETS: usize = 20;

/// `PROTOCOL` is where the number of this build goes, `VERSIONS` where those of its client wire go.
const GREETINGS: [&str; 9] = [
    r#"{"client":{"versions":VERSIONS,"pid":1,"pid_namespace":0,"command":"x","limits":{}}}"#,
    r#"{"ui":{"protocol":PROTOCOL}}"#,
    r#"{"ui":{"protocol":4294967295}}"#,
    r#"{"trace":{"protocol":PROTOCOL,"pid":1}}"#,
    r#"{"client":{"versions":{"oldest":18446744073709551616,"newest":-1},"pid":-1}}"#,
    r#"{"client":{"versions":{"oldest":4294967295,"newest":0},"pid":1}}"#,
    r#"{"debugged":{"versions":{"oldest":2,"newest":4294967295},"debugger":"x"}}"#,
    "[[[[[[[[[[[[[[[[",
    "",
];
const REQUESTS: [&str; 4] = [
    r#"{"open_context":{"device":0,"active_thread_percentage":null}}"#,
    r#"{"open_context":{"device":4294967295,"active_thread_percentage":"-1"}}"#,
    r#"{"close_context":{"device":0}}"#,
    r#"{"close_context":{"device":77}}"#,
];

/// Says all of it to the daemon behind `socket`; whoever answers, hangs up or says nothing has done
/// right. Returns how many packets that were.
///
/// # Errors
/// The daemon cannot be reached, or does not let a client in.
pub fn send(socket: &Path, random: &mut Random) -> Result<usize, RawError> {
    for _ in 0..PACKETS {
        let stranger = Connection::connect(socket, PATIENCE)?;
        packet(&stranger, random, &GREETINGS);
    }
    let client = attach(socket, RequestedLimits::default())?;
    for sent in 1..=PACKETS {
        packet(&client, random, &REQUESTS);
        // What it says to that is heard, so that it has room for more; it may well have hung up.
        match client.receive::<ClientReply>(Duration::from_millis(5)) {
            Err(SocketError::Closed | SocketError::Kernel(_)) => return Ok(PACKETS + sent),
            _ => continue,
        }
    }
    Ok(2 * PACKETS)
}

/// One packet: a text that could be right, changed or not, or noise; sometimes with descriptors.
/// That it is not taken is no matter.
fn packet(connection: &Connection, random: &mut Random, texts: &[&str]) {
    let versions = serde_json::to_string(&Versions::ours()).unwrap_or_default();
    let text = random.pick(texts).replace("PROTOCOL", &PROTOCOL_VERSION.to_string());
    let mut bytes = text.replace("VERSIONS", &versions).into_bytes();
    match random.below(4) {
        0 => {
            let length = random.below(MAX_PACKET_BYTES + 100);
            bytes = (0..length).map(|_| random.bits() as u8).collect();
        }
        1 => {}
        _ => mutate(random, &mut bytes),
    }
    let count = random.pick(&[0, 0, 0, 1, 3, 9]);
    let descriptors: Vec<BorrowedFd<'_>> = (0..count).map(|_| connection.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, flags);
}
