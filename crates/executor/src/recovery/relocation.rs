//! How a session goes on in another context of its device.
//!
//! A call that needs the quiet device waits for everybody's kernels ([`crate::turns::gate`]). A
//! session that has waited for others' some time tells the keeper. If there is another context, the
//! session leaves: it saves what only the driver has, says so, and touches none of its files any
//! more. Its command was not committed, so the other executor does it, as after a fault
//! ([`super::replay`]). Nobody has faulted, so both contexts live: what the session had here is
//! given back when the device is quiet.
//!
//! A session stays where it is as long as something of it is in flight, and as long as it has
//! something that cannot be taken along ([`State::hindrance`]).

use crate::objects::event::MOST_TIMES;
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use executor_link::counters::Waits;
use executor_link::log::log_server;
use executor_link::messages::{Baggage, FromExecutor, Reason, Verdict};
use policy::faults::hindrance::Hindrance;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long a session waits for others' kernels before it looks for another context: most kernels
/// are shorter, and a relocation takes about as long.
const PATIENCE: Duration = Duration::from_millis(40);
/// Between two questions to the keeper.
const ASKS_AGAIN: Duration = Duration::from_millis(100);
/// Between two looks of a thread that has asked the keeper, and of one that could not.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Modules of a session that the log says are the reason why it stays.
const MOST_TOLD: usize = 16;
/// A session waits so long for the other context to be free for it, where what it is to open may
/// be.
const LONGEST_SEARCH: Duration = Duration::from_secs(30);
/// What a session has come for is here by then: its owner may be on its way as well.
const ARRIVES_WITHIN: Duration = Duration::from_millis(300);
/// Between two relocations for what others share.
const REST: Duration = Duration::from_millis(200);

/// What one session's thread knows of it.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// The command in hand is in the ring and could be done by another executor.
    pub(crate) is_possible: bool,
    /// What is to be seen to before the next command.
    pub(crate) due: Due,
    /// The log says why the session stays among others.
    pub(crate) has_complained: bool,
    /// How many modules the log has named that keep the session here.
    pub(crate) told: Cell<usize>,
    /// When it was asked to go to another device, until it goes or stays.
    pub(crate) away: Option<Instant>,
    /// What it takes along when it leaves.
    pub(crate) baggage: Baggage,
    /// When it came from another executor.
    pub(crate) arrived: Option<Instant>,
}

impl Default for Relocation {
    fn default() -> Self {
        Self {
            is_possible: false,
            due: Due::Nothing,
            has_complained: false,
            told: Cell::new(0),
            away: None,
            baggage: Baggage::Nothing,
            arrived: None,
        }
    }
}

/// How a session's thread is about code that is to run apart ([`crate::code::quarantine`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Due {
    #[default]
    Nothing,
    /// It is to be looked whether the session has any.
    Look,
    /// The session may come back.
    Return,
}

/// Sessions that have left, until what they had here is given back.
#[derive(Debug, Default)]
pub(crate) struct Leavers(Mutex<HashSet<u64>>);

impl crate::Shared {
    /// Tells the keeper something, unless it is about a session that has left: that is the other
    /// executor's.
    pub(crate) fn tell_unless_left(&self, message: &FromExecutor, send: impl FnOnce()) {
        let mut leavers = self.leavers.0.lock().unwrap_or_else(PoisonError::into_inner);
        match message {
            // Under the lock, so that nothing of the session follows.
            FromExecutor::Left { session, .. } => {
                leavers.insert(*session);
            }
            FromExecutor::Cleared { session } => {
                leavers.remove(session);
            }
            _ if message.session().is_some_and(|session| leavers.contains(&session)) => return,
            _ => {}
        }
        send();
    }
}

/// A wait for the end of others' kernels.
pub(crate) struct Stuck<'a> {
    state: &'a State,
    looked: Cell<Instant>,
    asked: Cell<Option<Instant>>,
}

impl Stuck<'_> {
    /// Whether the session leaves instead of waiting; asks the keeper when it is time. The gate may
    /// be closed, so little is done here.
    pub(crate) fn leaves(&self) -> bool {
        let (state, now) = (self.state, Instant::now());
        let asked = self.asked.get();
        let rest = if asked.is_some() { LOOK } else { LOOK_AGAIN };
        if now - self.looked.get() < rest || state.shared.context.gate.in_vain_for() < PATIENCE {
            return false;
        }
        self.looked.set(now);
        let verdict = state.handle.verdict();
        if asked.is_some() && verdict != Some(Verdict::Leaves) {
            if verdict == Some(Verdict::Stays) && asked.is_some_and(|at| now - at >= ASKS_AGAIN) {
                self.asked.set(None);
            }
            return false;
        }
        let hindrance = match state.relocation.is_possible && !state.has_work_in_driver() {
            true => state.hindrance(),
            false => Some(Hindrance::WorkInFlight),
        };
        state.counters().set_hindrance(hindrance);
        if hindrance == Some(Hindrance::Variables) {
            state.tell_kept_addresses();
        }
        if hindrance.is_none() && asked.is_none() {
            self.asked.set(Some(now));
            state.tell_stuck(Reason::Kernels);
            return false;
        }
        hindrance.is_none() && asked.is_some()
    }
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        if self.asked.get().is_some() && self.state.handle.verdict().is_none() {
            // The answer may take as long as the making of a context.
            self.state.shared.tell(&FromExecutor::Unstuck { session: self.state.handle.id });
        }
        self.state.counters().set_waits(Waits::Nothing);
        self.state.counters().set_hindrance(None);
        self.state.handle.take_verdict(None);
    }
}

impl State {
    /// The session's thread begins to wait for others' kernels.
    pub(crate) fn wait_for_kernels(&self) -> Stuck<'_> {
        let now = Instant::now();
        self.counters().set_waits(Waits::Kernels);
        Stuck { state: self, looked: Cell::new(now), asked: Cell::new(None) }
    }

    pub(crate) fn tell_stuck(&self, reason: Reason) {
        self.handle.take_verdict(None);
        self.shared.tell(&FromExecutor::Stuck { session: self.handle.id, reason });
    }

    /// Finds what the command in hand names, which another session shares. If it is not here, the
    /// session goes to the other context, as it may be there.
    ///
    /// # Errors
    /// Nobody shares it, or the session cannot go there.
    pub(crate) fn find_shared<T>(&self, look: impl Fn(&Self) -> Option<T>) -> Result<T, Failure> {
        if let Some(found) = look(self) {
            return Ok(found);
        }
        if !self.relocation.is_possible {
            return Err(INVALID);
        }
        if let Some(hindrance) = self.hindrance() {
            log_server!(
                "{} is to open what no client shares here. It stays in its context, for {hindrance}",
                self.handle.label
            );
            return Err(INVALID);
        }
        let began = Instant::now();
        if let Some(arrived) = self.relocation.arrived {
            while began.elapsed() < ARRIVES_WITHIN && !self.handle.gives_up() {
                std::thread::sleep(LOOK);
                if let Some(found) = look(self) {
                    return Ok(found);
                }
            }
            std::thread::sleep(REST.saturating_sub(arrived.elapsed()));
        }
        self.tell_stuck(Reason::Sharing(self.records.position));
        while began.elapsed() < LONGEST_SEARCH && !self.handle.gives_up() {
            match self.handle.verdict() {
                Some(Verdict::Stays) => return Err(INVALID),
                Some(Verdict::Leaves) if !self.has_work_in_driver() => {
                    return Err(Failure::Elsewhere);
                }
                _ => std::thread::sleep(LOOK),
            }
        }
        self.shared.tell(&FromExecutor::Unstuck { session: self.handle.id });
        log_server!(
            "{} is to open what no client shares here, and could not go to the other context within {} s: kernels that run there keep it (`openmps top` says whose)",
            self.handle.label,
            LONGEST_SEARCH.as_secs()
        );
        Err(INVALID)
    }

    /// Why the session cannot go to where others do not look for what it shares.
    pub(crate) fn hindrance_apart(&self) -> Option<Hindrance> {
        self.hindrance().or_else(|| self.shares_anything().then_some(Hindrance::Sharing))
    }

    /// Why the session cannot go to the other context.
    pub(crate) fn hindrance(&self) -> Option<Hindrance> {
        let hindrance = match () {
            () if !self.holding.is_empty() => Hindrance::HeldCommands,
            () if self.printing.has_output() => Hindrance::Output,
            () if self.is_traced() => Hindrance::Trace,
            () if !self.guard.is_off() => Hindrance::Guard,
            () if self.has_partners() => Hindrance::Sharing,
            () if !self.peers.is_empty() || self.watched.is_any() => Hindrance::Peers,
            () if !self.objects.is_empty() || self.graphs.have_conditions() => Hindrance::Objects,
            () if !self.virtual_memory.is_empty() => Hindrance::ReservedAddresses,
            () if self.repeating.are_any_declared() => Hindrance::DeclaredKernels,
            () if self.moved.is_any() || self.handle.moves.is_any() => Hindrance::SpilledMemory,
            () if self.modules.may_use_heap => Hindrance::DeviceHeap,
            () if self.modules.are_addresses_kept() => Hindrance::Variables,
            () if self.events.len() > MOST_TIMES => Hindrance::Events,
            () if self.resharing.is_active() || self.handle.mailbox.has_changes() => {
                Hindrance::ChangingShare
            }
            () => return None,
        };
        Some(hindrance)
    }

    /// Says once for each module which of its addresses keep the session here.
    fn tell_kept_addresses(&self) {
        let keeping = self.modules.keeping();
        if keeping > self.relocation.told.get() && keeping <= MOST_TOLD {
            self.relocation.told.set(keeping);
            let (label, why) = (&self.handle.label, self.modules.kept_addresses());
            log_server!(
                "{label} waits for others' kernels, and stays for variables of its code: {why}"
            );
        }
    }

    /// Saves what only the driver has.
    ///
    /// # Errors
    /// Why it stays after all.
    pub(crate) fn prepare_to_leave(&mut self) -> Result<(), Hindrance> {
        // What is saved counts as part of the commands so far, of which the one in hand is none.
        let in_hand = self.records.position;
        self.begin_record(self.standing.committed_bytes());
        self.save_variables();
        self.save_all_arrays();
        self.begin_record(in_hand);
        match self.hindrance() {
            Some(hindrance) => Err(hindrance),
            None if self.standing.has_unsaved() => Err(Hindrance::Unsaved),
            None if self.has_work_in_driver() => Err(Hindrance::WorkInFlight),
            // Who looks for it here from now on finds it where the session goes.
            None if !self.withdraw_shared() => Err(Hindrance::Sharing),
            None => Ok(()),
        }
    }

    /// The session has nothing in flight and no command in hand: from now on it is the other
    /// executor's.
    pub(crate) fn leave(mut self) {
        let (session, event_times) = (self.handle.id, self.event_times());
        let baggage = self.relocation.baggage;
        self.handle.note_left();
        self.shared.flights.set_idle(&self.flight);
        self.shared.tell(&FromExecutor::Left { session, event_times, baggage });
        self.tear_down(FromExecutor::Cleared { session });
    }
}
