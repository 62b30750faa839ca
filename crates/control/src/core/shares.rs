//! Shares that are changed while clients run: limits of clients, groups, servers and users, and
//! reserved SMs.
//!
//! Limits of groups and reservations are the daemon's: every server, also one that starts later, is
//! told of all of them. Limits of clients are their server's; those of a server or user hold for
//! later clients, too.

use std::collections::BTreeSet;

use link::printable_prefix;
use link::wire::daemon::{Peer, SMALLEST_SHARE, ServerStatus};
use link::wire::shares::{
    ChangeReport, DeviceMove, GroupLimits, LimitChange, MAX_GROUPS, MAX_RESERVATIONS, MOST_WEIGHT,
    MemoryLimit, Moved, NewLimits, Reservation, ServerChange, Target, Who, check_name,
    limits_of_group,
};
use link::wire::ui::UiReply;
use settings::{DeviceRef, Memory, Percentage, ValueError};

use super::clients::{ClientRecord, Group};
use super::command::Pid;
use super::group_text::parse_groups;
use super::shell::AskKind;
use super::{ConnectionId, Core, Effect, Message, Now, Provisioning};

/// What a front end asks for.
#[derive(Debug, Clone)]
pub enum ShareRequest {
    /// Change limits.
    Limit(LimitChange),
    /// Reserve SMs.
    Reserve(Reservation),
    /// Give a reservation up.
    Release(String),
    /// Have clients go on on another device.
    Move(DeviceMove),
    /// Have all clients of a device go on on others, and keep programs that start from it.
    Drain(u32),
    /// Let programs that start use it again.
    Undrain(u32),
}

/// A change whose servers have not all answered.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) report: ChangeReport,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Client(Pid),
    Group(String),
    /// Whose clients go to another device.
    Move(Moved),
    Others,
    /// Taken back if a server refuses it.
    Reserve(String),
}

impl Core {
    pub(super) fn share_request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        peer: Peer,
        request: ShareRequest,
    ) {
        let name = match &request {
            ShareRequest::Limit(_) => "limit",
            ShareRequest::Reserve(_) | ShareRequest::Release(_) => "reserve",
            ShareRequest::Move(_) => "move",
            ShareRequest::Drain(_) | ShareRequest::Undrain(_) => "drain",
        };
        self.log(format!("Shares: {}", described(&request)));
        let allowed =
            self.check_privilege(peer).map_err(|reason| format!("`{name}` is for {reason}"));
        let done = allowed.and_then(|()| match request {
            ShareRequest::Limit(change) => self.limit(change),
            ShareRequest::Reserve(reservation) => self.reserve(reservation),
            ShareRequest::Release(name) => self.release(&name),
            ShareRequest::Move(wanted) => self.move_clients(wanted),
            ShareRequest::Drain(device) => self.drain(device),
            ShareRequest::Undrain(device) => self.undrain(device),
        });
        match done {
            Ok((open, kind)) => {
                let change = Change { report: ChangeReport::default(), kind };
                self.ask(now, connection, AskKind::Change(change), open);
            }
            Err(message) => {
                self.log(format!("Refused: {message}"));
                self.effects
                    .push(Effect::ReplyShares { connection, reply: UiReply::Refused { message } });
            }
        }
    }

    fn limit(&mut self, change: LimitChange) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        let LimitChange { target, limits } = change;
        let NewLimits { percentage, memory, weight } = limits;
        if limits == NewLimits::default() {
            return Err(
                "nothing is to be changed: give a share of the SMs, a memory limit or a weight"
                    .into(),
            );
        }
        if let Some(weight) = weight.filter(|weight| !(1..=MOST_WEIGHT).contains(weight)) {
            return Err(format!("weight {weight} is none: give 1 to {MOST_WEIGHT}"));
        }
        let share: Option<Percentage> = match percentage {
            Some(percent) => {
                Some(percent.to_string().parse().map_err(|error: ValueError| error.to_string())?)
            }
            None => None,
        };
        let clients = |who| ServerChange::Clients { who, limits };
        match target {
            Target::Client(pid) => {
                self.check_device(memory.and_then(|limit| limit.device))?;
                let open = self.change_ready_servers(&clients(Who::Process(pid)));
                if open.is_empty() {
                    return Err(no_client(pid));
                }
                Ok((open, Kind::Client(pid)))
            }
            Target::Group(name) => {
                check_name(&name).map_err(|error| error.to_string())?;
                self.check_device(memory.and_then(|limit| limit.device))?;
                self.limit_group(name.clone(), limits)?;
                let groups = self.groups.clone();
                let open = self.change_all_servers(&ServerChange::Groups(groups));
                Ok((open, Kind::Group(name)))
            }
            Target::Server(pid) => {
                let Some(server) = self.server(pid) else {
                    return Err(format!(
                        "there is no server {pid}: `openmps status` shows the servers"
                    ));
                };
                if server.status == ServerStatus::Initializing {
                    return Err(format!("server {pid} is still starting: try again in a moment"));
                }
                self.check_device_of(pid, memory.and_then(|limit| limit.device))?;
                Ok((self.limit_server(pid, share, memory, &clients(Who::All)), Kind::Others))
            }
            Target::User(uid) => {
                let own = self.servers.iter().find(|server| server.uid == uid);
                if let Some(pid) =
                    own.filter(|s| s.status != ServerStatus::Initializing).map(|s| s.pid)
                {
                    self.check_device_of(pid, memory.and_then(|limit| limit.device))?;
                    return Ok((
                        self.limit_server(pid, share, memory, &clients(Who::All)),
                        Kind::Others,
                    ));
                }
                // Several users' clients may share one server, whose later clients are not this
                // user's alone.
                let open = match self.config.provisioning {
                    Provisioning::Multiuser => self.change_ready_servers(&clients(Who::User(uid))),
                    Provisioning::OneUserAtATime | Provisioning::Concurrent => Vec::new(),
                };
                if open.is_empty() {
                    return Err(format!(
                        "no server serves user {uid} now: `openmps status` shows the servers; set_default_active_thread_percentage and set_default_device_pinned_mem_limit are for servers to come"
                    ));
                }
                Ok((open, Kind::Others))
            }
        }
    }

    fn limit_group(
        &mut self,
        name: String,
        NewLimits { percentage, memory, weight }: NewLimits,
    ) -> Result<(), String> {
        let place = match self.groups.iter().position(|group| group.name == name) {
            Some(place) => place,
            None if self.groups.len() >= MAX_GROUPS => {
                return Err(format!(
                    "{MAX_GROUPS} groups have limits already: remove those of another with --sm-percent 100 --memory 0"
                ));
            }
            None => {
                self.groups.push(GroupLimits { name, ..Default::default() });
                self.groups.len() - 1
            }
        };
        let group = &mut self.groups[place];
        if let Some(percent) = percentage {
            group.percentage = (percent < 100.0).then_some(percent);
        }
        if let Some(limit) = memory {
            group.memory.retain(|old| limit.device.is_some() && old.device != limit.device);
            group.memory.push(limit);
            if group.memory.iter().all(|limit| limit.limit_bytes.is_none()) {
                group.memory.clear();
            }
        }
        group.weight = weight.or(group.weight);
        self.groups.retain(|group| {
            group.percentage.is_some() || !group.memory.is_empty() || group.weight.is_some()
        });
        Ok(())
    }

    /// Sets the limits of a server's clients, and of those to come.
    fn limit_server(
        &mut self,
        pid: Pid,
        share: Option<Percentage>,
        memory: Option<MemoryLimit>,
        change: &ServerChange,
    ) -> Vec<(Pid, u64)> {
        if let Some(server) = self.server_mut(pid) {
            if let Some(share) = share {
                server.limits.percentage = share;
            }
            if let Some(MemoryLimit { device, limit_bytes }) = memory {
                let size = Memory::from_bytes(limit_bytes.unwrap_or(0));
                let all = 0..server.snapshot.devices.len() as u32;
                for index in all.filter(|index| device.is_none_or(|wanted| wanted == *index)) {
                    server.limits.set_told_memory(DeviceRef::Ordinal(index), size);
                }
            }
        }
        self.tell_limits(pid);
        vec![(pid, self.send_change(pid, change))]
    }

    fn reserve(&mut self, wanted: Reservation) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        let Reservation { name, device, multiprocessors } = &wanted;
        check_name(name).map_err(|error| error.to_string())?;
        if self.reservations.iter().any(|known| known.name == *name) {
            return Err(format!(
                "there is a reservation {name} already: release it first, with `openmps reserve --release {name}`"
            ));
        }
        if self.reservations.len() >= MAX_RESERVATIONS {
            return Err(format!("{MAX_RESERVATIONS} reservations are made already: release one"));
        }
        if *multiprocessors == 0 {
            return Err("give at least one SM".into());
        }
        self.check_device(Some(*device))?;
        let known = self.servers.iter().map(|server| &server.snapshot.devices);
        let known = known.chain([&self.config.ready_devices]);
        let all =
            known.filter_map(|devices| devices.get(*device as usize)).map(|d| d.multiprocessors);
        if let Some(all) = all.filter(|count| *count > 0).min() {
            let others = self.reservations.iter().filter(|known| known.device == *device);
            let reserved: u32 = others.map(|known| known.multiprocessors.next_multiple_of(2)).sum();
            let most = all.saturating_sub(reserved).saturating_sub(SMALLEST_SHARE);
            if *multiprocessors > most {
                return Err(format!(
                    "{multiprocessors} SMs cannot be reserved: device {device} has {all}, {reserved} are reserved, and {SMALLEST_SHARE} must be left for the other clients; reserve at most {most}, or release another reservation"
                ));
            }
        }
        let kind = Kind::Reserve(name.clone());
        self.reservations.push(wanted);
        Ok((self.change_reservations(), kind))
    }

    fn release(&mut self, name: &str) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        let Some(place) = self.reservations.iter().position(|known| known.name == name) else {
            return Err(format!("there is no reservation {name}: `openmps reserve` lists them"));
        };
        self.reservations.remove(place);
        Ok((self.change_reservations(), Kind::Others))
    }

    fn move_clients(&mut self, wanted: DeviceMove) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        if let Moved::Group(name) = &wanted.whom {
            check_name(name).map_err(|error| error.to_string())?;
        }
        self.check_device(wanted.to)?;
        let kind = Kind::Move(wanted.whom.clone());
        let open = self.change_ready_servers(&ServerChange::Move(wanted));
        match open.is_empty() {
            true => Err(nobody(&kind)),
            false => Ok((open, kind)),
        }
    }

    fn drain(&mut self, device: u32) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        self.check_device(Some(device))?;
        if self.servers.is_empty() && !self.is_known(device) {
            return Err(format!("there is no device {device}: `openmps status` shows the devices"));
        }
        if !self.drained.contains(&device) {
            self.drained.push(device);
            self.drained.sort_unstable();
        }
        let mut open = self.change_all_servers(&ServerChange::Drained(self.drained.clone()));
        let whom = Moved::Device(device);
        open.extend(self.change_ready_servers(&ServerChange::Move(DeviceMove { whom, to: None })));
        Ok((open, Kind::Others))
    }

    fn undrain(&mut self, device: u32) -> Result<(Vec<(Pid, u64)>, Kind), String> {
        if !self.drained.contains(&device) {
            return Err(format!(
                "device {device} is not drained: `openmps status` shows which are"
            ));
        }
        self.drained.retain(|known| *known != device);
        let drained = self.drained.clone();
        Ok((self.change_all_servers(&ServerChange::Drained(drained)), Kind::Others))
    }

    /// Whether the daemon knows of such a device though it has no server.
    fn is_known(&self, device: u32) -> bool {
        let known = self.config.ready_devices.len();
        known == 0 || (device as usize) < known
    }

    fn change_reservations(&mut self) -> Vec<(Pid, u64)> {
        let change = ServerChange::Reservations(self.reservations.clone());
        self.change_all_servers(&change)
    }

    /// Tells a server that starts what holds already.
    pub(super) fn tell_shares(&mut self, pid: Pid) {
        if !self.groups.is_empty() {
            let groups = self.groups.clone();
            self.send_change(pid, &ServerChange::Groups(groups));
        }
        if !self.reservations.is_empty() {
            let reservations = self.reservations.clone();
            self.send_change(pid, &ServerChange::Reservations(reservations));
        }
        if !self.drained.is_empty() {
            let drained = self.drained.clone();
            self.send_change(pid, &ServerChange::Drained(drained));
        }
    }

    fn send_change(&mut self, server: Pid, change: &ServerChange) -> u64 {
        let id = self.next_id();
        self.send(server, Message::Change { id, change: change.clone() });
        id
    }

    /// Tells all servers; returns the requests of those that can answer now.
    fn change_all_servers(&mut self, change: &ServerChange) -> Vec<(Pid, u64)> {
        let starting = self.servers.iter().filter(|s| s.status == ServerStatus::Initializing);
        for pid in starting.map(|server| server.pid).collect::<Vec<_>>() {
            self.send_change(pid, change);
        }
        self.change_ready_servers(change)
    }

    fn change_ready_servers(&mut self, change: &ServerChange) -> Vec<(Pid, u64)> {
        let ready = self.servers.iter().filter(|s| s.status != ServerStatus::Initializing);
        let ready: Vec<Pid> = ready.map(|server| server.pid).collect();
        ready.into_iter().map(|pid| (pid, self.send_change(pid, change))).collect()
    }

    fn check_device(&self, device: Option<u32>) -> Result<(), String> {
        let servers: Vec<Pid> = self.servers.iter().map(|server| server.pid).collect();
        servers.into_iter().try_for_each(|pid| self.check_device_of(pid, device))
    }

    fn check_device_of(&self, pid: Pid, device: Option<u32>) -> Result<(), String> {
        let count = self.server(pid).map_or(0, |server| server.snapshot.devices.len());
        match device {
            Some(device) if count > 0 && device as usize >= count => Err(format!(
                "there is no device {device}: server {pid} has {}",
                match count {
                    1 => "device 0 alone".to_owned(),
                    _ => format!("devices 0 to {}", count - 1),
                }
            )),
            _ => Ok(()),
        }
    }

    /// A server has said what came of a change.
    pub(super) fn changed(&mut self, server: Pid, id: u64, mut report: ChangeReport) {
        let records = || self.clients.attached().filter(|(_, record)| record.server == server);
        let is_its = |pid: &Pid| records().any(|(_, record)| record.who.peer.pid == *pid);
        report.clients.retain(is_its);
        report.waiting.retain(is_its);
        for message in &report.refused {
            self.log(format!("Server {server}: {message}"));
        }
        self.add_report(server, id, report);
        self.answered(server, id, None);
    }

    /// The answer to a front end, when all servers have said their word, or `silent` will not.
    pub(super) fn finish_change(
        &mut self,
        connection: ConnectionId,
        change: Change,
        silent: &[Pid],
    ) {
        let Change { mut report, kind } = change;
        for server in silent {
            report.refused.push(format!("server {server} does not answer"));
        }
        match kind {
            Kind::Client(pid) if report == ChangeReport::default() => {
                let reply = UiReply::Refused { message: no_client(pid) };
                return self.effects.push(Effect::ReplyShares { connection, reply });
            }
            kind @ Kind::Move(_) if report == ChangeReport::default() => {
                let reply = UiReply::Refused { message: nobody(&kind) };
                return self.effects.push(Effect::ReplyShares { connection, reply });
            }
            Kind::Group(name) => self.keep_members(&name, silent, &mut report),
            Kind::Reserve(name) if !report.refused.is_empty() => {
                self.reservations.retain(|known| known.name != name);
                // Servers that have made it give it up.
                self.change_reservations();
            }
            _ => {}
        }
        self.effects.push(Effect::ReplyShares { connection, reply: UiReply::Changed(report) });
    }

    /// Servers answer for the members of all groups with limits; the report is to be of those that
    /// this one's limits are for, or were until now.
    fn keep_members(&self, name: &str, silent: &[Pid], report: &mut ChangeReport) {
        let is_member = |record: &&ClientRecord| {
            let group = record.group.as_ref().map(Group::name);
            !silent.contains(&record.server)
                && group.is_some_and(|group| governs(&self.groups, name, group))
        };
        let records = self.clients.attached().map(|(_, record)| record);
        let members: BTreeSet<u32> =
            records.filter(is_member).map(|record| record.who.peer.pid).collect();
        report.waiting.retain(|pid| members.contains(pid));
        let waits = |pid: &u32| report.waiting.contains(pid);
        report.clients = members.into_iter().filter(|pid| !waits(pid)).collect();
    }

    /// Limits of groups that the daemon's environment sets: `NAME memory=4G sm-percent=30; ...`.
    pub fn set_groups(&mut self, text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        match parse_groups(text) {
            Ok(groups) => self.groups = groups,
            Err(error) => complaints.push(format!("OPENMPS_GROUPS is ignored: {error}")),
        }
        complaints
    }
}

/// Whether the limits of this name, which may be a pattern, are those of a group; or were, if they
/// have just been taken away.
fn governs(all: &[GroupLimits], name: &str, group: &str) -> bool {
    let Some(prefix) = name.strip_suffix('*') else { return name == group };
    let fits = name == group || group.starts_with(prefix);
    let is_nearer = |other: &GroupLimits| {
        other.name != name && (other.name == group || other.name.len() > name.len())
    };
    fits && !limits_of_group(all, group).is_some_and(is_nearer)
}

/// What is said when nobody was meant.
fn nobody(kind: &Kind) -> String {
    match kind {
        Kind::Move(Moved::Group(name)) => {
            let name = printable_prefix(name, 128);
            format!("group {name} has no clients with a context: `openmps limit` shows all groups")
        }
        Kind::Move(Moved::Process(pid)) | Kind::Client(pid) => no_client(*pid),
        Kind::Move(Moved::Device(_)) | Kind::Group(_) | Kind::Others | Kind::Reserve(_) => {
            "there are no clients: `openmps ps` lists them".to_owned()
        }
    }
}

fn no_client(pid: Pid) -> String {
    format!("there is no client {pid}: `openmps ps` lists the clients")
}

fn described(request: &ShareRequest) -> String {
    match request {
        ShareRequest::Limit(LimitChange { target, limits }) => {
            let NewLimits { percentage, memory, weight } = limits;
            let whose = match target {
                Target::Client(pid) => format!("client {pid}"),
                Target::Group(name) => format!("group {}", printable_prefix(name, 128)),
                Target::Server(pid) => format!("server {pid}"),
                Target::User(uid) => format!("user {uid}"),
            };
            let share = percentage.map(|percent| format!(" {percent} % of the SMs"));
            let memory = memory.map(|limit| match limit.limit_bytes {
                Some(bytes) => format!(" {} MiB of memory", bytes >> 20),
                None => " no memory limit".to_owned(),
            });
            let weight = weight.map(|weight| format!(" weight {weight}"));
            let parts = [share, memory, weight].map(Option::unwrap_or_default).concat();
            format!("{whose}:{parts}")
        }
        ShareRequest::Reserve(Reservation { name, device, multiprocessors }) => {
            format!(
                "reserve {multiprocessors} SMs of device {device} for {}",
                printable_prefix(name, 128)
            )
        }
        ShareRequest::Release(name) => format!("release {}", printable_prefix(name, 128)),
        ShareRequest::Move(DeviceMove { whom, to }) => {
            let whom = match whom {
                Moved::Process(pid) => format!("client {pid}"),
                Moved::Group(name) => format!("group {}", printable_prefix(name, 128)),
                Moved::Device(device) => format!("clients of device {device}"),
            };
            let to = to.map_or_else(|| "another device".into(), |to| format!("device {to}"));
            format!("move {whom} to {to}")
        }
        ShareRequest::Drain(device) => format!("drain device {device}"),
        ShareRequest::Undrain(device) => format!("device {device} is not drained any more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_group_or_of_its_nearest_pattern() {
        let named = |name: &str| GroupLimits { name: name.into(), ..Default::default() };
        let all = [named("/a/*"), named("/a/b/*"), named("/a/b/1"), named("job")];
        for (name, group, governed) in [
            ("job", "job", true),
            ("job", "jobs", false),
            ("/a/*", "/a/x", true),
            ("/a/*", "/a/b/2", false),
            ("/a/b/*", "/a/b/2", true),
            ("/a/b/*", "/a/b/1", false),
            ("/a/*", "job", false),
            // Just taken away.
            ("gone", "gone", true),
            ("/c/*", "/c/1", true),
        ] {
            assert_eq!(governs(&all, name, group), governed, "{name} and {group}");
        }
    }
}
