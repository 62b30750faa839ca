//! A core with a hand-driven world around it: servers that start at once, clients that come, and a
//! shell.

use super::super::*;
use link::wire::daemon::{
    ClientSnapshot, ContextSnapshot, DeviceSnapshot, Namespaces, ShutdownMode, ToDaemon,
};
use link::wire::version::Versions;

pub(super) const ROOT: u32 = 0;
pub(super) const ALICE: u32 = 1000;
pub(super) const BOB: u32 = 1001;
pub(super) const UI: ConnectionId = ConnectionId(9999);

/// A core with a hand-driven world around it.
pub(super) struct World {
    pub(super) core: Core,
    pub(super) now: Now,
    pub(super) log: Vec<String>,
    /// All effects but log lines, not yet looked at.
    pub(super) effects: VecDeque<Effect>,
    pub(super) snapshot: ServerSnapshot,
    /// Whether servers read what they are sent.
    pub(super) servers_read: bool,
    next_pid: Pid,
}

impl World {
    pub(super) fn new(provisioning: Provisioning, daemon_uid: u32) -> Self {
        let config = Config {
            daemon_pid: 969,
            daemon_uid,
            daemon_gid: daemon_uid,
            provisioning,
            ready_devices: Vec::new(),
            membership: Default::default(),
        };
        World {
            core: Core::new(config, Limits::default()),
            now: Now::ZERO,
            log: Vec::new(),
            effects: VecDeque::new(),
            snapshot: ServerSnapshot::default(),
            servers_read: true,
            next_pid: 975,
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        for effect in self.core.handle(self.now, event) {
            match effect {
                Effect::Log { line, .. } => self.log.push(line),
                // Servers start at once.
                Effect::Spawn { uid, .. } => {
                    let pid = self.next_pid;
                    self.next_pid += 1;
                    self.event(Event::ServerSpawned { pid, uid });
                }
                // What goes to a server goes at once.
                Effect::Forward { server, .. } if self.servers_read => {
                    self.effects.push_back(effect);
                    self.event(Event::HandedOn { server });
                }
                effect => self.effects.push_back(effect),
            }
        }
    }

    pub(super) fn client(&mut self, connection: u64, uid: u32) {
        self.client_of(100 + connection as Pid, connection, uid, None);
    }

    /// The same, of a subordinate id of this user.
    pub(super) fn client_for(&mut self, connection: u64, uid: u32, counts_for: u32) {
        self.client_of(100 + connection as Pid, connection, uid, Some(counts_for));
    }

    /// The same, of this process.
    fn client_of(&mut self, pid: Pid, connection: u64, uid: u32, counts_for: Option<u32>) {
        let (limits, command) = (Default::default(), "/tmp/feas".to_owned());
        let hello =
            ClientHello { versions: Versions::ours(), pid: 1, pid_namespace: 0, command, limits };
        let hello = Box::new(hello);
        let peer = Peer { pid, uid, gid: uid, counts_for, ..Peer::default() };
        let connection = ConnectionId(connection);
        let who = Box::new(Who { peer, pid_namespace: 4026531836, ..Who::default() });
        self.event(Event::ClientArrived { connection, who, hello, admission: None });
    }

    /// A client of root's that was handed to a server, as that lists it.
    pub(super) fn attached(&mut self, pid: Pid) -> ClientSnapshot {
        self.client_of(pid, pid.into(), ROOT, None);
        let number = |effect: &Effect| match effect {
            Effect::Forward { client, who, .. } if who.peer.pid == pid => Some(*client),
            _ => None,
        };
        let client_id = self.effects.iter().find_map(number).unwrap();
        let context = ContextSnapshot { active_thread_percentage: 100.0, ..Default::default() };
        ClientSnapshot { client_id, contexts: vec![context], ..Default::default() }
    }

    pub(super) fn debugged(&mut self, connection: u64) {
        self.debugged_of(ALICE, connection);
    }

    pub(super) fn debugged_of(&mut self, uid: u32, connection: u64) {
        let pid = 100 + connection as Pid;
        let peer = Peer { pid, uid, gid: uid, ..Peer::default() };
        let (connection, debugger) = (ConnectionId(connection), "cuda-gdb\n".to_owned());
        self.event(Event::DebuggedArrived { connection, peer, debugger });
    }

    /// The server to which a user's tracer of this process went.
    pub(super) fn tracer(&mut self, uid: u32, namespaces: Namespaces, client: Pid) -> Option<Pid> {
        let peer = Peer { pid: 7, uid, gid: uid, namespaces, ..Peer::default() };
        let connection = ConnectionId(77);
        self.event(Event::TracerArrived { connection, peer, pid: client });
        let found = self.effects.iter().find_map(|effect| match effect {
            Effect::HandTracer { server, pid, .. } if *pid == client => Some(*server),
            _ => None,
        });
        self.effects.clear();
        found
    }

    /// Connections that may run natively since the last call.
    pub(super) fn released(&mut self) -> Vec<u64> {
        let released = |effect: &Effect| match effect {
            Effect::Release { connection } => Some(connection.0),
            _ => None,
        };
        let found = self.effects.iter().filter_map(released).collect();
        self.effects.retain(|effect| released(effect).is_none());
        found
    }

    pub(super) fn ready(&mut self, server: Pid) {
        self.event(Event::ServerSaid { server, message: ToDaemon::Ready });
    }

    /// The server says what the daemon has asked it at its start.
    pub(super) fn answers(&mut self, server: Pid) {
        let id = self.core.server(server).and_then(|server| server.questions.open);
        let message = ToDaemon::Snapshot { id: id.unwrap(), snapshot: self.snapshot.clone() };
        self.event(Event::ServerSaid { server, message });
    }

    pub(super) fn exited(&mut self, server: Pid, status: i32) {
        self.event(Event::ServerExited { server, exit: ServerExit::Status(status) });
    }

    /// (connection, server) of the clients that were handed on since the last call.
    pub(super) fn forwarded(&mut self) -> Vec<(u64, Pid)> {
        let taken = std::mem::take(&mut self.effects);
        let forward = |effect| match effect {
            Effect::Forward { connection, server, .. } => Some((connection.0, server)),
            _ => None,
        };
        taken.into_iter().filter_map(forward).collect()
    }

    pub(super) fn told_to_stop(&self, server: Pid) -> Option<ShutdownMode> {
        self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send { server: to, message: Message::Shutdown(mode) } if *to == server => {
                Some(*mode)
            }
            _ => None,
        })
    }

    pub(super) fn refusals(&self) -> Vec<(u64, u32)> {
        let refusal = |effect: &Effect| match effect {
            Effect::Refuse { connection, code, .. } => Some((connection.0, *code)),
            _ => None,
        };
        self.effects.iter().filter_map(refusal).collect()
    }

    pub(super) fn exit_status(&self) -> Option<u8> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Exit { status } => Some(*status),
            _ => None,
        })
    }

    /// Runs a line as `uid`, its servers answering at once; (standard output, standard error).
    pub(super) fn line_as(&mut self, uid: u32, line: &str) -> (String, String) {
        let asked = self.core.servers.iter().filter(|server| server.questions.open.is_some());
        for server in asked.map(|server| server.pid).collect::<Vec<_>>() {
            self.answers(server);
        }
        self.effects.clear();
        let peer = Peer { pid: 1, uid, gid: uid, ..Peer::default() };
        self.event(Event::UiLine { connection: UI, peer, line: line.to_owned() });
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Send { server, message: Message::Snapshot(id) } => {
                    let snapshot = self.snapshot.clone();
                    self.event(Event::ServerSaid {
                        server,
                        message: ToDaemon::Snapshot { id, snapshot },
                    });
                }
                Effect::Send { server, message: Message::Terminate { id, client } } => {
                    let clients = self.core.clients();
                    let is_it = |known: &ClientSnapshot| {
                        let record = clients.find(server, known.client_id);
                        record.is_some_and(|record| record.who.peer.pid == client)
                    };
                    let known = self.snapshot.clients.iter().any(is_it);
                    let code = if known { 0 } else { 201 };
                    self.event(Event::ServerSaid {
                        server,
                        message: ToDaemon::Terminated { id, code },
                    });
                }
                Effect::Reply { output, error, exit_status, .. } => {
                    assert_eq!(exit_status, 0, "{line}");
                    return (output, error);
                }
                _ => {}
            }
        }
        panic!("no reply to {line}");
    }

    pub(super) fn line(&mut self, line: &str) -> (String, String) {
        self.line_as(ROOT, line)
    }

    /// Replays a transcript: `--- command`, then what it prints.
    pub(super) fn replay(&mut self, transcript: &str) {
        for part in transcript.split("--- ").skip(1) {
            let (command, expected) = part.split_once('\n').unwrap();
            assert_eq!(self.line(command).0, expected, "{command}");
        }
    }
}

/// The state of the recording: server 975 of root, two clients on one H200.
pub(super) fn recorded_world() -> World {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.snapshot = ServerSnapshot {
        devices: vec![DeviceSnapshot {
            uuid: "GPU-d123c540-3d02-b0d8-c638-e90011910307".into(),
            name: "NVIDIA H200".into(),
            pci_bus_id: "0000:00:06.0".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    world.client(1, ROOT);
    world.ready(975);
    for (pid, serial) in [(1622, 122), (1623, 121)] {
        let mut client = world.attached(pid);
        (client.contexts[0].context_id, client.contexts[0].serial) = (1, serial);
        world.snapshot.clients.push(client);
    }
    world.answers(975);
    world
}

pub(super) fn quit(line: &str) -> Event {
    let peer = Peer { pid: 1, uid: ROOT, gid: ROOT, ..Peer::default() };
    Event::UiLine { connection: UI, peer, line: line.to_owned() }
}
