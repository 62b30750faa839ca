//! Which server serves whom: starting, queueing, forwarding, stopping.

use std::collections::BTreeSet;

use link::printable_prefix;
use link::wire::daemon::{Peer, ServerSnapshot, ServerStatus, ShutdownMode, ToDaemon};
use link::wire::owner::Owner;
use settings::{User, parse_users};

use super::clients::{ClientRecord, Who};
use super::command::{Pid, ShutdownKind};
use super::sockets::SOCKET_CLOSED;
use super::{
    ConnectionId, Core, Debugged, Effect, IDLE_END_LIMIT, KILL_GRACE, MAX_CLIENTS_OF_SERVER,
    MAX_ON_THE_WAY, MAX_PENDING_CLIENTS, MAX_SERVERS, MAX_SERVERS_OF_ONE, Message, Now, Pending,
    Provisioning, Questions, Quitting, SERVER_START_LIMIT, Server, ServerExit, Stopping, Wanted,
    Why,
};

/// `CUDA_ERROR_INVALID_CONTEXT`.
const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`.
pub(super) const CONNECTION_FAILED: u32 = 805;
/// `CUDA_ERROR_MPS_SERVER_NOT_READY`.
const SERVER_NOT_READY: u32 = 807;
/// `CUDA_ERROR_MPS_MAX_CLIENTS_REACHED`.
const MAX_CLIENTS_REACHED: u32 = 809;
/// Of what a client says of its debugger, so much goes to the log.
const LONGEST_DEBUGGER_NAME: usize = 64;
/// What a stop by signal gives clients to finish; service managers kill after a time of their own.
const SIGNAL_QUIT_LIMIT: Now = Now::from_secs(10);

impl Core {
    /// Whose server serves this user.
    fn server_uid(&self, uid: u32) -> u32 {
        match self.config.provisioning {
            Provisioning::Multiuser => self.config.daemon_uid,
            Provisioning::OneUserAtATime | Provisioning::Concurrent => uid,
        }
    }

    fn may_start_for(&self, uid: u32) -> bool {
        self.config.daemon_uid == 0 || self.config.daemon_uid == uid
    }

    pub(super) fn client_arrived(&mut self, client: Pending) {
        let Peer { pid, uid, .. } = client.who.peer;
        let connection = client.connection;
        let server_uid = self.server_uid(uid);
        if self.quitting.is_some() {
            self.log("The MPS control daemon is shutting down");
            self.refuse(connection, SERVER_NOT_READY, "the control daemon is shutting down".into());
        } else if !self.may_start_for(server_uid) {
            self.log(format!("Insufficient privileges for UID {uid}"));
            let message = format!(
                "the control daemon runs as user {} and cannot serve user {uid}: start it as root, or one per user with its own CUDA_MPS_PIPE_DIRECTORY",
                self.config.daemon_uid
            );
            self.refuse(connection, CONNECTION_FAILED, message);
        } else if !self.is_open(client.who.entrance.as_deref()) {
            self.log(format!("NEW CLIENT {pid} from user {uid}: its group's socket was closed"));
            self.refuse(connection, CONNECTION_FAILED, SOCKET_CLOSED.into());
        } else if let Some(message) = self.too_many_wait(self.guest(&client.who)) {
            self.log(format!("NEW CLIENT {pid} from user {uid}: {message}, refused"));
            self.refuse(connection, SERVER_NOT_READY, message);
        } else {
            let served = self.serving(server_uid).is_some_and(|server| server.takes_clients());
            let state = if served {
                "Server already exists"
            } else {
                "Server is not ready, push client to pending list"
            };
            self.log(format!("NEW CLIENT {pid} from user {uid}: {state}"));
            self.pending.push_back(client);
        }
    }

    /// Why no more clients of one owner may wait, if so. Others' do not count, and root and the
    /// daemon's own user have as many as they like.
    fn too_many_wait(&self, owner: Option<Owner>) -> Option<String> {
        let owner = owner?;
        let pending = self.pending.iter().filter(|client| client.who.owner() == owner).count();
        let is_same = |waiting: &&Debugged| owner == Owner::of(&waiting.peer);
        let debugged = self.debugged.iter().filter(is_same).count();
        (pending + debugged >= MAX_PENDING_CLIENTS)
            .then(|| format!("{MAX_PENDING_CLIENTS} clients of {owner} wait for a server already"))
    }

    /// The server of a user that is there to stay.
    fn serving(&self, uid: u32) -> Option<&Server> {
        self.servers.iter().find(|server| server.uid == uid && server.stopping == Stopping::No)
    }

    pub(super) fn connection_closed(&mut self, connection: ConnectionId) {
        self.pending.retain(|client| client.connection != connection);
        self.debugged.retain(|client| client.connection != connection);
        self.asks.retain(|ask| ask.connection != connection);
        if let Some(quitting) = &mut self.quitting {
            quitting.waiting.retain(|waiting| *waiting != connection);
        }
    }

    /// A program under a CUDA debugger runs without a server: it waits until there is none (MPS
    /// guide, 2.3.6.1).
    pub(super) fn debugged_arrived(
        &mut self,
        connection: ConnectionId,
        peer: Peer,
        debugger: &str,
    ) {
        let Peer { pid, uid, .. } = peer;
        if let Some(message) = self.too_many_wait(self.by.clone()) {
            return self.refuse(connection, SERVER_NOT_READY, message);
        }
        // The name is the client's own word.
        let debugger = printable_prefix(debugger, LONGEST_DEBUGGER_NAME);
        self.log(format!(
            "NEW CLIENT {pid} from user {uid}: it runs under {debugger}, without a server, once all clients have left"
        ));
        self.debugged.push(Debugged { connection, peer });
    }

    /// Hands a tracer on to the server that has the client, which decides whether it may be traced.
    /// Which one that is, the daemon has noted: a server runs as its user, who could answer in
    /// another user's client's place.
    pub(super) fn tracer_arrived(&mut self, connection: ConnectionId, peer: Peer, pid: Pid) {
        let may_trace = |client: &ClientRecord| {
            client.who.peer.uid == peer.uid || self.check_privilege(peer).is_ok()
        };
        // Processes that the daemon cannot see have no number that tells them apart.
        let is_it = |client: &&ClientRecord| pid != 0 && client.who.peer.pid == pid;
        let clients = self.clients.attached().map(|(_, client)| client);
        // A server may be slow to say that the process's earlier client has left.
        let server = clients.filter(is_it).last().filter(|client| may_trace(client));
        let Some(server) = server.map(|client| client.server) else {
            let message = format!(
                "there is no client {pid} that user {} may trace: `openmps ps` lists clients",
                peer.uid
            );
            return self.refuse(connection, INVALID_CONTEXT, message);
        };
        match self.server_mut(server) {
            Some(server) if server.has_room_on_the_way() => server.on_the_way += 1,
            _ => {
                let message = format!(
                    "the server of client {pid} takes in nobody: {MAX_ON_THE_WAY} connections wait for it already"
                );
                return self.refuse(connection, SERVER_NOT_READY, message);
            }
        }
        self.effects.push(Effect::HandTracer { connection, server, pid, peer });
    }

    /// Whether a program under a debugger waits for a server to leave: for its own user's, and for
    /// one that has a device to itself if it may command the daemon. Others' servers are none of
    /// its business; where all users share one, that needs a privilege.
    fn waits_for(&self, peer: Peer, server: &Server) -> bool {
        const EXCLUSIVE_PROCESS: u32 = 3;
        let is_own = server.uid == peer.uid && self.config.provisioning != Provisioning::Multiuser;
        let mut devices = server.snapshot.devices.iter();
        let keeps_out = server.uid == peer.uid
            || devices.any(|device| device.compute_mode == EXCLUSIVE_PROCESS);
        is_own || (keeps_out && self.check_privilege(peer).is_ok())
    }

    /// Lets programs under debuggers go when no server is in their way.
    fn release_debugged(&mut self) {
        let (waiting, free): (Vec<Debugged>, Vec<Debugged>) = std::mem::take(&mut self.debugged)
            .into_iter()
            .partition(|Debugged { peer, .. }| {
                self.servers.iter().any(|server| self.waits_for(*peer, server))
                    || self.is_spawning(peer.uid)
            });
        self.debugged = waiting;
        for Debugged { connection, peer } in free {
            self.log(format!("Client {} under a debugger goes on without a server", peer.pid));
            self.effects.push(Effect::Release { connection });
        }
    }

    /// The servers that programs under debuggers wait for; one that starts serves those first for
    /// whom it starts.
    fn in_the_way_of_debugged(&self) -> Vec<Pid> {
        let waited_for = |server: &&Server| {
            server.was_ready()
                && !server.awaits_devices
                && self.debugged.iter().any(|waiting| self.waits_for(waiting.peer, server))
        };
        self.servers.iter().filter(waited_for).map(|server| server.pid).collect()
    }

    /// Asks those to stay that were asked to leave, and nobody waits for that any more. Whether one
    /// does, its answer says.
    fn ask_to_stay(&mut self, in_the_way: &[Pid]) {
        if self.quitting.is_some() {
            return;
        }
        let is_free = |server: &&Server| {
            server.stopping == Stopping::WhenIdle(Why::InTheWay)
                && !in_the_way.contains(&server.pid)
        };
        let free: Vec<Pid> = self.servers.iter().filter(is_free).map(|s| s.pid).collect();
        for pid in free {
            let id = self.next_id();
            if let Some(server) = self.server_mut(pid) {
                server.stopping = Stopping::Resuming(id);
            }
            self.log(format!("Nobody waits for server {pid} to leave any more: it is to stay"));
            self.send(pid, Message::Resume(id));
        }
    }

    /// Brings servers in line with who waits: runs after every event.
    pub(super) fn settle(&mut self, now: Now) {
        self.release_debugged();
        let mut still_waiting = std::collections::VecDeque::new();
        let mut waiting_users = Vec::new();
        let mut in_the_way = Vec::new();
        let by = self.by.take();
        for client in std::mem::take(&mut self.pending) {
            // What comes of it is this client's doing.
            self.by = self.guest(&client.who);
            let uid = self.server_uid(client.who.peer.uid);
            match self.serving(uid) {
                Some(server) if server.takes_clients() && server.has_room_on_the_way() => {
                    let server = server.pid;
                    self.forward(server, client);
                    continue;
                }
                Some(_) => {}
                None => {
                    let peer = client.who.peer;
                    // One server for all is nobody's but the daemon's.
                    let counts_for = if uid == peer.uid { peer.accountable() } else { uid };
                    let wanted = Wanted { uid, gid: Some(peer.gid), counts_for };
                    match self.make_room_for(now, wanted, &waiting_users) {
                        Ok(servers) => in_the_way.extend(servers),
                        Err(no_room) => {
                            self.log(format!("No server for user {uid}: {no_room}"));
                            self.refuse(client.connection, SERVER_NOT_READY, no_room.to_string());
                            continue;
                        }
                    }
                }
            }
            waiting_users.push(uid);
            still_waiting.push_back(client);
        }
        self.pending = still_waiting;
        self.by = by;
        for uid in std::mem::take(&mut self.wanted) {
            if self.serving(uid).is_none() {
                let wanted = Wanted { uid, gid: None, counts_for: uid };
                match self.make_room_for(now, wanted, &waiting_users) {
                    Ok(servers) => in_the_way.extend(servers),
                    Err(no_room) => {
                        self.log(format!("No server for user {uid}: {no_room}"));
                        continue;
                    }
                }
                if !self.is_spawning(uid) {
                    self.wanted.push_back(uid);
                }
            }
        }
        let of_debugged = self.in_the_way_of_debugged();
        of_debugged.iter().for_each(|pid| self.stop(*pid, Why::InTheWay));
        in_the_way.extend(of_debugged);
        self.ask_to_stay(&in_the_way);
        self.bound_idle_ends(now, &in_the_way);
        self.finish_quit();
    }

    /// Servers in somebody's way that have no clients have so long to end: whoever has clients
    /// there may make others wait, and nobody else.
    fn bound_idle_ends(&mut self, now: Now, in_the_way: &[Pid]) {
        for server in &mut self.servers {
            let is_late = matches!(server.stopping, Stopping::WhenIdle(_))
                && server.was_ready()
                && in_the_way.contains(&server.pid)
                && self.clients.of_server(server.pid) == 0;
            server.idle_deadline =
                is_late.then(|| server.idle_deadline.unwrap_or(now + IDLE_END_LIMIT));
        }
    }

    /// Hands a client on, and notes who it is.
    fn forward(&mut self, server: Pid, client: Pending) {
        let Pending { connection, who, hello, admission } = client;
        if self.clients.of_server(server) >= MAX_CLIENTS_OF_SERVER {
            let message = format!(
                "server {server} has not let go of {MAX_CLIENTS_OF_SERVER} clients: end some of them, or the server"
            );
            self.log(format!("Client {} is refused: {message}", who.peer.pid));
            return self.refuse(connection, MAX_CLIENTS_REACHED, message);
        }
        self.uses(server);
        if let Some(server) = self.server_mut(server) {
            server.on_the_way += 1;
        }
        let group = self.config.membership.group(&who, admission.as_ref(), &hello);
        let command = hello.command.clone();
        let record = ClientRecord { server, who: Who::clone(&who), command, group };
        let client = self.clients.add(record);
        self.effects.push(Effect::Forward { connection, server, client, hello, who, admission });
    }

    /// A connection is on its way no longer.
    pub(super) fn handed_on(&mut self, server: Pid) {
        if let Some(server) = self.server_mut(server) {
            server.on_the_way = server.on_the_way.saturating_sub(1);
        }
    }

    pub(super) fn client_ended(&mut self, client: u64) {
        if let Some(server) = self.clients.process_ended(client) {
            self.uses(server);
        }
    }

    /// Notes that somebody came to a server or left it.
    fn uses(&mut self, server: Pid) {
        let used = self.next_id();
        if let Some(server) = self.server_mut(server) {
            server.used = used;
        }
    }

    /// Whether a server may start beside those that run. If it may not, the one that nobody has
    /// used for longest is ended for it: of those that count for the same user, if that has too
    /// many.
    fn has_room_for_server(&mut self, now: Now, wanted: Wanted) -> Result<bool, NoRoom> {
        let Wanted { uid, counts_for, .. } = wanted;
        let daemon_uid = self.config.daemon_uid;
        if uid == daemon_uid {
            return Ok(true);
        }
        let running = self.servers.iter().map(|server| (server.uid, server.counts_for));
        let starting = self.spawning.iter().map(|other| (other.uid, other.counts_for));
        let counted: Vec<u32> = running
            .chain(starting)
            .filter(|(uid, _)| *uid != daemon_uid)
            .map(|(_, counts_for)| counts_for)
            .collect();
        let of_one = counted.iter().filter(|other| **other == counts_for).count();
        let no_room = if of_one >= MAX_SERVERS_OF_ONE {
            NoRoom::OfOne(counts_for)
        } else if counted.len() >= MAX_SERVERS {
            NoRoom::OfAll
        } else {
            return Ok(true);
        };
        let may_leave = |server: &Server| match no_room {
            NoRoom::OfOne(user) => server.counts_for == user && server.uid != daemon_uid,
            NoRoom::OfAll => server.uid != daemon_uid,
        };
        // One after the other: its end comes back here.
        let is_leaving = |server: &Server| {
            matches!(server.stopping, Stopping::Now(_) | Stopping::Killed) && may_leave(server)
        };
        if self.servers.iter().any(is_leaving) {
            return Ok(false);
        }
        let served: BTreeSet<Pid> = self.clients.attached().map(|(_, it)| it.server).collect();
        // One that starts does so for somebody, and gives up by itself when that takes too long.
        let is_idle = |server: &&Server| {
            may_leave(server)
                && server.was_ready()
                && !server.awaits_devices
                && !served.contains(&server.pid)
        };
        let idle = self.servers.iter().filter(is_idle).min_by_key(|server| server.used);
        let (pid, of) = idle.map(|server| (server.pid, server.uid)).ok_or(no_room)?;
        self.log(format!(
            "Server {pid} of user {of} has no clients and makes way for user {uid}'s"
        ));
        self.stop_now(now, pid);
        Ok(false)
    }

    /// Starts a server, or asks those in its way to leave, and says which they are; users in
    /// `first` come before it.
    fn make_room_for(
        &mut self,
        now: Now,
        wanted: Wanted,
        first: &[u32],
    ) -> Result<Vec<Pid>, NoRoom> {
        let uid = wanted.uid;
        if self.is_spawning(uid) || self.servers.iter().any(|server| server.uid == uid) {
            return Ok(Vec::new()); // About to be there, or about to go: its exit comes back here.
        }
        if self.config.provisioning == Provisioning::Concurrent
            && !self.has_room_for_server(now, wanted)?
        {
            return Ok(Vec::new());
        }
        let alone = match self.config.provisioning {
            Provisioning::OneUserAtATime => self.servers.is_empty() && self.spawning.is_empty(),
            Provisioning::Multiuser | Provisioning::Concurrent => true,
        };
        if alone {
            self.spawning.push(wanted);
            let is_own = uid == self.config.daemon_uid;
            let gid = if is_own { Some(self.config.daemon_gid) } else { wanted.gid };
            self.effects.push(Effect::Spawn { uid, gid, counts_for: wanted.counts_for });
            return Ok(Vec::new());
        }
        let servers = self.servers.iter().filter(|server| !first.contains(&server.uid));
        let in_the_way: Vec<Pid> = servers.map(|server| server.pid).collect();
        in_the_way.iter().for_each(|pid| self.stop(*pid, Why::InTheWay));
        Ok(in_the_way)
    }

    fn is_spawning(&self, uid: u32) -> bool {
        self.spawning.iter().any(|wanted| wanted.uid == uid)
    }

    pub(super) fn server_spawned(&mut self, now: Now, pid: Pid, uid: u32) {
        let wanted = self.spawning.iter().find(|wanted| wanted.uid == uid);
        let counts_for = wanted.map_or(uid, |wanted| wanted.counts_for);
        self.spawning.retain(|wanted| wanted.uid != uid);
        self.log_for(Some(pid), format!("Starting new server {pid} for user {uid}"));
        let used = self.next_id();
        let limits = self.defaults.clone();
        self.send(pid, Message::SetDefaults(limits.for_server(&ServerSnapshot::default())));
        self.tell_shares(pid);
        self.servers.push(Server {
            pid,
            uid,
            counts_for,
            status: ServerStatus::Initializing,
            awaits_devices: limits.names_by_uuid(),
            limits,
            snapshot: ServerSnapshot::default(),
            start_deadline: Some(now + SERVER_START_LIMIT),
            stopping: Stopping::No,
            idle_deadline: None,
            questions: Questions::default(),
            on_the_way: 0,
            used,
        });
        if self.quitting.is_some() {
            self.stop_when_idle(pid);
        }
    }

    pub(super) fn spawn_failed(&mut self, uid: u32, message: &str) {
        self.spawning.retain(|wanted| wanted.uid != uid);
        self.log(format!("Failed to start a server for user {uid}: {message}"));
        self.refuse_pending_of(
            uid,
            &format!("no server could be started for user {uid}: {message}"),
        );
    }

    fn refuse_pending_of(&mut self, uid: u32, message: &str) {
        let (refused, kept) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|c| self.server_uid(c.who.peer.uid) == uid);
        self.pending = kept;
        for client in refused {
            self.refuse(client.connection, SERVER_NOT_READY, message.to_owned());
        }
    }

    pub(super) fn server_said(&mut self, pid: Pid, message: ToDaemon) {
        let Some(server) = self.servers.iter_mut().find(|server| server.pid == pid) else { return };
        match message {
            ToDaemon::Ready => {
                server.status = ServerStatus::Active;
                server.start_deadline = None;
                self.log(format!("NEW SERVER {pid}: Ready"));
                self.request_snapshot(pid);
            }
            ToDaemon::Failed { message } => {
                let uid = server.uid;
                self.log(format!("Server {pid} failed to start: {message}"));
                self.refuse_pending_of(uid, &format!("server {pid} failed to start: {message}"));
            }
            ToDaemon::Status(status) => server.status = status,
            ToDaemon::Snapshot { id, snapshot } => {
                let snapshot = self.joined(pid, snapshot);
                let Some(server) = self.server_mut(pid) else { return };
                server.snapshot = snapshot;
                if server.awaits_devices {
                    server.awaits_devices = false;
                    let defaults = server.limits.for_server(&server.snapshot);
                    self.send(pid, Message::SetDefaults(defaults));
                }
                self.snapshot_came(pid, id);
                self.answered(pid, id, None);
            }
            ToDaemon::Resumed { id } if server.stopping == Stopping::Resuming(id) => {
                server.stopping = Stopping::No;
            }
            // Put together where it came in.
            ToDaemon::Resumed { .. } | ToDaemon::Piece(_) => {}
            ToDaemon::Left { client_ids } => {
                let its = client_ids.into_iter().filter(|client| self.clients.left(pid, *client));
                if its.count() > 0 {
                    self.uses(pid);
                }
            }
            ToDaemon::Terminated { id, code } => self.answered(pid, id, Some(code)),
            ToDaemon::Changed { id, report } => self.changed(pid, id, report),
        }
    }

    pub(super) fn server_exited(&mut self, pid: Pid, exit: ServerExit) {
        let Some(index) = self.servers.iter().position(|server| server.pid == pid) else { return };
        let server = self.servers.remove(index);
        self.clients.server_gone(pid);
        match exit {
            ServerExit::Status(status) => {
                self.log(format!("Server {pid} exited with status {status}"))
            }
            ServerExit::Signal(signal) => {
                self.log(format!("Server {pid} was killed by signal {signal}"))
            }
        }
        if server.status == ServerStatus::Initializing
            && !matches!(server.stopping, Stopping::WhenIdle(_))
        {
            // A new one would fail alike: who waits is told, who comes later tries again.
            let message = format!("server {pid} ended before it was ready: see server.log");
            self.refuse_pending_of(server.uid, &message);
        }
        if exit != ServerExit::Status(0) {
            self.status = 1;
        }
        self.server_gone(pid);
    }

    pub(super) fn stop_when_idle(&mut self, pid: Pid) {
        if let Some(server) = self.server_mut(pid)
            && server.stopping == Stopping::WhenIdle(Why::InTheWay)
        {
            server.stopping = Stopping::WhenIdle(Why::Ordered);
        }
        match self.server(pid).map(|server| server.stopping) {
            Some(Stopping::No | Stopping::Resuming(_)) => self.stop(pid, Why::Ordered),
            _ => self.log(format!("Try shutting down server {pid}, backoff is disabled")),
        }
    }

    /// Tells a server to stop when its clients have left, unless it has been told.
    fn stop(&mut self, pid: Pid, why: Why) {
        if let Some(server) = self.server_mut(pid)
            && matches!(server.stopping, Stopping::No | Stopping::Resuming(_))
        {
            server.stopping = Stopping::WhenIdle(why);
            self.log(format!("Try shutting down server {pid}, backoff is disabled"));
            self.send(pid, Message::Shutdown(ShutdownMode::WhenIdle));
        }
    }

    fn stop_now(&mut self, now: Now, pid: Pid) {
        if let Some(server) = self.server_mut(pid)
            && matches!(
                server.stopping,
                Stopping::No | Stopping::WhenIdle(_) | Stopping::Resuming(_)
            )
        {
            server.stopping = Stopping::Now(now + KILL_GRACE);
            self.send(pid, Message::Shutdown(ShutdownMode::Now));
        }
    }

    pub(super) fn shutdown_server(&mut self, now: Now, pid: Pid, kind: ShutdownKind) {
        match kind {
            ShutdownKind::WhenIdle => self.stop_when_idle(pid),
            ShutdownKind::Forced => {
                self.log(format!("Forcing server {pid} to shut down"));
                self.stop_now(now, pid);
            }
        }
    }

    /// Asks for a server by hand.
    pub(super) fn start_server(&mut self, uid: u32) -> Result<(), String> {
        if self.quitting.is_some() {
            return Err("The MPS control daemon is shutting down".into());
        }
        let uid = self.server_uid(uid);
        if !self.may_start_for(uid) {
            return Err(format!("Insufficient privileges for UID {uid}"));
        }
        if !self.wanted.contains(&uid) {
            self.wanted.push_back(uid);
        }
        Ok(())
    }

    /// Has servers started before any client comes, so that the first one does not wait for a
    /// driver and a context: of the users that `OPENMPS_PREWARM` lists. They start with the
    /// first event. Returns what was wrong with the list.
    pub fn prewarm(&mut self, users: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        for user in parse_users(users) {
            let started = user.map_err(|error| error.to_string()).and_then(|user| match user {
                User::Own => self.start_server(self.config.daemon_uid),
                User::Id(uid) => self.start_server(uid),
            });
            complaints.extend(started.err().map(|why| format!("OPENMPS_PREWARM: {why}")));
        }
        complaints
    }

    pub(super) fn stop_signal(&mut self, now: Now) {
        if self.quitting.is_some() {
            self.quit(now, Some(Now::ZERO), None);
        } else {
            self.log("Asked by a signal to terminate");
            self.quit(now, Some(SIGNAL_QUIT_LIMIT), None);
        }
    }

    /// Stops taking clients; servers end when theirs have left, or by force after `limit`.
    pub(super) fn quit(&mut self, now: Now, limit: Option<Now>, connection: Option<ConnectionId>) {
        let force_at = limit.map(|limit| now + limit);
        if let Some(quitting) = &mut self.quitting {
            quitting.force_at = [quitting.force_at, force_at].into_iter().flatten().min();
            quitting.waiting.extend(connection);
            return;
        }
        self.quitting = Some(Quitting { force_at, waiting: connection.into_iter().collect() });
        self.wanted.clear();
        for client in std::mem::take(&mut self.pending) {
            self.refuse(
                client.connection,
                SERVER_NOT_READY,
                "the control daemon is shutting down".into(),
            );
        }
        let servers: Vec<Pid> = self.servers.iter().map(|server| server.pid).collect();
        for pid in servers {
            self.stop_when_idle(pid);
        }
        self.deadlines(now);
    }

    fn finish_quit(&mut self) {
        if !self.servers.is_empty() || !self.spawning.is_empty() {
            return;
        }
        let Some(quitting) = &mut self.quitting else { return };
        // Whoever's server was the last.
        self.by = None;
        let status = self.status;
        for connection in std::mem::take(&mut quitting.waiting) {
            let error = match status {
                0 => "",
                _ => "not every server ended by itself and in order: control.log says which\n",
            };
            self.effects.push(Effect::Reply {
                connection,
                output: String::new(),
                error: error.to_owned(),
                exit_status: status,
            });
        }
        self.log(format!("Exit with status {status}"));
        self.effects.push(Effect::Exit { status });
    }

    /// Acts on every deadline that has passed.
    pub(super) fn deadlines(&mut self, now: Now) {
        let mut kill = Vec::new();
        for server in &mut self.servers {
            if server.start_deadline.is_some_and(|at| at <= now) {
                server.start_deadline = None;
                server.stopping = Stopping::Killed;
                kill.push((server.pid, "did not become ready in time"));
            }
            if server.idle_deadline.is_some_and(|at| at <= now) {
                server.idle_deadline = None;
                server.stopping = Stopping::Killed;
                kill.push((server.pid, "has no clients, did not make way in time"));
            }
            if matches!(server.stopping, Stopping::Now(at) if at <= now) {
                server.stopping = Stopping::Killed;
                kill.push((server.pid, "did not stop in time"));
            }
        }
        for (server, why) in kill {
            let before = self.by.take();
            self.by = self.server(server).map(|server| Owner::user(server.counts_for));
            self.log(format!("Server {server} {why} and is killed"));
            self.effects.push(Effect::Kill { server });
            self.by = before;
        }
        if let Some(quitting) = &mut self.quitting
            && quitting.force_at.is_some_and(|at| at <= now)
        {
            quitting.force_at = None;
            let servers: Vec<Pid> = self.servers.iter().map(|server| server.pid).collect();
            if !servers.is_empty() {
                self.status = 1;
            }
            for pid in servers {
                self.stop_now(now, pid);
            }
        }
        self.late_answers(now);
    }
}

impl Server {
    /// Whether it has got past its start. What it says of its status later is its user's word.
    pub(super) fn was_ready(&self) -> bool {
        self.start_deadline.is_none()
    }

    /// After a fault too: the server knows which devices work, and whom it need only keep waiting
    /// for a moment.
    fn takes_clients(&self) -> bool {
        matches!(self.status, ServerStatus::Active | ServerStatus::Fault)
            && self.stopping == Stopping::No
            && !self.awaits_devices
    }

    fn has_room_on_the_way(&self) -> bool {
        self.on_the_way < MAX_ON_THE_WAY
    }
}

/// There are too many servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum NoRoom {
    /// Of all users.
    #[error(
        "servers of {MAX_SERVERS} users run, and all are in use: try again when one user's programs have ended"
    )]
    OfAll,
    /// That count for this one.
    #[error(
        "{MAX_SERVERS_OF_ONE} servers of user {0} and of its subordinate ids run, and all are in use: end the programs of one of these ids"
    )]
    OfOne(u32),
}
