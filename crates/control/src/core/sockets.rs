//! Sockets of groups: who may have them opened, and which are open. What they are:
//! [`link::wire::group_socket`].

use link::printable_prefix;
use link::wire::daemon::Peer;
use link::wire::group_socket::{GroupHolder, GroupSocket, MAX_GROUP_SOCKETS};
use link::wire::shares::{ChangeReport, GroupLimits};
use link::wire::ui::UiReply;

use super::provision::CONNECTION_FAILED;
use super::{ConnectionId, Core, Effect, Pending};

/// Why a client that waited is refused after all.
pub(super) const SOCKET_CLOSED: &str =
    "the socket of its group was closed before it was attached: its container or its job has ended";

/// What a front end asks for.
#[derive(Debug, Clone)]
pub enum SocketRequest {
    /// Open one.
    Open(GroupSocket),
    /// Close the one in this directory.
    Close(String),
    /// Say which container has its group.
    Name(GroupHolder),
}

impl Core {
    pub(super) fn socket_request(
        &mut self,
        connection: ConnectionId,
        peer: Peer,
        request: SocketRequest,
    ) {
        let done = if let Err(reason) = self.check_privilege(peer) {
            Err(format!("opening and closing sockets of groups is for {reason}"))
        } else if self.quitting.is_some() {
            Err("the control daemon is shutting down".into())
        } else {
            match request {
                SocketRequest::Open(socket) => self.open_socket(connection, socket),
                SocketRequest::Close(directory) => self.close_socket(connection, directory),
                SocketRequest::Name(holder) => self.name_holder(connection, holder),
            }
        };
        if let Err(message) = done {
            self.socket_failed(connection, message);
        }
    }

    fn open_socket(&mut self, connection: ConnectionId, socket: GroupSocket) -> Result<(), String> {
        socket.check().map_err(|error| error.to_string())?;
        match self.sockets.iter().find(|open| open.directory == socket.directory) {
            Some(open) if *open == socket => {
                self.socket_done(connection);
                Ok(())
            }
            Some(open) => Err(format!(
                "{} has a socket of group {} already: close it first",
                open.directory, open.group
            )),
            None if self.sockets.len() >= MAX_GROUP_SOCKETS => {
                Err(format!("{MAX_GROUP_SOCKETS} sockets of groups are open already: close one"))
            }
            None => {
                self.effects.push(Effect::OpenSocket { connection, socket });
                Ok(())
            }
        }
    }

    fn close_socket(&mut self, connection: ConnectionId, directory: String) -> Result<(), String> {
        let Some(place) = self.sockets.iter().position(|open| open.directory == directory) else {
            let shown = printable_prefix(&directory, 128);
            return Err(format!("no socket of a group is open in {shown}"));
        };
        let closed = self.sockets.remove(place);
        self.log(format!("Socket of group {} in {} closed", closed.group, closed.directory));
        if !self.sockets.iter().any(|open| open.group == closed.group) {
            self.holders.retain(|holder| holder.group != closed.group);
        }
        self.effects.push(Effect::CloseSocket { directory: directory.clone() });
        self.refuse_waiting(&directory);
        self.socket_done(connection);
        Ok(())
    }

    /// There are as many as sockets at most.
    fn name_holder(&mut self, connection: ConnectionId, holder: GroupHolder) -> Result<(), String> {
        holder.check().map_err(|error| error.to_string())?;
        let GroupHolder { group, namespace, pod, container } = &holder;
        if !self.sockets.iter().any(|open| open.group == *group) {
            return Err(format!("no socket of group {} is open", printable_prefix(group, 128)));
        }
        self.log(format!("Group {group} is of container {container} of pod {namespace}/{pod}"));
        self.holders.retain(|known| known.group != holder.group);
        self.holders.push(holder);
        self.socket_done(connection);
        Ok(())
    }

    /// Whether clients may still come so; absent: by the daemon's own socket.
    pub(super) fn is_open(&self, entrance: Option<&GroupSocket>) -> bool {
        entrance.is_none_or(|entrance| self.sockets.contains(entrance))
    }

    /// Refuses the clients that came by the socket of a directory and wait for a server; they are
    /// returned.
    pub(super) fn refuse_waiting(&mut self, directory: &str) -> Vec<Pending> {
        let is_by_it = |client: &Pending| {
            client.who.entrance.as_ref().is_some_and(|entrance| entrance.directory == directory)
        };
        let (refused, waiting): (Vec<Pending>, _) =
            std::mem::take(&mut self.pending).into_iter().partition(is_by_it);
        self.pending = waiting.into();
        for client in &refused {
            let Peer { pid, uid, .. } = client.who.peer;
            self.log(format!(
                "Client {pid} of user {uid} waited, and its group's socket is closed"
            ));
            self.refuse(client.connection, CONNECTION_FAILED, SOCKET_CLOSED.into());
        }
        refused
    }

    /// Notes the sockets that were opened before anybody could ask, with the limits of each of
    /// their groups.
    pub fn add_profiles(&mut self, profiles: Vec<(GroupSocket, GroupLimits)>) {
        for (socket, limits) in profiles {
            self.groups.retain(|group| group.name != limits.name);
            self.groups.push(limits);
            self.sockets.push(socket);
        }
    }

    pub(super) fn socket_opened(&mut self, connection: ConnectionId, socket: GroupSocket) {
        self.log(format!("Socket of group {} opened in {}", socket.group, socket.directory));
        self.sockets.push(socket);
        self.socket_done(connection);
    }

    pub(super) fn socket_failed(&mut self, connection: ConnectionId, message: String) {
        self.log(format!("Refused: {message}"));
        self.effects.push(Effect::ReplyShares { connection, reply: UiReply::Refused { message } });
    }

    fn socket_done(&mut self, connection: ConnectionId) {
        let reply = UiReply::Changed(ChangeReport::default());
        self.effects.push(Effect::ReplyShares { connection, reply });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use link::wire::daemon::ToDaemon;
    use link::wire::group_socket::SocketDomain;

    use super::super::clients::Who;
    use super::super::{Config, Event, Limits, Provisioning};
    use super::*;

    const DAEMON_UID: u32 = 1000;

    fn core() -> Core {
        let config = Config {
            daemon_pid: 1,
            daemon_uid: DAEMON_UID,
            daemon_gid: DAEMON_UID,
            provisioning: Provisioning::Multiuser,
            ready_devices: Vec::new(),
            membership: Default::default(),
        };
        Core::new(config, Limits::default())
    }

    fn socket(directory: &str, group: &str) -> GroupSocket {
        let (directory, group) = (directory.to_owned(), group.to_owned());
        let domain = SocketDomain::Group;
        GroupSocket { directory, group, devices: Vec::new(), domain, weight: None }
    }

    /// The daemon's refusal, or nothing; sockets open at once.
    fn ask(core: &mut Core, uid: u32, request: SocketRequest) -> Option<String> {
        let connection = ConnectionId(1);
        let peer = Peer { pid: 2, uid, gid: uid, ..Peer::default() };
        let mut events = vec![Event::UiSocket { connection, peer, request }];
        let mut answer = None;
        while let Some(event) = events.pop() {
            for effect in core.handle(Duration::ZERO, event) {
                match effect {
                    Effect::OpenSocket { connection, socket } => {
                        events.push(Event::SocketOpened { connection, socket });
                    }
                    Effect::ReplyShares { reply, .. } => answer = Some(reply),
                    _ => {}
                }
            }
        }
        match answer.expect("every request is answered") {
            UiReply::Changed(_) => None,
            UiReply::Refused { message } => Some(message),
            other => panic!("{other:?}"),
        }
    }

    /// A client of this user that comes by a socket; the core's answer.
    fn arrive(core: &mut Core, by: &GroupSocket, uid: u32, connection: u64) -> Vec<Effect> {
        let peer = Peer { pid: 100 + uid, uid, gid: uid, ..Peer::default() };
        let process = std::fs::File::open("/dev/null").unwrap();
        let who = Who {
            peer,
            process: Some(Arc::new(process.into())),
            entrance: Some(Arc::new(by.clone())),
            ..Who::default()
        };
        let hello = serde_json::from_str(
            r#"{"versions": {"oldest": 1, "newest": 1}, "pid": 1, "pid_namespace": 0, "command": "/tmp/feas", "limits": {}}"#,
        );
        core.handle(
            Duration::ZERO,
            Event::ClientArrived {
                connection: ConnectionId(connection),
                who: Box::new(who),
                hello: Box::new(hello.unwrap()),
                admission: by.admission(None).ok(),
            },
        )
    }

    fn refused(effects: &[Effect]) -> Vec<u64> {
        let refused = effects.iter().filter_map(|effect| match effect {
            Effect::Refuse { connection, .. } => Some(connection.0),
            _ => None,
        });
        refused.collect()
    }

    #[test]
    fn nobody_comes_by_a_socket_that_is_closed() {
        let mut core = core();
        let (ours, other) = (socket("/run/a", "a"), socket("/run/b", "b"));
        for socket in [&ours, &other] {
            assert_eq!(ask(&mut core, 0, SocketRequest::Open(socket.clone())), None);
        }
        // There is no server yet.
        assert_eq!(refused(&arrive(&mut core, &ours, 7, 11)), [0; 0]);
        assert_eq!(refused(&arrive(&mut core, &other, 7, 12)), [0; 0]);
        let close = |core: &mut Core| {
            let peer = Peer { pid: 2, uid: 0, gid: 0, ..Peer::default() };
            let request = SocketRequest::Close("/run/a".to_owned());
            let connection = ConnectionId(1);
            core.handle(Duration::ZERO, Event::UiSocket { connection, peer, request })
        };
        assert_eq!(refused(&close(&mut core)), [11]);
        assert_eq!(core.pending.len(), 1);
        // It had connected before.
        assert_eq!(refused(&arrive(&mut core, &ours, 7, 13)), [13]);
        assert_eq!(refused(&arrive(&mut core, &other, 7, 14)), [0; 0]);
    }

    #[test]
    fn who_came_by_a_socket_is_ended_whoever_it_is() {
        let mut core = core();
        let (ours, other) = (socket("/run/a", "a"), socket("/run/b", "b"));
        for socket in [&ours, &other] {
            assert_eq!(ask(&mut core, 0, SocketRequest::Open(socket.clone())), None);
        }
        let mut effects = arrive(&mut core, &ours, 7, 11);
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Spawn { .. })));
        core.handle(Duration::ZERO, Event::ServerSpawned { pid: 70, uid: DAEMON_UID });
        let message = ToDaemon::Ready;
        core.handle(Duration::ZERO, Event::ServerSaid { server: 70, message });
        arrive(&mut core, &ours, 8, 12);
        arrive(&mut core, &other, 9, 13);
        assert_eq!(core.clients.attached().count(), 3);
        // One more, that waits for the next server.
        core.stop_when_idle(70);
        arrive(&mut core, &ours, 10, 14);
        let end = |core: &mut Core, uid| {
            let peer = Peer { pid: 2, uid, gid: uid, ..Peer::default() };
            let (connection, directory) = (ConnectionId(1), "/run/a".to_owned());
            core.handle(Duration::ZERO, Event::UiEndClients { connection, peer, directory })
        };
        let kills = |effects: &[Effect]| {
            effects.iter().filter(|effect| matches!(effect, Effect::EndProcess { .. })).count()
        };
        assert_eq!(kills(&end(&mut core, 7)), 0, "a client may not");
        effects = end(&mut core, 0);
        assert_eq!((kills(&effects), refused(&effects)), (3, vec![14]));
        let ended = effects.iter().find_map(|effect| match effect {
            Effect::ReplyShares { reply: UiReply::Ended { clients }, .. } => Some(clients.clone()),
            _ => None,
        });
        let pids: Vec<u32> = ended.unwrap().iter().map(|client| client.pid).collect();
        assert_eq!(pids, [107, 108, 110]);
    }

    #[test]
    fn a_group_has_a_holder_as_long_as_it_has_a_socket() {
        let mut core = core();
        let holder = |pod: &str| {
            let [group, namespace, container] = ["a", "default", "c"].map(str::to_owned);
            GroupHolder { group, namespace, pod: pod.to_owned(), container }
        };
        let name =
            |core: &mut Core, uid, pod: &str| ask(core, uid, SocketRequest::Name(holder(pod)));
        assert!(name(&mut core, 0, "p").unwrap().contains("no socket of group a is open"));
        assert_eq!(ask(&mut core, 0, SocketRequest::Open(socket("/run/a", "a"))), None);
        assert!(name(&mut core, 1001, "p").unwrap().contains("is for root"));
        assert!(name(&mut core, 0, "").unwrap().contains("no name of a pod"));
        assert_eq!(name(&mut core, 0, "p"), None);
        assert_eq!(name(&mut core, 0, "q"), None);
        assert_eq!(core.holders, [holder("q")]);
        assert_eq!(ask(&mut core, 0, SocketRequest::Close("/run/a".to_owned())), None);
        assert_eq!(core.holders, []);
    }

    #[test]
    fn root_and_the_daemons_user_open_and_close() {
        let mut core = core();
        let open = |uid, core: &mut Core, directory| {
            ask(core, uid, SocketRequest::Open(socket(directory, "a")))
        };
        let close =
            |uid, core: &mut Core| ask(core, uid, SocketRequest::Close("/run/a".to_owned()));
        assert!(open(1001, &mut core, "/run/a").unwrap().contains("is for root and for user 1000"));
        assert_eq!(open(DAEMON_UID, &mut core, "/run/a"), None);
        assert_eq!(open(0, &mut core, "/run/a"), None, "it is open alike");
        assert_eq!(core.sockets.len(), 1);
        let other = SocketRequest::Open(socket("/run/a", "b"));
        assert!(ask(&mut core, 0, other).unwrap().contains("close it first"));
        assert!(open(0, &mut core, "run/a").unwrap().contains("absolute"));
        assert!(close(1001, &mut core).is_some());
        assert_eq!(close(0, &mut core), None);
        assert!(close(0, &mut core).unwrap().contains("no socket"));
    }
}
