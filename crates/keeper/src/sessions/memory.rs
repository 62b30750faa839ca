//! Who gets device memory: grants, and what happens when the device has no more (see
//! [`policy::memory::residency`]).

use super::session::DeviceMemory;
use crate::Keeper;
use cuda_abi::types::CUresult;
use executor_link::counters::monotonic_ns;
use executor_link::log::log_server;
use executor_link::messages::{GrantOutcome, MoveOrder, Placement, ToExecutor};
use policy::memory::residency::{Action, Refusal, Urgency, Wish};

/// Refusals of one session that the log tells of: a client that asks again and again must not fill
/// the disk.
const MOST_LOGGED_REFUSALS: u32 = 8;

pub(crate) fn now_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

impl Keeper {
    /// Makes memory for a session and sends it to the executor.
    pub(crate) fn grant(&mut self, id: u64, size_bytes: u64, placement: Placement) {
        if self.is_beyond_group(id, size_bytes) {
            return self.refuse(id, CUresult::ERROR_OUT_OF_MEMORY);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let device = &self.devices[session.device];
        let planned = match placement {
            Placement::Window => session.grants.plan(size_bytes, device.granularity_bytes),
            Placement::Piece => session.grants.plan_piece(size_bytes, device.granularity_bytes),
        };
        let Ok((address, size_bytes)) = planned else {
            return self.refuse(id, CUresult::ERROR_OUT_OF_MEMORY);
        };
        session.wanted = Some((address, size_bytes));
        match self.try_grant(id) {
            Ok(()) => {}
            Err(CUresult::ERROR_OUT_OF_MEMORY) => {
                self.wait_for_memory(id, Wish::New { size_bytes })
            }
            Err(code) => self.refuse(id, code),
        }
    }

    /// Gives a session what it wants, if the device has it.
    pub(crate) fn try_grant(&mut self, id: u64) -> Result<(), CUresult> {
        if self.sessions.get(&id).is_none_or(|session| session.wanted.is_none()) {
            return Ok(());
        }
        // Else it could have more, all in all, than the device.
        self.try_return(id)?;
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let Some((address, size_bytes)) = session.wanted else { return Ok(()) };
        let device = &self.devices[session.device];
        let memory = DeviceMemory::make(self.driver, device.handle, size_bytes)?;
        session.wanted = None;
        self.residencies[session.device].add(id, address, size_bytes);
        let memory = memory.sent(|file| {
            if let Some(executor) = device.executors.get(&session.place().seat()) {
                let grant = GrantOutcome::Memory { address, size_bytes };
                executor.process.tell(&ToExecutor::Granted { session: id, grant }, &[file]);
            }
        });
        session.memory.insert(address, memory);
        self.offer_ahead(id, address);
        Ok(())
    }

    fn refuse(&mut self, id: u64, code: CUresult) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((address, ..)) = session.wanted.take() {
            session.grants.release(address);
        }
        self.answer(id, GrantOutcome::Refused(code.0));
    }

    /// Answers a session that asked for memory, and gets none now.
    fn answer(&self, id: u64, grant: GrantOutcome) {
        self.tell_session(id, &ToExecutor::Granted { session: id, grant });
    }

    fn tell_session(&self, id: u64, message: &ToExecutor) {
        let session = self.sessions.get(&id);
        if let Some(executor) = session.and_then(|session| self.executor(session.place())) {
            executor.tell(message, &[]);
        }
    }

    fn wait_for_memory(&mut self, id: u64, wish: Wish) {
        let Some(device) = self.sessions.get(&id).map(|session| session.device) else { return };
        if self.reclaim_kept(device, id, wish) {
            return self.answer(id, GrantOutcome::Waits);
        }
        match self.residencies[device].wait(id, wish, now_ms()) {
            Ok(()) => {
                self.answer(id, GrantOutcome::Waits);
                self.find_room(device);
            }
            Err(refusal) => self.refuse_for(id, refusal),
        }
    }

    fn refuse_for(&mut self, id: u64, refusal: Refusal) {
        let label = self.session_label(id);
        if let Some(session) = self.sessions.get_mut(&id)
            && let Some((_, size_bytes)) = session.wanted
            && refusal != Refusal::Policy
            && session.refusals_logged < MOST_LOGGED_REFUSALS
        {
            session.refusals_logged += 1;
            log_server!("{label} gets no {size_bytes} bytes: {}", refusal.text());
        }
        self.refuse(id, CUresult::ERROR_OUT_OF_MEMORY);
    }

    fn session_label(&self, id: u64) -> String {
        let client = self.sessions.get(&id).and_then(|session| self.clients.get(&session.client));
        client.map_or_else(
            || format!("Session {id}"),
            |client| format!("Client {{PID: {}}}", client.peer.pid),
        )
    }

    /// A session wants all back that it has moved out.
    pub(crate) fn bring_back(&mut self, id: u64) {
        let Some(device) = self.sessions.get(&id).map(|session| session.device) else { return };
        let tried = self.try_return(id);
        self.see_to_outcome(device, id, Wish::Return, tried);
    }

    /// What follows from a try to fulfil a wish.
    pub(crate) fn see_to_outcome(
        &mut self,
        device: usize,
        id: u64,
        wish: Wish,
        tried: Result<(), CUresult>,
    ) {
        match tried {
            Ok(()) => {}
            // Whoever waits longer comes first: what fits now is taken all the same.
            Err(CUresult::ERROR_OUT_OF_MEMORY) => self.wait_for_memory(id, wish),
            Err(code) => {
                self.residencies[device].give_up(id);
                self.refuse(id, code);
            }
        }
    }

    /// Makes memory for what a session has moved out, as far as the device has it.
    pub(crate) fn try_return(&mut self, id: u64) -> Result<(), CUresult> {
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let device = &self.devices[session.device];
        let residency = &mut self.residencies[session.device];
        let mut made = Vec::new();
        let mut result = Ok(());
        while let Some((address, size_bytes)) = residency.next_to_return(id) {
            let memory = match DeviceMemory::make(self.driver, device.handle, size_bytes) {
                Ok(memory) => memory,
                Err(code) => {
                    result = Err(code);
                    break;
                }
            };
            residency.returned(id, address, now_ms());
            let memory = memory.sent(|file| {
                if let Some(executor) = device.executors.get(&session.place().seat()) {
                    let grant = GrantOutcome::Memory { address, size_bytes };
                    let granted = ToExecutor::Granted { session: id, grant };
                    executor.process.tell(&granted, &[file]);
                }
            });
            session.memory.insert(address, memory);
            made.push(address);
        }
        made.into_iter().for_each(|address| self.offer_ahead(id, address));
        result
    }

    /// A session does not wait any more.
    pub(crate) fn gave_up(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((address, ..)) = session.wanted.take() {
            session.grants.release(address);
        }
        self.residencies[session.device].give_up(id);
    }

    /// A session was asked to move memory out: what it has, what it has not now, and what it never
    /// will.
    pub(crate) fn moved_out(&mut self, id: u64, done: &[u64], stayed: &[u64], fixed: &[u64]) {
        done.iter().for_each(|address| self.withdraw_ahead(id, *address));
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let device = session.device;
        let residency = &mut self.residencies[device];
        for address in done {
            if let Some(memory) = session.memory.remove(address) {
                memory.release(self.driver);
                residency.moved_out(id, *address);
            }
        }
        for address in fixed {
            residency.fix(id, *address);
        }
        for address in stayed.iter().chain(fixed) {
            residency.stayed(id, *address);
        }
        self.serve_waiting(device);
    }

    /// An executor has unmapped a grant.
    pub(crate) fn release(&mut self, id: u64, address: u64) {
        self.withdraw_ahead(id, address);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.lending.keep(address) {
            return;
        }
        let device = session.device;
        session.grants.release(address);
        if let Some(memory) = session.memory.remove(&address) {
            memory.release(self.driver);
        }
        self.residencies[device].remove(id, address);
        self.serve_waiting(device);
    }

    /// Tries again what waits, and sees to room for the rest.
    pub(crate) fn serve_waiting(&mut self, device: usize) {
        for (id, wish) in self.residencies[device].waiting() {
            let tried = match wish {
                Wish::New { .. } => self.try_grant(id),
                Wish::Return => self.try_return(id),
            };
            match tried {
                Ok(()) => self.residencies[device].give_up(id),
                Err(CUresult::ERROR_OUT_OF_MEMORY) => {}
                Err(code) => {
                    self.residencies[device].give_up(id);
                    self.refuse(id, code);
                }
            }
        }
        self.find_room(device);
    }

    /// Does what the policy says about those that wait.
    fn find_room(&mut self, device: usize) {
        let sessions = &self.sessions;
        let idle_since_ms = |id: u64| {
            let session = sessions.get(&id)?;
            session.counters.slot(session.counter_slot).idle_since_ns().map(|ns| ns / 1_000_000)
        };
        for action in self.residencies[device].step(now_ms(), idle_since_ms) {
            let (session, order) = match action {
                Action::MoveOut { session, allocations, urgency } => {
                    let pauses = urgency == Urgency::Pause;
                    (session, MoveOrder::Start { allocations, pauses })
                }
                Action::Pause { session } => (session, MoveOrder::Pause),
                Action::CallOff { session } => (session, MoveOrder::CallOff),
                Action::Refuse { session, refusal } => {
                    self.refuse_for(session, refusal);
                    continue;
                }
            };
            self.tell_session(session, &ToExecutor::Move { session, order });
        }
    }

    /// Whether anybody waits for memory.
    pub(crate) fn is_memory_waited_for(&self) -> bool {
        self.residencies.iter().any(|residency| residency.is_waited_for()) || self.is_reclaiming()
    }

    /// From time to time: looks after those that wait for memory.
    pub(crate) fn see_to_waiting(&mut self) {
        for device in 0..self.residencies.len() {
            if self.residencies[device].is_waited_for() {
                self.serve_waiting(device);
            }
            self.see_to_keeping(device);
        }
    }
}
