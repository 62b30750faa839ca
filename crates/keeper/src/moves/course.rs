//! The course of a move: the session's executor is asked, has memory made on the other device,
//! copies, and says that the session has left. Then the session is the other executor's, as after a
//! relocation ([`crate::contexts::relocation`]).
//!
//! Until it has left, all that it has is where it was. So whatever ends the executor meanwhile, the
//! session is taken over there, and asked again.

use crate::Keeper;
use crate::executors::place::{Place, Stage};
use crate::executors::standby::Code;
use crate::moves::wishes::Obstacle;
use crate::sessions::memory::now_ms;
use crate::sessions::session::{DeviceMemory, Service};
use crate::shares::Awaited;
use cuda_abi::types::CUresult;
use executor_link::driver::Driver;
use executor_link::log::log_server;
use executor_link::messages::{GrantOutcome, ToExecutor};
use policy::limits::latency_class;
use policy::turns::priorities::Class;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What waits for an executor, or for what the session has left on the other device, waits for so
/// long at most.
const BEGINS_WITHIN: Duration = Duration::from_secs(8);

/// A move in which so many executors have ended is given up: it may be what ends them.
const MOST_INTERRUPTIONS: u32 = 2;

/// A session on its way to another device.
pub(crate) struct Move {
    pub(crate) to: Place,
    begun: Instant,
    progress: Progress,
    /// How often the session's executor has ended meanwhile.
    interruptions: u32,
    /// Memory there, by its first address here.
    memory: BTreeMap<u64, DeviceMemory>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Its executor is to be asked.
    Wanted,
    Asked,
}

impl Move {
    /// Gives back what was made for it.
    pub(crate) fn release(self, driver: Driver) {
        self.memory.into_values().for_each(|memory| memory.release(driver));
    }
}

impl Keeper {
    /// From now on a session is to go to a device; see [`Self::see_to_move`].
    pub(crate) fn note_move(&mut self, id: u64, to: usize) {
        let Some(session) = self.sessions.get(&id) else { return };
        let to = Place::first(to, session.domain);
        log_server!("{} is to go to device {}", session.label, to.device);
        let (begun, progress, memory) = (Instant::now(), Progress::Wanted, BTreeMap::new());
        self.moves.insert(id, Move { to, begun, progress, interruptions: 0, memory });
    }

    /// Whether a move is to begin.
    pub(crate) fn is_move_wanted(&self) -> bool {
        self.moves.values().any(|it| it.progress == Progress::Wanted)
    }

    /// From time to time: asks sessions that could not be asked before.
    pub(crate) fn see_to_moves(&mut self) {
        let wanted = self.moves.iter().filter(|(_, it)| it.progress == Progress::Wanted);
        let wanted: Vec<u64> = wanted.map(|(&id, _)| id).collect();
        wanted.into_iter().for_each(|id| self.see_to_move(id));
    }

    /// Asks a session to go, if that can be now.
    pub(crate) fn see_to_move(&mut self, id: u64) {
        let Some((to, begun)) = self.moves.get(&id).map(|it| (it.to, it.begun)) else { return };
        let Some(session) = self.sessions.get(&id) else { return };
        let place = session.place();
        match session.service {
            Service::Ended | Service::Losing => {
                return self.end_move(id, Err("its context has failed".into()));
            }
            _ if begun.elapsed() >= BEGINS_WITHIN => {
                let why = format!("it cannot be asked within {BEGINS_WITHIN:?}: try again");
                return self.end_move(id, Err(why));
            }
            _ if self.drained.contains(&to.device) => {
                return self.end_move(id, Err(Obstacle::Drained(to.device).to_string()));
            }
            Service::Serving if !self.clearing.contains_key(&id) && !self.is_recovering(to) => {}
            _ => return,
        }
        let to = self.place_for_newcomer(to.device, to.domain);
        if self.is_recovering(to) || self.has_long_kernel(to) {
            // It would wait for that kernel as soon as it is there.
            return;
        }
        if let Some(going) = self.moves.get_mut(&id) {
            going.to = to;
        }
        match self.ensure_executor(to) {
            Err(refusal) => return self.end_move(id, Err(refusal.message)),
            Ok(Stage::Starting) => return,
            Ok(Stage::Ready) => {}
        }
        if let Some(executor) = self.executor(place) {
            executor.tell(&ToExecutor::MoveAway { session: id }, &[]);
            if let Some(going) = self.moves.get_mut(&id) {
                going.progress = Progress::Asked;
            }
        }
    }

    /// A session that is to go wants memory where it goes, for what it has at an address.
    pub(crate) fn give_twin(&mut self, id: u64, address: u64) {
        let made = self.make_twin(id, address);
        let Some(executor) = self.executor_of(id) else { return };
        let (outcome, file) = match made {
            Ok((size_bytes, file)) => (GrantOutcome::Memory { address, size_bytes }, Some(file)),
            Err(code) => (GrantOutcome::Refused(code.0), None),
        };
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        executor.tell(&ToExecutor::Granted { session: id, grant: outcome }, &files);
    }

    fn make_twin(&mut self, id: u64, address: u64) -> Result<(u64, OwnedFd), CUresult> {
        let session = self.sessions.get(&id).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        let going = self.moves.get_mut(&id).ok_or(CUresult::ERROR_NOT_PERMITTED)?;
        let size_bytes = session.grants.length(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let device = self.devices[going.to.device].handle;
        let memory = DeviceMemory::make(self.driver, device, size_bytes)?;
        let file = memory.descriptor(self.driver);
        if let Some(before) = going.memory.insert(address, memory) {
            before.release(self.driver);
        }
        Ok((size_bytes, file?))
    }

    /// The executor of a session that was to go has ended, or the session goes elsewhere first: it
    /// is asked again where it is then.
    pub(crate) fn begin_move_again(&mut self, id: u64) {
        let Some(going) = self.moves.get_mut(&id) else { return };
        (going.progress, going.begun) = (Progress::Wanted, Instant::now());
        let memory = std::mem::take(&mut going.memory);
        memory.into_values().for_each(|memory| memory.release(self.driver));
    }

    /// The same for all sessions of a place.
    pub(crate) fn begin_moves_again(&mut self, place: Place) {
        for id in self.sessions_at(place) {
            let Some(going) = self.moves.get_mut(&id) else { continue };
            going.interruptions += 1;
            match going.interruptions < MOST_INTERRUPTIONS {
                true => self.begin_move_again(id),
                false => self.end_move(id, Err("executors end while it goes".into())),
            }
        }
    }

    /// A move has ended: the session is there, or stays for a reason.
    pub(crate) fn end_move(&mut self, id: u64, outcome: Result<(), String>) {
        if let Some(going) = self.moves.remove(&id) {
            going.release(self.driver);
        }
        for pending in &mut self.changes {
            let awaited = pending.open.extract_if(
                ..,
                |awaited| matches!(awaited, Awaited::Move { session, .. } if *session == id),
            );
            for awaited in awaited {
                let Awaited::Move { pid, .. } = awaited else { continue };
                match &outcome {
                    Ok(()) => pending.report.clients.push(pid),
                    Err(why) => pending.report.refused.push(format!("client {pid}: {why}")),
                }
            }
        }
        self.finish_changes();
    }

    /// A session has left for another device, with all that it had. Nobody serves it.
    pub(crate) fn change_device(&mut self, id: u64, going: Move) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (from, to) = (session.device, going.to.device);
        let code: Vec<u64> = session.code.keys().copied().collect();
        code.iter().for_each(|&file| self.tell_standbys_of_code(id, file, Code::Gone));
        self.forget_ahead(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let left = std::mem::replace(&mut session.memory, going.memory);
        for address in left.keys().filter(|address| !session.memory.contains_key(address)) {
            // Its client has given that up.
            session.grants.release(*address);
        }
        if let Some(clearing) = self.clearing.get_mut(&id) {
            clearing.memory = left.into_values().collect();
        }
        let counts = session.counts();
        self.devices[from].departed.add(&counts.since(&session.counted_elsewhere));
        session.counted_elsewhere = counts;
        session.device = to;
        self.residencies[from].close(id);
        let residency = &mut self.residencies[to];
        residency.open(id, now_ms());
        for &address in session.memory.keys() {
            if let Some(size_bytes) = session.grants.length(address) {
                residency.add(id, address, size_bytes);
            }
        }
        let told = session.told_device as usize;
        if let Some(client) = self.clients.get(&session.client) {
            let bound = self.memory_bound_where(client, told, to);
            let is_latency = latency_class(&client.hello.limits) == Class::Latency;
            if let Some(session) = self.sessions.get_mut(&id) {
                session.grants.set_limit_bytes(bound.bytes);
            }
            if is_latency {
                self.hold_headroom(to);
            }
        }
        code.iter().for_each(|&file| self.tell_standbys_of_code(id, file, Code::Here));
        self.serve_waiting(from);
    }
}
