//! What sessions share to take turns ([`super::pacing`]): the policy, who waits for a turn, who is
//! away, and of whom nothing ends.
//!
//! A contender that does what may take long (a load of code, new memory) is *away*: whoever waits
//! for a turn then waits for it no longer than [`AWAY`], since its work may have ended without
//! anybody looking. What it had submitted may overlap with the next turn; that is a credit at most.

use executor_link::counters::monotonic_ns;
use link::session_memory::SessionMemory;
use policy::turns::fairness::{Fairness, Verdict};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The device is calm when for so long nobody has launched a kernel that lasts.
const CALM_AFTER: Duration = Duration::from_millis(10);
/// So long a turn waits for a contender that is away.
const AWAY: Duration = Duration::from_millis(1);
/// Of more who wait than this, each sleeps longer in proportion, so that what they take of the
/// processor does not grow with their number.
const FEW_WAITING: usize = 8;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    turns: Mutex<Shared>,
    busy_until_ns: Apart,
}

/// Until then kernels that last may fill the device, by [`monotonic_ns`]. All sessions read it at
/// each launch: it shares a cache line with nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

#[derive(Debug, Default)]
struct Shared {
    fairness: Fairness,
    /// Contenders, and when each was last seen to begin or to end something.
    alive: HashMap<u64, Instant>,
    /// Contenders whose work others do not wait for any more, until they ask again.
    given_up: HashSet<u64>,
    /// Contenders that are away, and since when.
    away: HashMap<u64, Instant>,
    /// Threads that sleep until their turn comes.
    waiting: HashMap<u64, Thread>,
    /// Contenders that look after their work seldom, as nobody waits for its end.
    resting: HashMap<u64, Arc<SessionMemory>>,
}

/// What a session is told when it asks for a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    /// Nothing of other contenders is on the device.
    pub(crate) is_alone: bool,
    /// Others have waited for its work in vain.
    pub(crate) was_given_up: bool,
}

/// What a contender that asks for a turn has submitted and not seen end, whatever it was allowed to
/// submit before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InDriver {
    Nothing,
    Something,
}

/// What a session waits for that has a launch to submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Its own work.
    ForCredit,
    /// Others' work.
    ForTurn,
}

/// How long a session sleeps that may not submit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Longest {
    /// It has work to look after.
    OfItsOwn(Duration),
    /// It has none; so long if few wait.
    OfMany(Duration),
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no client has lately launched a kernel that lasts: what is launched now finds room
    /// at once.
    pub(crate) fn is_calm(&self) -> bool {
        // Relaxed: the number is all that there is, and may be late.
        self.busy_until_ns.0.load(Ordering::Relaxed) < monotonic_ns()
    }

    /// A kernel that lasts was launched, with so much in flight.
    pub(crate) fn note_lasting(&self, in_flight_ns: u64) {
        let until_ns = monotonic_ns() + 2 * in_flight_ns + CALM_AFTER.as_nanos() as u64;
        // Relaxed: as above.
        self.busy_until_ns.0.fetch_max(until_ns, Ordering::Relaxed);
    }

    /// Whether nobody waits for the end of a client's work. If so, it is woken when that changes.
    pub(crate) fn may_rest(&self, client: u64, memory: &Arc<SessionMemory>) -> bool {
        let mut shared = self.lock();
        let may_rest = !shared.fairness.is_contest();
        if may_rest {
            shared.resting.entry(client).or_insert_with(|| Arc::clone(memory));
        }
        may_rest
    }

    /// Whether that holds still, for a thread that has announced its sleep.
    pub(crate) fn is_resting(&self, client: u64) -> bool {
        self.lock().resting.contains_key(&client)
    }

    /// Changes the policy's state; wakes those who may go on.
    pub(crate) fn change(&self, act: impl FnOnce(&mut Fairness)) {
        self.lock().change(|shared| act(&mut shared.fairness));
    }

    /// A contender has begun, or ended, something.
    pub(crate) fn is_alive(&self, client: u64) {
        self.lock().alive.insert(client, Instant::now());
    }

    /// A session's end.
    pub(crate) fn leave(&self, client: u64) {
        self.change(|fairness| fairness.leave(client));
        let mut shared = self.lock();
        shared.alive.remove(&client);
        shared.given_up.remove(&client);
        shared.resting.remove(&client);
    }

    /// Gives up on contenders other than `client` that are at work, and of whom nothing has begun
    /// or ended for so long; says whether there were any.
    pub(crate) fn give_up_on_stalled(&self, client: u64, after: Duration) -> bool {
        self.lock().change(|shared| {
            let others = shared.fairness.at_work().filter(|&other| other != client);
            let stands_still =
                |other: &u64| shared.alive.get(other).is_none_or(|alive| alive.elapsed() >= after);
            let stalled: Vec<u64> = others.filter(stands_still).collect();
            for &other in &stalled {
                shared.fairness.give_up_on(other);
                shared.given_up.insert(other);
            }
            !stalled.is_empty()
        })
    }

    /// A contender wants to submit.
    pub(crate) fn ask(&self, client: u64, in_driver: InDriver) -> Answer {
        let mut shared = self.lock();
        let verdict = shared.change(|shared| {
            if in_driver == InDriver::Nothing {
                shared.fairness.settle(client);
            }
            let mut verdict = shared.fairness.ask(client);
            if verdict == Verdict::Wait && shared.pass_over_absent() {
                verdict = shared.fairness.ask(client);
            }
            if verdict == Verdict::Go && in_driver == InDriver::Nothing {
                shared.alive.insert(client, Instant::now());
            }
            verdict
        });
        Answer {
            verdict,
            is_alone: shared.fairness.is_alone(client),
            was_given_up: shared.given_up.remove(&client),
        }
    }

    /// Sleeps until the client, which may not submit, perhaps may. `longest` at most, or, where
    /// many wait who have nothing else to look at, longer.
    pub(crate) fn wait(&self, client: u64, held: Held, longest: Longest) {
        let mut shared = self.lock();
        if held == Held::ForTurn && shared.fairness.may_go(client) {
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
    pub(crate) fn is_away(&self, client: u64) {
        self.lock().away.insert(client, Instant::now());
    }

    /// It has done it.
    pub(crate) fn is_back(&self, client: u64) {
        self.lock().away.remove(&client);
    }
}

impl Shared {
    /// Changes something, and wakes those who have been given a turn; all that wait if there is no
    /// contest any more, and all that rest if there is one now.
    fn change<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        let was_contest = self.fairness.is_contest();
        let result = act(self);
        let now = Instant::now();
        for client in self.fairness.take_served() {
            self.alive.insert(client, now);
            self.waiting.get(&client).into_iter().for_each(Thread::unpark);
        }
        match (was_contest, self.fairness.is_contest()) {
            (true, false) => self.waiting.values().for_each(Thread::unpark),
            (false, true) => self.resting.drain().for_each(|(_, memory)| memory.wake_consumer()),
            _ => {}
        }
        result
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
    use policy::turns::fairness::room::Room;
    use policy::turns::fairness::{Busy, Claim, Demand, Kernels, TURN_NS};

    const WHOLE_TURN: Busy = Busy { measured_ns: TURN_NS, estimated_ns: TURN_NS };

    /// Kernels that last, on so much of the device.
    fn lasting(footprint: u32) -> Demand {
        Demand { room: Room::anywhere(footprint), kernels: Kernels::Lasting }
    }

    fn contest() -> Pace {
        let pace = Pace::default();
        for client in 0..2 {
            pace.change(|fairness| fairness.contend(client, Claim::default(), lasting(1000)));
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
        assert!(answer.verdict == Verdict::Go && answer.is_alone, "{answer:?}");
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
        pace.change(|fairness| fairness.charge(0, WHOLE_TURN));
        assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Wait);
        assert_eq!(pace.ask(1, InDriver::Nothing).verdict, Verdict::Go);
    }

    #[test]
    fn a_turn_wakes_one_and_the_end_of_a_contest_all() {
        let pace = contest();
        pace.change(|fairness| fairness.contend(2, Claim::default(), lasting(1000)));
        assert_eq!(pace.ask(2, InDriver::Nothing).verdict, Verdict::Wait);
        let forever = Longest::OfItsOwn(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let [first, second] = [1, 2].map(|client| {
                scope.spawn({
                    let pace = &pace;
                    move || pace.wait(client, Held::ForTurn, forever)
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
        assert_eq!(pace.ask(1, InDriver::Nothing).verdict, Verdict::Wait);
        pace.change(|fairness| fairness.charge(0, WHOLE_TURN));
        let forever = Longest::OfItsOwn(Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pace.wait(1, Held::ForTurn, forever));
            while pace.lock().waiting.is_empty() && !waits.is_finished() {
                std::thread::yield_now();
            }
            assert_eq!(pace.ask(0, InDriver::Nothing).verdict, Verdict::Wait);
        });
        // What has passed already is not waited for.
        pace.wait(1, Held::ForTurn, forever);
    }

    #[test]
    fn a_holder_that_stands_still_is_given_up_though_another_one_goes_on() {
        let pace = Pace::default();
        for (client, footprint) in [(0, 400), (1, 400), (2, 400)] {
            pace.change(|fairness| fairness.contend(client, Claim::default(), lasting(footprint)));
        }
        let verdicts = [0, 1, 2].map(|client| pace.ask(client, InDriver::Nothing).verdict);
        assert_eq!(verdicts, [Verdict::Go, Verdict::Go, Verdict::Wait]);
        assert!(!pace.give_up_on_stalled(2, Duration::from_secs(3600)));
        let patience = Duration::from_millis(1);
        std::thread::sleep(patience);
        // Both have turns; of one something ends.
        pace.lock().alive.insert(1, Instant::now() + Duration::from_secs(3600));
        assert!(pace.give_up_on_stalled(2, patience));
        assert_eq!(pace.ask(2, InDriver::Nothing).verdict, Verdict::Go);
        assert!(!pace.ask(1, InDriver::Something).was_given_up);
        assert!(pace.ask(0, InDriver::Something).was_given_up);
    }
}
