//! Ending the clients of a group's socket: what a batch system's epilog asks for, when the
//! processes of a job should be gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use link::wire::daemon::Peer;
use link::wire::ui::{EndedClient, UiReply};

use super::clients::Who;
use super::{ConnectionId, Core, Effect};

impl Core {
    /// Has the processes killed that the daemon itself took in by this socket, whoever's they are,
    /// and says which they were: a server's word counts for nothing, nor does the name of a group
    /// that a client gives itself. Who came in by a job's socket was let in by the job's user; that
    /// user may have other numbers besides (`subuid(5)`).
    pub(super) fn end_clients(&mut self, connection: ConnectionId, peer: Peer, directory: &str) {
        if let Err(reason) = self.check_privilege(peer) {
            let message = format!("ending clients is for {reason}");
            return self
                .effects
                .push(Effect::ReplyShares { connection, reply: UiReply::Refused { message } });
        }
        let mut clients = Vec::new();
        let mut processes: Vec<Arc<OwnedFd>> = Vec::new();
        let mut end = |who: &Who, command: &str| {
            clients
                .push((who.peer.uid, EndedClient { pid: who.peer.pid, command: command.into() }));
            processes.extend(who.process.clone());
        };
        for (_, record) in self.clients.attached() {
            let entrance = record.who.entrance.as_ref();
            if entrance.is_some_and(|entrance| entrance.directory == directory) {
                end(&record.who, &record.command);
            }
        }
        for waiting in self.refuse_waiting(directory) {
            end(&waiting.who, &waiting.hello.command);
        }
        for (uid, EndedClient { pid, command }) in &clients {
            self.log(format!("Ending client {pid} ({command}) of user {uid}, as asked"));
        }
        self.effects.extend(processes.into_iter().map(|process| Effect::EndProcess { process }));
        let clients = clients.into_iter().map(|(_, client)| client).collect();
        self.effects.push(Effect::ReplyShares { connection, reply: UiReply::Ended { clients } });
    }
}
