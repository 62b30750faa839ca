//! A device's second context: clients that would wait for a stranger's kernel in one go on in the
//! other.
//!
//! A device can have two executors for clients that nothing sets apart. The second one is a standby
//! that is put to work when a session is stuck ([`Reason`]), or when a program starts beside a long
//! kernel. A session goes from one to the other as after a fault ([`crate::executors::takeover`]),
//! only that both live: the executor that it has left clears away what it had there, which may take
//! until a kernel has ended. So long its addresses stay its own.
//!
//! There is a second context only where the driver lets several processes have contexts, and where
//! memory has room for it. It ends when nobody has been there for a while.

use crate::Keeper;
use crate::devices::ComputeMode;
use crate::executors::place::{Place, Side, Stage};
use crate::sessions::session::{DeviceMemory, Service};
use executor_link::log::log_server;
use executor_link::messages::{
    Baggage, EventTime, FromExecutor, Origin, Reason, ToExecutor, Verdict,
};
use link::wire::owner::Owner;
use policy::domains::{Domain, SHARED};
use policy::memory::windows::WindowPair;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A program that starts beside a kernel that has run for so long starts in the other context, and
/// nobody goes to where one has.
const LONG_KERNEL: Duration = Duration::from_millis(200);
/// A session that has just gone to another context stays there for a while.
const BREATH: Duration = Duration::from_millis(200);
/// A second context is made within this, or something is wrong with it, and those who waited for
/// it are there after so long.
const MADE_IN: Duration = Duration::from_secs(5);
const MOVED_IN: Duration = Duration::from_secs(1);
/// A second context that nobody has used for so long is given up.
pub(crate) const UNUSED: Duration = Duration::from_secs(2);

/// What a session has left.
pub(crate) struct Clearing {
    pub(crate) place: Place,
    /// Whom the session counted for.
    pub(crate) owner: Owner,
    counter_slot: usize,
    /// The session's, once it has ended.
    pub(crate) windows: Option<WindowPair>,
    /// What it had there, if it has gone to another device.
    pub(crate) memory: Vec<DeviceMemory>,
}

impl Keeper {
    /// A session waits, and could go on in another context.
    pub(crate) fn stuck(&mut self, id: u64, reason: Reason) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (from, relocated) = (session.place(), session.relocated);
        let looked = session.looked_elsewhere;
        let to = match reason {
            Reason::Quarantine(code) => self.place_apart(from, code).unwrap_or(from),
            Reason::Kernels | Reason::Sharing(_) | Reason::Test => {
                Place { side: from.side.other(), ..from }
            }
        };
        let is_over = |then: Option<Instant>, after| then.is_none_or(|then| then.elapsed() > after);
        let is_there = self.devices[to.device].executors.contains_key(&to.seat());
        // What it had there is still there.
        let is_clearing = self.clearing.contains_key(&id);
        let is_busy = match reason {
            // It waits there for what runs, as it must: nowhere else is what it needs.
            Reason::Sharing(_) => false,
            Reason::Kernels | Reason::Quarantine(_) | Reason::Test => self.has_long_kernel(to),
        };
        let stage = match reason {
            // It goes to another device. Who waits for a kernel would not come to that.
            Reason::Sharing(_) | Reason::Test if self.moves.contains_key(&id) => None,
            // For that command it has been here: nobody shares such a thing.
            Reason::Sharing(position) if looked == Some(position) => None,
            // Who shares it is there again before long.
            Reason::Sharing(_) if self.is_recovering(to) || self.killings.contains_key(&to) => {
                Some(Stage::Starting)
            }
            Reason::Sharing(_) if !is_there => None,
            Reason::Kernels if !is_over(relocated, BREATH) => None,
            Reason::Quarantine(_) if to == from => None,
            Reason::Quarantine(_) if !is_clearing => self.context_apart(to),
            _ if self.killings.contains_key(&to) || is_busy => None,
            _ if is_clearing => Some(Stage::Starting),
            _ => self.second_context(to),
        };
        let verdict = match stage {
            Some(Stage::Starting) => {
                self.stuck.insert(id, reason);
                return;
            }
            Some(Stage::Ready) => Verdict::Leaves,
            None => Verdict::Stays,
        };
        if let Some(executor) = self.devices[to.device].executors.get_mut(&to.seat()) {
            executor.unused_since = None;
        }
        if let Some(session) = self.sessions.get_mut(&id).filter(|_| verdict == Verdict::Leaves) {
            session.destination = Some(to);
            if let Reason::Sharing(position) = reason {
                session.looked_elsewhere = Some(position);
            }
        }
        if let Some(executor) = self.executor(from) {
            executor.tell(&ToExecutor::Relocate { session: id, verdict }, &[]);
        }
    }

    /// An executor of the device is ready, or has cleared something away.
    pub(crate) fn answer_stuck(&mut self, device: usize) {
        let is_here = |id: &u64| self.sessions.get(id).is_none_or(|it| it.device == device);
        let (here, others): (BTreeMap<u64, Reason>, _) =
            std::mem::take(&mut self.stuck).into_iter().partition(|(id, _)| is_here(id));
        self.stuck = others;
        here.into_iter().for_each(|(id, reason)| self.stuck(id, reason));
    }

    /// There is no other context: those who wait for one stay.
    pub(crate) fn refuse_stuck(&mut self, device: usize) {
        for (id, reason) in std::mem::take(&mut self.stuck) {
            let Some(session) = self.sessions.get(&id) else { continue };
            if session.device != device {
                self.stuck.insert(id, reason);
            } else if let Some(executor) = self.executor(session.place()) {
                let verdict = Verdict::Stays;
                executor.tell(&ToExecutor::Relocate { session: id, verdict }, &[]);
            }
        }
    }

    /// Sees to an executor in a place that has had none so far; `None`: there can be none.
    fn second_context(&mut self, place: Place) -> Option<Stage> {
        if self.is_recovering(place) || place.domain != SHARED {
            return None;
        }
        let device = &self.devices[place.device];
        if let Some(executor) = device.executors.get(&place.seat()) {
            return Some(executor.stage);
        }
        if !self.fault_settings.second_context
            || self.residencies[place.device].is_waited_for()
            || device.compute_mode(self.driver) != ComputeMode::Default
        {
            return None;
        }
        let device = &mut self.devices[place.device];
        let before = device.second_since.replace(Instant::now());
        let Some(mut standby) = device.standby.take_next() else {
            let has_room = self.has_room_for_contexts(place.device, 1);
            let stage = has_room.then(|| self.ensure_executor(place).ok()).flatten();
            if stage.is_none() {
                self.devices[place.device].second_since = before;
            }
            return stage;
        };
        let stage = standby.stage;
        // It is told no more of what sessions give up, so nothing of theirs may stay mapped.
        for session in standby.ahead.clear() {
            standby.process.tell(&ToExecutor::ForgetAhead { session }, &[]);
        }
        log_server!(
            "Executor {} serves device {} as its second context",
            standby.process.pid(),
            place.device
        );
        device.executors.insert(place.seat(), standby);
        self.be_second(place);
        self.tell_first_reservations(place);
        if stage == Stage::Ready {
            self.tell_keeping(place);
        }
        Some(stage)
    }

    /// Tells a second executor what it is, before it has sessions.
    pub(crate) fn be_second(&self, place: Place) {
        if let Some(executor) = self.executor(place).filter(|_| place.side == Side::Second) {
            executor.tell(&ToExecutor::BeSecond, &[]);
        }
    }

    /// Where a client's session on a device begins: with most others, as contexts have the device
    /// in turns; but not behind a long kernel, if it need not.
    pub(crate) fn place_for_newcomer(&mut self, device: usize, domain: Domain) -> Place {
        let first = Place::first(device, domain);
        if device >= self.devices.len() || domain != SHARED {
            return first;
        }
        let second = Place { side: Side::Second, ..first };
        let is_there = self.devices[device].executors.contains_key(&second.seat());
        if !is_there && !self.has_long_kernel(first) {
            return first;
        }
        if self.second_context(second) != Some(Stage::Ready) {
            return first;
        }
        let free = [second, first].into_iter().filter(|place| !self.has_long_kernel(*place));
        free.max_by_key(|place| self.sessions_at(*place).len()).unwrap_or(first)
    }

    /// Whether a kernel has run there for long, as far as anybody knows.
    pub(crate) fn has_long_kernel(&self, place: Place) -> bool {
        let long_us = LONG_KERNEL.as_micros() as u64;
        self.sessions.values().filter(|session| session.place() == place).any(|session| {
            session.is_served()
                && session.has_work()
                && session.launches().iter().any(|it| it.in_flight && it.record.age_us >= long_us)
        })
    }

    /// A session is to go on in the other context, or on another device.
    pub(crate) fn session_left(
        &mut self,
        from: Place,
        id: u64,
        event_times: Vec<EventTime>,
        baggage: Baggage,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.service != Service::Serving || self.clearing.contains_key(&id) {
            return;
        }
        let destination = session.destination.take();
        let (counter_slot, owner) = (session.counter_slot, session.owner.clone());
        let (windows, memory) = (None, Vec::new());
        self.clearing.insert(id, Clearing { place: from, owner, counter_slot, windows, memory });
        let going = match baggage {
            Baggage::Copies => self.moves.remove(&id),
            Baggage::Nothing => {
                self.begin_move_again(id);
                None
            }
        };
        if let Some(executor) = self.executor(from) {
            // Its thread has gone; what knows of it goes, too.
            executor.tell(&ToExecutor::CloseSession { session: id }, &[]);
        }
        let other = match from.domain {
            SHARED => Place { side: from.side.other(), ..from },
            // It comes back.
            _ => Place::first(from.device, SHARED),
        };
        let to = going.as_ref().map(|going| going.to).or(destination).unwrap_or(other);
        self.change_domain(id, to.domain);
        self.forget_changes_of(id);
        self.residencies[from.device].give_up(id);
        self.residencies[from.device].forget_orders(id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some((address, ..)) = session.wanted.take() {
            session.grants.release(address);
        }
        if !self.clients.contains_key(&session.client) {
            // As if its executor had closed it.
            session.service = Service::Waiting(Origin::Inherited);
            if let Some(going) = going {
                going.release(self.driver);
            }
            return self.forget_session(id);
        }
        match session.files.renew_standing(&session.standing) {
            Ok(standing) => session.standing = standing,
            Err(error) => {
                log_server!("{} cannot go on in another context: {error}", session.label);
                if let Some(going) = going {
                    going.release(self.driver);
                    self.end_move(id, Err(error.to_string()));
                }
                return self.condemn(id, policy::faults::recovery::LOST_WORK);
            }
        }
        session.side = to.side;
        session.service = Service::Waiting(Origin::Inherited);
        session.event_times = event_times;
        session.relocated = Some(Instant::now());
        session.relocations += 1;
        session.asked_back = None;
        session.kernels_before = session.counts().kernels;
        let (label, device) = (&session.label, to.device);
        if to.device != from.device {
            log_server!("{label} goes on on device {device}");
        } else if to.domain == from.domain {
            log_server!("{label} goes on in the other context of device {device}");
        } else if to.domain == SHARED {
            log_server!("{label} goes on among others on device {device}");
        } else {
            let domain = self.domains.label(to.domain);
            log_server!("{label} goes on apart on device {device}: {domain}");
        }
        if let Some(going) = going {
            self.change_device(id, going);
            self.end_move(id, Ok(()));
        }
        if self.is_recovering(to) {
            return;
        }
        match self.devices[to.device].executors.get(&to.seat()).map(|executor| executor.stage) {
            Some(Stage::Ready) => self.hand_over(to, id),
            // When it has its context.
            Some(Stage::Starting) => drop(self.recovering.insert(to)),
            None => {
                self.recovering.insert(to);
                self.find_successor(to);
            }
        }
    }

    /// Whether a message is about a session that has left the executor that sends it.
    pub(crate) fn is_clearing(&self, place: Place, message: &FromExecutor) -> bool {
        let clearing = message.session().and_then(|session| self.clearing.get(&session));
        clearing.is_some_and(|clearing| clearing.place == place)
    }

    /// Of such a session nothing else matters.
    pub(crate) fn hear_clearing(&mut self, place: Place, message: FromExecutor) {
        if let FromExecutor::Cleared { session } = message {
            self.cleared(place, session);
        }
    }

    /// An executor has nothing more of a session that has left it.
    pub(crate) fn cleared(&mut self, place: Place, id: u64) {
        let Some(clearing) = self.clearing.remove(&id) else { return };
        if let Some(executor) = self.devices[place.device].executors.get_mut(&place.seat()) {
            executor.process.free_slot(clearing.counter_slot);
        }
        let has_memory = !clearing.memory.is_empty();
        self.end_clearing(clearing);
        if has_memory {
            self.serve_waiting(place.device);
        }
        self.answer_stuck(place.device);
    }

    /// An executor has ended: nothing is left to clear away there.
    pub(crate) fn forget_clearing(&mut self, place: Place) {
        let of_place = self.clearing.extract_if(.., |_, clearing| clearing.place == place);
        let of_place: Vec<Clearing> = of_place.map(|(_, clearing)| clearing).collect();
        of_place.into_iter().for_each(|clearing| self.end_clearing(clearing));
    }

    fn end_clearing(&mut self, clearing: Clearing) {
        if let Some(windows) = clearing.windows {
            self.windows.give_back(windows);
        }
        clearing.memory.into_iter().for_each(|memory| memory.release(self.driver));
    }

    /// Whether a second context is being made, or clients have just begun to go there: the making
    /// of the next standby would take twice as long, and so would all that.
    pub(crate) fn is_second_context_new(&self, device: usize) -> bool {
        let place = Place { device, domain: SHARED, side: Side::Second };
        let slot = &self.devices[device];
        let is_within = |longest| slot.second_since.is_some_and(|since| since.elapsed() < longest);
        slot.executors.get(&place.seat()).is_some_and(|executor| {
            is_within(MOVED_IN) || executor.stage == Stage::Starting && is_within(MADE_IN)
        })
    }

    /// From time to time: gives up second contexts that nobody uses.
    pub(crate) fn see_to_second_contexts(&mut self) {
        for device in 0..self.devices.len() {
            let place = Place { device, domain: SHARED, side: Side::Second };
            let is_used = self.is_in_use(place) || self.is_recovering(place);
            let slot = &mut self.devices[device];
            let Some(executor) = slot.executors.get_mut(&place.seat()) else { continue };
            let since = executor.unused_since.get_or_insert_with(Instant::now);
            if is_used || executor.stage == Stage::Starting {
                *since = Instant::now();
            } else if since.elapsed() >= UNUSED
                && let Some(executor) = slot.executors.remove(&place.seat())
            {
                log_server!("Destroy the second context on device {device} ({})", slot.info.name);
                std::thread::spawn(move || executor.process.stop());
            }
        }
    }
}
