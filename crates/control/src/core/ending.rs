//! Ending the clients of a group: what a batch system's epilog asks for, when the processes of a job should be gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use link::wire::daemon::Peer;
use link::wire::ui::{EndedClient, UiReply};

use super::clients::Group;
use super::{ConnectionId, Core, Effect};

impl Core {
    /// Has the processes killed that the daemon itself handed on for this group and this user, and says which they were: a server's word counts for nothing,
    /// nor does the name of a group that a client gives itself.
    pub(super) fn end_clients(
        &mut self,
        connection: ConnectionId,
        peer: Peer,
        group: &str,
        uid: u32,
    ) {
        if let Err(reason) = self.check_privilege(peer) {
            let message = format!("ending clients is for {reason}");
            return self
                .effects
                .push(Effect::ReplyShares { connection, reply: UiReply::Refused { message } });
        }
        let mut clients = Vec::new();
        let mut processes: Vec<Arc<OwnedFd>> = Vec::new();
        for (_, record) in self.clients.attached() {
            let is_given = matches!(&record.group, Some(Group::Given(name)) if name == group);
            if is_given && record.who.peer.uid == uid {
                let command = record.command.clone();
                clients.push(EndedClient { pid: record.who.peer.pid, command });
                processes.extend(record.who.process.clone());
            }
        }
        for EndedClient { pid, command } in &clients {
            self.log(format!("Ending client {pid} ({command}) of user {uid}, as asked"));
        }
        self.effects.extend(processes.into_iter().map(|process| Effect::EndProcess { process }));
        self.effects.push(Effect::ReplyShares { connection, reply: UiReply::Ended { clients } });
    }
}
