//! The executor processes: started, heard, stopped, started again.

use super::devices::Device;
use super::{Keeper, Options, PEER_TIMEOUT};
use crate::counters::{CounterPage, SLOTS};
use crate::executor_link::{FromExecutor, ToExecutor};
use crate::log::log_server;
use link::socket::{Connection, Received, SocketError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A driver's initialisation and a context take less than a second; a machine under load more.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// An executor without its keeper ends by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// An executor that ends so often by itself is not started again.
const MAX_DEATHS: u32 = 16;

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
    /// Starts this device's executor; [`Self::await_executor`] must follow.
    pub(crate) fn start_executor(
        &mut self,
        options: &Options,
        index: u32,
        devices: u32,
    ) -> Result<(), String> {
        log_server!("Creating server context on device {index} ({})", self.info.name);
        self.executor = Some(ExecutorProcess::start(options, self.ordinal, index, devices)?);
        Ok(())
    }

    /// Waits until the executor has its context.
    pub(crate) fn await_executor(&mut self, index: u32) -> Result<(), String> {
        let executor = self.executor.as_ref().ok_or("no executor was started")?;
        let failed = |what: String| format!("the executor of device {index} did not start: {what}");
        match executor.connection.receive::<FromExecutor>(START_TIMEOUT) {
            Ok(Received { message: FromExecutor::Ready { stream_priorities }, .. }) => {
                self.info.stream_priorities = stream_priorities;
                self.lost = false;
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
    pub(super) fn hear_executor(&mut self, device: usize) {
        let Some(executor) = self.devices.get(device).and_then(|device| device.executor.as_ref())
        else {
            return;
        };
        match executor.connection.try_receive::<FromExecutor>() {
            Ok(None) => {}
            Ok(Some(Received { message, descriptors })) => {
                self.obey_executor(device, message, descriptors)
            }
            Err(SocketError::Closed) => self.executor_died(device),
            Err(error) => {
                log_server!("Executor {} cannot be understood: {error}", executor.pid());
                self.executor_died(device);
            }
        }
    }

    fn obey_executor(&mut self, device: usize, message: FromExecutor, descriptors: Vec<OwnedFd>) {
        match message {
            FromExecutor::Ready { .. } | FromExecutor::Failed { .. } => {}
            FromExecutor::SessionOpened { session } => self.session_opened(session, &descriptors),
            FromExecutor::SessionRefused { session, code, message } => {
                self.session_refused(session, code, message)
            }
            FromExecutor::Grant { session, size_bytes, placement } => {
                self.grant(session, size_bytes, placement)
            }
            FromExecutor::Released { session, address } => self.release(session, address),
            FromExecutor::SessionBroken { session, message } => {
                if let Some(client) = self.sessions.get(&session).map(|session| session.client) {
                    self.disconnect(client, &message);
                }
            }
            FromExecutor::SessionClosed { session } => {
                self.forget_session(session);
                self.renew_if_lost(device);
            }
            FromExecutor::ContextLost { code } => self.context_lost(device, code),
        }
    }

    fn context_lost(&mut self, device: usize, code: u32) {
        let name = cuda_abi::types::CUresult(code);
        self.log_fault(device);
        log_server!(
            "Device {device} has lost its context to {name}; its clients keep this error until they end"
        );
        self.devices[device].lost = true;
        self.devices[device].faults += 1;
        self.tell_status();
        self.renew_if_lost(device);
    }

    /// Says who is concerned by a fatal fault, in the lines of the original's driver 580. It names a culprit that it does not know; here
    /// one is named if nobody else is there, and what each had in flight is said when its session ends.
    fn log_fault(&self, device: usize) {
        let mut concerned: Vec<(u32, u32)> = self
            .clients
            .values()
            .flat_map(|client| client.contexts.iter().map(|context| (client.peer.pid, *context)))
            .filter(|(_, context)| context.device as usize == device)
            .map(|(pid, context)| (pid, context.context_id))
            .collect();
        // Who has just closed its context, or left, may be the one: its session is still there, which began with its first context.
        for session in self.sessions.values().filter(|session| session.device == device) {
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
        if let ([(pid, context)], [_]) = (concerned.as_slice(), pids.as_slice()) {
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

    /// Gives a device whose context is lost a new executor, once nobody has a session in the old one.
    pub(super) fn renew_if_lost(&mut self, device: usize) {
        if !self.devices[device].lost
            || self.sessions.values().any(|session| session.device == device)
        {
            return;
        }
        if let Some(executor) = self.devices[device].executor.take() {
            log_server!(
                "Destroy server context on device {device} ({})",
                self.devices[device].info.name
            );
            executor.stop();
        }
        self.restart_executor(device);
    }

    /// The executor is gone: its clients' sessions with it. Their sockets are closed, so that their next call says so.
    fn executor_died(&mut self, device: usize) {
        let Some(executor) = &self.devices[device].executor else { return };
        let pid = executor.pid();
        log_server!("Executor {pid} of device {device} is gone; its clients are disconnected");
        let sessions: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.device == device)
            .map(|(&id, _)| id)
            .collect();
        for id in sessions {
            if let Some(client) = self.sessions.get(&id).map(|session| session.client) {
                self.disconnect(client, "the executor that served it is gone");
            }
            // While the executor's counters are still here.
            self.forget_session(id);
        }
        self.devices[device].deaths += 1;
        if let Some(executor) = self.devices[device].executor.take() {
            let status = executor.stop();
            log_server!("Executor {pid} of device {device} ended unexpectedly ({status})");
        }
        if self.devices[device].deaths > MAX_DEATHS {
            log_server!("Executors of device {device} end too often; the server gives up");
            self.course = super::Course::Ending;
            return;
        }
        self.restart_executor(device);
    }

    fn restart_executor(&mut self, device: usize) {
        let count = self.devices.len() as u32;
        let options = self.options.clone();
        let slot = &mut self.devices[device];
        slot.restarts += 1;
        let started = slot
            .start_executor(&options, device as u32, count)
            .and_then(|()| slot.await_executor(device as u32));
        if let Err(message) = started {
            log_server!("{message}; the server gives up");
            self.course = super::Course::Ending;
        }
        self.tell_status();
        self.answer_held(device as u32);
    }
}
