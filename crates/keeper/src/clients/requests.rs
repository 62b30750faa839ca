//! What clients ask on their sockets: contexts.

use super::attach::admits;
use super::control_group;
use crate::Keeper;
use crate::clients::{Client, share_of};
use crate::devices::uuid_text;
use crate::executors::place::{Place, Stage};
use crate::sessions::session::{Service, Session, SessionFiles};
use cuda_abi::types::CUresult;
use executor_link::counters::monotonic_ns;
use executor_link::log::log_server;
use executor_link::messages::{OpenSession, Origin, ToExecutor};
use link::socket::SocketError;
use link::wire::attach::{ClientReply, ClientRequest, ContextOpened, Refusal};
use link::wire::daemon::ContextSnapshot;
use link::wire::owner::Owner;
use policy::budgets::{Budget, Part};
use policy::contexts::{Contexts, Refused, may_open};
use policy::faults::fault_settings::Arrivals;
use policy::limits::{context_percentage, guard_mode, latency_class, memory_bound};
use policy::memory::grants::Grants;
use policy::turns::priorities::Class;
use policy::turns::repeatable::Repeatable;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Failed sessions that a client may begin anew: each keeps a pair of windows, of which a server
/// has about two hundred for all.
const MOST_RETIRED: usize = 16;

impl Keeper {
    pub(crate) fn hear_client(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        match client.connection.try_hear() {
            Ok(None) => {}
            Ok(Some(ClientRequest::OpenContext { device, active_thread_percentage })) => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.wanted_percentage = active_thread_percentage;
                }
                self.open_context(id, device)
            }
            Ok(Some(ClientRequest::CloseContext { device })) => self.close_context(id, device),
            Ok(Some(ClientRequest::FaultsDevice)) => {
                let device = self.faults_device.as_ref().and_then(|device| device.try_clone().ok());
                let device: Vec<_> = device.iter().map(AsFd::as_fd).collect();
                self.reply(id, &ClientReply::FaultsDevice, &device);
            }
            Err(SocketError::Closed) => self.client_left(id),
            Err(error) => self.disconnect(id, &error.to_string()),
        }
    }

    fn open_context(&mut self, id: u64, device: u32) {
        let Some(client) = self.clients.get(&id) else { return };
        if client.opening.is_some() {
            return self.disconnect(id, "it asks for a context while another is being made");
        }
        let known = client.sessions.get(&device).and_then(|session| self.sessions.get(session));
        let place = match known.map(Session::place) {
            Some(place) => place,
            None => match self.device_for_newcomer(client, device) {
                Ok(there) => self.place_for_newcomer(there, client.domain),
                Err(refusal) => return self.refuse_context(id, device, refusal),
            },
        };
        let Some(client) = self.clients.get(&id) else { return };
        if self.is_recovering(place) && !client.sessions.contains_key(&device) {
            if self.fault_settings.arrivals == Arrivals::Refuse {
                let code = CUresult::ERROR_MPS_SERVER_NOT_READY.0;
                let message = format!("device {device} is recovering from a fault");
                return self.reply(id, &ClientReply::Refused(Refusal { code, message }), &[]);
            }
            return self.hold(id, device, place);
        }
        if let Some(&failed) = client.sessions.get(&device)
            && self.may_begin_anew(failed)
        {
            if client.retired.len() >= MOST_RETIRED {
                let code = CUresult::ERROR_MPS_MAX_CONNECTIONS_REACHED.0;
                let message = format!(
                    "{MOST_RETIRED} sessions of this process have failed, and keep their addresses until it ends: start it anew"
                );
                return self.reply(id, &ClientReply::Refused(Refusal { code, message }), &[]);
            }
            self.retire_session(failed);
            return self.open_context(id, device);
        }
        let client_pid = client.peer.pid;
        match self.may_open(client, device, place.device) {
            Err(refusal) => {
                if refusal.code == CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0 {
                    self.devices[place.device].refused_contexts += 1;
                }
                self.refuse_context(id, device, refusal);
            }
            Ok(()) if client.sessions.contains_key(&device) => self.context_opened(id, device, &[]),
            Ok(()) => match self.ensure_executor(place) {
                Ok(Stage::Starting) => self.hold(id, device, place),
                Ok(_) => {
                    if let Err(refusal) = self.open_session(id, device, place) {
                        self.reply(id, &ClientReply::Refused(refusal), &[]);
                    }
                }
                Err(refusal) => {
                    let pid = client_pid;
                    let message = &refusal.message;
                    log_server!("Client {pid} gets no context on device {device}: {message}");
                    self.reply(id, &ClientReply::Refused(refusal), &[]);
                }
            },
        }
    }

    fn refuse_context(&mut self, id: u64, device: u32, refusal: Refusal) {
        if let Some(client) = self.clients.get_mut(&id)
            && client.refusals.note(refusal.code)
        {
            let (pid, message) = (client.peer.pid, &refusal.message);
            log_server!("Client {pid} gets no context on device {device}: {message}");
        }
        self.reply(id, &ClientReply::Refused(refusal), &[]);
    }

    /// Whether a session has failed, by a fault, and its client may have another one.
    fn may_begin_anew(&self, id: u64) -> bool {
        self.sessions.get(&id).is_some_and(|session| {
            session.service == Service::Ended
                // Its addresses are still its own.
                && !self.clearing.contains_key(&id)
                && session.files.error() != CUresult::ERROR_MPS_CLIENT_TERMINATED.0
        })
    }

    /// Answers this client when its place has an executor; see [`Self::answer_held`].
    fn hold(&mut self, id: u64, device: u32, place: Place) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.opening = Some(device);
            self.held.push((id, place));
        }
    }

    /// Answers the clients that waited for a place.
    pub(crate) fn answer_held(&mut self, place: Place) {
        for (id, device) in self.take_held(place) {
            self.open_context(id, device);
        }
    }

    /// Refuses the clients that waited for a place.
    pub(crate) fn refuse_held(&mut self, place: Place, refusal: &Refusal) {
        for (id, _) in self.take_held(place) {
            self.reply(id, &ClientReply::Refused(refusal.clone()), &[]);
        }
    }

    /// Them, and the devices that they have asked for.
    fn take_held(&mut self, place: Place) -> Vec<(u64, u32)> {
        let (taken, held): (Vec<_>, Vec<_>) =
            self.held.drain(..).partition(|&(_, wanted)| wanted == place);
        self.held = held;
        let waiting = taken.into_iter().filter_map(|(id, _)| {
            let device = self.clients.get_mut(&id)?.opening.take()?;
            Some((id, device))
        });
        waiting.collect()
    }

    /// Whether a client may have a context on a device, which lives `there`.
    fn may_open(&self, client: &Client, device: u32, there: usize) -> Result<(), Refusal> {
        let refusal = |code: CUresult, message: String| Err(Refusal { code: code.0, message });
        if client.is_terminated {
            let message = "an administrator has terminated it: start the process anew".into();
            return refusal(CUresult::ERROR_MPS_CLIENT_TERMINATED, message);
        }
        if device as usize >= self.devices.len() {
            return refusal(CUresult::ERROR_INVALID_DEVICE, format!("there is no device {device}"));
        };
        if !admits(client.admission.as_ref(), &self.devices[device as usize].info) {
            let message = format!("its group may not use device {device}");
            return refusal(CUresult::ERROR_NOT_PERMITTED, message);
        }
        let on_device = |client: &Client| {
            let told = client.contexts.iter().map(|context| context.device).chain(client.opening);
            told.filter(|told| self.home_of(client, *told) == there).count()
        };
        let mut contexts = Contexts { all: 0, of_owner: 0, of_client: on_device(client) };
        let owner = client.owner();
        for other in self.clients.values() {
            let count = on_device(other);
            contexts.all += count;
            contexts.of_owner += if count > 0 && other.owner() == owner { count } else { 0 };
        }
        let code = CUresult::ERROR_MPS_MAX_CLIENTS_REACHED;
        match may_open(self.options.contexts_per_device, contexts) {
            Err(Refused::Client(most)) => {
                return refusal(code, format!("this process has {most} contexts, the most of one"));
            }
            Err(Refused::Device(most)) => {
                return refusal(code, format!("the maximum of {most} client contexts is reached"));
            }
            Ok(()) => {}
        }
        // The server's own user need leave nothing for others.
        let is_bounded = !client.sessions.contains_key(&device) && self.is_guest(client);
        if is_bounded && !self.has_window_for(&owner) {
            let message = format!(
                "sessions of {owner} that have ended hold as many windows of addresses as one may have: others use their memory, they have failed, or another user's kernel runs; end those processes, or try again later"
            );
            return refusal(CUresult::ERROR_OUT_OF_MEMORY, message);
        }
        Ok(())
    }

    /// Whether an owner may have one more pair of windows. Those of clients that work count for
    /// nobody, as contexts do. But sessions that have ended keep theirs as long as others use their
    /// memory, their process has them mapped, or others' kernels run.
    fn has_window_for(&self, owner: &Owner) -> bool {
        let mut resting = Budget::new(self.windows.capacity(), Part::HALF, u64::MAX);
        for session in self.sessions.values() {
            if !self.clients.contains_key(&session.client) {
                resting.count(&session.owner, 1);
            }
        }
        for client in self.clients.values().filter(|client| !client.retired.is_empty()) {
            resting.count(&client.owner(), client.retired.len() as u64);
        }
        for clearing in self.clearing.values().filter(|clearing| clearing.windows.is_some()) {
            resting.count(&clearing.owner, 1);
        }
        resting.take(owner, 1)
    }

    fn open_session(&mut self, id: u64, device: u32, place: Place) -> Result<(), Refusal> {
        let there = place.device;
        let none = |message: &str| Refusal {
            code: CUresult::ERROR_OUT_OF_MEMORY.0,
            message: message.into(),
        };
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        if latency_class(&client.hello.limits) == Class::Latency {
            self.hold_headroom(there);
        }
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let memory = self.memory_bound_where(client, device as usize, there);
        let share = self.share_wish(client, there);
        let group = self.membership(client, there);
        let claim = self.claim_of(client);
        let owner = client.owner();
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let slot = &mut self.devices[there];
        let Some(executor) = slot.executors.get_mut(&place.seat()) else {
            return Err(none("the device has no executor"));
        };
        let executor = &mut executor.process;
        let repeatable = Repeatable::of(&client.hello.limits);
        let files = SessionFiles::create(&repeatable, &self.closer, owner.clone())
            .map_err(|error| none(&error.to_string()))?;
        let counters = executor.counters.clone();
        let counter_slot = executor
            .take_slot()
            .ok_or_else(|| none("too many sessions of ended clients still run"))?;
        let Some(windows) = self.windows.take() else {
            executor.free_slot(counter_slot);
            return Err(none("no window of addresses is free"));
        };
        let uuid = uuid_text(&slot.info.uuid);
        for complaint in memory_bound(&client.defaults, &client.hello.limits, device, &uuid).1 {
            log_server!("Client {}: {complaint}; ignored", client.peer.pid);
        }
        let session = self.next_session;
        self.next_session += 1;
        let context = client.contexts_ever.get(&device).copied().unwrap_or(0) + 1;
        let label = format!("Client {{PID: {}, Context ID: {context}}}", client.peer.pid);
        client.opening = Some(device);
        client.sessions.insert(device, session);
        let grants = Grants::new(windows.device, memory.bytes);
        let named = (id, owner.clone(), label.clone());
        let counters = (counters, counter_slot);
        let shares = (share.clone(), claim.weight);
        let known = Session::new(named, (place, device), files, counters, windows, grants, shares);
        self.residencies[there].open(session, monotonic_ns() / 1_000_000);
        let open = OpenSession {
            session,
            label,
            counter_slot,
            device_window: windows.device,
            host_window: windows.host,
            memory,
            share,
            group,
            origin: Origin::New,
            claim,
            class: latency_class(&client.hello.limits),
            guard: guard_mode(&client.hello.limits),
            repeatable,
            owner,
            most_pinned_bytes: control_group::memory_limit_bytes(client.peer.pid),
            event_times: Vec::new(),
        };
        executor.tell(&ToExecutor::OpenSession(Box::new(open)), &known.files.for_executor());
        self.sessions.insert(session, known);
        Ok(())
    }

    /// The executor has made a session; its client gets the descriptors, if it has not got them
    /// before.
    pub(crate) fn session_opened(&mut self, session: u64) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        let (client, device) = (found.client, found.told_device);
        if std::mem::replace(&mut found.service, Service::Serving) != Service::Opening {
            return;
        }
        let descriptors = match found.files.for_client() {
            Ok(descriptors) => descriptors,
            Err(error) => return self.disconnect(client, &error.to_string()),
        };
        if !self.clients.contains_key(&client) {
            // It left meanwhile; its session has been told to close.
            return;
        }
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        self.context_opened(client, device, &descriptors);
    }

    /// The executor could not make a session.
    pub(crate) fn session_refused(&mut self, session: u64, code: u32, message: String) {
        let Some(found) = self.sessions.get(&session) else { return };
        let (client, device) = (found.client, found.told_device);
        log_server!("A session could not be opened: {message}");
        if code == CUresult::ERROR_MPS_SERVER_NOT_READY.0 && self.is_served(session) {
            // The executor knew of the lost context before its word of it came here; the next one
            // will make it.
            return;
        }
        if found.service == Service::Serving {
            // It was another executor's before: its client has it.
            return self.condemn(session, CUresult(code));
        }
        self.forget_session(session);
        if let Some(client) = self.clients.get_mut(&client) {
            client.opening = None;
            client.sessions.remove(&device);
        }
        self.reply(client, &ClientReply::Refused(Refusal { code, message }), &[]);
    }

    fn context_opened(&mut self, id: u64, device: u32, descriptors: &[BorrowedFd<'_>]) {
        let Some(client) = self.clients.get(&id) else { return };
        let of_client = self.percentage_of(client);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(session) =
            client.sessions.get(&device).and_then(|session| self.sessions.get(session))
        else {
            return;
        };
        let counter = client.contexts_ever.entry(device).or_insert(0);
        *counter += 1;
        let context_id = *counter;
        client.opening = None;
        let percentage = context_percentage(of_client, client.wanted_percentage.take().as_deref());
        client.contexts.push(ContextSnapshot {
            device,
            context_id,
            serial: self.next_context_serial,
            active_thread_percentage: percentage,
        });
        self.next_context_serial += 1;
        let info = &self.devices[device as usize].info;
        let label = format!("{{PID: {}, Context ID: {context_id}}}", client.peer.pid);
        // As in the original, a request is in the name of what the client had before.
        log_server!(
            "Received new client request for {{PID: {}, Context ID: {}}}",
            client.peer.pid,
            context_id - 1
        );
        log_server!("Client {label} connected");
        log_server!("Creating worker thread for client {label}");
        log_server!("Device {} (uuid {}) is associated", info.name, uuid_text(&info.uuid));
        log_server!("Status of client {label} is ACTIVE");
        let opened = ContextOpened {
            context_id,
            first: !descriptors.is_empty(),
            device_window: session.windows.device,
            host_window: session.windows.host,
            multiprocessors: (percentage < of_client)
                .then(|| share_of(info, self.driver_version, percentage))
                .flatten(),
        };
        self.reply(id, &ClientReply::ContextOpened(opened), descriptors);
    }

    fn close_context(&mut self, id: u64, device: u32) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(position) = client.contexts.iter().rposition(|context| context.device == device)
        else {
            return self.disconnect(id, "it closes a context that it does not have");
        };
        let context = client.contexts.remove(position);
        let pid = client.peer.pid;
        let left: usize = self.clients.values().map(|client| client.contexts.len()).sum();
        log_server!(
            "Client {{PID: {pid}, Context ID: {}}} exiting. Number of active client contexts is {left}.",
            context.context_id
        );
        self.reply(id, &ClientReply::ContextClosed, &[]);
    }

    /// Answers a client at once, or drops it: nobody waits for a client that does not read.
    fn reply(&mut self, id: u64, reply: &ClientReply, descriptors: &[BorrowedFd<'_>]) {
        let Some(client) = self.clients.get(&id) else { return };
        if let Err(error) = client.connection.send(reply, descriptors, Duration::ZERO) {
            self.disconnect(id, &error.to_string());
        }
    }
}
