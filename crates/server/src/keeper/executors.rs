//! The executor processes: started, heard, stopped, started again. There is one for each device and trust domain
//! ([`crate::policy::domains`]) that has clients; those for clients that nothing sets apart are there from the start.

use super::blaming::Incident;
use super::devices::{ComputeMode, Device};
use super::{Keeper, Options, PEER_TIMEOUT};
use crate::counters::{CounterPage, SLOTS};
use crate::executor_link::{FromExecutor, ToExecutor};
use crate::log::log_server;
use crate::policy::domains::{Domain, SHARED};
use cuda_abi::types::CUresult;
use link::socket::{Connection, Received, SocketError};
use link::wire::attach::Refusal;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A driver's initialisation and a context take less than a second; a machine under load more.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// An executor without its keeper ends by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// An executor that ends so often by itself is not started again.
const MAX_DEATHS: u32 = 16;

/// A device, and who shares the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The server's number of the device.
    pub(crate) device: usize,
    pub(crate) domain: Domain,
}

/// How far an executor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It makes its context.
    Starting,
    Ready,
    /// Its context was lost to a fault; another executor takes its place once the last client has left.
    Lost,
}

/// An executor in its place.
pub(crate) struct Executor {
    pub(crate) process: ExecutorProcess,
    pub(crate) stage: Stage,
    started: Instant,
}

/// A running executor.
pub(crate) struct ExecutorProcess {
    child: Child,
    connection: Connection,
    pub(crate) counters: CounterPage,
    free_slots: Vec<usize>,
}

impl ExecutorProcess {
    fn start(options: &Options, device: u32, index: u32, devices: u32) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| {
            format!("cannot start an executor for device {device}: {error}")
        };
        let (connection, theirs) = Connection::pair().map_err(|error| fail(&error))?;
        let (file, counters) = CounterPage::create().map_err(|error| fail(&error))?;
        let child = Command::new(&options.executor_program)
            .args(["executor", "--control-fd", "0", "--native-driver"])
            .arg(&options.native_driver)
            // Standard input is a descriptor that a child surely inherits.
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .map_err(|error| fail(&error))?;
        let executor = Self { child, connection, counters, free_slots: (0..SLOTS).rev().collect() };
        executor
            .connection
            .send(&ToExecutor::Start { device, index, devices }, &[file.as_fd()], PEER_TIMEOUT)
            .map_err(|error| fail(&error))?;
        Ok(executor)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its socket.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends it a message; a failure shows as its end.
    pub(crate) fn tell(&self, message: &ToExecutor, descriptors: &[BorrowedFd<'_>]) {
        match self.connection.send(message, descriptors, PEER_TIMEOUT) {
            Ok(()) | Err(SocketError::Closed) => {}
            Err(error) => log_server!("Executor {} cannot be told: {error}", self.pid()),
        }
    }

    /// A counter slot of zeros.
    pub(crate) fn take_slot(&mut self) -> Option<usize> {
        let slot = self.free_slots.pop()?;
        self.counters.reset(slot);
        Some(slot)
    }

    /// Gives a counter slot back.
    pub(crate) fn free_slot(&mut self, slot: usize) {
        self.free_slots.push(slot);
    }

    /// Closes its socket, waits for its end a while, then kills it. Says how it ended.
    pub(crate) fn stop(self) -> String {
        let Self { mut child, connection, .. } = self;
        drop(connection);
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2))
                }
                _ => break,
            }
        }
        let _ = child.kill();
        child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Device {
    /// Starts an executor; [`Self::await_executor`] may follow.
    pub(crate) fn start_executor(
        &mut self,
        options: &Options,
        place: Place,
        label: &str,
        devices: u32,
    ) -> Result<(), String> {
        let index = place.device as u32;
        let of = if label.is_empty() { String::new() } else { format!(" for {label}") };
        log_server!("Creating server context on device {index} ({}){of}", self.info.name);
        let process = ExecutorProcess::start(options, self.ordinal, index, devices)?;
        let executor = Executor { process, stage: Stage::Starting, started: Instant::now() };
        self.executors.insert(place.domain, executor);
        Ok(())
    }

    /// Waits until an executor has its context.
    pub(crate) fn await_executor(&mut self, place: Place) -> Result<(), String> {
        let executor = self.executors.get_mut(&place.domain).ok_or("no executor was started")?;
        let index = place.device;
        let failed = |what: String| format!("the executor of device {index} did not start: {what}");
        match executor.process.connection.receive::<FromExecutor>(START_TIMEOUT) {
            Ok(Received { message: FromExecutor::Ready { stream_priorities }, .. }) => {
                self.info.stream_priorities = stream_priorities;
                executor.stage = Stage::Ready;
                Ok(())
            }
            Ok(Received { message: FromExecutor::Failed { message }, .. }) => Err(failed(message)),
            Ok(other) => Err(failed(format!("it said {:?}", other.message))),
            Err(SocketError::Closed) => Err(failed("it ended; its own words are above".into())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

impl Keeper {
    /// The executor of a place, if one runs.
    pub(super) fn executor(&self, place: Place) -> Option<&ExecutorProcess> {
        let executor = self.devices.get(place.device)?.executors.get(&place.domain)?;
        Some(&executor.process)
    }

    /// Whether the context of a place was lost.
    pub(super) fn is_lost(&self, place: Place) -> bool {
        let executors = self.devices.get(place.device).map(|device| &device.executors);
        executors
            .and_then(|executors| executors.get(&place.domain))
            .is_some_and(|executor| executor.stage == Stage::Lost)
    }

    /// Whether anybody has a session there, or waits for one; those included that only wait for their work to end.
    fn is_in_use(&self, place: Place) -> bool {
        self.sessions.values().any(|session| session.place() == place)
            || self.held.iter().any(|&(_, wanted)| wanted == place)
    }

    /// Sees to it that a place has an executor; says how far it is.
    ///
    /// # Errors
    /// Why it can have none: for the client, which may be told what to do.
    pub(super) fn ensure_executor(&mut self, place: Place) -> Result<Stage, Refusal> {
        let device = &self.devices[place.device];
        if let Some(executor) = device.executors.get(&place.domain) {
            return Ok(executor.stage);
        }
        self.make_room(place)?;
        let (label, count) = (self.domains.label(place.domain), self.devices.len() as u32);
        let (options, device) = (self.options.clone(), &mut self.devices[place.device]);
        device.start_executor(&options, place, &label, count).map_err(|message| {
            log_server!("{message}");
            Refusal { code: CUresult::ERROR_MPS_SERVER_NOT_READY.0, message }
        })?;
        self.tell_reservations(place, 0);
        Ok(Stage::Starting)
    }

    /// Where a device takes contexts of one process only, an executor without clients makes way for another.
    fn make_room(&mut self, place: Place) -> Result<(), Refusal> {
        let number = place.device;
        let refusal = |message: String| {
            let code = CUresult::ERROR_DEVICE_UNAVAILABLE.0;
            Err(Refusal { code, message })
        };
        match self.devices[number].compute_mode(self.driver) {
            ComputeMode::Default => return Ok(()),
            ComputeMode::Prohibited => {
                return refusal(format!(
                    "device {number} is in compute mode PROHIBITED and takes no contexts: `nvidia-smi -i {number} -c DEFAULT` changes that"
                ));
            }
            ComputeMode::ExclusiveProcess => {}
        }
        let others: Vec<Domain> = self.devices[number].executors.keys().copied().collect();
        for domain in others {
            let other = Place { device: number, domain };
            if self.is_in_use(other) {
                let who = match self.domains.label(domain) {
                    label if label.is_empty() => "clients that nothing sets apart".to_owned(),
                    label => format!("the clients of {label}"),
                };
                return refusal(format!(
                    "device {number} is in compute mode EXCLUSIVE_PROCESS, which lets one process have contexts, and that is the executor of {who}: wait until they have ended, run without isolation, or change the mode by `nvidia-smi -i {number} -c DEFAULT`"
                ));
            }
            if let Some(executor) = self.devices[number].executors.remove(&domain) {
                log_server!(
                    "Destroy server context on device {number}: another executor takes its place"
                );
                executor.process.stop();
            }
        }
        Ok(())
    }

    /// Ends the executors of a domain that nobody is in any more.
    pub(super) fn leave_domain(&mut self, domain: Domain) {
        let is_in = self.clients.values().any(|client| client.domain == domain)
            || self.sessions.values().any(|session| session.domain == domain);
        if domain == SHARED || is_in {
            return;
        }
        let label = self.domains.label(domain);
        self.domains.forget(domain);
        for (number, device) in self.devices.iter_mut().enumerate() {
            let Some(executor) = device.executors.remove(&domain) else { continue };
            log_server!(
                "Destroy server context on device {number} ({}) for {label}",
                device.info.name
            );
            // Others are not to wait for its end.
            std::thread::spawn(move || executor.process.stop());
        }
    }

    /// Gives up executors that do not get their context.
    pub(super) fn check_starting(&mut self) {
        let late = |executor: &Executor| {
            executor.stage == Stage::Starting && executor.started.elapsed() > START_TIMEOUT
        };
        let places = self.places().filter(|(_, executor)| late(executor));
        let late: Vec<Place> = places.map(|(place, _)| place).collect();
        for place in late {
            self.could_not_start(place, format!("it has no context after {START_TIMEOUT:?}"));
        }
    }

    /// All executors.
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, &Executor)> {
        self.devices.iter().enumerate().flat_map(|(device, of)| {
            of.executors.iter().map(move |(&domain, executor)| (Place { device, domain }, executor))
        })
    }

    /// An executor for clients that wait for it has no context: they are told why.
    fn could_not_start(&mut self, place: Place, message: String) {
        log_server!("The executor of device {} did not start: {message}", place.device);
        if let Some(executor) = self.devices[place.device].executors.remove(&place.domain) {
            std::thread::spawn(move || executor.process.stop());
        }
        let code = match self.devices[place.device].compute_mode(self.driver) {
            ComputeMode::Default => CUresult::ERROR_MPS_SERVER_NOT_READY,
            _ => CUresult::ERROR_DEVICE_UNAVAILABLE,
        };
        self.refuse_held(place, &Refusal { code: code.0, message });
    }

    pub(super) fn hear_executor(&mut self, place: Place) {
        let Some(executor) = self.executor(place) else { return };
        match executor.connection.try_receive::<FromExecutor>() {
            Ok(None) => {}
            Ok(Some(Received { message, descriptors })) => {
                self.obey_executor(place, message, descriptors)
            }
            Err(SocketError::Closed) => self.executor_died(place),
            Err(error) => {
                log_server!("Executor {} cannot be understood: {error}", executor.pid());
                self.executor_died(place);
            }
        }
    }

    fn obey_executor(&mut self, place: Place, message: FromExecutor, descriptors: Vec<OwnedFd>) {
        match message {
            FromExecutor::Ready { stream_priorities } => {
                let device = &mut self.devices[place.device];
                device.info.stream_priorities = stream_priorities;
                if let Some(executor) = device.executors.get_mut(&place.domain) {
                    executor.stage = Stage::Ready;
                }
                self.answer_held(place);
            }
            FromExecutor::Failed { message } => self.could_not_start(place, message),
            FromExecutor::SessionOpened { session } => self.session_opened(session, &descriptors),
            FromExecutor::SessionRefused { session, code, message } => {
                self.session_refused(session, code, message)
            }
            FromExecutor::Grant { session, size_bytes, placement } => {
                self.grant(session, size_bytes, placement)
            }
            FromExecutor::Return { session } => self.bring_back(session),
            FromExecutor::GaveUp { session } => self.gave_up(session),
            FromExecutor::MovedOut { session, done, stayed, fixed } => {
                self.moved_out(session, &done, &stayed, &fixed)
            }
            FromExecutor::Peer { session, device, key } => self.lend(session, device, key),
            FromExecutor::PeerReleased { session, device, key } => {
                self.give_back_lent(session, device, key);
            }
            FromExecutor::Released { session, address } => self.release(session, address),
            FromExecutor::SessionBroken { session, message } => {
                if let Some(client) = self.sessions.get(&session).map(|session| session.client) {
                    self.disconnect(client, &message);
                }
            }
            FromExecutor::Reshared { session, change, multiprocessors, refused } => {
                self.reshared(session, change, multiprocessors, refused);
            }
            FromExecutor::Reserved { change, made, refused } => {
                self.reserved(place, change, made, refused);
            }
            FromExecutor::SessionClosed { session } => {
                self.forget_session(session);
                self.renew_if_lost(place);
                self.leave_domain(place.domain);
            }
            FromExecutor::ContextLost { code } => self.context_lost(place, code),
        }
    }

    fn context_lost(&mut self, place: Place, code: u32) {
        let (name, device) = (CUresult(code), place.device);
        let what = name.to_string();
        let incident = Incident { code, what, address: None, target: None };
        let culprit = self.report_fault(place, incident);
        self.log_fault(place, culprit);
        log_server!(
            "Device {device} has lost its context to {name}; its clients keep this error until they end"
        );
        self.note_lost(place);
        self.devices[device].faults += 1;
        self.tell_status();
        self.renew_if_lost(place);
    }

    /// From now on its clients are told of the fault, and new ones wait for another executor.
    pub(super) fn note_lost(&mut self, place: Place) {
        if let Some(executor) = self.devices[place.device].executors.get_mut(&place.domain) {
            executor.stage = Stage::Lost;
        }
    }

    /// Says who is concerned by a fatal fault, in the lines of the original's driver 580. It names a culprit that it does not know; here
    /// one is named that is known.
    fn log_fault(&self, place: Place, culprit: Option<u32>) {
        let Place { device, domain } = place;
        let mut concerned: Vec<(u32, u32)> = self
            .clients
            .values()
            .filter(|client| client.domain == domain)
            .flat_map(|client| client.contexts.iter().map(|context| (client.peer.pid, *context)))
            .filter(|(_, context)| context.device as usize == device)
            .map(|(pid, context)| (pid, context.context_id))
            .collect();
        // Who has just closed its context, or left, may be the one: its session is still there, which began with its first context.
        for session in self.sessions.values().filter(|session| session.place() == place) {
            let here = self.clients.get(&session.client).map(|client| client.peer.pid);
            let left = || self.departed.iter().rev().find(|left| left.client_id == session.client);
            if let Some(pid) = here.or_else(|| left().map(|left| left.pid))
                && concerned.iter().all(|(other, _)| *other != pid)
            {
                concerned.push((pid, 1));
            }
        }
        let mut pids: Vec<u32> = concerned.iter().map(|(pid, _)| *pid).collect();
        pids.dedup();
        let known = concerned.iter().find(|(pid, _)| Some(*pid) == culprit);
        if let Some((pid, context)) = known {
            log_server!("Client {{PID: {pid}, Context: {context}}} encountered a fatal GPU error.");
        }
        log_server!("Server is handling a fatal GPU error.");
        for (pid, context) in &concerned {
            log_server!(
                "Client {{PID: {pid}, Context ID: {context}}} on device {device} to be torn down"
            );
        }
        for pid in &pids {
            log_server!("All clients belonging to error trigging process {pid} will be torn down");
            for (_, context) in concerned.iter().filter(|(other, _)| other == pid) {
                log_server!(
                    "Client {{PID: {pid}, Context ID: {context}}} on the error-trigging process {pid} to be torn down"
                );
            }
        }
        log_server!("The following devices will be reset:");
        log_server!("{device}");
        log_server!("The following client process have a sticky error set:");
        pids.iter().for_each(|pid| log_server!("{pid}"));
    }

    /// Gives a place whose context is lost a new executor, once nobody has a session in the old one.
    pub(super) fn renew_if_lost(&mut self, place: Place) {
        if !self.is_lost(place) || self.sessions.values().any(|session| session.place() == place) {
            return;
        }
        let device = &mut self.devices[place.device];
        if let Some(executor) = device.executors.remove(&place.domain) {
            log_server!("Destroy server context on device {} ({})", place.device, device.info.name);
            executor.process.stop();
        }
        self.restart_executor(place);
    }

    /// The sessions that an executor serves.
    pub(super) fn sessions_at(&self, place: Place) -> Vec<u64> {
        let there = self.sessions.iter().filter(|(_, session)| session.place() == place);
        there.map(|(&id, _)| id).collect()
    }

    /// The executor is gone: its clients' sessions with it. Their sockets are closed, so that their next call says so.
    fn executor_died(&mut self, place: Place) {
        let device = place.device;
        let Some(executor) = self.devices[device].executors.get(&place.domain) else { return };
        if executor.stage == Stage::Starting {
            return self.could_not_start(place, "it ended; its own words are above".into());
        }
        let pid = executor.process.pid();
        log_server!("Executor {pid} of device {device} is gone; its clients are disconnected");
        let sessions = self.sessions_at(place);
        for id in sessions {
            if let Some(client) = self.sessions.get(&id).map(|session| session.client) {
                self.disconnect(client, "the executor that served it is gone");
            }
            // While the executor's counters are still here.
            self.forget_session(id);
        }
        self.devices[device].deaths += 1;
        if let Some(executor) = self.devices[device].executors.remove(&place.domain) {
            let status = executor.process.stop();
            log_server!("Executor {pid} of device {device} ended unexpectedly ({status})");
        }
        if self.devices[device].deaths > MAX_DEATHS {
            log_server!("Executors of device {device} end too often; the server gives up");
            self.course = super::Course::Ending;
            return;
        }
        self.restart_executor(place);
    }

    fn restart_executor(&mut self, place: Place) {
        self.devices[place.device].restarts += 1;
        if place.domain != SHARED {
            // Started when a client of the domain wants it.
            self.tell_status();
            self.answer_held(place);
            return self.leave_domain(place.domain);
        }
        let count = self.devices.len() as u32;
        let options = self.options.clone();
        let slot = &mut self.devices[place.device];
        let started = slot
            .start_executor(&options, place, "", count)
            .and_then(|()| slot.await_executor(place));
        if let Err(message) = started {
            log_server!("{message}; the server gives up");
            self.course = super::Course::Ending;
        }
        self.tell_reservations(place, 0);
        self.tell_status();
        self.answer_held(place);
    }
}
