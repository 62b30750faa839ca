//! Attached clients: what they are, and how they leave.

pub(crate) mod attach;
pub(crate) mod control_group;
pub(crate) mod requests;

use super::Keeper;
use super::shares::LiveLimits;
use crate::executors::place::Side;
use crate::sessions::session::{Service, Session};
use cuda_abi::types::{CUdevice_attribute, CUresult};
use executor_link::counters::{Counts, Waits};
use executor_link::log::log_server;
use executor_link::messages::{Origin, ToExecutor};
use link::closer::Foreign;
use link::socket::Connection;
use link::wire::attach::{ClientHello, ClientReply, DeviceInfo};
use link::wire::daemon::{
    ClientDeviceSnapshot, ClientSnapshot, ContextSnapshot, DEPARTED_KEPT, Defaults,
    LAUNCHES_LISTED_OF_CLIENT, Namespaces, Peer, WaitReason, multiprocessors_of_share,
};
use link::wire::group_socket::Admission;
use link::wire::owner::Owner;
use policy::domains::{Domain, SHARED};
use policy::limits::{client_priority, connections, latency_class};
use policy::memory::windows::WindowPair;
use policy::refusals::Refusals;
use policy::turns::priorities::Class;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the driver from which streams of green contexts can be made.
pub(crate) const GREEN_CONTEXTS_SINCE: i32 = 12050;

/// One attached process.
pub(crate) struct Client {
    pub(crate) connection: Foreign,
    /// With whom it shares executors.
    pub(crate) domain: Domain,
    /// Readable once the process has ended: a forked child may hold the socket open.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) hello: ClientHello,
    pub(crate) peer: Peer,
    /// The server's limits when it attached: later ones are for later clients (MPS guide, 4.1.1).
    pub(crate) defaults: Defaults,
    pub(crate) contexts: Vec<ContextSnapshot>,
    /// Contexts ever, by device.
    pub(crate) contexts_ever: BTreeMap<u32, u32>,
    /// Device to session.
    pub(crate) sessions: BTreeMap<u32, u64>,
    /// The device whose session is being made.
    pub(crate) opening: Option<u32>,
    /// What the context that is being made asks for; see
    /// [`link::wire::attach::ClientRequest::OpenContext`].
    pub(crate) wanted_percentage: Option<String>,
    /// What an administrator has set since.
    pub(crate) live: LiveLimits,
    /// How it came in, if by a group's socket.
    pub(crate) admission: Option<Admission>,
    /// Whose limits it shares.
    pub(crate) group: Option<String>,
    /// Whose SMs it uses.
    pub(crate) reservation: Option<String>,
    /// Contexts that it did not get.
    pub(crate) refusals: Refusals,
    /// An administrator has ended its work, for good.
    pub(crate) is_terminated: bool,
    /// Windows and sockets of sessions that have failed: its process still has them.
    pub(crate) retired: Vec<(WindowPair, Foreign)>,
}

impl Client {
    /// Whom it counts for.
    pub(crate) fn owner(&self) -> Owner {
        Owner::new(&self.peer, self.admission.as_ref())
    }
}

/// SMs that a share in per cent is of a device; `None`: all, or the driver cannot set SMs apart.
pub(crate) fn share_of(device: &DeviceInfo, driver_version: i32, percentage: f64) -> Option<u32> {
    let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT.0 as i32;
    let all = device.attributes.iter().find(|(known, _)| *known == attribute)?.1;
    let all = u32::try_from(all).ok()?;
    let share = multiprocessors_of_share(all, percentage);
    (share < all && driver_version >= GREEN_CONTEXTS_SINCE).then_some(share)
}

impl Keeper {
    /// Drops a client that did something wrong, or whose executor is gone.
    pub(crate) fn disconnect(&mut self, id: u64, reason: &str) {
        if let Some(client) = self.clients.get(&id) {
            log_server!("Client process {} is disconnected: {reason}", client.peer.pid);
            self.client_left(id);
        }
    }

    /// Forgets a client; its sessions end when their work has.
    pub(crate) fn client_left(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        let mut snapshot = self.client_snapshot(id, client);
        snapshot.contexts.clear();
        snapshot.devices.clear();
        let Some(client) = self.clients.remove(&id) else { return };
        self.has_left(id);
        let pid = client.peer.pid;
        let silent = client.refusals.silent();
        if silent > 0 {
            log_server!("Client process {pid} got no context {silent} more times");
        }
        let left: usize = self.clients.values().map(|client| client.contexts.len()).sum();
        for (still, context) in client.contexts.iter().enumerate().rev() {
            let label = format!("{{PID: {pid}, Context ID: {}}}", context.context_id);
            log_lost_receiver(&label);
            let left = left + still;
            log_server!("Client {label} exiting. Number of active client contexts is {left}.");
        }
        log_lost_receiver(&format!("{{PID: {pid}, Context ID: 0}}"));
        log_server!("Client process {pid} disconnected");
        // Sessions give their final counts when they are forgotten.
        snapshot.kernels = 0;
        snapshot.copied_bytes = 0;
        snapshot.commands = 0;
        self.departed.push_back(snapshot);
        if self.departed.len() > DEPARTED_KEPT {
            self.departed.pop_front();
        }
        for session in client.sessions.into_values() {
            if self.is_losing(session) {
                // Forgotten when its executor has left the device.
                continue;
            }
            match self.executor_of(session).filter(|_| self.is_served(session)) {
                Some(executor) => {
                    executor.tell(&ToExecutor::CloseSession { session }, &[]);
                    self.doom(session);
                }
                None => self.forget_session(session),
            }
        }
        for (windows, _) in client.retired {
            self.windows.give_back(windows);
        }
        self.held.retain(|&(held, _)| held != id);
        self.leave_domain(client.domain);
    }

    /// Adds what a session did to what is kept of its client, if that has left.
    pub(crate) fn add_final_counts(&mut self, client: u64, counts: Counts) {
        if let Some(departed) =
            self.departed.iter_mut().find(|departed| departed.client_id == client)
        {
            departed.kernels += counts.kernels;
            departed.copied_bytes += counts.copied_bytes;
            departed.commands += counts.commands;
            departed.granted_bytes = 0;
        }
    }

    /// Ends a client's work: its next call returns CUDA_ERROR_MPS_CLIENT_TERMINATED. Returns what
    /// the original's shell prints.
    pub(crate) fn terminate(&mut self, pid: u32) -> u32 {
        let is_it = |client: &&mut Client| pid != 0 && client.peer.pid == pid;
        let Some(client) = self.clients.values_mut().find(is_it) else {
            return CUresult::ERROR_INVALID_CONTEXT.0;
        };
        client.is_terminated = true;
        let client = &*client;
        let sessions: Vec<u64> = client.sessions.values().copied().collect();
        for &device in client.sessions.keys() {
            for context in client.contexts.iter().filter(|context| context.device == device) {
                log_server!(
                    "MPS server requesting client {{PID: {pid}, Context ID: {}}} to exit",
                    context.context_id
                );
            }
        }
        sessions.into_iter().for_each(|session| self.terminate_session(session));
        log_server!("Client termination succeeded.");
        0
    }

    pub(crate) fn terminate_session(&mut self, id: u64) {
        let code = CUresult::ERROR_MPS_CLIENT_TERMINATED;
        let Some(session) = self.sessions.get(&id) else { return };
        match session.service {
            Service::Opening | Service::Serving => {
                if let Some(executor) = self.executor(session.place()) {
                    executor.tell(&ToExecutor::EndSession { session: id, code: code.0 }, &[]);
                }
                self.doom(id);
            }
            // Nobody serves it who could be told.
            Service::Waiting(Origin::New) => {
                self.session_refused(id, code.0, "its client was terminated".to_owned());
            }
            Service::Waiting(Origin::Inherited) | Service::Losing | Service::Ended => {
                self.condemn(id, code)
            }
        }
    }

    /// The client that is this process; those that the daemon cannot see have no number that tells
    /// them apart.
    fn client_of_process(&self, pid: u32) -> Option<&Client> {
        self.clients.values().find(|client| pid != 0 && client.peer.pid == pid)
    }

    /// Hands a tracer's connection on to the client; without it, it closes.
    pub(crate) fn trace(&mut self, pid: u32, wanted_by: Peer, tracer: OwnedFd) {
        let owner = Owner::of(&wanted_by);
        let Ok(tracer) = Connection::from_socket(tracer) else { return };
        let tracer = self.closer.guard(owner, tracer).shared();
        let Some(client) = self.client_of_process(pid) else { return };
        let (by_pid, by_uid) = (wanted_by.pid, wanted_by.uid);
        // Root of a container shares the number alone.
        let is_root = by_uid == 0 && wanted_by.namespaces == Namespaces::Shared;
        if !is_root && by_uid != client.peer.uid {
            return log_server!("User {by_uid} may not trace client process {pid}");
        }
        log_server!("Client process {pid} is traced by process {by_pid}");
        let sent = client.connection.send(&ClientReply::Trace, &[tracer.as_fd()], Duration::ZERO);
        if let Err(error) = sent {
            log_server!("Client process {pid} cannot be told of its tracer: {error}");
        }
    }

    /// What the daemon is told of a client.
    pub(crate) fn client_snapshot(&self, id: u64, client: &Client) -> ClientSnapshot {
        let limits = &client.hello.limits;
        let mut snapshot = ClientSnapshot {
            client_id: id,
            pid: client.peer.pid,
            uid: client.peer.uid,
            pid_namespace: client.hello.pid_namespace,
            command: client.hello.command.clone(),
            contexts: client.contexts.iter().map(|it| self.shown_context(client, it)).collect(),
            active_thread_percentage: self.percentage_of(client),
            priority: client_priority(&client.defaults, limits),
            domain: (client.domain != SHARED).then(|| self.domains.label(client.domain)),
            weight: self.claim_of(client).weight,
            latency_class: latency_class(limits) == Class::Latency,
            wanted_connections: limits.device_max_connections.as_deref().and_then(connections),
            group: client.group.clone(),
            reservation: client.reservation.clone(),
            fault: self.faults.of_client(id),
            ..Default::default()
        };
        let sessions = client.sessions.values();
        let apart = sessions.clone().filter_map(|id| Some(self.sessions.get(id)?.domain));
        if let Some(domain) = apart.into_iter().find(|domain| self.quarantine.is_apart(*domain)) {
            snapshot.domain = Some(self.domains.label(domain));
        }
        for (id, session) in sessions.filter_map(|id| self.sessions.get(id).map(|s| (*id, s))) {
            let counts = session.counts();
            let granted_bytes = self.held_bytes(session);
            let launches = session.launches();
            let running = launches.iter().find(|noted| noted.in_flight);
            let skipped = launches.len().saturating_sub(LAUNCHES_LISTED_OF_CLIENT);
            let latest = launches.iter().skip(skipped);
            snapshot.granted_bytes += granted_bytes;
            snapshot.kernels += counts.kernels;
            snapshot.copied_bytes += counts.copied_bytes;
            snapshot.commands += counts.commands;
            snapshot.devices.push(ClientDeviceSnapshot {
                device: session.device as u32,
                granted_bytes,
                spilled_bytes: self.residencies[session.device].moved_out_bytes(id),
                memory_limit_bytes: session.grants.limit_bytes(),
                kernels: counts.kernels,
                copied_bytes: counts.copied_bytes,
                gpu_time_ns: counts.gpu_time_ns,
                queued_bytes: counts.queued_bytes,
                launch_counts: counts.launches.to_vec(),
                launch_time_ns: counts.launch_time_ns,
                error: counts.error,
                multiprocessors: session.multiprocessors,
                unsaved: session.standing.has_unsaved(),
                running: running.map(|noted| noted.record.clone()),
                launches: latest.map(|noted| noted.record.clone()).collect(),
                waits_for: self.reason_to_wait(id, session),
                is_in_second_context: session.side == Side::Second,
                relocations: session.relocations,
                stays_for: self.stays_for(session),
            });
        }
        snapshot
    }

    /// A context where it lives, whatever its client takes that device for.
    fn shown_context(&self, client: &Client, context: &ContextSnapshot) -> ContextSnapshot {
        let device = self.home_of(client, context.device) as u32;
        ContextSnapshot { device, ..*context }
    }

    /// What keeps a session that is stuck in its context.
    fn stays_for(&self, session: &Session) -> Option<String> {
        let counters = session.counters.slot(session.counter_slot);
        counters.hindrance().map(|hindrance| hindrance.to_string())
    }

    fn reason_to_wait(&self, id: u64, session: &Session) -> Option<WaitReason> {
        if matches!(session.service, Service::Waiting(_)) {
            return Some(match self.is_recovering(session.place()) {
                true => WaitReason::Recovery,
                false => WaitReason::Move,
            });
        }
        if self.residencies[session.device].has_waiting(id) {
            return Some(WaitReason::Memory);
        }
        match session.counters.slot(session.counter_slot).waits() {
            Waits::Nothing => None,
            Waits::Turn => Some(WaitReason::Turn),
            Waits::Kernels => Some(WaitReason::Load),
        }
    }
}

/// The original's line for a client that has closed its end, spelled as there.
fn log_lost_receiver(label: &str) {
    let code = CUresult::ERROR_MPS_RPC_FAILURE.0;
    log_server!(
        "Server failed to recevie command with status {code}, assuming client {label} exit"
    );
}
