//! The executor processes: started, heard, stopped, started again. There is one for each device and
//! trust domain ([`policy::domains`]) that has clients; those for clients that nothing sets
//! apart are there from the start.

pub(crate) mod ahead;
pub(crate) mod leaving;
pub(crate) mod place;
pub(crate) mod said;
pub(crate) mod standby;
pub(crate) mod takeover;

use super::devices::{ComputeMode, Device};
use super::{Keeper, Options, PEER_TIMEOUT};
use crate::executors::ahead::Ahead;
use crate::executors::leaving::{Killed, kill};
use crate::executors::place::{Place, Seat, Side, Stage};
use crate::executors::said::Said;
use crate::sessions::session::{Service, Session};
use cuda_abi::types::CUresult;
use executor_link::captured::Captured;
use executor_link::counters::{CounterPage, SLOTS};
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, ToExecutor};
use link::closer::leave_sockets;
use link::socket::{Connection, Received, SocketError};
use link::wire::attach::Refusal;
use policy::domains::{Domain, SHARED};
use policy::faults::recovery::Cause;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A driver's initialisation and a context take less than a second; a machine under load more.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// An executor without its keeper ends by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The driver gives a dead process's context back: seconds, where it was large.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// An executor in its place.
pub(crate) struct Executor {
    pub(crate) process: ExecutorProcess,
    pub(crate) stage: Stage,
    pub(crate) started: Instant,
    /// What it has mapped of sessions while it stood by.
    pub(crate) ahead: Ahead,
    /// Of a second context: since when nobody has been there.
    pub(crate) unused_since: Option<Instant>,
}

impl Executor {
    /// One that makes its context.
    pub(crate) fn starting(process: ExecutorProcess) -> Self {
        let started = Instant::now();
        let ahead = Ahead::default();
        Self { process, stage: Stage::Starting, started, ahead, unused_since: None }
    }
}

/// A running executor.
pub(crate) struct ExecutorProcess {
    child: Child,
    connection: Connection,
    pub(crate) counters: CounterPage,
    free_slots: Vec<usize>,
    /// What its driver writes to standard error.
    said: Captured,
}

impl ExecutorProcess {
    pub(crate) fn start(
        options: &Options,
        device: u32,
        index: u32,
        devices: u32,
    ) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| {
            format!("cannot start an executor for device {device}: {error}")
        };
        let (connection, theirs) = Connection::pair().map_err(|error| fail(&error))?;
        let (file, counters) = CounterPage::create().map_err(|error| fail(&error))?;
        let said = Captured::create("openmps-driver-stderr").map_err(|error| fail(&error))?;
        let mut command = Command::new(&options.executor_program);
        command
            .arg0("openmps")
            .args(["executor", "--control-fd", "0", "--native-driver"])
            .arg(&options.native_driver)
            // Standard input is a descriptor that a child surely inherits.
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(said.stdio().map_err(|error| fail(&error))?);
        leave_sockets(&mut command);
        let child = command.spawn().map_err(|error| fail(&error))?;
        let free_slots = (0..SLOTS).rev().collect();
        let executor = Self { child, connection, counters, free_slots, said };
        let files = [file.as_fd(), rustix::stdio::stderr()];
        executor
            .connection
            .send(&ToExecutor::Start { device, index, devices }, &files, PEER_TIMEOUT)
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

    /// Kills it and waits until it runs no code any more; what it had sent is still to be read, as
    /// is what its driver said.
    pub(crate) fn end_now(self) -> (Killed, Connection, Said) {
        let Self { child, connection, mut said, .. } = self;
        let pid = child.id();
        (kill(child), connection, Said::take(pid, &mut said))
    }

    /// Closes its socket, waits for its end a while, then kills it. Says how it ended.
    pub(crate) fn stop(self) -> String {
        let Self { mut child, connection, mut said, .. } = self;
        drop(connection);
        let pid = child.id();
        let how = await_end(&mut child, STOP_TIMEOUT).unwrap_or_else(|| kill(child).await_gone());
        Said::take(pid, &mut said).log();
        how
    }

    /// Logs what its driver has said.
    pub(crate) fn log_said(&mut self) {
        Said::take(self.child.id(), &mut self.said).log();
    }
}

/// Waits for a process's end; says how it ended, `None`: not yet.
pub(crate) fn await_end(child: &mut Child, limit: Duration) -> Option<String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.to_string()),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
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
        self.executors.insert(place.seat(), Executor::starting(process));
        Ok(())
    }

    /// Waits until an executor has its context.
    pub(crate) fn await_executor(&mut self, place: Place) -> Result<(), String> {
        let executor = self.executors.get_mut(&place.seat()).ok_or("no executor was started")?;
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
    pub(crate) fn executor(&self, place: Place) -> Option<&ExecutorProcess> {
        let executor = self.devices.get(place.device)?.executors.get(&place.seat())?;
        Some(&executor.process)
    }

    /// The executor of a session's place, if one runs.
    pub(crate) fn executor_of(&self, session: u64) -> Option<&ExecutorProcess> {
        self.executor(self.sessions.get(&session)?.place())
    }

    /// Whether an executor has a session.
    pub(crate) fn is_served(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(Session::is_served)
    }

    /// Whether a session waits for its executor to leave the device.
    pub(crate) fn is_losing(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.service == Service::Losing)
    }

    /// Whether anybody has a session there, or waits for one; those included that only wait for
    /// their work to end.
    pub(crate) fn is_in_use(&self, place: Place) -> bool {
        self.sessions.values().any(|session| session.place() == place)
            || self.clearing.values().any(|clearing| clearing.place == place)
            || self.held.iter().any(|&(_, wanted)| wanted == place)
            || self.moves.values().any(|going| going.to == place)
    }

    /// Sees to it that a place has an executor; says how far it is.
    ///
    /// # Errors
    /// Why it can have none: for the client, which may be told what to do.
    pub(crate) fn ensure_executor(&mut self, place: Place) -> Result<Stage, Refusal> {
        let device = &self.devices[place.device];
        if let Some(executor) = device.executors.get(&place.seat()) {
            return Ok(executor.stage);
        }
        self.make_room(place)?;
        let (label, count) = (self.domains.label(place.domain), self.devices.len() as u32);
        let (options, device) = (self.options.clone(), &mut self.devices[place.device]);
        device.start_executor(&options, place, &label, count).map_err(|message| {
            log_server!("{message}");
            Refusal { code: CUresult::ERROR_MPS_SERVER_NOT_READY.0, message }
        })?;
        self.be_second(place);
        self.tell_first_reservations(place);
        Ok(Stage::Starting)
    }

    /// Where a device takes contexts of one process only, an executor without clients makes way for
    /// another.
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
        let others: Vec<Seat> = self.devices[number].executors.keys().copied().collect();
        for (domain, side) in others {
            let other = Place { device: number, domain, side };
            if self.is_in_use(other) {
                let who = match self.domains.label(domain) {
                    label if label.is_empty() => "clients that nothing sets apart".to_owned(),
                    label => format!("the clients of {label}"),
                };
                return refusal(format!(
                    "device {number} is in compute mode EXCLUSIVE_PROCESS, which lets one process have contexts, and that is the executor of {who}: wait until they have ended, run without isolation, or change the mode by `nvidia-smi -i {number} -c DEFAULT`"
                ));
            }
            if let Some(executor) = self.devices[number].executors.remove(&other.seat()) {
                log_server!(
                    "Destroy server context on device {number}: another executor takes its place"
                );
                executor.process.stop();
            }
        }
        Ok(())
    }

    /// Ends the executors of a domain that nobody is in any more.
    pub(crate) fn leave_domain(&mut self, domain: Domain) {
        let is_in = self.clients.values().any(|client| client.domain == domain)
            || self.sessions.values().any(|session| session.domain == domain);
        let is_awaited = self.quarantine.is_apart(domain) && self.is_quarantine_awaited();
        if domain == SHARED || is_in || is_awaited {
            return;
        }
        self.quarantine.forget(domain);
        let label = self.domains.label(domain);
        self.domains.forget(domain);
        for (number, device) in self.devices.iter_mut().enumerate() {
            let Some(executor) = device.executors.remove(&(domain, Side::First)) else { continue };
            log_server!(
                "Destroy server context on device {number} ({}) for {label}",
                device.info.name
            );
            // Others are not to wait for its end.
            std::thread::spawn(move || executor.process.stop());
        }
    }

    /// Gives up executors that do not get their context.
    pub(crate) fn check_starting(&mut self) {
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
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &Executor)> {
        self.devices.iter().enumerate().flat_map(|(device, of)| {
            of.executors
                .iter()
                .map(move |(&(domain, side), executor)| (Place { device, domain, side }, executor))
        })
    }

    /// An executor for clients that wait for it has no context: they are told why.
    fn could_not_start(&mut self, place: Place, message: String) {
        log_server!("The executor of device {} did not start: {message}", place.device);
        if let Some(executor) = self.devices[place.device].executors.remove(&place.seat()) {
            std::thread::spawn(move || executor.process.stop());
        }
        if self.is_recovering(place)
            && self.started_again.insert(place)
            && self.ensure_executor(place).is_ok()
        {
            // One that was about to stand by, or had too little memory beside the last one.
            return;
        }
        let code = match self.devices[place.device].compute_mode(self.driver) {
            ComputeMode::Default => CUresult::ERROR_MPS_SERVER_NOT_READY,
            _ => CUresult::ERROR_DEVICE_UNAVAILABLE,
        };
        self.give_up_recovery(place, &message);
        self.refuse_stuck(place.device);
        self.refuse_held(place, &Refusal { code: code.0, message });
    }

    pub(crate) fn hear_executor(&mut self, place: Place) {
        let Some(executor) = self.executor(place) else { return };
        match executor.connection.try_receive::<FromExecutor>() {
            Ok(None) => {}
            Ok(Some(Received { message, descriptors })) => {
                let named = message.session().and_then(|session| self.sessions.get(&session));
                let is_elsewhere = named.is_some_and(|session| session.place() != place);
                if is_elsewhere && self.is_clearing(place, &message) {
                    return self.hear_clearing(place, message);
                }
                if is_elsewhere {
                    log_server!("Executor {} names another executor's session", executor.pid());
                    return self.executor_died(place);
                }
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
                if let Some(executor) = device.executors.get_mut(&place.seat()) {
                    executor.stage = Stage::Ready;
                }
                self.tell_keeping(place);
                match self.is_recovering(place) {
                    true => self.take_over(place),
                    false => {
                        self.answer_held(place);
                        self.answer_stuck(place.device);
                    }
                }
            }
            FromExecutor::NothingKept => {
                let pid = self.executor(place).map_or(0, ExecutorProcess::pid);
                self.nothing_kept(place.device, pid);
            }
            // It was told while it stood by, and stands by no more.
            FromExecutor::MappedAhead { .. } => {}
            FromExecutor::Failed { message } => self.could_not_start(place, message),
            FromExecutor::SessionOpened { session } => self.session_opened(session),
            FromExecutor::Keep { session, number, code } => {
                self.keep_file(session, number, code, descriptors);
            }
            FromExecutor::LetGo { session, numbers } => self.let_go_files(session, &numbers),
            FromExecutor::Journal { session } => self.follow_journal(session, descriptors),
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
            FromExecutor::Watch { session, device } => self.show_signals(session, device),
            FromExecutor::PeerReleased { session, device, key } => {
                self.give_back_lent(session, device, key);
            }
            FromExecutor::Released { session, address } => self.release(session, address),
            FromExecutor::SessionBroken { session, message } => {
                if let Some(client) = self.sessions.get(&session).map(|session| session.client) {
                    self.disconnect(client, &message);
                }
            }
            FromExecutor::Guarded { session, address, message } => {
                self.guarded(session, address, message);
            }
            FromExecutor::Reshared { session, order, multiprocessors, refused } => {
                self.reshared(session, order, multiprocessors, refused);
            }
            FromExecutor::Reserved { change, made, refused } => {
                self.reserved(place, change, made, refused);
            }
            FromExecutor::SessionClosed { session } => {
                self.forget_session(session);
                self.leave_domain(place.domain);
            }
            FromExecutor::Stuck { session, reason } => self.stuck(session, reason),
            FromExecutor::Unstuck { session } => drop(self.stuck.remove(&session)),
            FromExecutor::Left { session, event_times, baggage } => {
                self.session_left(place, session, event_times, baggage);
            }
            FromExecutor::Twin { session, address } => self.give_twin(session, address),
            FromExecutor::Stays { session, why } => self.end_move(session, Err(why)),
            FromExecutor::Cleared { session } => self.cleared(place, session),
            FromExecutor::ContextLost { code } => self.context_lost(place, code),
        }
    }

    fn context_lost(&mut self, place: Place, code: u32) {
        self.fail_over(place, Cause::Fault(CUresult(code)));
    }

    /// The sessions that an executor serves.
    pub(crate) fn sessions_at(&self, place: Place) -> Vec<u64> {
        let there = self.sessions.iter().filter(|(_, session)| session.place() == place);
        there.map(|(&id, _)| id).collect()
    }

    fn executor_died(&mut self, place: Place) {
        let stage = self.devices[place.device].executors.get(&place.seat()).map(|it| it.stage);
        match stage {
            Some(Stage::Starting) => {
                self.could_not_start(place, "it ended; its own words are above".into());
            }
            Some(Stage::Ready) => self.fail_over(place, Cause::Died),
            None => {}
        }
    }
}
