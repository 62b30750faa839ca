//! Connections to the daemon's socket: who they are, what they may cost.
//!
//! A peer is believed nothing. One that says nothing is closed after a while; one that talks
//! nonsense is closed at once; a front end's next line is read only after its last one was
//! answered. Each user, and each group's socket, has half of the connections that others leave, at
//! most, and half of the descriptors; some are for root and the daemon's own user alone. Nobody
//! sends the daemon descriptors: those that come are not even taken, and the loop closes no
//! connection that may hold some ([`link::closer`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::closer::{Closer, Foreign};
use link::socket::{Connection as Socket, SocketError};
use link::wire::attach::{ClientHello, Hello, HelloReply, Refusal};
use link::wire::daemon::{Namespaces, Peer};
use link::wire::group_socket::{Admission, GroupSocket};
use link::wire::owner::Owner;
use link::wire::protocol_version;
use link::wire::ui::{UiReply, UiRequest};
use link::wire::version::{VersionError, Versions, agree};
use rustix::event::PollFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Deserialize;

use super::held::{Held, Holder};
use super::long_answer::{LongAnswer, Sent};
use super::origin::Home;
use crate::core::clients::Who;
use crate::core::shares::ShareRequest;
use crate::core::sockets::SocketRequest;
use crate::core::{ConnectionId, MAX_SERVERS};

/// A connection says what it is within this time.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// A front end of somebody who may not command the daemon is closed after so long without a
/// request.
const IDLE_LIMIT: Duration = Duration::from_secs(3600);
/// Connections at a time, at most.
const MAX_CONNECTIONS: usize = 4096;
/// One in so many is for who may command the daemon.
const RESERVED_SHARE: usize = 8;
/// Of all by one group's socket, at most.
const MAX_CONNECTIONS_OF_GROUP: usize = 64;
/// A connection, and the process at its other end.
const DESCRIPTORS_OF_CONNECTION: usize = 2;
/// Descriptors kept free for logs, the metrics, what passes through, and servers, of which each has
/// three: [`MAX_SERVERS`].
const SPARE_DESCRIPTORS: usize = 128 + 3 * MAX_SERVERS;
/// A peer that has no room for its answer is not waited for.
const NO_WAIT: Duration = Duration::ZERO;
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`.
const CONNECTION_FAILED: u32 = 805;
/// `CUDA_ERROR_MPS_RPC_FAILURE`.
const RPC_FAILURE: u32 = 806;
/// `CUDA_ERROR_NOT_PERMITTED`.
const NOT_PERMITTED: u32 = 800;

/// Tells where a connection stands.
#[derive(Debug)]
enum Role {
    /// Has not said what it is; closed at that time.
    New(Instant),
    /// Waits for a server; all it does now is leave.
    Client,
    /// May send a line; closed at that time, if one is given.
    Ui(Option<Instant>),
    /// Waits for an answer.
    BusyUi,
    /// Takes a long one.
    Answered(LongAnswer),
}

#[derive(Debug)]
struct Connection {
    socket: Foreign,
    who: Who,
    role: Role,
    standing: Standing,
    front_end: FrontEnd,
}

/// What a front end has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrontEnd {
    /// Nothing but ask for the state, of which the log says nothing.
    Asks,
    /// A command: the log says that it came, and when it goes.
    Commands,
}

/// Whose budget a connection counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Root's or the daemon's own user's, not in a container: who may command the daemon. As many
    /// as there are.
    Own,
    /// Of a group's socket, or of that user by the daemon's own.
    Guest,
}

/// What a connection did.
#[derive(Debug)]
pub(super) enum Act {
    /// It is a client, and came in so.
    Client(Box<Who>, Box<ClientHello>, Option<Admission>),
    /// It is a client under a debugger, which is named.
    Debugged(Peer, String),
    /// It wants to trace the client of this process.
    Trace(Peer, u32),
    /// It is a front end and sent a line.
    UiLine(Peer, String),
    /// It is a front end and changes shares.
    UiShares(Peer, ShareRequest),
    /// It is a front end and opens or closes a group's socket.
    UiSocket(Peer, SocketRequest),
    /// It is a front end and ends the clients that came by the group's socket of this directory.
    UiEndClients(Peer, String),
    /// It is a front end and wants everything.
    UiState,
    /// It has gone, with a line for the log if that says anything of it.
    Closed(Option<&'static str>),
    /// Nothing, yet.
    Nothing,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Connections {
    open: BTreeMap<ConnectionId, Connection>,
    last: u64,
    max: usize,
    max_descriptors: usize,
    home: Home,
    closer: Closer,
}

/// What was made of a new connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Added {
    /// It may speak.
    Yes,
    /// Its process has ended, and who has its number now nobody can tell.
    Gone,
    /// There are too many, or too many of this one's.
    TooMany(Owner),
    /// Its user is outside of this process's user namespace, like all others there: nobody can tell
    /// whose server it should have.
    UnknownUser(Owner),
}

impl Connections {
    /// Raises the limit of descriptors as far as it goes.
    pub(super) fn new(closer: Closer) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, wanted);
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let max_descriptors = descriptors.saturating_sub(SPARE_DESCRIPTORS);
        let max = max_descriptors / DESCRIPTORS_OF_CONNECTION;
        Connections {
            open: BTreeMap::new(),
            last: 0,
            max: max.clamp(16, MAX_CONNECTIONS),
            max_descriptors: max_descriptors.max(16 * DESCRIPTORS_OF_CONNECTION),
            home: Home::new(),
            closer,
        }
    }

    /// Takes a new connection, unless its user has too many.
    pub(super) fn add(
        &mut self,
        socket: Socket,
        entrance: Option<Arc<GroupSocket>>,
        held: &Held<'_>,
        now: Instant,
    ) -> Result<Added, SocketError> {
        let peer = match socket.peer() {
            Ok(peer) => peer,
            Err(error) => {
                // Nobody's: not to be closed here all the same.
                drop(self.closer.guard(Owner::user(u32::MAX), socket));
                return Err(error);
            }
        };
        let entrance_group = entrance.as_ref().map(|entrance| entrance.group.clone());
        let owner_of = |peer: &Peer| Owner { entrance: entrance_group.clone(), ..Owner::of(peer) };
        let may_be_own = entrance.is_none() && self.home.trusts(peer.uid);
        let presumed = if may_be_own { Standing::Own } else { Standing::Guest };
        let open = self.open.len() + self.closer.waiting_of_all();
        // As far as its id says whose it is: of those who have their part already nothing more is
        // read.
        self.home.refresh();
        let peer = self.home.accountable_by_id(peer);
        let by_id = owner_of(&peer);
        let is_refused = |owner: &Owner, standing: Standing| {
            let is_guest = standing == Standing::Guest;
            open >= self.max
                || self.closer.is_behind(owner)
                || (is_guest && !self.has_room_for_guest(owner, entrance.as_ref(), held))
        };
        if is_refused(&by_id, presumed) {
            drop(self.closer.guard(by_id.clone(), socket));
            return Ok(Added::TooMany(by_id));
        }
        if !self.home.can_tell(peer.uid) {
            let message = format!(
                "user {} stands for all users outside of the daemon's user namespace: run the daemon outside of it, or the program as a user whom that maps",
                peer.uid
            );
            refuse(&self.closer.guard(by_id.clone(), socket), CONNECTION_FAILED, message);
            return Ok(Added::UnknownUser(by_id));
        }
        let looked = self.home.look(&socket, peer);
        let owner = looked.as_ref().map_or_else(|| by_id.clone(), |who| owner_of(&who.peer));
        // Root of a container is a guest.
        let standing = match &looked {
            Some(who) if may_be_own && who.peer.namespaces == Namespaces::Shared => Standing::Own,
            _ => Standing::Guest,
        };
        let is_refused = (&owner, standing) != (&by_id, presumed) && is_refused(&owner, standing);
        let socket = self.closer.guard(owner.clone(), socket);
        let Some(who) = looked else { return Ok(Added::Gone) };
        if is_refused {
            return Ok(Added::TooMany(owner));
        }
        let who = Who { entrance, ..who };
        self.last += 1;
        let role = Role::New(now + HELLO_LIMIT);
        let connection = Connection { socket, who, role, standing, front_end: FrontEnd::Asks };
        self.open.insert(ConnectionId(self.last), connection);
        Ok(Added::Yes)
    }

    /// Whether a guest may have one more, who came by a group's socket or counts for this user.
    fn has_room_for_guest(
        &self,
        owner: &Owner,
        entrance: Option<&Arc<GroupSocket>>,
        held: &Held<'_>,
    ) -> bool {
        let is_same = |other: &Connection| match (&other.who.entrance, entrance) {
            (Some(known), Some(entrance)) => Arc::ptr_eq(known, entrance),
            (None, None) => other.who.peer.accountable() == owner.uid,
            _ => false,
        };
        let (mut guests, mut same) = (self.closer.waiting_of_all(), self.closer.waiting(owner));
        for other in self.open.values().filter(|other| other.standing == Standing::Guest) {
            guests += 1;
            same += usize::from(is_same(other));
        }
        let has_room = |all: usize, guests: usize, same: usize| {
            same < (all - all / RESERVED_SHARE).saturating_sub(guests)
        };
        if !has_room(self.max, guests, same)
            || (entrance.is_some() && same >= MAX_CONNECTIONS_OF_GROUP)
        {
            return false;
        }
        guests *= DESCRIPTORS_OF_CONNECTION;
        same *= DESCRIPTORS_OF_CONNECTION;
        let group = owner.entrance.as_deref();
        for holder in held.holders().filter(|holder| self.is_guest(holder)) {
            guests += 1;
            same +=
                usize::from(holder.group == group && (group.is_some() || holder.uid == owner.uid));
        }
        has_room(self.max_descriptors, guests, same)
    }

    fn is_guest(&self, holder: &Holder<'_>) -> bool {
        holder.group.is_some()
            || holder.namespaces == Namespaces::Own
            || !self.home.trusts(holder.uid)
    }

    /// Whose a connection is, unless that may command the daemon.
    pub(super) fn guest(&self, id: ConnectionId) -> Option<Owner> {
        let connection = self.open.get(&id)?;
        (connection.standing == Standing::Guest).then(|| connection.socket.owner().clone())
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = (ConnectionId, &Foreign, PollFlags)> {
        self.open.iter().map(|(id, connection)| {
            let flags = match connection.role {
                Role::New(_) | Role::Ui(_) => PollFlags::IN,
                // Closing is told unasked.
                Role::Client | Role::BusyUi => PollFlags::empty(),
                Role::Answered(_) => PollFlags::OUT,
            };
            (*id, &connection.socket, flags)
        })
    }

    /// When the next silent one is closed.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.open.values().filter_map(Connection::deadline).min()
    }

    /// Those that have been silent for too long, each with a line for the log.
    pub(super) fn late(&self, now: Instant) -> Vec<(ConnectionId, &'static str)> {
        let late = |(_, connection): &(&ConnectionId, &Connection)| {
            connection.deadline().is_some_and(|at| at <= now)
        };
        let line = |connection: &Connection| match connection.role {
            Role::Ui(_) => "UI closed: it has asked for nothing in an hour",
            _ => "Unable to read new connection type information",
        };
        self.open.iter().filter(late).map(|(id, connection)| (*id, line(connection))).collect()
    }

    /// Looks at a connection that poll named.
    pub(super) fn act(&mut self, id: ConnectionId) -> Act {
        let Some(connection) = self.open.get_mut(&id) else { return Act::Nothing };
        match connection.role {
            Role::New(_) => connection.hello(),
            Role::Ui(_) => connection.request(),
            Role::Client => Act::Closed(Some("A client gave up waiting for a server")),
            Role::BusyUi => connection.ui_closed(),
            Role::Answered(_) => connection.answer_on(),
        }
    }

    /// Whether this is a front end's first command.
    pub(super) fn becomes_commander(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.open.get_mut(&id) else { return false };
        std::mem::replace(&mut connection.front_end, FrontEnd::Commands) == FrontEnd::Asks
    }

    /// Forgets a connection, which closes it unless its socket is kept.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Foreign> {
        self.open.remove(&id).map(|connection| connection.socket)
    }

    /// Closes those that came by the group's socket of this directory and have not said yet what
    /// they are.
    pub(super) fn close_unheard(&mut self, directory: &str) {
        self.open.retain(|_, connection| {
            let entrance = connection.who.entrance.as_ref();
            let is_by_it = entrance.is_some_and(|entrance| entrance.directory == directory);
            !(is_by_it && matches!(connection.role, Role::New(_)))
        });
    }

    /// Sends a client why it is not attached, and closes.
    pub(super) fn refuse(&mut self, id: ConnectionId, code: u32, message: String) {
        if let Some(socket) = self.remove(id) {
            refuse(&socket, code, message);
        }
    }

    /// Tells a client to use the native driver, and closes.
    pub(super) fn release(&mut self, id: ConnectionId) {
        if let Some(socket) = self.remove(id) {
            // A peer that does not take it learns it from the closing, too.
            let _ = socket.send(&HelloReply::Native, &[], NO_WAIT);
        }
    }

    /// Answers a front end; one that cannot take the answer is closed.
    pub(super) fn reply(&mut self, id: ConnectionId, reply: &UiReply) {
        let Some(connection) = self.open.get_mut(&id) else { return };
        connection.await_request();
        let sent = connection.socket.send(reply, &[], NO_WAIT);
        if matches!(sent, Err(SocketError::TooLong)) {
            return self.reply_long(id, reply);
        }
        if sent.is_err() {
            self.open.remove(&id);
        }
    }

    /// The same, where the answer is longer than a packet: it goes as the front end takes it. How
    /// much of such answers is held for those who do not is limited.
    fn reply_long(&mut self, id: ConnectionId, reply: &UiReply) {
        let held = self.open.values().map(|other| match &other.role {
            Role::Answered(answer) => (other.who.peer.accountable(), answer.held_bytes()),
            _ => (other.who.peer.accountable(), 0),
        });
        let held: Vec<(u32, usize)> = held.collect();
        let Some(connection) = self.open.get_mut(&id) else { return };
        let uid = connection.who.peer.accountable();
        let is_done = match LongAnswer::new(reply, uid, &held) {
            Some(answer) => {
                connection.role = Role::Answered(answer);
                matches!(connection.answer_on(), Act::Closed(_))
            }
            None => connection.socket.send(&too_long(), &[], NO_WAIT).is_err(),
        };
        if is_done {
            self.open.remove(&id);
        }
    }
}

impl Connection {
    fn deadline(&self) -> Option<Instant> {
        match &self.role {
            Role::New(at) => Some(*at),
            Role::Ui(at) => *at,
            Role::Answered(answer) => Some(answer.deadline),
            Role::Client | Role::BusyUi => None,
        }
    }

    fn ui_closed(&self) -> Act {
        Act::Closed((self.front_end == FrontEnd::Commands).then_some("UI closed"))
    }

    fn await_request(&mut self) {
        let is_guest = self.standing == Standing::Guest;
        self.role = Role::Ui(is_guest.then(|| Instant::now() + IDLE_LIMIT));
    }

    fn hello(&mut self) -> Act {
        let packet = match self.socket.try_hear_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Act::Nothing,
            Err(error) if is_garbage(&error) => {
                return Act::Closed(Some("Unknown type of connection"));
            }
            Err(_) => {
                return Act::Closed(Some("Unable to read new connection type information"));
            }
        };
        // First whether they understand each other: what follows may have another form.
        if let Err(misfit) = judge(&packet) {
            return self.refuse_misfit(misfit);
        }
        match serde_json::from_slice(&packet) {
            Ok(Hello::Client(hello)) => {
                let mut hello = match hello.bounded() {
                    Ok(hello) => hello,
                    Err(error) => {
                        refuse(&self.socket, CONNECTION_FAILED, error.to_string());
                        return Act::Closed(Some("A client's variable is too long: refused"));
                    }
                };
                let control_group = self.who.origin.bounding_group.as_deref();
                let admission =
                    self.who.entrance.as_ref().map(|entrance| entrance.admission(control_group));
                let admission = match admission.transpose() {
                    Ok(admission) => admission,
                    Err(error) => {
                        refuse(&self.socket, CONNECTION_FAILED, error.to_string());
                        return Act::Closed(Some(
                            "A client's control group cannot be a group: refused",
                        ));
                    }
                };
                self.role = Role::Client;
                if let Some(entrance) = &self.who.entrance {
                    entrance.restrict(&mut hello.limits);
                }
                Act::Client(Box::new(self.who.clone()), Box::new(hello), admission)
            }
            // Behind it are other groups' clients, whom neither may disturb: a front end commands,
            // and a debugger has all others leave; a tracer looks into them.
            Ok(Hello::Debugged { .. } | Hello::Ui { .. } | Hello::Trace { .. })
                if self.who.entrance.is_some() =>
            {
                let message = "this socket is for the clients of one group: commands, debuggers and traces need the daemon's own";
                refuse(&self.socket, NOT_PERMITTED, message.into());
                Act::Closed(Some("A front end or a debugger came by a group's socket: refused"))
            }
            Ok(Hello::Debugged { debugger, .. }) => {
                self.role = Role::Client;
                Act::Debugged(self.who.peer, debugger)
            }
            Ok(Hello::Trace { pid, .. }) => {
                self.role = Role::Client;
                Act::Trace(self.who.peer, pid)
            }
            Ok(Hello::Ui { .. }) => {
                self.await_request();
                Act::Nothing
            }
            Err(_) => Act::Closed(Some("Unknown type of connection")),
        }
    }

    fn refuse_misfit(&self, misfit: Misfit) -> Act {
        let (pid, ours) = (std::process::id(), protocol_version());
        let message = match misfit {
            Misfit::Build(theirs) => format!(
                "this daemon is of another build of OpenMPS (protocol {ours:08x} instead of {theirs:08x}), as after an upgrade: restart it (systemctl restart openmps; or kill its process {pid}, and start it again)"
            ),
            Misfit::Library(error) => format!("{error}; the daemon is process {pid}"),
            Misfit::Nonsense => return Act::Closed(Some("Unknown type of connection")),
        };
        refuse(&self.socket, RPC_FAILURE, message);
        Act::Closed(Some("Unknown type of connection: another version of the protocol"))
    }

    /// Sends what the front end has room for of its long answer.
    fn answer_on(&mut self) -> Act {
        let Role::Answered(answer) = &mut self.role else { return Act::Nothing };
        match answer.send(&self.socket) {
            Ok(Sent::Some) => {}
            Ok(Sent::All) => self.await_request(),
            Err(_) => return self.ui_closed(),
        }
        Act::Nothing
    }

    fn request(&mut self) -> Act {
        match self.socket.try_hear() {
            Ok(None) => Act::Nothing,
            Ok(Some(request)) => {
                self.role = Role::BusyUi;
                match request {
                    UiRequest::Command { line } => Act::UiLine(self.who.peer, line),
                    UiRequest::State => Act::UiState,
                    UiRequest::EndClients { directory } => {
                        Act::UiEndClients(self.who.peer, directory)
                    }
                    UiRequest::Limit(change) => {
                        Act::UiShares(self.who.peer, ShareRequest::Limit(change))
                    }
                    UiRequest::OpenSocket(socket) => {
                        Act::UiSocket(self.who.peer, SocketRequest::Open(socket))
                    }
                    UiRequest::NameHolder(holder) => {
                        Act::UiSocket(self.who.peer, SocketRequest::Name(holder))
                    }
                    UiRequest::CloseSocket { directory } => {
                        Act::UiSocket(self.who.peer, SocketRequest::Close(directory))
                    }
                    UiRequest::Reserve(wanted) => {
                        Act::UiShares(self.who.peer, ShareRequest::Reserve(wanted))
                    }
                    UiRequest::Release { name } => {
                        Act::UiShares(self.who.peer, ShareRequest::Release(name))
                    }
                    UiRequest::Move(wanted) => {
                        Act::UiShares(self.who.peer, ShareRequest::Move(wanted))
                    }
                    UiRequest::Drain { device } => {
                        Act::UiShares(self.who.peer, ShareRequest::Drain(device))
                    }
                    UiRequest::Undrain { device } => {
                        Act::UiShares(self.who.peer, ShareRequest::Undrain(device))
                    }
                }
            }
            Err(error) if is_garbage(&error) => Act::Closed(Some("UI sent what is no command")),
            Err(_) => self.ui_closed(),
        }
    }
}

/// The part of a [`Hello`] that all builds have in common, by the kind of peer.
type Opening = BTreeMap<String, Spoken>;

/// What a peer speaks: a library says versions, a front end the number of its build.
#[derive(Deserialize)]
struct Spoken {
    versions: Option<Versions>,
    protocol: Option<u32>,
}

/// Why a peer is not heard.
enum Misfit {
    /// A library without a version in common.
    Library(VersionError),
    /// A front end of another build, whose protocol this is.
    Build(u32),
    /// Nothing that was ever spoken here.
    Nonsense,
}

/// Whether the daemon understands who opens so.
fn judge(packet: &[u8]) -> Result<(), Misfit> {
    let opening: Opening = serde_json::from_slice(packet).map_err(|_| Misfit::Nonsense)?;
    let (kind, spoken) = opening.first_key_value().ok_or(Misfit::Nonsense)?;
    if ["client", "debugged"].contains(&kind.as_str()) {
        let server = Versions::ours();
        let versions = spoken.versions.ok_or(VersionError::Unnamed { server });
        let agreed = versions.and_then(|library| agree(library, server));
        return agreed.map(drop).map_err(Misfit::Library);
    }
    match spoken.protocol {
        Some(theirs) if theirs == protocol_version() => Ok(()),
        Some(theirs) => Err(Misfit::Build(theirs)),
        None => Err(Misfit::Nonsense),
    }
}

/// A peer that does not take its refusal learns it from the closing.
fn refuse(socket: &Socket, code: u32, message: String) {
    let _ = socket.send(&HelloReply::Refused(Refusal { code, message }), &[], NO_WAIT);
}

/// Something came, but no message.
fn is_garbage(error: &SocketError) -> bool {
    matches!(
        error,
        SocketError::NotUnderstood(_) | SocketError::TooLong | SocketError::UnwantedDescriptors
    )
}

fn too_long() -> UiReply {
    UiReply::Command {
        output: String::new(),
        error: "too many long answers wait for those who asked: try again in a moment\n".to_owned(),
        exit_status: 0,
    }
}
