//! What happens to the daemon, and what it is to do: all that passes between its loop
//! ([`crate::daemon`]) and [`Core`](super::Core).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use link::wire::attach::ClientHello;
use link::wire::daemon::{Peer, ShutdownMode, ToDaemon, ToServer};
use link::wire::group_socket::{Admission, GroupSocket};
use link::wire::owner::Owner;
use link::wire::shares::ServerChange;
use link::wire::ui::UiReply;

use super::clients::Who;
use super::command::Pid;
use super::shares::ShareRequest;
use super::sockets::SocketRequest;

/// Names a connection of the daemon; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A CUDA program asks to be attached.
    ClientArrived {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        who: Box<Who>,
        /// What it said.
        hello: Box<ClientHello>,
        /// How it came in, if by a group's socket.
        admission: Option<Admission>,
    },
    /// A CUDA program under a debugger asks when it may run natively.
    DebuggedArrived {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
        /// The debugger, as the program names it.
        debugger: String,
    },
    /// Somebody wants to trace a client.
    TracerArrived {
        /// Their connection.
        connection: ConnectionId,
        /// Who they are.
        peer: Peer,
        /// The client's process.
        pid: Pid,
    },
    /// A front end sent a line.
    UiLine {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
        /// The line.
        line: String,
    },
    /// A front end changes shares.
    UiShares {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
        /// What it asks for.
        request: ShareRequest,
    },
    /// A front end opens or closes a group's socket.
    UiSocket {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
        /// What it asks for.
        request: SocketRequest,
    },
    /// [`Effect::OpenSocket`] was carried out.
    SocketOpened {
        /// Who asked.
        connection: ConnectionId,
        /// What for.
        socket: GroupSocket,
    },
    /// [`Effect::OpenSocket`] failed.
    SocketFailed {
        /// Who asked.
        connection: ConnectionId,
        /// Why.
        message: String,
    },
    /// A front end ends the clients that came by a group's socket.
    UiEndClients {
        /// Its connection.
        connection: ConnectionId,
        /// Who it is.
        peer: Peer,
        /// The socket's directory.
        directory: String,
    },
    /// A front end asks for everything.
    UiState {
        /// Its connection.
        connection: ConnectionId,
    },
    /// A connection has been closed by its peer.
    ConnectionClosed {
        /// Which.
        connection: ConnectionId,
    },
    /// [`Effect::Spawn`] was carried out.
    ServerSpawned {
        /// The new process.
        pid: Pid,
        /// Its user.
        uid: u32,
    },
    /// [`Effect::Spawn`] failed.
    SpawnFailed {
        /// Whose server it would have been.
        uid: u32,
        /// Why.
        message: String,
    },
    /// A server sent a message.
    ServerSaid {
        /// Which.
        server: Pid,
        /// What.
        message: ToDaemon,
    },
    /// A connection has gone to a server, or will not: of [`Effect::Forward`] or
    /// [`Effect::HandTracer`].
    HandedOn {
        /// Which server.
        server: Pid,
    },
    /// The process of a client that was handed on has ended.
    ClientEnded {
        /// The client's number.
        client: u64,
    },
    /// A server's process has ended.
    ServerExited {
        /// Which.
        server: Pid,
        /// How.
        exit: ServerExit,
    },
    /// The daemon was told by a signal to stop; a second one forces.
    StopSignal,
    /// Time has passed.
    Tick,
}

/// How a server's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerExit {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// What to do.
#[derive(Debug)]
pub enum Effect {
    /// Write a line to the control log, in the name of the daemon or of another process.
    Log {
        /// Without its newline.
        line: String,
        /// Shown instead of the daemon's own.
        pid: Option<Pid>,
        /// Whose doing it is; nobody's: the daemon's own, or of who may command it.
        by: Option<Owner>,
    },
    /// Start a server process; answered by [`Event::ServerSpawned`] or [`Event::SpawnFailed`].
    Spawn {
        /// Its user.
        uid: u32,
        /// Its group, where one is known.
        gid: Option<u32>,
        /// The user for whom it counts.
        counts_for: u32,
    },
    /// Send a message to a server.
    Send {
        /// Which.
        server: Pid,
        /// What.
        message: Message,
    },
    /// Hand a tracer's socket to the server that has the client, and forget it; answered by
    /// [`Event::HandedOn`].
    HandTracer {
        /// The tracer.
        connection: ConnectionId,
        /// To whom.
        server: Pid,
        /// The client's process.
        pid: Pid,
        /// Who the tracer is.
        peer: Peer,
    },
    /// Hand a client's socket to a server and forget it; answered by [`Event::HandedOn`].
    Forward {
        /// The client.
        connection: ConnectionId,
        /// To whom.
        server: Pid,
        /// Its number from now on; see [`Event::ClientEnded`].
        client: u64,
        /// What it said.
        hello: Box<ClientHello>,
        /// Who it is.
        who: Box<Who>,
        /// How it came in.
        admission: Option<Admission>,
    },
    /// Open a group's socket; answered by [`Event::SocketOpened`] or [`Event::SocketFailed`].
    OpenSocket {
        /// Who asks.
        connection: ConnectionId,
        /// What for.
        socket: GroupSocket,
    },
    /// Close a group's socket, and what has come by it and said nothing yet.
    CloseSocket {
        /// Its directory.
        directory: String,
    },
    /// Tell a client that it is not attached, and close.
    Refuse {
        /// The client.
        connection: ConnectionId,
        /// Why.
        code: u32,
        /// For its log.
        message: String,
    },
    /// Tell a client to run natively, and close.
    Release {
        /// The client.
        connection: ConnectionId,
    },
    /// Answer a front end.
    Reply {
        /// Which.
        connection: ConnectionId,
        /// For standard output.
        output: String,
        /// For standard error.
        error: String,
        /// For its exit status.
        exit_status: u8,
    },
    /// Answer a front end that changed shares.
    ReplyShares {
        /// Which.
        connection: ConnectionId,
        /// What came of it.
        reply: UiReply,
    },
    /// Answer a front end with everything.
    ReplyState {
        /// Which.
        connection: ConnectionId,
        /// Servers that were asked and have not answered in time.
        silent: Vec<Pid>,
    },
    /// Kill a client's process.
    EndProcess {
        /// The very process that connected.
        process: Arc<OwnedFd>,
    },
    /// Kill a server's process.
    Kill {
        /// Which.
        server: Pid,
    },
    /// End the daemon.
    Exit {
        /// With this status.
        status: u8,
    },
}

/// What the core says to a server by itself; see [`Effect::Forward`] for the rest of [`ToServer`].
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// [`ToServer::Snapshot`].
    Snapshot(u64),
    /// [`ToServer::Terminate`].
    Terminate {
        /// Names the request.
        id: u64,
        /// The client.
        client: Pid,
    },
    /// [`ToServer::Change`].
    Change {
        /// Names the request.
        id: u64,
        /// What.
        change: ServerChange,
    },
    /// [`ToServer::SetDefaults`].
    SetDefaults(link::wire::daemon::Defaults),
    /// [`ToServer::Shutdown`].
    Shutdown(ShutdownMode),
    /// [`ToServer::Resume`].
    Resume(u64),
}

impl From<Message> for ToServer {
    fn from(message: Message) -> Self {
        match message {
            Message::Snapshot(id) => ToServer::Snapshot { id },
            Message::Terminate { id, client } => ToServer::Terminate { id, pid: client },
            Message::Change { id, change } => ToServer::Change { id, change },
            Message::SetDefaults(defaults) => ToServer::SetDefaults(defaults),
            Message::Shutdown(mode) => ToServer::Shutdown(mode),
            Message::Resume(id) => ToServer::Resume { id },
        }
    }
}
