//! An executor is disposable: when it is gone, by a fault, by itself or by the keeper's hand,
//! another one takes over its sessions.
//!
//! The old process is killed, and as soon as it runs no code any more, so that nothing writes into
//! what its sessions have, what it had still to say is heard. Then [`policy::faults::recovery`]
//! says who goes on. Those get what the keeper has of them, and their journals, in the next
//! executor: the [standby](super::standby) if it is ready or about to be, else one that is started.
//! Clients notice a pause; those who lose their work are told when the old process has left the
//! device ([`super::leaving`]), and keep their error until they end or begin anew.

use super::leaving::{Killed, Leaving};
use crate::Keeper;
use crate::clients::control_group;
use crate::devices::ComputeMode;
use crate::executors::place::{Place, Side, Stage};
use crate::faults::blaming::Incident;
use crate::sessions::session::{Service, Session};
use cuda_abi::types::CUresult;
use executor_link::log::{log_fault, log_server};
use executor_link::messages::{FromExecutor, Heirloom, OpenSession, Origin, ToExecutor};
use link::socket::{MAX_DESCRIPTORS, Received};
use link::wire::attach::Refusal;
use policy::faults::blame::Loss;
use policy::faults::recovery::{Cause, Fate, LOST_WORK, MOST_ATTEMPTS, Stand, judge};
use policy::limits::{guard_mode, latency_class};
use policy::turns::repeatable::Repeatable;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a fault means for the sessions of a place.
#[derive(Default)]
struct Verdicts {
    /// Processes that have lost something.
    concerned: Vec<u32>,
    /// Sessions that end, and what their calls return then.
    lost: Vec<(u64, CUresult)>,
}

impl Keeper {
    /// Whether the sessions of a place wait for its next executor.
    pub(crate) fn is_recovering(&self, place: Place) -> bool {
        self.recovering.contains(&place)
    }

    /// The executor of a place is of no more use: ends it, says who goes on, and sees to the next
    /// one.
    pub(crate) fn fail_over(&mut self, place: Place, cause: Cause) {
        let device = &mut self.devices[place.device];
        let Some(executor) = device.executors.remove(&place.seat()) else { return };
        self.recovering.insert(place);
        self.killings.remove(&place);
        self.forget_clearing(place);
        self.begin_moves_again(place);
        self.tell_status();
        let pid = executor.process.pid();
        let (mut killed, connection, said) = executor.process.end_now();
        // Whatever it sent before it ended counts; whoever asks something of it is not answered.
        while let Ok(Some(Received { message, descriptors })) = connection.try_receive() {
            self.hear_last_words(message, descriptors);
        }
        drop(connection);
        let culprit = self.accuse_for(place, cause);
        let stands = self.stands(place);
        let fates = judge(cause, &stands);
        let repeats = fates.iter().any(|fate| matches!(fate, Fate::Repeats { .. }));
        if repeats || !self.may_overlap(place.device) {
            killed = Killed::Gone(killed.await_gone());
        }
        match (cause, &killed) {
            (Cause::Fault(_), _) => self.devices[place.device].faults += 1,
            (Cause::Died, how) => {
                self.devices[place.device].deaths += 1;
                let how = match how {
                    Killed::Gone(status) => status,
                    Killed::Leaving(_) => "its socket closed",
                };
                log_fault!("Executor {pid} of device {} ended unexpectedly ({how})", place.device);
            }
            (Cause::Killed { .. }, _) => {}
        }
        let Verdicts { concerned, lost } = self.settle(place, &stands, &fates);
        self.pass_on(said, &lost);
        match killed {
            Killed::Gone(_) => self.end_lost(place, lost),
            Killed::Leaving(child) => self.leaving.push(Leaving::new(place, child, lost)),
        }
        self.log_fault(place, cause, &concerned, culprit);
        log_fault!(
            "Destroy server context on device {} ({})",
            place.device,
            self.devices[place.device].info.name
        );
        self.find_successor(place);
    }

    /// Whether the next executor of a device may begin before the last one has left it: another
    /// context is allowed, and there is memory for all of them.
    fn may_overlap(&self, number: usize) -> bool {
        let device = &self.devices[number];
        device.compute_mode(self.driver) == ComputeMode::Default
            && self.has_room_for_contexts(number, 1)
    }

    fn hear_last_words(&mut self, message: FromExecutor, descriptors: Vec<OwnedFd>) {
        match message {
            FromExecutor::SessionOpened { session } => self.session_opened(session),
            FromExecutor::Keep { session, number, code } => {
                self.keep_file(session, number, code, descriptors);
            }
            FromExecutor::LetGo { session, numbers } => self.let_go_files(session, &numbers),
            FromExecutor::Journal { session } => self.follow_journal(session, descriptors),
            FromExecutor::Released { session, address } => self.release(session, address),
            FromExecutor::PeerReleased { session, device, key } => {
                self.give_back_lent(session, device, key);
            }
            FromExecutor::MovedOut { session, done, stayed, fixed } => {
                self.moved_out(session, &done, &stayed, &fixed);
            }
            FromExecutor::SessionClosed { session } => self.forget_session(session),
            // It had nothing in flight, and no command in hand that is to blame.
            FromExecutor::Left { session, event_times, .. } => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.standing.forget_work();
                    session.event_times = event_times;
                }
            }
            FromExecutor::Guarded { session, address, message } => {
                self.guarded(session, address, message);
            }
            FromExecutor::SessionBroken { session, message } => {
                if let Some(client) = self.sessions.get(&session).map(|session| session.client) {
                    self.disconnect(client, &message);
                }
            }
            _ => {}
        }
    }

    /// Has it found out who did it. Returns the process of a culprit.
    fn accuse_for(&mut self, place: Place, cause: Cause) -> Option<u32> {
        let sessions = self.sessions.iter().filter(|(_, session)| session.place() == place);
        let mut target = None;
        for (&id, session) in sessions {
            let history = session.counters.history(session.counter_slot);
            session.files.mark_ended(history, &session.standing);
            if cause == (Cause::Killed { session: id }) {
                target = Some(session.client);
            }
        }
        let (code, what, loss) = match cause {
            Cause::Fault(code) => (code, code.to_string(), Loss::ByWork),
            Cause::Died => {
                (LOST_WORK, "the executor ended unexpectedly".to_owned(), Loss::Unexplained)
            }
            Cause::Killed { .. } => {
                let code = CUresult::ERROR_MPS_CLIENT_TERMINATED;
                (code, "work that did not end was killed".to_owned(), Loss::ByWork)
            }
        };
        self.report_fault(place, Incident { code: code.0, what, address: None, target, loss })
    }

    /// How those stand that are served there.
    fn stands(&self, place: Place) -> Vec<Stand> {
        let mut here = self.sessions.values().filter(|session| session.place() == place);
        let are_any_open = here.any(|session| session.standing.has_borrowed());
        // Kernels of who has it open may go on for a while.
        let is_open = |session: &Session| are_any_open && session.standing.has_lent();
        let stand = |id: u64| {
            let session = self.sessions.get(&id)?;
            let served = session.service == Service::Serving && session.files.error() == 0;
            served.then(|| Stand {
                session: id,
                in_flight: session.has_work(),
                in_call: session.standing.in_hand().is_some_and(is_dangerous),
                unsaved: session.standing.has_unsaved()
                    || session.standing.has_borrowed()
                    || is_open(session)
                    || self.residencies[session.device].moved_out_bytes(id) > 0,
                repeatable: session.files.is_repeatable(&session.standing),
            })
        };
        self.sessions_at(place).into_iter().filter_map(stand).collect()
    }

    /// Says what becomes of each session of a place. What is lost is still to be ended, by
    /// [`Self::end_lost`].
    fn settle(&mut self, place: Place, stands: &[Stand], fates: &[Fate]) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for (stand, fate) in stands.iter().zip(fates) {
            let Some(session) = self.sessions.get_mut(&stand.session) else { continue };
            let code = match *fate {
                Fate::GoesOn => continue,
                Fate::Ends { code } => code,
                Fate::Repeats { .. } if session.files.attempt() <= MOST_ATTEMPTS => {
                    log_server!("{}: its kernels in flight are repeatable", session.label);
                    continue;
                }
                Fate::Repeats { code } => code,
            };
            session.service = Service::Losing;
            verdicts.lost.push((stand.session, code));
            let client = session.client;
            let here = self.clients.get(&client).map(|client| client.peer.pid);
            let left = || self.departed.iter().rev().find(|left| left.client_id == client);
            verdicts.concerned.extend(here.or_else(|| left().map(|left| left.pid)));
        }
        for id in self.sessions_at(place) {
            self.forget_changes_of(id);
            self.residencies[place.device].give_up(id);
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if let Some((address, ..)) = session.wanted.take() {
                session.grants.release(address);
            }
            session.service = match session.service {
                Service::Losing => continue,
                _ if !self.clients.contains_key(&session.client) => {
                    verdicts.lost.push((id, LOST_WORK));
                    Service::Losing
                }
                Service::Opening => Service::Waiting(Origin::New),
                Service::Serving if session.files.error() == 0 => {
                    Service::Waiting(Origin::Inherited)
                }
                Service::Serving => Service::Ended,
                other => other,
            };
        }
        verdicts
    }

    /// A session does nothing any more, and its calls return `code`.
    pub(crate) fn condemn(&mut self, id: u64, code: CUresult) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.service = Service::Ended;
        session.counters.slot(session.counter_slot).set_error(code.0);
        session.files.fail(code);
    }

    /// Sees to an executor for a place that has none, if anybody wants it.
    pub(crate) fn find_successor(&mut self, place: Place) {
        self.devices[place.device].restarts += 1;
        let is_wanted = place.seat() == (policy::domains::SHARED, Side::First)
            || self.sessions_at(place).iter().any(|id| self.waits(*id))
            || self.held.iter().any(|&(_, held)| held == place);
        if !is_wanted {
            self.recovering.remove(&place);
            self.answer_stuck(place.device);
            self.tell_status();
            return self.leave_domain(place.domain);
        }
        if let Some(standby) = self.take_standby(place.device) {
            let device = &mut self.devices[place.device];
            log_server!(
                "Creating server context on device {} ({})",
                place.device,
                device.info.name
            );
            let stage = standby.stage;
            device.executors.insert(place.seat(), standby);
            self.be_second(place);
            match stage {
                Stage::Ready => self.take_over(place),
                // When it has its context.
                Stage::Starting => self.tell_first_reservations(place),
            }
            return;
        }
        if let Err(Refusal { message, .. }) = self.ensure_executor(place) {
            self.give_up_recovery(place, &message);
        }
    }

    fn waits(&self, id: u64) -> bool {
        let service = self.sessions.get(&id).map(|session| session.service);
        matches!(service, Some(Service::Waiting(_)))
    }

    /// The next executor of a place is ready: gives it the sessions that wait for it.
    pub(crate) fn take_over(&mut self, place: Place) {
        if !self.recovering.remove(&place) {
            return;
        }
        self.started_again.remove(&place);
        self.tell_keeping(place);
        let mut waiting: Vec<u64> =
            self.sessions_at(place).into_iter().filter(|id| self.waits(*id)).collect();
        // Nobody else submits anything until what is to be done again is done, so they come first;
        // then the small ones, which are made again while the large ones are handed over.
        waiting.sort_by_cached_key(|id| {
            let session = self.sessions.get(id);
            let things = session.map_or(0, |it| it.memory.len() + it.kept.len());
            (!session.is_some_and(|it| it.files.has_unfinished()), things)
        });
        let count = waiting.len();
        self.keep_apart(place);
        // Addresses that one of them has reserved are not to be given to another that comes sooner.
        let tell = |keeper: &Self, message| {
            if let Some(executor) = keeper.executor(place) {
                executor.tell(&message, &[]);
            }
        };
        tell(self, ToExecutor::Quiesce);
        for id in waiting {
            self.hand_over(place, id);
        }
        tell(self, ToExecutor::Resume);
        if let Some(executor) = self.devices[place.device].executors.get_mut(&place.seat()) {
            executor.ahead = Default::default();
        }
        let pid = self.executor(place).map_or(0, |executor| executor.pid());
        log_fault!("Executor {pid} serves device {} with {count} sessions", place.device);
        self.tell_first_reservations(place);
        self.tell_status();
        self.answer_held(place);
        self.answer_stuck(place.device);
    }

    /// No executor can be had: whoever waits for one is told.
    pub(crate) fn give_up_recovery(&mut self, place: Place, message: &str) {
        if !self.recovering.remove(&place) {
            return;
        }
        self.started_again.remove(&place);
        log_fault!("Nobody takes over the sessions of device {}: {message}", place.device);
        self.answer_stuck(place.device);
        let waiting: Vec<u64> =
            self.sessions_at(place).into_iter().filter(|id| self.waits(*id)).collect();
        for id in waiting {
            let opened = self.sessions.get(&id).map(|session| session.service);
            match opened {
                Some(Service::Waiting(Origin::New)) => {
                    let code = CUresult::ERROR_MPS_SERVER_NOT_READY.0;
                    self.session_refused(id, code, message.to_owned());
                }
                _ => self.condemn(id, CUresult::ERROR_MPS_SERVER_NOT_READY),
            }
        }
        self.tell_status();
    }

    /// Gives one session to the executor of its place.
    pub(crate) fn hand_over(&mut self, place: Place, id: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(client) = self.clients.get(&session.client) else { return };
        if client.is_terminated {
            // The executor that was told of it has ended, and what it said to the client lies in
            // memory that the client can write.
            return self.terminate_session(id);
        }
        let memory = self.memory_bound_where(client, session.told_device as usize, place.device);
        let share = self.share_wish(client, place.device);
        let group = self.membership(client, place.device);
        let (claim, class) = (self.claim_of(client), latency_class(&client.hello.limits));
        let guard = guard_mode(&client.hello.limits);
        let repeatable = Repeatable::of(&client.hello.limits);
        let owner = session.owner.clone();
        let most_pinned_bytes = control_group::memory_limit_bytes(client.peer.pid);
        let Service::Waiting(origin) = session.service else { return };
        let executors = &self.devices[place.device].executors;
        let Some(ahead) = executors.get(&place.seat()).map(|it| &it.ahead) else { return };
        let mut heirlooms: Vec<(Heirloom, OwnedFd)> = Vec::new();
        for (&address, memory) in &session.memory {
            let Some(size_bytes) = session.grants.length(address) else { continue };
            if ahead.has(id, address, size_bytes) {
                continue;
            }
            match memory.descriptor(self.driver) {
                Ok(file) => heirlooms.push((Heirloom::Grant { address, size_bytes }, file)),
                Err(code) => {
                    log_server!("Memory of session {id} cannot be handed over: {code}");
                    return self.condemn(id, CUresult::ERROR_LAUNCH_FAILED);
                }
            }
        }
        for (&number, file) in &session.kept {
            if let Ok(file) = file.try_clone() {
                heirlooms.push((Heirloom::File { number }, file));
            }
        }
        let device = &mut self.devices[place.device];
        let Some(executor) = device.executors.get_mut(&place.seat()) else { return };
        let executor = &mut executor.process;
        let Some(slot) = executor.take_slot() else {
            return self.condemn(id, CUresult::ERROR_OUT_OF_MEMORY);
        };
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let counts = session.counts();
        (session.counters, session.counter_slot) = (executor.counters.clone(), slot);
        session.counters.slot(slot).restore(&counts);
        session.standing.forget_work();
        session.share.begin_anew(share.clone());
        session.service = match origin {
            Origin::New => Service::Opening,
            Origin::Inherited => Service::Serving,
        };
        for chunk in heirlooms.chunks(MAX_DESCRIPTORS) {
            let files: Vec<BorrowedFd<'_>> = chunk.iter().map(|(_, file)| file.as_fd()).collect();
            let heirlooms = chunk.iter().map(|(heirloom, _)| *heirloom).collect();
            executor.tell(&ToExecutor::Inherit { session: id, heirlooms }, &files);
        }
        let open = OpenSession {
            session: id,
            label: session.label.clone(),
            guard,
            repeatable,
            counter_slot: slot,
            device_window: session.windows.device,
            host_window: session.windows.host,
            memory,
            share,
            group,
            origin,
            claim,
            class,
            owner,
            most_pinned_bytes,
            event_times: session.event_times.clone(),
        };
        executor.tell(&ToExecutor::OpenSession(Box::new(open)), &session.files.for_executor());
    }

    /// Says who is concerned, in the lines of the original's driver 580. It names a culprit that it
    /// does not know; here one is named that is known.
    fn log_fault(&self, place: Place, cause: Cause, concerned: &[u32], culprit: Option<u32>) {
        let Cause::Fault(code) = cause else { return };
        let device = place.device;
        let contexts_of = |pid: u32| {
            let owner = self.clients.values().find(|client| client.peer.pid == pid);
            let contexts = owner.into_iter().flat_map(|client| {
                client.contexts.iter().filter(|it| self.home_of(client, it.device) == device)
            });
            let numbers: Vec<u32> = contexts.map(|context| context.context_id).collect();
            // Who has just closed its context, or left: its session began with its first context.
            if numbers.is_empty() { vec![1] } else { numbers }
        };
        if let Some(pid) = culprit {
            let context = contexts_of(pid)[0];
            log_fault!("Client {{PID: {pid}, Context: {context}}} encountered a fatal GPU error.");
        }
        log_fault!("Server is handling a fatal GPU error.");
        log_fault!("Device {device} has lost its context to {code}");
        for &pid in concerned {
            for context in contexts_of(pid) {
                log_fault!(
                    "Client {{PID: {pid}, Context ID: {context}}} on device {device} to be torn down"
                );
            }
        }
        for &pid in concerned {
            log_fault!("All clients belonging to error trigging process {pid} will be torn down");
            for context in contexts_of(pid) {
                log_fault!(
                    "Client {{PID: {pid}, Context ID: {context}}} on the error-trigging process {pid} to be torn down"
                );
            }
        }
        log_fault!("The following devices will be reset:");
        log_fault!("{device}");
        log_fault!("The following client process have a sticky error set:");
        concerned.iter().for_each(|pid| log_fault!("{pid}"));
    }
}

/// Whether a command reaches into the driver with what a client made up.
fn is_dangerous(opcode: u16) -> bool {
    use link::wire::command::{Content, Opcode};
    Opcode::from_number(opcode).is_some_and(|opcode| opcode.facts().content == Content::ToDriver)
}
