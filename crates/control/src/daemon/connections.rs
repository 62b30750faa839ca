//! Connections to the daemon's socket: who they are, what they may cost.
//!
//! A peer is believed nothing. One that says nothing is closed after a while; one that talks nonsense is closed at once; each
//! user has a share of the connections; a front end's next line is read only after its last one was answered.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use link::wire::PROTOCOL_VERSION;
use link::wire::attach::{ClientHello, Hello, HelloReply, Refusal};
use link::wire::daemon::Peer;
use link::wire::ui::{UiReply, UiRequest};
use rustix::event::PollFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::core::ConnectionId;
use crate::packet::{self, Received};

/// A connection says what it is within this time.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Connections at a time, at most.
const MAX_CONNECTIONS: usize = 4096;
/// Descriptors kept free for logs, servers and what passes through.
const SPARE_DESCRIPTORS: u64 = 128;
/// `CUDA_ERROR_MPS_RPC_FAILURE`.
const RPC_FAILURE: u32 = 806;

/// Tells where a connection stands.
#[derive(Debug)]
enum Role {
    /// Has not said what it is; closed at that time.
    New(Instant),
    /// Waits for a server; all it does now is leave.
    Client,
    /// May send a line.
    Ui,
    /// Waits for an answer.
    BusyUi,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    role: Role,
}

/// What a connection did.
#[derive(Debug)]
pub(super) enum Act {
    /// It is a client.
    Client(Peer, Box<ClientHello>),
    /// It is a front end.
    Ui,
    /// It is a front end and sent a line.
    UiLine(Peer, String),
    /// It is a front end and wants everything.
    UiState,
    /// It has gone, with a line for the log.
    Closed(&'static str),
    /// Nothing, yet.
    Nothing,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Connections {
    open: BTreeMap<ConnectionId, Connection>,
    last: u64,
    max: usize,
}

impl Connections {
    /// Raises the limit of descriptors as far as it goes.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, wanted);
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = usize::try_from(descriptors.saturating_sub(SPARE_DESCRIPTORS))
            .unwrap_or(MAX_CONNECTIONS);
        Connections { open: BTreeMap::new(), last: 0, max: max.clamp(16, MAX_CONNECTIONS) }
    }

    /// Takes a new connection, unless its user has too many.
    pub(super) fn add(&mut self, socket: OwnedFd, now: Instant) -> io::Result<bool> {
        let peer = link::peer::credentials(socket.as_fd())?;
        let of_user = self.open.values().filter(|other| other.peer.uid == peer.uid).count();
        if self.open.len() >= self.max || of_user >= self.max / 2 {
            return Ok(false);
        }
        self.last += 1;
        let role = Role::New(now + HELLO_LIMIT);
        self.open.insert(ConnectionId(self.last), Connection { socket, peer, role });
        Ok(true)
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = (ConnectionId, &OwnedFd, PollFlags)> {
        self.open.iter().map(|(id, connection)| {
            let flags = match connection.role {
                Role::New(_) | Role::Ui => PollFlags::IN,
                // Closing is told unasked.
                Role::Client | Role::BusyUi => PollFlags::empty(),
            };
            (*id, &connection.socket, flags)
        })
    }

    /// When the next silent one is closed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.open.values().filter_map(Connection::deadline).min()
    }

    /// Those that have been silent for too long.
    pub(super) fn late(&self, now: Instant) -> Vec<ConnectionId> {
        let late = |connection: &Connection| connection.deadline().is_some_and(|at| at <= now);
        self.open.iter().filter(|(_, connection)| late(connection)).map(|(id, _)| *id).collect()
    }

    /// Looks at a connection that poll named.
    pub(super) fn act(&mut self, id: ConnectionId, buffer: &mut [u8]) -> Act {
        let Some(connection) = self.open.get_mut(&id) else { return Act::Nothing };
        match connection.role {
            Role::New(_) => connection.hello(buffer),
            Role::Ui => connection.request(buffer),
            Role::Client => Act::Closed("A client gave up waiting for a server"),
            Role::BusyUi => Act::Closed("UI closed"),
        }
    }

    /// Forgets a connection, which closes it unless its socket is kept.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<OwnedFd> {
        self.open.remove(&id).map(|connection| connection.socket)
    }

    /// Sends a client why it is not attached, and closes.
    pub(super) fn refuse(&mut self, id: ConnectionId, code: u32, message: String) {
        if let Some(socket) = self.remove(id) {
            refuse(&socket, code, message);
        }
    }

    /// Answers a front end; one that cannot take the answer is closed.
    pub(super) fn reply(&mut self, id: ConnectionId, reply: &UiReply) {
        let Some(connection) = self.open.get_mut(&id) else { return };
        connection.role = Role::Ui;
        let bytes = packet::encode(reply).or_else(|_| packet::encode(&too_long()));
        let sent = bytes.and_then(|bytes| packet::send(connection.socket.as_fd(), &bytes, None));
        if sent.is_err() {
            self.open.remove(&id);
        }
    }
}

impl Connection {
    fn deadline(&self) -> Option<Instant> {
        match self.role {
            Role::New(at) => Some(at),
            Role::Client | Role::Ui | Role::BusyUi => None,
        }
    }

    fn hello(&mut self, buffer: &mut [u8]) -> Act {
        match packet::receive(self.socket.as_fd(), buffer) {
            Ok(Received::Nothing) => Act::Nothing,
            Ok(Received::Message(Hello::Client(hello))) if hello.protocol == PROTOCOL_VERSION => {
                self.role = Role::Client;
                Act::Client(self.peer, Box::new(hello))
            }
            Ok(Received::Message(Hello::Ui { protocol: PROTOCOL_VERSION })) => {
                self.role = Role::Ui;
                Act::Ui
            }
            Ok(Received::Message(
                Hello::Client(ClientHello { protocol, .. }) | Hello::Ui { protocol },
            )) => {
                let message = format!(
                    "this daemon speaks version {PROTOCOL_VERSION} of the protocol, its peer version {protocol}: use one release of OpenMPS for both"
                );
                refuse(&self.socket, RPC_FAILURE, message);
                Act::Closed("Unknown type of connection: another version of the protocol")
            }
            Ok(Received::Garbage) => Act::Closed("Unknown type of connection"),
            Ok(Received::Closed) | Err(_) => {
                Act::Closed("Unable to read new connection type information")
            }
        }
    }

    fn request(&mut self, buffer: &mut [u8]) -> Act {
        match packet::receive(self.socket.as_fd(), buffer) {
            Ok(Received::Nothing) => Act::Nothing,
            Ok(Received::Message(request)) => {
                self.role = Role::BusyUi;
                match request {
                    UiRequest::Command { line } => Act::UiLine(self.peer, line),
                    UiRequest::State => Act::UiState,
                }
            }
            Ok(Received::Garbage) => Act::Closed("UI sent what is no command"),
            Ok(Received::Closed) | Err(_) => Act::Closed("UI closed"),
        }
    }
}

/// A peer that does not take its refusal learns it from the closing.
fn refuse(socket: &OwnedFd, code: u32, message: String) {
    if let Ok(bytes) = packet::encode(&HelloReply::Refused(Refusal { code, message })) {
        let _ = packet::send(socket.as_fd(), &bytes, None);
    }
}

fn too_long() -> UiReply {
    UiReply::Command {
        output: String::new(),
        error: "the answer is too long\n".to_owned(),
        exit_status: 0,
    }
}
