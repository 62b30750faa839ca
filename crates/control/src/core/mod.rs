//! What the daemon decides: events in, effects out; no I/O and no clock.
//!
//! The daemon's loop ([`crate::daemon`]) turns what happens on sockets and processes into
//! [`Event`]s and carries out the [`Effect`]s, in order. Rules of provisioning come from NVIDIA's
//! MPS guide, section 3.3 (one server at a time, of the user whose clients came first; others
//! queue); wording from the original's driver 580.
//!
//! - [`cleaning`]: how what a server says is read;
//! - [`clients`]: who the servers' clients are;
//! - [`command`]: lines of the shell as data;
//! - [`ending`]: ending the clients of a group's socket;
//! - [`events`]: what happens and what is to be done, as data;
//! - [`group_text`]: limits of groups as text;
//! - [`intake`]: what a server says, cleaned;
//! - [`origin`]: what `/proc` and the control groups say of a process;
//! - [`provision`]: clients, servers, their users, shutdown;
//! - [`shell`]: what each command prints and changes;
//! - [`shares`]: what changes while clients run;
//! - [`sockets`]: sockets whose clients are of one group;
//! - [`subordinates`]: whose subordinate user ids are.

mod cleaning;
pub mod clients;
pub mod command;
mod ending;
mod events;
pub mod group_text;
pub mod intake;
mod limits;
pub mod origin;
mod provision;
pub mod shares;
mod shell;
pub mod sockets;
pub mod subordinates;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use link::wire::attach::ClientHello;
use link::wire::daemon::{DeviceSnapshot, Peer, ServerSnapshot, ServerStatus};
use link::wire::group_socket::{Admission, GroupHolder, GroupSocket};
use link::wire::owner::Owner;
use link::wire::shares::{GroupLimits, Reservation};
use link::wire::ui::UiReply;

use clients::{Clients, Membership, Who};
use command::Pid;
pub use events::{ConnectionId, Effect, Event, Message, ServerExit};
pub use limits::Limits;
pub use settings::Provisioning;
use shell::Ask;

/// Time since the daemon started, as the caller measured it.
pub type Now = Duration;

/// A server that is not ready by then is killed, and its clients are told.
const SERVER_START_LIMIT: Duration = Duration::from_secs(120);
/// How long whoever asks for the state waits for a server's word before it gets what the server
/// said last, marked as such.
const STATE_ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The same for who gave a command, whose output has no room for such a mark: as long as it takes a
/// server that is merely busy.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Between telling a server to stop at once and killing it.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Clients of one user, or by one group's socket, that wait for a server, at most: as many as a
/// server takes. One more is refused.
const MAX_PENDING_CLIENTS: usize = 1024;
/// Connections on their way to one server, which it has not been sent yet: the others wait here,
/// where they count for who has them. A server that stands still gets no more, and one that is busy
/// reads hundreds at a time.
const MAX_ON_THE_WAY: usize = 64;
/// Clients that one server has had handed and has not said to have left. An honest one has half as
/// many, and refuses more.
const MAX_CLIENTS_OF_SERVER: usize = 2048;
/// Servers of users that run at a time, where each user has one. Each has contexts on all devices,
/// of some hundred MiB each, so no machine has use for more.
pub(crate) const MAX_SERVERS: usize = 64;
/// Of these, the servers that count for one user: its own, and those of its subordinate ids, of
/// which it can have thousands. The programs of a container are mostly one user's, so this is
/// enough for several containers that are not.
const MAX_SERVERS_OF_ONE: usize = 8;
/// How long others wait for a server without clients to end, which was asked to. An honest one
/// takes a second or two, and has nothing to lose; one that stands still never ends.
const IDLE_END_LIMIT: Duration = Duration::from_secs(10);

/// What the daemon is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its process id.
    pub daemon_pid: Pid,
    /// Its user; with 0 it can start servers for anybody.
    pub daemon_uid: u32,
    /// Its group, for servers of its own user.
    pub daemon_gid: u32,
    /// Whose clients get a server when.
    pub provisioning: Provisioning,
    /// Devices that were looked at when the daemon started (`-q`); shown while no server has said
    /// which there are.
    pub ready_devices: Vec<DeviceSnapshot>,
    /// What makes clients of the daemon's own socket a group.
    pub membership: Membership,
}

/// A server that runs.
#[derive(Debug)]
struct Server {
    pid: Pid,
    uid: u32,
    /// The user for whom it counts.
    counts_for: u32,
    status: ServerStatus,
    limits: Limits,
    snapshot: ServerSnapshot,
    /// Set while its devices are not known and limits name one by UUID: clients wait, or the limit
    /// would not hold.
    awaits_devices: bool,
    /// Until it has said that it is ready.
    start_deadline: Option<Now>,
    stopping: Stopping,
    /// When it is killed, while it has no clients and does not leave though others wait for that.
    idle_deadline: Option<Now>,
    questions: Questions,
    /// Connections that it has not been sent yet; at most [`MAX_ON_THE_WAY`].
    on_the_way: usize,
    /// The greatest of all servers': the one that a client came to or left last.
    used: u64,
}

/// Requests for a server's snapshot, by their ids. One is open at a time, whoever asks and however
/// often; those who ask meanwhile share the next one, since the answer to the open one may be older
/// than their question.
#[derive(Debug, Default)]
struct Questions {
    open: Option<u64>,
    next: Option<u64>,
}

/// Why a server is to stop when it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// By somebody's order.
    Ordered,
    /// For somebody who waits, and may give up.
    InTheWay,
}

/// How far a server is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    /// Told to stop when its clients have left.
    WhenIdle(Why),
    /// Told not to stop after all; it may have stopped before it heard that. Serves again with the
    /// answer to this request.
    Resuming(u64),
    /// Told to stop at once; killed at that time.
    Now(Now),
    Killed,
}

/// A server that is to be, or is being started.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    uid: u32,
    /// Where one is known.
    gid: Option<u32>,
    /// The user for whom it counts.
    counts_for: u32,
}

/// A client that waits for a server.
#[derive(Debug)]
struct Pending {
    connection: ConnectionId,
    who: Box<Who>,
    hello: Box<ClientHello>,
    admission: Option<Admission>,
}

/// A program under a debugger that waits for the devices to be free.
#[derive(Debug)]
struct Debugged {
    connection: ConnectionId,
    peer: Peer,
}

/// The daemon is on its way out.
#[derive(Debug)]
struct Quitting {
    force_at: Option<Now>,
    /// Front ends that wait for the end.
    waiting: Vec<ConnectionId>,
}

/// The daemon's state and rules.
#[derive(Debug)]
pub struct Core {
    config: Config,
    defaults: Limits,
    servers: Vec<Server>,
    clients: Clients,
    pending: VecDeque<Pending>,
    debugged: Vec<Debugged>,
    /// Users that a server was asked for by hand while another's was active.
    wanted: VecDeque<u32>,
    /// Whose process is being started.
    spawning: Vec<Wanted>,
    asks: Vec<Ask>,
    groups: Vec<GroupLimits>,
    reservations: Vec<Reservation>,
    /// Devices that programs that start do not get to.
    drained: Vec<u32>,
    sockets: Vec<GroupSocket>,
    /// Of groups with a socket, one each.
    holders: Vec<GroupHolder>,
    last_id: u64,
    quitting: Option<Quitting>,
    /// The daemon's exit status: 0 as long as every server, since the start, has ended with 0 by
    /// itself, as the original's manual has it.
    status: u8,
    effects: Vec<Effect>,
    /// Whose doing the present event is; nobody's: the daemon's own, or of who may command it.
    by: Option<Owner>,
}

impl Core {
    /// A daemon with no servers; `defaults` are those of its environment.
    pub fn new(config: Config, defaults: Limits) -> Self {
        Core {
            config,
            defaults,
            servers: Vec::new(),
            clients: Clients::default(),
            pending: VecDeque::new(),
            debugged: Vec::new(),
            wanted: VecDeque::new(),
            spawning: Vec::new(),
            asks: Vec::new(),
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: Vec::new(),
            last_id: 0,
            quitting: None,
            status: 0,
            effects: Vec::new(),
            by: None,
        }
    }

    /// Applies what was set before the daemon ran, over its environment; see [`crate::prepared`].
    /// Returns what it did not understand.
    pub fn prepare(&mut self, lines: &[String]) -> Vec<String> {
        let mut refused = Vec::new();
        for line in lines {
            if !self.defaults.set(&command::parse_line(line).command) {
                refused.push(line.clone());
            }
        }
        refused
    }

    /// Takes one event; the effects are to be carried out in order before the next event.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Effect> {
        self.by = self.cause(&event);
        match event {
            Event::ClientArrived { connection, who, hello, admission } => {
                self.client_arrived(Pending { connection, who, hello, admission });
            }
            Event::DebuggedArrived { connection, peer, debugger } => {
                self.debugged_arrived(connection, peer, &debugger);
            }
            Event::TracerArrived { connection, peer, pid } => {
                self.tracer_arrived(connection, peer, pid);
            }
            Event::UiLine { connection, peer, line } => self.ui_line(now, connection, peer, &line),
            Event::UiShares { connection, peer, request } => {
                self.share_request(now, connection, peer, request);
            }
            Event::UiSocket { connection, peer, request } => {
                self.socket_request(connection, peer, request);
            }
            Event::SocketOpened { connection, socket } => self.socket_opened(connection, socket),
            Event::SocketFailed { connection, message } => self.socket_failed(connection, message),
            Event::UiEndClients { connection, peer, directory } => {
                self.end_clients(connection, peer, &directory);
            }
            Event::UiState { connection } => self.ui_state(now, connection),
            Event::ConnectionClosed { connection } => self.connection_closed(connection),
            Event::ServerSpawned { pid, uid } => self.server_spawned(now, pid, uid),
            Event::SpawnFailed { uid, message } => self.spawn_failed(uid, &message),
            Event::ServerSaid { server, message } => self.server_said(server, message),
            Event::HandedOn { server } => self.handed_on(server),
            Event::ClientEnded { client } => self.client_ended(client),
            Event::ServerExited { server, exit } => self.server_exited(server, exit),
            Event::StopSignal => self.stop_signal(now),
            Event::Tick => {}
        }
        self.deadlines(now);
        self.settle(now);
        std::mem::take(&mut self.effects)
    }

    /// When [`Event::Tick`] must come at the latest.
    pub fn next_deadline(&self) -> Option<Now> {
        let servers = self.servers.iter().flat_map(|server| {
            let kill = match server.stopping {
                Stopping::Now(at) => Some(at),
                _ => None,
            };
            [server.start_deadline, server.idle_deadline, kill]
        });
        let asks = self.asks.iter().map(|ask| Some(ask.deadline));
        let quit = self.quitting.iter().map(|quitting| quitting.force_at);
        servers.chain(asks).chain(quit).flatten().min()
    }

    /// Everything, for [`Effect::ReplyState`], which names the silent servers.
    pub fn state(&self, silent: &[Pid]) -> UiReply {
        UiReply::State(link::wire::ui::DaemonState {
            daemon_pid: self.config.daemon_pid,
            log_directory: None,
            servers: self
                .servers
                .iter()
                .map(|server| link::wire::ui::ServerState {
                    pid: server.pid,
                    uid: server.uid,
                    status: server.status,
                    snapshot: server.snapshot.clone(),
                    silent: silent.contains(&server.pid),
                })
                .collect(),
            groups: self.groups.clone(),
            reservations: self.reservations.clone(),
            drained: self.drained.clone(),
            sockets: self.sockets.clone(),
            holders: self.holders.clone(),
        })
    }

    /// Whose doing an event is.
    fn cause(&self, event: &Event) -> Option<Owner> {
        let guest = |peer: &Peer| (!self.is_privileged(*peer)).then(|| Owner::of(peer));
        // Whoever it is that may trace it, or makes it start and end.
        let of_server = |pid: &Pid| Some(Owner::user(self.server(*pid)?.counts_for));
        match event {
            Event::ClientArrived { who, .. } => self.guest(who),
            Event::DebuggedArrived { peer, .. }
            | Event::TracerArrived { peer, .. }
            | Event::UiLine { peer, .. }
            | Event::UiShares { peer, .. }
            | Event::UiSocket { peer, .. }
            | Event::UiEndClients { peer, .. } => guest(peer),
            Event::ConnectionClosed { connection } => {
                let pending = self.pending.iter().find(|it| it.connection == *connection);
                let debugged = self.debugged.iter().find(|it| it.connection == *connection);
                match (pending, debugged) {
                    (Some(client), _) => self.guest(&client.who),
                    (None, Some(waiting)) => guest(&waiting.peer),
                    (None, None) => None,
                }
            }
            Event::ServerSpawned { uid, .. } | Event::SpawnFailed { uid, .. } => {
                let starting = self.spawning.iter().find(|wanted| wanted.uid == *uid);
                Some(Owner::user(starting.map_or(*uid, |wanted| wanted.counts_for)))
            }
            Event::ServerSaid { server, .. } | Event::ServerExited { server, .. } => {
                of_server(server)
            }
            Event::SocketOpened { .. }
            | Event::SocketFailed { .. }
            | Event::UiState { .. }
            | Event::HandedOn { .. }
            | Event::ClientEnded { .. }
            | Event::StopSignal
            | Event::Tick => None,
        }
    }

    /// Who a client counts for, unless that may command the daemon, and came by its own socket.
    fn guest(&self, who: &Who) -> Option<Owner> {
        let is_own = who.entrance.is_none() && self.is_privileged(who.peer);
        (!is_own).then(|| who.owner())
    }

    fn log(&mut self, line: impl Into<String>) {
        self.log_for(None, line);
    }

    /// The same in the name of another process.
    fn log_for(&mut self, pid: Option<Pid>, line: impl Into<String>) {
        let by = self.by.clone();
        self.effects.push(Effect::Log { line: line.into(), pid, by });
    }

    fn send(&mut self, server: Pid, message: Message) {
        self.effects.push(Effect::Send { server, message });
    }

    fn refuse(&mut self, connection: ConnectionId, code: u32, message: String) {
        self.effects.push(Effect::Refuse { connection, code, message });
    }

    fn server(&self, pid: Pid) -> Option<&Server> {
        self.servers.iter().find(|server| server.pid == pid)
    }

    fn server_mut(&mut self, pid: Pid) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| server.pid == pid)
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}
