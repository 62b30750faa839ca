//! How a session goes on in another context of its device.
//!
//! A call that needs the quiet device waits for everybody's kernels
//! ([`super::gate`]). A session that has waited for others' some time tells the keeper. If there is
//! another context, the session leaves: it saves what only the driver has, says so, and touches
//! none of its files any more. Its command was not committed, so the other executor does it, as
//! after a fault ([`super::replay`]). Nobody has faulted, so both contexts live: what the session
//! had here is given back when the device is quiet.
//!
//! A session stays where it is as long as something of it is in flight, and as long as it has
//! something that cannot be taken along ([`State::hindrance`]).

use super::failure::Failure;
use super::state::State;
use crate::counters::Waits;
use crate::executor_link::{FromExecutor, Reason, Verdict};
use crate::policy::hindrance::Hindrance;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long a session waits for others' kernels before it looks for another context: most kernels
/// are shorter, and a relocation takes about as long.
const PATIENCE: Duration = Duration::from_millis(40);
/// Between two questions of a session that waits for its turn.
const ASKS_AGAIN: Duration = Duration::from_millis(100);
/// Between two looks of a thread that has asked the keeper, and of one that could not.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The keeper answers at once, or is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// What one session's thread knows of it.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    /// The command in hand is in the ring and could be done by another executor.
    pub(super) is_possible: bool,
}

/// Sessions that have left, until what they had here is given back.
#[derive(Debug, Default)]
pub(crate) struct Leavers(Mutex<HashSet<u64>>);

impl super::Shared {
    /// Tells the keeper something, unless it is about a session that has left: that is the other
    /// executor's.
    pub(super) fn tell_unless_left(&self, message: &FromExecutor, send: impl FnOnce()) {
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
pub(super) struct Stuck<'a> {
    state: &'a State,
    looked: Cell<Instant>,
    has_asked: Cell<bool>,
}

impl Stuck<'_> {
    /// Whether the session leaves instead of waiting; asks the keeper when it is time.
    pub(super) fn leaves(&self) -> bool {
        let (state, now) = (self.state, Instant::now());
        let rest = if self.has_asked.get() { LOOK } else { LOOK_AGAIN };
        if now - self.looked.get() < rest || state.shared.gate.in_vain_for() < PATIENCE {
            return false;
        }
        self.looked.set(now);
        let hindrance = match state.has_work_in_driver() || !state.relocation.is_possible {
            true => Some(Hindrance::WorkInFlight),
            false if self.has_asked.get() => None,
            false => state.hindrance(),
        };
        state.counters().set_hindrance(hindrance);
        if hindrance.is_none() && !self.has_asked.replace(true) {
            state.tell_stuck(Reason::Kernels);
        }
        hindrance.is_none() && state.handle.verdict() == Some(Verdict::Leaves)
    }
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        self.state.counters().set_waits(Waits::ForNothing);
        self.state.counters().set_hindrance(None);
    }
}

impl State {
    /// The session's thread begins to wait for others' kernels.
    pub(super) fn wait_for_kernels(&self) -> Stuck<'_> {
        let now = Instant::now();
        self.counters().set_waits(Waits::ForKernels);
        Stuck { state: self, looked: Cell::new(now), has_asked: Cell::new(false) }
    }

    fn tell_stuck(&self, reason: Reason) {
        self.handle.take_verdict(None);
        self.shared.tell(&FromExecutor::Stuck { session: self.handle.id, reason });
    }

    /// The session waits for its turn, since `asked` or since it last asked the keeper: whether it
    /// leaves, as the kernel of whose turn it is goes on and on.
    pub(super) fn leaves_its_turn(&self, asked: &mut Instant) -> bool {
        let is_allowed = self.handle.verdict() == Some(Verdict::Leaves);
        if !is_allowed && asked.elapsed() < ASKS_AGAIN {
            return false;
        }
        *asked = Instant::now();
        let is_stuck = self.shared.pace.has_stalled(self.handle.id, PATIENCE)
            && !self.has_work_in_driver()
            && self.hindrance().is_none();
        match (is_stuck, is_allowed) {
            (true, false) => self.tell_stuck(Reason::Kernels),
            // What was allowed counts no more: its turn has come since.
            (false, true) => self.handle.take_verdict(None),
            _ => {}
        }
        is_stuck && is_allowed
    }

    /// What the command in hand names is not here: the failure, unless it may be in the other
    /// context.
    pub(super) fn look_elsewhere(&self, failure: Failure) -> Failure {
        if !self.relocation.is_possible || self.hindrance().is_some() {
            return failure;
        }
        self.tell_stuck(Reason::Sharing);
        let asked = Instant::now();
        while asked.elapsed() < ANSWER_TIMEOUT && !self.handle.gives_up() {
            match self.handle.verdict() {
                Some(Verdict::Stays) => break,
                Some(Verdict::Leaves) if !self.has_work_in_driver() => return Failure::Elsewhere,
                _ => std::thread::sleep(LOOK),
            }
        }
        failure
    }

    /// Why the session cannot leave, as far as its thread knows without asking the driver.
    pub(super) fn hindrance(&self) -> Option<Hindrance> {
        let first = |hindrances: &[(bool, Hindrance)]| {
            hindrances.iter().find(|(is_there, _)| *is_there).map(|(_, hindrance)| *hindrance)
        };
        first(&[
            (!self.holding.is_empty(), Hindrance::HeldCommands),
            (self.printing.is_active(), Hindrance::Output),
            (self.is_traced(), Hindrance::Trace),
            (!self.guard.is_off(), Hindrance::Guard),
            (self.shares_anything(), Hindrance::Sharing),
            (!self.peers.is_empty() || self.watched.is_any(), Hindrance::Peers),
            (!self.objects.is_empty() || self.graphs.have_conditions(), Hindrance::Objects),
            (!self.virtual_memory.is_empty(), Hindrance::ReservedAddresses),
            (self.repeating.are_any_declared(), Hindrance::DeclaredKernels),
            (self.moved.is_any() || self.handle.moves.is_any(), Hindrance::SpilledMemory),
            (self.modules.may_use_heap(), Hindrance::DeviceHeap),
            (self.modules.have_known_addresses(), Hindrance::Addresses),
            (
                self.resharing.is_active() || self.handle.mailbox.has_mail(),
                Hindrance::ChangingShare,
            ),
        ])
    }

    /// Saves what only the driver has. Nothing of the session is in flight.
    ///
    /// # Errors
    /// Why it stays after all.
    pub(super) fn prepare_to_leave(&mut self) -> Result<(), Hindrance> {
        // What is saved counts as part of the commands so far, of which the one in hand is none.
        let in_hand = self.records.position;
        self.begin_record(self.standing.committed_bytes());
        self.save_variables();
        self.save_all_arrays();
        self.begin_record(in_hand);
        match self.hindrance() {
            Some(hindrance) => Err(hindrance),
            None if self.standing.has_unsaved() => Err(Hindrance::Unsaved),
            None => Ok(()),
        }
    }

    /// The session has nothing in flight and no command in hand: from now on it is the other
    /// executor's.
    pub(super) fn leave(mut self) {
        let (session, event_times) = (self.handle.id, self.event_times());
        self.handle.note_left();
        self.shared.flights.set_idle(&self.flight);
        self.shared.tell(&FromExecutor::Left { session, event_times });
        self.tear_down(FromExecutor::Cleared { session });
    }
}
