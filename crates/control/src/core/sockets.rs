//! Sockets of groups: who may have them opened, and which are open. What they are: [`link::wire::group_socket`].

use link::printable_prefix;
use link::wire::daemon::Peer;
use link::wire::group_socket::{GroupSocket, MAX_GROUP_SOCKETS};
use link::wire::shares::{ChangeReport, GroupLimits};
use link::wire::ui::UiReply;

use super::{ConnectionId, Core, Effect};

/// What a front end asks for.
#[derive(Debug, Clone)]
pub enum SocketRequest {
    /// Open one.
    Open(GroupSocket),
    /// Close the one in this directory.
    Close(String),
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
        self.effects.push(Effect::CloseSocket { directory });
        self.socket_done(connection);
        Ok(())
    }

    /// Notes the sockets that were opened before anybody could ask, with the limits of each of their groups.
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
    use std::time::Duration;

    use link::wire::group_socket::SocketDomain;

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
        let peer = Peer { pid: 2, uid, gid: uid, namespaces: Default::default() };
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
