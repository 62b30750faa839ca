//! Clients that were handed on to servers: who they are is what the kernel said when the daemon
//! accepted their sockets.
//!
//! A server runs as its user, who can make it say anything. So it is told a client's number with
//! the client, says everything of it under that number, and what else it says of who that is counts
//! for nothing: [`Core::joined`] puts the record in its place. A record ends when the process has
//! ended (the daemon's loop sees that), when the server says that the client has left, or with the
//! server; of the latest that left so much is kept as a server lists. A server that never says so
//! gets no more clients at some time, while those that it had stay known: a batch system may ask
//! who they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use link::wire::attach::ClientHello;
use link::wire::daemon::{ClientSnapshot, DEPARTED_KEPT, Origin, Peer, ServerSnapshot};
use link::wire::fault::{Accused, FaultReport};
use link::wire::group_socket::{Admission, GroupSocket};
use link::wire::owner::Owner;
use settings::Environment;

use super::Core;
use super::command::Pid;

/// Who a client is, and how it came.
#[derive(Debug, Clone, Default)]
pub struct Who {
    /// By the kernel's word.
    pub peer: Peer,
    /// Where it comes from.
    pub origin: Origin,
    /// Inode of its PID namespace; 0 where the daemon cannot see it.
    pub pid_namespace: u64,
    /// Its process, held so that no other takes its number; the daemon's loop uses it. Absent where
    /// the kernel gives none.
    pub process: Option<Arc<OwnedFd>>,
    /// The group's socket by which it came; absent: the daemon's own.
    pub entrance: Option<Arc<GroupSocket>>,
}

impl Who {
    /// Whom it counts for.
    pub fn owner(&self) -> Owner {
        let entrance = self.entrance.as_ref().map(|entrance| entrance.group.clone());
        Owner { uid: self.peer.accountable(), entrance }
    }
}

/// What makes clients of the daemon's own socket a group; the servers have it from the same
/// variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Membership {
    /// The name that they give.
    #[default]
    ByName,
    /// Their control group.
    ByControlGroup,
}

impl Membership {
    /// What the daemon's environment says.
    pub fn from_environment(variables: &mut Environment) -> Self {
        match variables.is_on(&settings::GROUP_BY_CGROUP) {
            true => Self::ByControlGroup,
            false => Self::ByName,
        }
    }

    /// The group of a client that came in so.
    pub(super) fn group(
        self,
        who: &Who,
        admission: Option<&Admission>,
        hello: &ClientHello,
    ) -> Option<Group> {
        match (admission, self) {
            (Some(admission), _) => Some(Group::Given(admission.group.clone())),
            (None, Self::ByName) => hello.limits.group.clone().map(Group::Claimed),
            (None, Self::ByControlGroup) => {
                let group = who.origin.bounding_group.clone();
                group.filter(|group| group != "/").map(Group::Given)
            }
        }
    }
}

/// A client's group, and who says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    /// The daemon: by its socket or its control group.
    Given(String),
    /// The client itself, for its own user's view: nothing that is done to others may go by it.
    Claimed(String),
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Given(name) | Self::Claimed(name) => name,
        }
    }
}

/// One client that was handed on.
#[derive(Debug)]
pub struct ClientRecord {
    /// Whose it is.
    pub server: Pid,
    /// Who it is.
    pub who: Who,
    /// Its command line in its own words, which are for people's eyes.
    pub command: String,
    /// Its group.
    pub group: Option<Group>,
}

/// All of them, by number. A number is never used again while the daemon lives.
#[derive(Debug, Default)]
pub struct Clients {
    last: u64,
    attached: BTreeMap<u64, ClientRecord>,
    /// Without their processes, the latest last.
    departed: VecDeque<(u64, ClientRecord)>,
}

impl Clients {
    /// Notes a client that is handed on; returns its number.
    pub(super) fn add(&mut self, record: ClientRecord) -> u64 {
        self.last += 1;
        self.attached.insert(self.last, record);
        self.last
    }

    /// Those that may still be attached, with their numbers.
    pub fn attached(&self) -> impl Iterator<Item = (u64, &ClientRecord)> {
        self.attached.iter().map(|(id, record)| (*id, record))
    }

    /// The client of this number, attached or departed, if it was handed to this server.
    pub(super) fn find(&self, server: Pid, id: u64) -> Option<&ClientRecord> {
        let departed = || self.departed.iter().find(|(known, _)| *known == id).map(|(_, it)| it);
        self.attached.get(&id).or_else(departed).filter(|record| record.server == server)
    }

    /// How many of a server's may still be attached.
    pub(super) fn of_server(&self, server: Pid) -> usize {
        self.attached.values().filter(|record| record.server == server).count()
    }

    /// A client's process has ended; returns the server that it was handed to.
    pub(super) fn process_ended(&mut self, id: u64) -> Option<Pid> {
        let mut record = self.attached.remove(&id)?;
        record.who.process = None;
        let server = record.server;
        self.departed.push_back((id, record));
        let of_server = |(_, other): &(u64, ClientRecord)| other.server == server;
        if self.departed.iter().filter(|other| of_server(other)).count() > DEPARTED_KEPT
            && let Some(oldest) = self.departed.iter().position(of_server)
        {
            self.departed.remove(oldest);
        }
        Some(server)
    }

    /// A server says that it has a client no longer; returns whether it had.
    pub(super) fn left(&mut self, server: Pid, id: u64) -> bool {
        let is_its = self.attached.get(&id).is_some_and(|record| record.server == server);
        is_its && self.process_ended(id).is_some()
    }

    /// A server's process has ended, and what it served with it.
    pub(super) fn server_gone(&mut self, server: Pid) {
        self.attached.retain(|_, record| record.server != server);
        self.departed.retain(|(_, record)| record.server != server);
    }
}

impl Core {
    /// Clients that were handed on to servers.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// What a server says, with the daemon's own word of who its clients are; those that it was
    /// never handed are left out.
    pub(super) fn joined(&self, server: Pid, mut said: ServerSnapshot) -> ServerSnapshot {
        let mut listed = BTreeSet::new();
        let mut identify = |client: &mut ClientSnapshot| {
            // Once at most.
            if !listed.insert(client.client_id) {
                return false;
            }
            let Some(record) = self.clients.find(server, client.client_id) else { return false };
            client.pid = record.who.peer.pid;
            client.uid = record.who.peer.uid;
            client.pid_namespace = record.who.pid_namespace;
            client.command.clone_from(&record.command);
            client.group = record.group.as_ref().map(|group| group.name().to_owned());
            true
        };
        said.clients.retain_mut(&mut identify);
        said.departed.retain_mut(&mut identify);
        let known = self.server(server).map_or(&[][..], |server| &server.snapshot.faults);
        for fault in &mut said.faults {
            let earlier = known.iter().find(|earlier| earlier.number == fault.number);
            fault.accused.retain_mut(|accused| self.identify_accused(server, accused, earlier));
        }
        said
    }

    /// The same for whom a fault names, who may have left long ago: then it is who was meant when
    /// the fault was first told.
    fn identify_accused(
        &self,
        server: Pid,
        accused: &mut Accused,
        earlier: Option<&FaultReport>,
    ) -> bool {
        let id = accused.client_id;
        if let Some(record) = self.clients.find(server, id) {
            (accused.pid, accused.uid) = (record.who.peer.pid, record.who.peer.uid);
            accused.command.clone_from(&record.command);
            return true;
        }
        let before = earlier.and_then(|fault| fault.accused.iter().find(|it| it.client_id == id));
        let Some(before) = before else { return false };
        (accused.pid, accused.uid) = (before.pid, before.uid);
        accused.command.clone_from(&before.command);
        true
    }
}
