//! What sessions share to take turns ([`super::pacing`]): the policy, who waits for a turn to pass, and who is away.
//!
//! A contender that does what may take long (a load of code, new memory) is *away*: whoever waits for a turn then waits for it no longer than
//! [`AWAY`], since its work may have ended without anybody looking. What it had submitted may overlap with the next turn; that is a credit at most.

use crate::counters::monotonic_ns;
use crate::policy::fairness::{Fairness, Turns, Verdict};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The device is calm when for so long nobody has launched a kernel that lasts.
const CALM_AFTER: Duration = Duration::from_millis(10);
/// So long a turn waits for a contender that is away.
const AWAY: Duration = Duration::from_millis(1);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    turns: Mutex<Shared>,
    passed: Condvar,
    /// Counts marks that were reached, of all sessions.
    progress: AtomicU64,
    /// Until then kernels that last may fill the device, by [`monotonic_ns`].
    busy_until_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Shared {
    fairness: Fairness,
    /// How often a turn has passed.
    passes: u64,
    /// How often a turn was given up because nothing ended.
    stalls: u64,
    /// Contenders that are away, and since when.
    away: HashMap<u64, Instant>,
}

/// What a session is told when it asks for a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// Nothing of other contenders is on the device.
    pub(super) has_turn: bool,
    /// For [`Pace::wait`].
    pub(super) passes: u64,
    /// How often a turn was given up because nothing ended.
    pub(super) stalls: u64,
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no client has lately launched a kernel that lasts: what is launched now finds room at once.
    pub(super) fn is_calm(&self) -> bool {
        // Relaxed: the number is all that there is, and may be late.
        self.busy_until_ns.load(Ordering::Relaxed) < monotonic_ns()
    }

    /// A kernel that lasts was launched, with so much in flight.
    pub(super) fn note_lasting(&self, in_flight_ns: u64) {
        let until_ns = monotonic_ns() + 2 * in_flight_ns + CALM_AFTER.as_nanos() as u64;
        // Relaxed: as above.
        self.busy_until_ns.fetch_max(until_ns, Ordering::Relaxed);
    }

    /// Counts marks that were reached.
    pub(super) fn progress(&self) -> u64 {
        // Relaxed: a sign of life; no data travels with it.
        self.progress.load(Ordering::Relaxed)
    }

    pub(super) fn note_progress(&self) {
        // Relaxed: as above.
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the policy's state; wakes those who wait if a turn passes.
    pub(super) fn change(&self, act: impl FnOnce(&mut Fairness) -> Turns) {
        self.change_shared(|shared| act(&mut shared.fairness));
    }

    /// The turn has stood still for too long.
    pub(super) fn give_up_on_turn(&self) {
        self.change_shared(|shared| {
            shared.stalls += 1;
            shared.fairness.give_up_on_turn()
        });
    }

    fn change_shared(&self, act: impl FnOnce(&mut Shared) -> Turns) {
        let mut shared = self.lock();
        if act(&mut shared) == Turns::Passed {
            shared.passes += 1;
            drop(shared);
            self.passed.notify_all();
        }
    }

    /// A contender wants to submit. `is_idle`: nothing of it is in the driver, whatever it was allowed to submit before.
    pub(super) fn ask(&self, client: u64, is_idle: bool) -> Answer {
        let mut shared = self.lock();
        let before = shared.fairness.holder();
        if is_idle {
            shared.fairness.settle(client);
        }
        let mut verdict = shared.fairness.ask(client);
        if verdict == Verdict::Wait && shared.pass_over_absent() {
            verdict = shared.fairness.ask(client);
        }
        let holder = shared.fairness.holder();
        let others = holder != before && holder.is_some_and(|holder| holder != client);
        shared.passes += u64::from(others);
        let (passes, stalls) = (shared.passes, shared.stalls);
        drop(shared);
        if others {
            self.passed.notify_all();
        }
        Answer { verdict, has_turn: holder == Some(client), passes, stalls }
    }

    /// Sleeps until a turn passes that had not passed when [`Answer::passes`] was so many, `longest` at most.
    pub(super) fn wait(&self, passes: u64, longest: Duration) {
        let shared = self.lock();
        if shared.passes == passes {
            let waited = self.passed.wait_timeout(shared, longest);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A contender does something that may take long, until [`Self::is_back`].
    pub(super) fn is_away(&self, client: u64) {
        self.lock().away.insert(client, Instant::now());
    }

    /// It has done it.
    pub(super) fn is_back(&self, client: u64) {
        self.lock().away.remove(&client);
    }
}

impl Shared {
    /// Makes contenders step aside that have been away for too long; says whether there were any.
    fn pass_over_absent(&mut self) -> bool {
        let fairness = &mut self.fairness;
        let absent = self.away.extract_if(|_, since| since.elapsed() >= AWAY);
        absent.map(|(client, _)| fairness.step_aside(client)).count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::fairness::Claim;

    fn contest() -> Pace {
        let pace = Pace::default();
        for client in 0..2 {
            pace.change(|fairness| {
                fairness.contend(client, Claim::default(), 1000);
                Turns::Unchanged
            });
        }
        assert_eq!(pace.ask(0, true).verdict, Verdict::Go);
        assert_eq!(pace.ask(1, true).verdict, Verdict::Wait);
        pace
    }

    #[test]
    fn a_turn_does_not_wait_for_who_is_away() {
        let pace = contest();
        pace.is_away(0);
        std::thread::sleep(AWAY);
        let answer = pace.ask(1, true);
        assert!(answer.verdict == Verdict::Go && answer.has_turn, "{answer:?}");
        pace.is_back(0);
        assert_eq!(pace.ask(0, true).verdict, Verdict::Wait);
    }

    #[test]
    fn who_is_back_in_time_keeps_its_turn() {
        let pace = contest();
        pace.is_away(0);
        pace.is_back(0);
        std::thread::sleep(AWAY);
        assert_eq!(pace.ask(1, true).verdict, Verdict::Wait);
        assert_eq!(pace.ask(0, true).verdict, Verdict::Go);
    }

    #[test]
    fn who_was_allowed_and_submitted_nothing_holds_nobody() {
        let pace = contest();
        // Its turn is over, and it may have been told to go once too often.
        pace.change(|fairness| {
            fairness.charge(0, crate::policy::fairness::TURN_NS);
            Turns::Unchanged
        });
        assert_eq!(pace.ask(0, true).verdict, Verdict::Wait);
        assert_eq!(pace.ask(1, true).verdict, Verdict::Go);
    }

    #[test]
    fn whose_turn_comes_by_anothers_question_is_woken() {
        let pace = contest();
        let before = pace.ask(1, true).passes;
        pace.change(|fairness| {
            fairness.charge(0, crate::policy::fairness::TURN_NS);
            Turns::Unchanged
        });
        assert!(pace.ask(0, true).passes > before);
        pace.wait(before, Duration::from_secs(3600));
    }
}
