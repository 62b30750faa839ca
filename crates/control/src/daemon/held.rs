//! Descriptors that the daemon holds for others beside their connections to it: of each client that
//! was handed on its process's, and the connection of each that is still on its way.

use std::collections::BTreeMap;

use link::wire::daemon::Namespaces;

use super::servers::ServerProcess;
use crate::core::clients::Clients;
use crate::core::command::Pid;

/// What holds them.
pub(super) struct Held<'a> {
    pub(super) clients: &'a Clients,
    pub(super) servers: &'a BTreeMap<Pid, ServerProcess>,
}

/// For whom one of them is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder<'a> {
    /// The user for whom it counts.
    pub(super) uid: u32,
    pub(super) namespaces: Namespaces,
    /// The group by whose socket it came.
    pub(super) group: Option<&'a str>,
}

impl<'a> Held<'a> {
    /// One for each descriptor.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holder<'a>> {
        let processes = self.clients.attached().filter(|(_, client)| client.who.process.is_some());
        let processes = processes.map(|(_, client)| Holder {
            uid: client.who.peer.accountable(),
            namespaces: client.who.peer.namespaces,
            group: client.who.entrance.as_ref().map(|entrance| entrance.group.as_str()),
        });
        let waiting = self.servers.values().flat_map(ServerProcess::waiting);
        let waiting = waiting.map(|owner| Holder {
            uid: owner.uid,
            namespaces: Namespaces::Shared,
            group: owner.entrance.as_deref(),
        });
        processes.chain(waiting)
    }
}
