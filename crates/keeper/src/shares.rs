//! Shares that change while clients run: limits of clients and of groups, and reserved SMs.
//!
//! Memory limits hold at once. SMs are the executors' affair: each session is told what it is to
//! have, and says when its work runs there; a change that the daemon asked for is answered when all
//! have, or when [`CHANGE_LIMIT`] has passed and the kernels of some still run.

pub(crate) mod headroom;

use super::Keeper;
use super::clients::{Client, GREEN_CONTEXTS_SINCE, share_of};
use super::devices::uuid_text;
use crate::executors::place::Place;
use executor_link::log::log_server;
use executor_link::messages::{GroupMembership, GroupShare, ShareWish, ToExecutor};
use link::wire::attach::RequestedLimits;
use link::wire::daemon::{Defaults, SMALLEST_SHARE, ToDaemon};
use link::wire::shares::{
    ChangeReport, GroupLimits, MemoryLimit, NewLimits, Reservation, ServerChange, Total, Who,
    limits_of_group, memory_limit_of,
};
use policy::limits::{
    MemoryBound, active_thread_percentage, client_priority, memory_bound, weight,
};
use policy::memory::grants::is_beyond_group;
use policy::orders::{Outcome, Step};
use policy::sms::partitions::HEADROOM;
use policy::turns::fairness::{Claim, Rank};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A change is answered within this time.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);
/// Changes whose answers are awaited, at most; of a daemon that sends more the oldest are answered
/// at once.
const MOST_CHANGES: usize = 64;

/// What an administrator has set for a running client.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveLimits {
    percentage: Option<f64>,
    memory: Vec<MemoryLimit>,
    weight: Option<u32>,
}

/// Who has to say that a change is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// An executor: that SMs are reserved.
    Executor(Place),
    /// A session: that its work runs where this order says.
    Session { session: u64, order: u64 },
    /// A session: that it has gone to another device.
    Move { session: u64, pid: u32 },
}

/// A change that the daemon waits for.
#[derive(Debug)]
pub(crate) struct PendingChange {
    id: u64,
    pub(crate) open: BTreeSet<Awaited>,
    pub(crate) report: ChangeReport,
    deadline: Instant,
}

impl Client {
    /// Its share of the SMs, in per cent, its group's left out.
    pub(crate) fn own_percentage(&self) -> f64 {
        let at_attachment = || active_thread_percentage(&self.defaults, &self.hello.limits);
        self.live.percentage.unwrap_or_else(at_attachment)
    }
}

impl Keeper {
    /// The limits of a client's group.
    pub(crate) fn group_of(&self, client: &Client) -> Option<&GroupLimits> {
        client.group.as_deref().and_then(|name| limits_of_group(&self.groups, name))
    }

    /// A client's share of the SMs, in per cent.
    pub(crate) fn percentage_of(&self, client: &Client) -> f64 {
        let of_group = self.group_of(client).and_then(|group| group.percentage);
        client.own_percentage().min(of_group.unwrap_or(100.0))
    }

    /// A client's claim on a device that others want, too: its weight is what was set since it
    /// attached, else its group's, else what it asks for.
    pub(crate) fn claim_of(&self, client: &Client) -> Claim {
        let rank = match client_priority(&client.defaults, &client.hello.limits) {
            0 => Rank::Normal,
            _ => Rank::BelowNormal,
        };
        let of_group = || self.group_of(client).and_then(|group| group.weight);
        let set = client.live.weight.or_else(of_group);
        Claim { weight: set.unwrap_or_else(|| weight(&client.hello.limits)), rank }
    }

    /// A client's limit of device memory, its group's left out.
    pub(crate) fn memory_bound_of(&self, client: &Client, device: usize) -> MemoryBound {
        match memory_limit_of(&client.live.memory, device as u32) {
            Some(live) => MemoryBound::told(live),
            None => self.first_memory_bound(&client.defaults, &client.hello.limits, device),
        }
    }

    /// The same of one that takes a device for another: what it was told holds, and what holds
    /// where it is.
    pub(crate) fn memory_bound_where(
        &self,
        client: &Client,
        told: usize,
        device: usize,
    ) -> MemoryBound {
        let here = self.memory_bound_of(client, device);
        match told == device {
            true => here,
            false => here.and(self.memory_bound_of(client, told)),
        }
    }

    /// The same of one that attaches with these limits.
    pub(crate) fn first_memory_bound(
        &self,
        defaults: &Defaults,
        requested: &RequestedLimits,
        device: usize,
    ) -> MemoryBound {
        let uuid = uuid_text(&self.devices[device].info.uuid);
        let (bound, _) = memory_bound(defaults, requested, device as u32, &uuid);
        match self.memory_settings.total {
            Total::Device => bound,
            Total::Limit => MemoryBound::told(bound.bytes),
        }
    }

    /// The limit that holds for all of a group together; `None`: there is none.
    pub(crate) fn group_memory_limit(&self, group: Option<&str>, device: usize) -> Option<u64> {
        let limits = limits_of_group(&self.groups, group?)?;
        memory_limit_of(&limits.memory, device as u32).flatten()
    }

    /// An executor's word of its reservations is believed as far as they can be: those that it was
    /// told to make, each once, and no more SMs than there are.
    fn keep_what_was_asked_for(&self, device: usize, made: &mut Vec<(String, u32)>) {
        let mut left = self.devices[device].multiprocessors();
        let mut known: BTreeSet<&str> =
            self.reservations.iter().map(|reservation| reservation.name.as_str()).collect();
        known.insert(HEADROOM);
        made.retain(|(name, count)| {
            let is_possible = *count <= left && known.remove(name.as_str());
            left -= if is_possible { *count } else { 0 };
            is_possible
        });
    }

    /// The SMs that a client's work is to have on a device.
    pub(crate) fn share_wish(&self, client: &Client, device: usize) -> ShareWish {
        let slot = &self.devices[device];
        let share = |percentage| share_of(&slot.info, self.driver_version, percentage);
        let group = self.group_of(client).and_then(|group| {
            let multiprocessors = share(group.percentage?)?;
            Some(GroupShare { name: client.group.clone()?, multiprocessors })
        });
        ShareWish {
            multiprocessors: share(client.own_percentage()),
            group,
            reservation: self.reservation_of(client, device).map(str::to_owned),
        }
    }

    /// A client's group as the executor of a device is told of it.
    pub(crate) fn membership(&self, client: &Client, device: usize) -> Option<GroupMembership> {
        let limit = self.group_memory_limit(client.group.as_deref(), device);
        Some(GroupMembership { name: client.group.clone()?, memory_limit_bytes: limit })
    }

    /// SMs of a device that a client of this reservation may use, or one of none.
    pub(crate) fn available_to(&self, device: usize, reservation: Option<&str>) -> u32 {
        let slot = &self.devices[device];
        let own = slot.reservations.iter().find(|(name, _)| Some(name.as_str()) == reservation);
        match own {
            Some((name, count)) if name != HEADROOM => *count,
            headroom => {
                let reserved: u32 = slot.reservations.iter().map(|(_, count)| count).sum();
                let open = slot.multiprocessors().saturating_sub(reserved);
                open + headroom.map_or(0, |(_, count)| *count)
            }
        }
    }

    /// Makes a change that the daemon asks for.
    pub(crate) fn change(&mut self, id: u64, change: ServerChange) {
        let mut pending = PendingChange {
            id,
            open: BTreeSet::new(),
            report: ChangeReport::default(),
            deadline: Instant::now() + CHANGE_LIMIT,
        };
        match change {
            ServerChange::Clients { who, limits } => {
                self.change_clients(&mut pending, who, limits);
            }
            ServerChange::Groups(groups) => {
                self.groups = groups;
                self.change_groups(&mut pending);
            }
            ServerChange::Reservations(wanted) => self.change_reservations(&mut pending, wanted),
            ServerChange::Move(wanted) => return self.move_clients(pending, wanted),
            ServerChange::Drained(drained) => self.set_drained(drained),
        }
        self.await_change(pending);
    }

    /// Answers a change when it is in force.
    pub(crate) fn await_change(&mut self, pending: PendingChange) {
        if self.changes.len() >= MOST_CHANGES {
            let oldest = self.changes.remove(0);
            self.answer_change(oldest);
        }
        self.changes.push(pending);
        self.finish_changes();
    }

    fn change_clients(
        &mut self,
        pending: &mut PendingChange,
        who: Who,
        NewLimits { percentage, memory, weight }: NewLimits,
    ) {
        if percentage.is_some_and(|percent| percent < 100.0) && !self.can_set_apart() {
            return pending.report.refused.push(too_old());
        }
        let concerned: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| match who {
                Who::All => true,
                Who::Process(pid) => pid != 0 && client.peer.pid == pid,
                Who::User(uid) => client.peer.uid == uid,
            })
            .map(|(&id, _)| id)
            .collect();
        for id in concerned {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            let pid = client.peer.pid;
            pending.report.clients.push(pid);
            if let Some(percent) = percentage {
                client.live.percentage = Some(percent);
                log_server!("Active Threads Percentage of client {pid} set to {percent:.1}");
            }
            if let Some(limit) = memory {
                // What it replaces needs not be kept.
                client
                    .live
                    .memory
                    .retain(|old| limit.device.is_some() && old.device != limit.device);
                client.live.memory.push(limit);
                log_server!("Device memory limit of client {pid} set to {}", size_text(limit));
            }
            if let Some(weight) = weight {
                client.live.weight = Some(weight);
                log_server!("Weight of client {pid} set to {weight}");
            }
            self.put_in_force(pending, id);
        }
    }

    fn change_groups(&mut self, pending: &mut PendingChange) {
        let shares = self.groups.iter().filter_map(|group| group.percentage);
        if shares.into_iter().any(|percent| percent < 100.0) && !self.can_set_apart() {
            pending.report.refused.push(too_old());
        }
        let members: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.group.is_some())
            .map(|(&id, _)| id)
            .collect();
        for id in members {
            let Some(client) = self.clients.get(&id) else { continue };
            if self.group_of(client).is_some() {
                pending.report.clients.push(client.peer.pid);
            }
            for (place, executor) in self.places() {
                if let Some(GroupMembership { name, memory_limit_bytes: limit_bytes }) =
                    self.membership(client, place.device)
                {
                    let limit = ToExecutor::GroupMemoryLimit { group: name, limit_bytes };
                    executor.process.tell(&limit, &[]);
                }
            }
            self.put_in_force(pending, id);
        }
    }

    /// Tells the sessions of a client what they may have now, if that is not what they have, and
    /// awaits those that were told and are not yet there.
    fn put_in_force(&mut self, pending: &mut PendingChange, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let Claim { weight, .. } = self.claim_of(client);
        for (&told, &session) in &client.sessions {
            let Some(place) = self.sessions.get(&session).map(|known| known.place()) else {
                continue;
            };
            let device = place.device;
            let slot = self.devices[device].executors.get(&place.seat());
            let Some(executor) = slot.map(|executor| &executor.process) else { continue };
            let bound = self.memory_bound_where(client, told as usize, device);
            let share = self.share_wish(client, device);
            let Some(known) = self.sessions.get_mut(&session) else { continue };
            known.grants.set_limit_bytes(bound.bytes);
            executor.tell(&ToExecutor::BoundMemory { session, bound }, &[]);
            if known.weight != weight {
                known.weight = weight;
                executor.tell(&ToExecutor::Weigh { session, weight }, &[]);
            }
            if !known.is_served() {
                // Its next executor begins with that.
                continue;
            }
            let order = match known.share.wish_for(share.clone()) {
                Step::Nothing => continue,
                Step::Await(order) => order,
                Step::Give(order) => {
                    executor.tell(&ToExecutor::Reshare { session, order, share }, &[]);
                    order
                }
            };
            pending.open.insert(Awaited::Session { session, order });
        }
    }

    fn change_reservations(&mut self, pending: &mut PendingChange, wanted: Vec<Reservation>) {
        if !wanted.is_empty() && !self.can_set_apart() {
            pending.report.refused.push(too_old());
            return;
        }
        let mut kept: Vec<Reservation> = Vec::new();
        for reservation in wanted {
            match self.check_reservation(&kept, &reservation) {
                Ok(()) => kept.push(reservation),
                Err(message) => pending.report.refused.push(message),
            }
        }
        let before = std::mem::replace(&mut self.reservations, kept);
        for device in 0..self.devices.len() {
            let of = |list: &[Reservation]| -> Vec<Reservation> {
                list.iter().filter(|one| one.device as usize == device).cloned().collect()
            };
            if of(&before) == of(&self.reservations) {
                continue;
            }
            let places = self.places().map(|(place, _)| place);
            let here: Vec<Place> = places.filter(|place| place.device == device).collect();
            for place in here {
                self.tell_reservations(place, pending.id);
                pending.open.insert(Awaited::Executor(place));
            }
        }
    }

    fn check_reservation(&self, kept: &[Reservation], wanted: &Reservation) -> Result<(), String> {
        let Reservation { name, device, multiprocessors } = wanted;
        let Some(slot) = self.devices.get(*device as usize) else {
            let last = self.devices.len().saturating_sub(1);
            return Err(format!(
                "reservation {name}: there is no device {device}: the server has 0 to {last}"
            ));
        };
        let all = slot.multiprocessors();
        let others = kept.iter().filter(|other| other.device == *device);
        let headroom = slot.headroom.multiprocessors().unwrap_or(0);
        let reserved = headroom + others.map(|other| other.multiprocessors).sum::<u32>();
        let most = all.saturating_sub(reserved).saturating_sub(SMALLEST_SHARE);
        if *multiprocessors > most {
            return Err(format!(
                "reservation {name}: device {device} has {all} SMs, {reserved} are reserved, and {SMALLEST_SHARE} must be left for the other clients: reserve at most {most}, or release another reservation"
            ));
        }
        Ok(())
    }

    /// Tells an executor that has just been started which SMs are reserved.
    pub(crate) fn tell_first_reservations(&self, place: Place) {
        let has_headroom = self.devices[place.device].headroom.multiprocessors().is_some();
        if !self.reservations.is_empty() || has_headroom {
            self.tell_reservations(place, 0);
        }
    }

    /// Tells an executor which SMs are reserved.
    pub(crate) fn tell_reservations(&self, place: Place, change: u64) {
        let here = self.reservations.iter().filter(|one| one.device as usize == place.device);
        let named = here.map(|one| (one.name.clone(), one.multiprocessors));
        let headroom = self.devices[place.device].headroom.multiprocessors();
        let headroom = headroom.map(|count| (HEADROOM.to_owned(), count));
        let reservations = named.chain(headroom).collect();
        if let Some(executor) = self.executor(place) {
            executor.tell(&ToExecutor::Reserve { change, reservations }, &[]);
        }
    }

    /// An executor has reserved SMs: all its sessions move to what is theirs now. Executors of one
    /// device make the same reservations, and have the device in turns.
    pub(crate) fn reserved(
        &mut self,
        place: Place,
        change: u64,
        mut made: Vec<(String, u32)>,
        refused: Vec<String>,
    ) {
        let device = place.device;
        self.keep_what_was_asked_for(device, &mut made);
        for message in &refused {
            log_server!("SMs of device {device} are not reserved: {message}");
        }
        self.reservations.retain(|one| {
            one.device as usize != device || made.iter().any(|(name, _)| *name == one.name)
        });
        self.devices[device].reservations = made;
        let sessions = self.sessions_at(place);
        let mut asked = Vec::new();
        for session in sessions {
            let Some(client) =
                self.sessions.get(&session).and_then(|known| self.clients.get(&known.client))
            else {
                continue;
            };
            let (pid, share) = (client.peer.pid, self.share_wish(client, device));
            let served = self.sessions.get_mut(&session).filter(|known| known.is_served());
            let Some(known) = served else { continue };
            // Whatever it has: that may be reserved now.
            let order = known.share.order(share.clone());
            if let Some(executor) = self.executor(place) {
                executor.tell(&ToExecutor::Reshare { session, order, share }, &[]);
                asked.push((Awaited::Session { session, order }, pid));
            }
        }
        if let Some(pending) = self.changes.iter_mut().find(|pending| pending.id == change) {
            pending.open.remove(&Awaited::Executor(place));
            pending.report.refused.extend(refused);
            for (awaited, pid) in asked {
                pending.open.insert(awaited);
                pending.report.clients.push(pid);
            }
        }
        self.finish_changes();
    }

    /// Whether so much more memory is more than a session's group may have, counted over all of its
    /// clients, whatever sets them apart.
    pub(crate) fn is_beyond_group(&self, session: u64, size_bytes: u64) -> bool {
        let Some(known) = self.sessions.get(&session) else { return false };
        let Some(client) = self.clients.get(&known.client) else { return false };
        self.is_beyond_group_on(known.device, client, size_bytes)
    }

    /// The same on any device.
    pub(crate) fn is_beyond_group_on(
        &self,
        device: usize,
        client: &Client,
        size_bytes: u64,
    ) -> bool {
        let Some(limit) = self.group_memory_limit(client.group.as_deref(), device) else {
            return false;
        };
        let members = self.sessions.iter().filter(|(id, other)| {
            let of_group = self.clients.get(&other.client).map(|other| &other.group);
            let comes = self.moves.get(id).is_some_and(|going| going.to.device == device);
            (other.device == device || comes) && of_group == Some(&client.group)
        });
        let granted = members.map(|(_, other)| other.grants.granted_bytes());
        let granularity = self.devices[device].granularity_bytes;
        is_beyond_group(granted, size_bytes, granularity, limit)
    }

    /// A session's work runs on so many SMs now; or could not be moved.
    pub(crate) fn reshared(
        &mut self,
        session: u64,
        order: u64,
        multiprocessors: u32,
        refused: Option<String>,
    ) {
        let Some(known) = self.sessions.get_mut(&session) else { return };
        known.multiprocessors = multiprocessors;
        let outcome = if refused.is_some() { Outcome::Refused } else { Outcome::Done };
        known.share.answered(order, outcome);
        let pid = self.clients.get(&known.client).map_or(0, |client| client.peer.pid);
        if let Some(message) = &refused {
            log_server!("The SMs of client {pid} cannot be changed: {message}");
        }
        for pending in &mut self.changes {
            if pending.open.remove(&Awaited::Session { session, order }) {
                let refused = refused.iter().map(|message| format!("client {pid}: {message}"));
                pending.report.refused.extend(refused);
            }
        }
        self.finish_changes();
    }

    /// Nothing more is heard of a session.
    pub(crate) fn forget_changes_of(&mut self, id: u64) {
        for pending in &mut self.changes {
            pending.open.retain(|awaited| match *awaited {
                Awaited::Executor(_) | Awaited::Move { .. } => true,
                Awaited::Session { session, .. } => session != id,
            });
        }
    }

    /// Answers the changes that are in force, or have waited long enough.
    pub(crate) fn finish_changes(&mut self) {
        let now = Instant::now();
        let is_done =
            |pending: &mut PendingChange| pending.open.is_empty() || pending.deadline <= now;
        let done: Vec<PendingChange> = self.changes.extract_if(.., is_done).collect();
        for pending in done {
            self.answer_change(pending);
        }
    }

    fn answer_change(&mut self, pending: PendingChange) {
        let PendingChange { id, open, mut report, .. } = pending;
        for awaited in open {
            match awaited {
                Awaited::Executor(Place { device, .. }) => {
                    report.refused.push(format!("the executor of device {device} does not answer"))
                }
                Awaited::Move { pid, .. } => report.waiting.push(pid),
                Awaited::Session { session, .. } => {
                    let known = self.sessions.get(&session);
                    let client = known.and_then(|known| self.clients.get(&known.client));
                    report.waiting.extend(client.map(|client| client.peer.pid));
                }
            }
        }
        report.clients.sort_unstable();
        report.clients.dedup();
        report.clients.retain(|pid| !report.waiting.contains(pid));
        self.tell_daemon(&ToDaemon::Changed { id, report });
    }

    pub(crate) fn can_set_apart(&self) -> bool {
        self.driver_version >= GREEN_CONTEXTS_SINCE
    }
}

fn too_old() -> String {
    "the native driver cannot set SMs apart: it must be of CUDA 12.5 or later".into()
}

fn size_text(limit: MemoryLimit) -> String {
    let of = limit.device.map_or("each device".into(), |device| format!("device {device}"));
    match limit.limit_bytes {
        Some(bytes) => format!("{bytes} bytes on {of}"),
        None => format!("none on {of}"),
    }
}
