//! The loop: polls, tells the core what happened, does what it says.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::closer::Closer;
use link::socket::{Connection as Socket, Listener, SocketError};
use link::wire::daemon::ToServer;
use link::wire::group_socket::{GroupSocket, SocketDomain};
use link::wire::owner::Owner;
use link::wire::shares::{GroupLimits, profile_group};
use link::wire::ui::UiReply;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use settings::{Environment, Variables};

use super::claim::Claim;
use super::client_processes::ClientProcesses;
use super::connections::{Act, Added, Connections};
use super::control_log::ControlLog;
use super::detach::{announce, enter_background};
use super::group_sockets::GroupSockets;
use super::held::Held;
use super::notify::notify;
use super::server_log::ServerLog;
use super::servers::{Handed, Heard, ServerProcess, Unreaped};
use super::signals::{Signals, came};
use super::{Options, StartError};
use crate::core::clients::{Membership, Who};
use crate::core::command::Pid;
use crate::core::group_text::parse_profiles;
use crate::core::{Config, ConnectionId, Core, Effect, Event, Limits};
use crate::directories::Directories;
use crate::trusted_path::PathError;

/// The CUDA version that clients are told, in the form that the original logs.
const BINARY_VERSION: u32 = 13000;
/// Connections taken per round, so that a flood of them cannot keep servers waiting.
const ACCEPTS_PER_ROUND: usize = 64;
/// Whoever it is of whom nothing can be told.
const UNKNOWN: Owner = Owner { uid: u32::MAX, entrance: None };

/// Runs a daemon until it is told to quit; returns its exit status.
///
/// In a process made by [`super::start_in_background`] it detaches once it is ready; in any other
/// it stays in the foreground.
///
/// # Errors
/// [`StartError`]; once started it ends by itself only.
pub fn run(options: Options) -> Result<u8, StartError> {
    let background = enter_background();
    link::process_name::show_as_the_original();
    let signals = Signals::take_over().map_err(StartError::system("take over signals"))?;
    let claim = Claim::take(&options.directories)?;
    let metrics = options.metrics.as_ref().map(|address| {
        let failed = |source| StartError::Metrics { address: address.clone(), source };
        crate::metrics::serve(address, &options.directories).map_err(failed)
    });
    let _metrics = metrics.transpose()?;
    let (log, server_log) = open_logs(&options);
    let mut variables = Variables::of_environment();
    let (limits, mut complaints) = Limits::from_environment(&variables);
    let config = Config {
        daemon_pid: std::process::id(),
        daemon_uid: own_uid(),
        daemon_gid: rustix::process::getegid().as_raw(),
        provisioning: options.provisioning,
        ready_devices: options.ready_devices.clone(),
        membership: Membership::from_environment(&mut variables),
    };
    let client_processes =
        ClientProcesses::new().map_err(StartError::system("watch the processes of clients"))?;
    let mut core = Core::new(config, limits);
    if let Some(text) = variables.text(&settings::GROUPS) {
        complaints.extend(core.set_groups(&text));
    }
    let mut group_sockets = GroupSockets::default();
    match profiles(&variables, &options.directories) {
        Ok(profiles) => {
            for (socket, _) in &profiles {
                let opened = group_sockets.open(socket, options.directories.pipe());
                opened.map_err(|reason| StartError::Profile { reason })?;
            }
            core.add_profiles(profiles);
        }
        Err(error) => complaints.push(format!("OPENMPS_PROFILES is ignored: {error}")),
    }
    if let Some(users) = variables.text(&settings::PREWARM) {
        complaints.extend(core.prewarm(&users));
    }
    complaints.append(&mut variables.complaints);
    let prepared = crate::prepared::take(&options.directories, own_uid());
    for line in core.prepare(&prepared) {
        complaints.push(format!("What was set before the start is ignored: {line}"));
    }
    let closer = Closer::default();
    let mut daemon = Daemon {
        core,
        log,
        server_log,
        connections: Connections::new(closer.clone()),
        closer,
        group_sockets,
        client_processes,
        servers: BTreeMap::new(),
        unreaped: Vec::new(),
        started: Instant::now(),
        options,
    };
    daemon.log_start(&complaints, &prepared);
    // Its command has said so to whoever started it.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for unknown in settings::unknown(names) {
        daemon.log.write(&format!("Warning: {}", link::printable(&unknown)));
    }
    if background {
        announce().map_err(StartError::system("detach from the terminal"))?;
    }
    notify("READY=1");
    let status = daemon.run(&claim, &signals);
    daemon.server_log.read_all();
    daemon.log.end();
    notify("STOPPING=1");
    // Before the connections close: a front end that waits for our end may start another daemon
    // here.
    drop(claim);
    Ok(status)
}

/// The sockets of the environment's profiles, and their limits.
fn profiles(
    variables: &Environment,
    directories: &Directories,
) -> Result<Vec<(GroupSocket, GroupLimits)>, String> {
    let text = variables.text(&settings::PROFILES).unwrap_or_default();
    let profiles = parse_profiles(&text)?.into_iter().map(|profile| {
        let directory = directories.profile(&profile.name);
        let limits = GroupLimits { name: profile_group(&profile.name, "*"), ..profile };
        let socket = GroupSocket {
            directory: directory.to_str().ok_or("its directory's name is no text")?.to_owned(),
            group: limits.name.clone(),
            devices: Vec::new(),
            domain: SocketDomain::default(),
            weight: limits.weight,
        };
        socket.check().map_err(|error| error.to_string())?;
        Ok((socket, limits))
    });
    profiles.collect()
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn open_logs(options: &Options) -> (ControlLog, ServerLog) {
    let directories = &options.directories;
    let mut control = ControlLog::new(directories, options.echo);
    let mut servers = ServerLog::new(directories, options.echo);
    if let Err(error) = open_both(&mut control, &mut servers) {
        eprintln!(
            "Warning: Failed writing log files to directory [{}]. No logs will be available. ({error})",
            directories.log().display()
        );
    }
    (control, servers)
}

fn open_both(control: &mut ControlLog, servers: &mut ServerLog) -> Result<(), PathError> {
    servers.open()?;
    control.open()
}

/// What poll watches.
#[derive(Debug, Clone, Copy)]
enum Token {
    Listener,
    GroupListener(u64),
    StopSignal,
    ReopenLogs,
    ClientProcesses,
    Connection(ConnectionId),
    ServerExit(Pid),
    ServerSocket(Pid),
    ServerLog(u64),
}

struct Daemon {
    core: Core,
    log: ControlLog,
    server_log: ServerLog,
    connections: Connections,
    closer: Closer,
    group_sockets: GroupSockets,
    client_processes: ClientProcesses,
    servers: BTreeMap<Pid, ServerProcess>,
    unreaped: Vec<Unreaped>,
    started: Instant,
    options: Options,
}

impl Daemon {
    fn log_start(&mut self, complaints: &[String], prepared: &[String]) {
        let directories = &self.options.directories;
        let socket = directories.socket();
        let pipe = directories.pipe().display().to_string();
        self.log.write(&format!("Starting control daemon using socket {}", socket.display()));
        self.log.write(&format!(
            "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={pipe}"
        ));
        self.log.write(&format!("CUDA MPS Control binary version: {BINARY_VERSION}"));
        for line in prepared {
            self.log.write(&format!("Set before the start: {line}"));
        }
        for complaint in complaints {
            eprintln!("Warning: {complaint}");
            self.log.write(complaint);
        }
    }

    fn run(&mut self, claim: &Claim, signals: &Signals) -> u8 {
        // What was set before the start may have effects already.
        if let Some(status) = self.process(VecDeque::from([Event::Tick])) {
            return status;
        }
        loop {
            let ready = match self.wait(claim.listener(), signals) {
                Ok(ready) => ready,
                Err(error) => {
                    // Only a lack of kernel memory can do that.
                    self.log.write(&format!("Waiting for events failed: {error}"));
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let mut events = VecDeque::from([Event::Tick]);
            for token in ready {
                self.look(token, claim, signals, &mut events);
            }
            self.close_late(&mut events);
            if let Some(status) = self.process(events) {
                return status;
            }
        }
    }

    /// Waits for something to happen or some deadline to pass.
    fn wait(&self, listener: &Listener, signals: &Signals) -> io::Result<Vec<Token>> {
        let mut tokens =
            vec![Token::Listener, Token::StopSignal, Token::ReopenLogs, Token::ClientProcesses];
        let mut fds = vec![
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.reopen_logs.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.client_processes.as_fd(), PollFlags::IN),
        ];
        for (id, listener) in self.group_sockets.polled() {
            tokens.push(Token::GroupListener(id));
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for (id, socket, flags) in self.connections.polled() {
            tokens.push(Token::Connection(id));
            fds.push(PollFd::from_borrowed_fd(socket.as_fd(), flags));
        }
        for (pid, server) in &self.servers {
            tokens.push(Token::ServerExit(*pid));
            fds.push(PollFd::from_borrowed_fd(server.exit_fd().as_fd(), PollFlags::IN));
            if let Some(socket) = server.socket() {
                let out = if server.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
                tokens.push(Token::ServerSocket(*pid));
                fds.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN | out));
            }
        }
        for (id, pipe) in self.server_log.polled() {
            tokens.push(Token::ServerLog(id));
            fds.push(PollFd::new(pipe, PollFlags::IN));
        }
        match poll(&mut fds, self.timeout().as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = fds.iter().zip(tokens).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, token)| token).collect())
    }

    fn timeout(&self) -> Option<Timespec> {
        let core = self.core.next_deadline().map(|at| self.started + at);
        let silent = self.connections.next_deadline();
        let kill = self.servers.values().filter_map(|server| server.kill_at).min();
        let last_words = self.server_log.next_deadline();
        let next = [core, silent, kill, last_words].into_iter().flatten().min()?;
        // A little late is in time; a little early would spin.
        let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    }

    fn look(
        &mut self,
        token: Token,
        claim: &Claim,
        signals: &Signals,
        events: &mut VecDeque<Event>,
    ) {
        match token {
            Token::Listener => self.accept(claim.listener()),
            Token::GroupListener(id) => self.accept_of_group(id),
            Token::StopSignal if came(&signals.stop) => events.push_back(Event::StopSignal),
            Token::ReopenLogs if came(&signals.reopen_logs) => self.reopen_logs(),
            Token::StopSignal | Token::ReopenLogs => {}
            Token::ClientProcesses => {
                let ended = self.client_processes.ended().into_iter();
                events.extend(ended.map(|client| Event::ClientEnded { client }));
            }
            Token::Connection(connection) => self.connection_acts(connection, events),
            Token::ServerSocket(pid) => self.hear_server(pid, events),
            Token::ServerExit(pid) => self.reap_server(pid, events),
            Token::ServerLog(id) => self.server_log.read(id),
        }
    }

    fn reopen_logs(&mut self) {
        if let Err(error) = open_both(&mut self.log, &mut self.server_log) {
            self.log.write(&format!("Not all logs were opened anew: {error}"));
        }
    }

    fn accept_of_group(&mut self, id: u64) {
        for _ in 0..ACCEPTS_PER_ROUND {
            let Some((listener, entrance)) = self.group_sockets.get(id) else { return };
            let accepted = listener.try_accept();
            if self.take(accepted, Some(entrance)).is_break() {
                return;
            }
        }
    }

    fn accept(&mut self, listener: &Listener) {
        for _ in 0..ACCEPTS_PER_ROUND {
            if self.take(listener.try_accept(), None).is_break() {
                return;
            }
        }
    }

    /// Takes a connection that has come, by the daemon's own socket or by a group's; nothing more
    /// is there after a break.
    fn take(
        &mut self,
        accepted: Result<Option<Socket>, SocketError>,
        entrance: Option<Arc<GroupSocket>>,
    ) -> ControlFlow<()> {
        let socket = match accepted {
            Ok(Some(socket)) => socket,
            Ok(None) => return ControlFlow::Break(()),
            Err(error) => {
                let line = format!("Unable to accept connection: {error}");
                self.log.write_of(Some(&UNKNOWN), None, &line);
                return ControlFlow::Break(());
            }
        };
        let held = Held { clients: self.core.clients(), servers: &self.servers };
        let (by, line) = match self.connections.add(socket, entrance, &held, Instant::now()) {
            Ok(Added::Yes | Added::Gone) => return ControlFlow::Continue(()),
            Ok(Added::TooMany(by)) => (by, "Too many connections: refused one"),
            Ok(Added::UnknownUser(by)) => {
                (by, "Refused a user whom this user namespace does not map, as it could be any")
            }
            Err(_) => (UNKNOWN, "User did not send valid credentials"),
        };
        self.log.write_of(Some(&by), None, line);
        ControlFlow::Continue(())
    }

    /// Logs what a connection does.
    fn log_connection(&mut self, connection: ConnectionId, line: &str) {
        let by = self.connections.guest(connection);
        self.log.write_of(by.as_ref(), None, line);
    }

    /// Logs that a front end is there, before its first command.
    fn log_new_commander(&mut self, connection: ConnectionId) {
        if self.connections.becomes_commander(connection) {
            self.log_connection(connection, "NEW UI");
        }
    }

    fn connection_acts(&mut self, connection: ConnectionId, events: &mut VecDeque<Event>) {
        match self.connections.act(connection) {
            Act::Client(who, hello, admission) => {
                // Of front ends the original says `NEW UI` alone.
                self.log_connection(connection, "Accepting connection...");
                events.push_back(Event::ClientArrived { connection, who, hello, admission });
            }
            Act::Debugged(peer, debugger) => {
                self.log_connection(connection, "Accepting connection...");
                events.push_back(Event::DebuggedArrived { connection, peer, debugger });
            }
            Act::Trace(peer, pid) => {
                self.log_connection(connection, "Accepting connection...");
                events.push_back(Event::TracerArrived { connection, peer, pid });
            }
            Act::UiLine(peer, line) => {
                self.log_new_commander(connection);
                events.push_back(Event::UiLine { connection, peer, line });
            }
            Act::UiShares(peer, request) => {
                self.log_new_commander(connection);
                events.push_back(Event::UiShares { connection, peer, request });
            }
            Act::UiSocket(peer, request) => {
                self.log_new_commander(connection);
                events.push_back(Event::UiSocket { connection, peer, request });
            }
            Act::UiEndClients(peer, directory) => {
                self.log_new_commander(connection);
                events.push_back(Event::UiEndClients { connection, peer, directory });
            }
            Act::UiState => events.push_back(Event::UiState { connection }),
            Act::Closed(why) => {
                if let Some(why) = why {
                    self.log_connection(connection, why);
                }
                self.connections.remove(connection);
                events.push_back(Event::ConnectionClosed { connection });
            }
            Act::Nothing => {}
        }
    }

    fn hear_server(&mut self, pid: Pid, events: &mut VecDeque<Event>) {
        let Some(server) = self.servers.get_mut(&pid) else { return };
        if server.flush().is_err() {
            return server.hang_up();
        }
        events.extend(server.handed_on());
        // What it logged comes before what it sent then: who asks finds the lines in the file.
        self.server_log.read_of(pid);
        match server.hear() {
            Heard::Message(message) => {
                events.push_back(Event::ServerSaid { server: pid, message: *message });
            }
            Heard::Nothing | Heard::Part => {}
            Heard::HungUp => server.hang_up(),
        }
    }

    fn reap_server(&mut self, pid: Pid, events: &mut VecDeque<Event>) {
        let Some(server) = self.servers.get_mut(&pid) else { return };
        // Its last words come before its end.
        loop {
            match server.hear() {
                Heard::Message(message) => {
                    events.push_back(Event::ServerSaid { server: pid, message: *message });
                }
                Heard::Part => {}
                Heard::Nothing | Heard::HungUp => break,
            }
        }
        if let Some(exit) = server.exit() {
            self.unreaped.extend(self.servers.remove(&pid).and_then(ServerProcess::unreaped));
            self.server_log.server_ended(pid);
            events.push_back(Event::ServerExited { server: pid, exit });
        }
    }

    fn close_late(&mut self, events: &mut VecDeque<Event>) {
        let now = Instant::now();
        for (connection, why) in self.connections.late(now) {
            self.log_connection(connection, why);
            self.connections.remove(connection);
            events.push_back(Event::ConnectionClosed { connection });
        }
        self.server_log.close_late(now);
        Unreaped::reap(&mut self.unreaped);
        let is_due = |server: &ServerProcess| server.kill_at.is_some_and(|at| at <= now);
        let due: Vec<Pid> =
            self.servers.iter().filter(|(_, server)| is_due(server)).map(|(pid, _)| *pid).collect();
        for pid in due {
            if let Some(server) = self.servers.get_mut(&pid) {
                server.kill();
            }
            self.reap_server(pid, events);
        }
    }

    /// Feeds the core until there is nothing left to do; the exit status, if that was the end.
    fn process(&mut self, mut events: VecDeque<Event>) -> Option<u8> {
        while let Some(event) = events.pop_front() {
            for effect in self.core.handle(self.started.elapsed(), event) {
                if let Some(status) = self.carry_out(effect, &mut events) {
                    return Some(status);
                }
            }
        }
        None
    }

    fn carry_out(&mut self, effect: Effect, events: &mut VecDeque<Event>) -> Option<u8> {
        match effect {
            Effect::Log { line, pid, by } => self.log.write_of(by.as_ref(), pid, &line),
            Effect::Spawn { uid, gid, counts_for } => {
                let owner = Owner::user(counts_for);
                // Next in line, before anything that may concern the new server.
                let started = if Unreaped::are_too_many(&self.unreaped, &owner) {
                    let line = "a debugger holds the user's servers, which have ended: end it";
                    Err(io::Error::other(line))
                } else {
                    ServerProcess::start(&self.options, (uid, gid), owner, &self.closer)
                };
                events.push_front(match started {
                    Ok(mut server) => {
                        let pid = server.pid();
                        if let Some(log) = server.take_log() {
                            self.server_log.add(pid, counts_for, log);
                        }
                        self.servers.insert(pid, server);
                        Event::ServerSpawned { pid, uid }
                    }
                    Err(error) => Event::SpawnFailed { uid, message: error.to_string() },
                });
            }
            Effect::Send { server, message } => {
                self.send(server, message.into(), Handed::default(), events)
            }
            Effect::Forward { connection, server, client, hello, who, admission } => {
                let Some(socket) = self.connections.remove(connection) else {
                    // It has closed meanwhile.
                    events.extend([Event::HandedOn { server }, Event::ClientEnded { client }]);
                    return None;
                };
                let Who { peer, origin, process, .. } = *who;
                let mut handed = Handed { connection: Some(socket), process: None };
                if let Some(process) = process {
                    self.client_processes.watch(client, &process);
                    // The server has nothing to find it by that could not be another's by now.
                    handed.process = Some(process);
                }
                let attach = ToServer::Attach { client_id: client, hello, peer, admission, origin };
                self.send(server, attach, handed, events);
            }
            Effect::OpenSocket { connection, socket } => {
                let own = self.options.directories.pipe();
                events.push_front(match self.group_sockets.open(&socket, own) {
                    Ok(()) => Event::SocketOpened { connection, socket },
                    Err(message) => Event::SocketFailed { connection, message },
                });
            }
            Effect::CloseSocket { directory } => {
                self.group_sockets.close(&directory);
                self.connections.close_unheard(&directory);
            }
            Effect::HandTracer { connection, server, pid, peer } => {
                let Some(tracer) = self.connections.remove(connection) else {
                    // It has closed meanwhile.
                    events.push_back(Event::HandedOn { server });
                    return None;
                };
                let handed = Handed { connection: Some(tracer), process: None };
                self.send(server, ToServer::Trace { pid, peer }, handed, events);
            }
            Effect::Refuse { connection, code, message } => {
                self.connections.refuse(connection, code, message)
            }
            Effect::Release { connection } => self.connections.release(connection),
            Effect::Reply { connection, output, error, exit_status } => {
                self.connections
                    .reply(connection, &UiReply::Command { output, error, exit_status });
            }
            Effect::ReplyShares { connection, reply } => self.connections.reply(connection, &reply),
            Effect::ReplyState { connection, silent } => {
                let mut reply = self.core.state(&silent);
                if let UiReply::State(state) = &mut reply {
                    let directory = self.options.directories.log();
                    state.log_directory = directory.to_str().map(str::to_owned);
                }
                self.connections.reply(connection, &reply);
            }
            // Fails only if it has ended, or is not ours to end, which who asked sees.
            Effect::EndProcess { process } => drop(pidfd_send_signal(&*process, Signal::KILL)),
            Effect::Kill { server } => {
                if let Some(server) = self.servers.get_mut(&server) {
                    server.kill();
                }
            }
            Effect::Exit { status } => return Some(status),
        }
        None
    }

    fn send(&mut self, pid: Pid, message: ToServer, handed: Handed, events: &mut VecDeque<Event>) {
        let Some(server) = self.servers.get_mut(&pid) else { return };
        if let Err(error) = server.send(message, handed) {
            let line = format!("Cannot send to server {pid}: {error}");
            self.log.write_of(Some(server.owner()), None, &line);
            server.hang_up();
        }
        events.extend(server.handed_on());
    }
}
