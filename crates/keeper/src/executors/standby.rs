//! Spare executors of a device: their contexts are made, and nobody uses them until an executor is
//! gone.
//!
//! Each costs a context's memory on the device, so there is none before clients have stayed for a
//! while ([`policy::faults::standby_start`]), and none where the driver lets one process have
//! contexts. After a fault that found none ready there is one more for a while, if the device has
//! the memory: faults in close succession come again. A standby belongs to no trust domain before
//! it takes over. One that is still being made takes over all the same: it is nearer to its end
//! than a new one.

use crate::Keeper;
use crate::devices::ComputeMode;
use crate::executors::place::{Place, Stage};
use crate::executors::{Executor, ExecutorProcess, START_TIMEOUT};
use crate::sessions::session::{Service, Session};
use executor_link::counters::monotonic_ns;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, ToExecutor};
use link::socket::{Received, SocketError};
use policy::domains::SHARED;
use policy::faults::standby_start::Lacking;
use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// So long after a fault that found no standby ready there is one more.
const ONE_MORE: Duration = Duration::from_secs(20);
/// Standbys that end by themselves so often are not started again before [`FORGIVEN`].
const MOST_FAILURES: u32 = 3;
const FORGIVEN: Duration = Duration::from_secs(60);
/// A context with the driver's own memory, rounded up (527 MiB on an H200).
const CONTEXT_BYTES: u64 = 640 << 20;

/// One device's.
#[derive(Default)]
pub(crate) struct Standbys {
    pub(crate) executors: Vec<Executor>,
    /// Since when the device has had sessions.
    in_use_since: Option<Instant>,
    /// When an executor was lost last.
    lost: Option<Instant>,
    /// When a fault found none ready.
    missed: Option<Instant>,
    /// When somebody looked last at what they are to map, and when memory was short last.
    pub(crate) looked_ahead: Option<Instant>,
    pub(crate) short_since: Option<Instant>,
    failures: u32,
    last_failure: Option<Instant>,
}

impl Standbys {
    /// One that could take over now.
    pub(crate) fn ready(&self) -> Option<&Executor> {
        self.executors.iter().find(|executor| executor.stage == Stage::Ready)
    }

    /// Takes one that is ready, else the one that was begun first.
    pub(crate) fn take_next(&mut self) -> Option<Executor> {
        let ready = self.executors.iter().position(|it| it.stage == Stage::Ready);
        let next = ready.or((!self.executors.is_empty()).then_some(0))?;
        Some(self.executors.remove(next))
    }

    fn note_failure(&mut self) {
        self.failures += 1;
        self.last_failure = Some(Instant::now());
    }

    /// What speaks for one more; nothing does where there are no clients.
    fn lacking(&self) -> Option<Lacking> {
        let since = |then: Instant| then.elapsed();
        let (in_use, since_fault) = (self.in_use_since.map(since)?, self.lost.map(since));
        Some(Lacking { in_use, quiet: None, since_fault, beside_long_kernel: false })
    }

    fn may_start(&self) -> bool {
        self.failures < MOST_FAILURES
            || self.last_failure.is_some_and(|last| last.elapsed() >= FORGIVEN)
    }

    fn position(&self, pid: u32) -> Option<usize> {
        self.executors.iter().position(|executor| executor.process.pid() == pid)
    }
}

impl Keeper {
    /// From time to time: starts standbys where they are missed, and ends what is one too many.
    pub(crate) fn see_to_standbys(&mut self) {
        if self.fault_settings.standbys == 0 || self.course != crate::Course::Serving {
            return;
        }
        for number in 0..self.devices.len() {
            let in_use = self
                .sessions
                .values()
                .any(|session| session.device == number && session.service == Service::Serving);
            let is_short = self.residencies[number].is_waited_for();
            let quiet = self.quiet_for(number);
            let is_second_new = self.is_second_context_new(number);
            let beside_long_kernel = self.fault_settings.second_context
                && self.lacks_standby(number)
                && self.has_long_kernel(Place::first(number, SHARED));
            let standby = &mut self.devices[number].standby;
            standby.in_use_since = match in_use {
                true => standby.in_use_since.or_else(|| Some(Instant::now())),
                false => None,
            };
            let late = standby.executors.iter().find(|executor| {
                executor.stage == Stage::Starting && executor.started.elapsed() > START_TIMEOUT
            });
            if let Some(pid) = late.map(|late| late.process.pid()) {
                let message = format!("it has no context after {START_TIMEOUT:?}");
                self.drop_standby(number, pid, &message);
                continue;
            }
            let is_missed = standby.missed.is_some_and(|missed| missed.elapsed() < ONE_MORE);
            let wanted =
                self.fault_settings.standbys + usize::from(is_missed && in_use && !is_short);
            let is_due = standby
                .lacking()
                .is_some_and(|lacking| Lacking { quiet, beside_long_kernel, ..lacking }.is_due());
            let (there, may_start) = (standby.executors.len(), standby.may_start());
            if there > wanted {
                standby.missed = None;
                if let Some(executor) = standby.executors.pop() {
                    std::thread::spawn(move || executor.process.stop());
                }
            } else if may_start
                && is_due
                && !is_second_new
                && (there < self.fault_settings.standbys.min(wanted)
                    || there < wanted && self.has_room_for_contexts(number, 1))
            {
                self.start_standby(number);
            }
        }
    }

    /// Whether sessions of a device could do with a standby that there is not.
    fn lacks_standby(&self, number: usize) -> bool {
        let standby = &self.devices[number].standby;
        standby.executors.is_empty() && standby.in_use_since.is_some() && standby.may_start()
    }

    /// Whether the keeper is to look soon whether it is time for one.
    pub(crate) fn may_need_standby_soon(&self) -> bool {
        self.fault_settings.standbys > 0
            && self.fault_settings.second_context
            && self.course == crate::Course::Serving
            && (0..self.devices.len()).any(|number| self.lacks_standby(number))
    }

    /// Whether a device has memory for so many more contexts and, beside them, a sixteenth of it.
    pub(crate) fn has_room_for_contexts(&self, number: usize, more: u64) -> bool {
        let device = &self.devices[number];
        let leaving = self.leaving.iter().filter(|leaving| leaving.place.device == number).count();
        let contexts = device.executors.len() + device.standby.executors.len() + leaving;
        let sessions = self.sessions.values().filter(|session| session.device == number);
        let held: u64 = sessions.map(|session| session.grants.granted_bytes()).sum();
        let total = device.info.total_memory_bytes;
        held.saturating_add((contexts as u64 + more) * CONTEXT_BYTES) <= total - total / 16
    }

    /// For how long no session of a device has taken a command; absent: one does.
    fn quiet_for(&self, number: usize) -> Option<Duration> {
        let now_ns = monotonic_ns();
        let sessions = self.sessions.values().filter(|session| session.device == number);
        let idle_since = sessions
            .map(|session| session.counters.slot(session.counter_slot).idle_since_ns())
            .try_fold(0, |latest, since_ns| Some(since_ns?.max(latest)))?;
        Some(Duration::from_nanos(now_ns.saturating_sub(idle_since)))
    }

    fn start_standby(&mut self, number: usize) {
        let count = self.devices.len() as u32;
        let options = self.options.clone();
        let device = &mut self.devices[number];
        if device.compute_mode(self.driver) != ComputeMode::Default {
            device.standby.failures = MOST_FAILURES;
            device.standby.last_failure = Some(Instant::now());
            return;
        }
        let started = ExecutorProcess::start(&options, device.ordinal, number as u32, count);
        match started {
            Ok(process) => {
                device.standby.executors.push(Executor::starting(process));
            }
            Err(message) => {
                log_server!("{message}");
                device.standby.note_failure();
            }
        }
    }

    pub(crate) fn hear_standby(&mut self, number: usize, pid: u32) {
        let standby = &mut self.devices[number].standby;
        let Some(position) = standby.position(pid) else { return };
        let executor = &mut standby.executors[position];
        match executor.process.connection().try_receive::<FromExecutor>() {
            Ok(None) => {}
            Ok(Some(Received { message: FromExecutor::Ready { .. }, .. })) => {
                executor.stage = Stage::Ready;
                log_server!("Executor {pid} stands by for device {number}");
                self.warm(number, pid);
            }
            Ok(Some(Received { message: FromExecutor::Failed { message }, .. })) => {
                self.drop_standby(number, pid, &message);
            }
            Ok(Some(Received {
                message: FromExecutor::MappedAhead { session, failed }, ..
            })) => {
                self.mapped_ahead(number, pid, session, &failed);
            }
            Ok(Some(Received { message: FromExecutor::NothingKept, .. })) => {
                self.nothing_kept(number, pid);
            }
            Ok(Some(_)) => {}
            Err(SocketError::Closed) => self.drop_standby(number, pid, "it ended"),
            Err(error) => self.drop_standby(number, pid, &error.to_string()),
        }
    }

    /// Tells those that stand by of code that a session has, or is about to have no more.
    pub(crate) fn tell_standbys_of_code(&self, id: u64, file: u64, code: Code) {
        let Some(session) = self.sessions.get(&id) else { return };
        let ready = self.devices[session.device].standby.executors.iter();
        for standby in ready.filter(|standby| standby.stage == Stage::Ready) {
            tell_of_code(&standby.process, session, file, code);
        }
    }

    /// Tells one that now stands by of all code that sessions have.
    fn warm(&self, number: usize, pid: u32) {
        let standby = &self.devices[number].standby;
        let Some(standby) = standby.position(pid).map(|at| &standby.executors[at]) else { return };
        for session in self.sessions.values().filter(|session| session.device == number) {
            let files = session.code.keys();
            files.for_each(|&file| tell_of_code(&standby.process, session, file, Code::Here));
        }
    }

    fn drop_standby(&mut self, number: usize, pid: u32, message: &str) {
        let standby = &mut self.devices[number].standby;
        standby.note_failure();
        if let Some(position) = standby.position(pid) {
            let executor = standby.executors.remove(position);
            log_server!("Nobody stands by for device {number}: {message}");
            std::thread::spawn(move || executor.process.stop());
        }
    }

    /// A standby of a device, to take over: one that is ready, or is ready sooner than a new one.
    pub(crate) fn take_standby(&mut self, number: usize) -> Option<Executor> {
        let standby = &mut self.devices[number].standby;
        let is_ready = standby.ready().is_some();
        standby.lost = Some(Instant::now());
        if !is_ready && standby.lacking().is_some_and(|lacking| lacking.is_worth_it()) {
            standby.missed = standby.lost;
        }
        standby.take_next()
    }
}

/// Where code of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The session has it.
    Here,
    /// It has it no more.
    Gone,
}

/// Has code of a session loaded ahead, or unloaded, unless the session is set apart from others: a
/// standby may become the executor of any domain.
fn tell_of_code(standby: &ExecutorProcess, session: &Session, file: u64, code: Code) {
    let is_shared = session.domain == SHARED;
    if let Some((&options, file)) = session.code.get(&file).zip(session.kept.get(&file))
        && is_shared
    {
        let message = match code {
            Code::Here => ToExecutor::Warm(options),
            Code::Gone => ToExecutor::Cool(options),
        };
        standby.tell(&message, &[file.as_fd()]);
    }
}
