//! What sessions share to take turns ([`super::pacing`]): the policy, who waits for a turn to pass, and who is away.
//!
//! A contender that does what may take long (a load of code, new memory) is *away*: whoever waits for a turn then waits for it no longer than
//! [`AWAY`], since its work may have ended without anybody looking. What it had submitted may overlap with the next turn; that is a credit at most.

use crate::counters::monotonic_ns;
use crate::policy::fairness::{Fairness, Turns, Verdict};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The device is calm when for so long nobody has launched a kernel that lasts.
const CALM_AFTER: Duration = Duration::from_millis(10);
/// So long a turn waits for a contender that is away.
const AWAY: Duration = Duration::from_millis(1);
/// Of more who wait than this, each sleeps longer in proportion, so that what they take of the processor does not grow with their number.
const FEW_WAITING: usize = 8;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    turns: Mutex<Shared>,
    /// Counts marks that were reached, of all sessions.
    progress: AtomicU64,
    busy_until_ns: Apart,
}

/// Until then kernels that last may fill the device, by [`monotonic_ns`]. All sessions read it at each launch: it shares a cache line with nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug, Default)]
struct Shared {
    fairness: Fairness,
    /// How often a turn has passed.
    passes: u64,
    /// How often a turn was given up because nothing ended.
    stalls: u64,
    /// Contenders that are away, and since when.
    away: HashMap<u64, Instant>,
    /// Threads that sleep until their turn comes.
    waiting: HashMap<u64, Thread>,
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

/// What a contender that asks for a turn has submitted and not seen end, whatever it was allowed to submit before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InDriver {
    Nothing,
    Something,
}

/// How long a session sleeps that waits for its turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Longest {
    /// It has work to look after.
    OfItsOwn(Duration),
    /// It has none; so long if few wait.
    OfMany(Duration),
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no client has lately launched a kernel that lasts: what is launched now finds room at once.
    pub(super) fn is_calm(&self) -> bool {
        // Relaxed: the number is all that there is, and may be late.
        self.busy_until_ns.0.load(Ordering::Relaxed) < monotonic_ns()
    }

    /// A kernel that lasts was launched, with so much in flight.
    pub(super) fn note_lasting(&self, in_flight_ns: u64) {
        let until_ns = monotonic_ns() + 2 * in_flight_ns + CALM_AFTER.as_nanos() as u64;
        // Relaxed: as above.
        self.busy_until_ns.0.fetch_max(until_ns, Ordering::Relaxed);
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
            shared.pass();
        }
    }

    /// A contender wants to submit.
    pub(super) fn ask(&self, client: u64, in_driver: InDriver) -> Answer {
        let mut shared = self.lock();
        let before = shared.fairness.holder();
        if in_driver == InDriver::Nothing {
            shared.fairness.settle(client);
        }
        let mut verdict = shared.fairness.ask(client);
        if verdict == Verdict::Wait && shared.pass_over_absent() {
            verdict = shared.fairness.ask(client);
        }
        let holder = shared.fairness.holder();
        if holder != before && holder.is_some_and(|holder| holder != client) {
            shared.pass();
        }
        let Shared { passes, stalls, .. } = *shared;
        Answer { verdict, has_turn: holder == Some(client), passes, stalls }
    }

    /// Sleeps until the client's turn may have come after [`Answer::passes`] was so many. `longest` at most, or, where many wait who have nothing
    /// else to look at, longer.
    pub(super) fn wait(&self, client: u64, passes: u64, longest: Longest) {
        let mut shared = self.lock();
        if shared.passes != passes {
            return;
        }
        shared.waiting.insert(client, std::thread::current());
        let longest = match longest {
            Longest::OfItsOwn(limit) => limit,
            Longest::OfMany(limit) => {
                limit * shared.waiting.len().div_ceil(FEW_WAITING).max(1) as u32
            }
        };
        drop(shared);
        std::thread::park_timeout(longest);
        self.lock().waiting.remove(&client);
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
    /// A turn has passed: wakes whose it is, or all if it is nobody's any more.
    fn pass(&mut self) {
        self.passes += 1;
        match self.fairness.holder().filter(|_| self.fairness.is_contest()) {
            Some(holder) => self.waiting.get(&holder).into_iter().for_each(Thread::unpark),
            None => self.waiting.values().for_each(Thread::unpark),
        }
    }

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
        assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Go);
        assert_eq!(pace.ask(1, InDriver::Nothing).verdict, Verdict::Wait);
        pace
    }

    #[test]
    fn a_turn_does_not_wait_for_who_is_away() {
        let pace = contest();
        pace.is_away(0);
        std::thread::sleep(AWAY);
        let answer = pace.ask(1, InDriver::Nothing);
        assert!(answer.verdict == Verdict::Go && answer.has_turn, "{answer:?}");
        pace.is_back(0);
        assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Wait);
    }

    #[test]
    fn who_is_back_in_time_keeps_its_turn() {
        let pace = contest();
        pace.is_away(0);
        pace.is_back(0);
        std::thread::sleep(AWAY);
        assert_eq!(pace.ask(1, InDriver::Nothing).verdict, Verdict::Wait);
        assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Go);
    }

    #[test]
    fn who_was_allowed_and_submitted_nothing_holds_nobody() {
        let pace = contest();
        // Its turn is over, and it may have been told to go once too often.
        pace.change(|fairness| {
            fairness.charge(0, crate::policy::fairness::TURN_NS);
            Turns::Unchanged
        });
        assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Wait);
        assert_eq!(pace.ask(1, InDriver::Nothing).verdict, Verdict::Go);
    }

    #[test]
    fn a_turn_wakes_one_and_the_end_of_a_contest_all() {
        let pace = contest();
        pace.change(|fairness| {
            fairness.contend(2, Claim::default(), 1000);
            Turns::Unchanged
        });
        let before = pace.ask(2, InDriver::Nothing).passes;
        let forever = Longest::OfItsOwn(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let [first, second] = [1, 2].map(|client| {
                scope.spawn({
                    let pace = &pace;
                    move || pace.wait(client, before, forever)
                })
            });
            while pace.lock().waiting.len() < 2 {
                std::thread::yield_now();
            }
            pace.change(|fairness| fairness.rest(0));
            first.join().unwrap();
            assert!(!second.is_finished());
            pace.change(|fairness| fairness.rest(1));
            second.join().unwrap();
        });
        assert_eq!(pace.ask(2, InDriver::Nothing).verdict, Verdict::Go);
    }

    #[test]
    fn whose_turn_comes_by_anothers_question_is_woken() {
        let pace = contest();
        let before = pace.ask(1, InDriver::Nothing).passes;
        pace.change(|fairness| {
            fairness.charge(0, crate::policy::fairness::TURN_NS);
            Turns::Unchanged
        });
        let forever = Longest::OfItsOwn(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pace.wait(1, before, forever));
            while pace.lock().waiting.is_empty() && !waits.is_finished() {
                std::thread::yield_now();
            }
            assert!(pace.ask(0, InDriver::Nothing).passes > before);
        });
        // What has passed already is not waited for.
        pace.wait(1, before, forever);
    }
}
