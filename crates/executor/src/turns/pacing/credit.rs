//! A session gets credit and turns.

use super::*;
use crate::session::state::State;
use crate::submit::own_kernels::COPIER;
use crate::submit::submitted::{Launched, Shape, Submitted};
use crate::turns::costs::Timed;
use crate::turns::pace::{InDriver, Longest};
use executor_link::counters::Waits;
use executor_link::log::log_server;
use policy::turns::fairness::{Busy, Verdict};
use policy::turns::priorities::stream_priority;
use std::sync::atomic::Ordering;

/// Work inside the driver of a session alone, and beside a busy client of the latency class.
const ALONE: Work = Work { cost_ns: 20_000_000, launches: 4 };
const BESIDE_LATENCY: Work = Work { cost_ns: 100_000, launches: 1 };
/// From this cost on a kernel is bounded even in a session alone: shorter ones are bounded by their
/// number ([`crate::submit::backlog`]).
const LASTS_NS: u64 = 20_000;
/// After so many launches that do not last a client contends no more.
const MOST_SHORT: u32 = 64;
/// A contender that has nothing to submit keeps its place for so long.
const GRACE: Duration = Duration::from_micros(300);
/// Longest sleep of a session that waits for its turn with nothing in flight, if few do.
const TURN_SLEEP: Duration = Duration::from_millis(1);
/// Who has a turn, and of whom nothing begins or ends for so long, is not waited for: a kernel may
/// be waiting for what is held.
const STALL: Duration = Duration::from_secs(5);

impl State {
    /// Whether [`Self::may_submit`] need be asked.
    pub(crate) fn is_bounded(&self) -> bool {
        !self.pacing.marks.is_empty() || self.pacing.contends
    }

    /// Whether the next launch may be submitted now.
    pub(crate) fn may_submit(&mut self) -> bool {
        if !self.is_bounded() || self.handle.ended().is_some() || self.context().lost().is_some() {
            return true;
        }
        let credit = self.credit();
        if !self.has_credit(credit) {
            self.look_at_marks(0);
            if !self.has_credit(credit) {
                // What it submitted alone may keep it here for long: meanwhile it takes part.
                if self.pacing.class == Class::Throughput && self.in_company() {
                    self.contend();
                }
                if !self.pacing.is_overdue() {
                    self.pacing.held = Held::ForCredit;
                    return false;
                }
            }
        }
        self.pacing.quiet = None;
        if !self.pacing.contends {
            return true;
        }
        if !self.in_company() {
            self.stop_contending();
            return true;
        }
        if self.ask_for_turn() == Verdict::Go {
            return true;
        }
        if !self.pacing.marks.is_empty() {
            // It may be this session's own work that the next turn waits for.
            self.look_at_marks(0);
            if self.ask_for_turn() == Verdict::Go {
                return true;
            }
            if self.pacing.is_overdue() {
                let client = self.handle.id;
                self.shared.pace.change(|fairness| fairness.submitted(client));
                return true;
            }
        }
        self.others_have_stalled()
    }

    /// After [`Self::may_submit`] said no: sleeps until it may say yes. `waiting` of its client's
    /// calls are to be answered meanwhile.
    pub(crate) fn wait_for_turn(&mut self, waiting: usize) {
        let held = self.pacing.held;
        let concern = match (waiting, held) {
            (0, Held::ForCredit) => Concern::Credit,
            _ => Concern::End,
        };
        let longest = match (self.pacing.marks.is_empty(), waiting) {
            (true, 0) => Longest::OfMany(TURN_SLEEP),
            (true, _) => Longest::OfItsOwn(TURN_SLEEP),
            (false, _) => Longest::OfItsOwn(self.pacing.next_look(concern, Duration::MAX)),
        };
        if held == Held::ForTurn {
            self.counters().set_waits(Waits::Turn);
        }
        self.shared.pace.wait(self.handle.id, held, longest);
        self.counters().set_waits(Waits::Nothing);
    }

    /// Before a command that may take long: what others wait for is marked, and they are told not
    /// to wait for this session meanwhile.
    pub(crate) fn step_away(&mut self) {
        if !self.pacing.contends || std::mem::replace(&mut self.pacing.is_away, true) {
            return;
        }
        self.look_at_marks(0);
        self.shared.pace.is_away(self.handle.id);
    }

    /// After it.
    pub(crate) fn come_back(&mut self) {
        if std::mem::take(&mut self.pacing.is_away) {
            self.shared.pace.is_back(self.handle.id);
        }
    }

    /// Before launches, and before their stream is told of them: where the completion words say
    /// that all work has ended, nothing is in flight. So a client that waits for its short launches
    /// needs no marks, which cost driver calls.
    pub(crate) fn settle_by_words(&mut self) {
        let in_flight = self.pacing.marks.in_flight();
        if self.pacing.contends || in_flight.cost_ns < self.pacing.settles_at_ns {
            return;
        }
        if self.may_work() {
            self.pacing.settles_at_ns = in_flight.cost_ns + SETTLE_NS;
            return;
        }
        self.pacing.settles_at_ns = SETTLE_NS;
        self.pacing.marks.forget();
        self.pacing.looks.settle();
    }

    fn pace_one(
        &mut self,
        slot: u32,
        stream: CUstream,
        piece: Piece,
        launched: impl FnOnce(&Self) -> Launched,
    ) -> Option<Paced> {
        let cost_ns = self.known_cost_ns(piece);
        let in_company = self.in_company();
        if !in_company && cost_ns < LASTS_NS && self.pacing.marks.is_empty() {
            self.pacing.extent.forget();
            return None;
        }
        // Alone, too: who has submitted more than company allows contends with it when others come,
        // and launches nothing for a while.
        if self.pacing.class == Class::Throughput {
            let launched = launched(self);
            self.extend(launched, cost_ns);
        }
        if cost_ns >= LASTS_NS || self.pacing.contends {
            // Nobody's time is counted who never contends.
            self.pacing.marks.launch_begins(&self.shared.context, stream);
        }
        Some(Paced { slot, cost_ns, launches: 1 })
    }

    /// Before work: says whether it is counted. The first kernel of a chain decides for all.
    pub(crate) fn pace(
        &mut self,
        slot: u32,
        stream: CUstream,
        submitted: Submitted<'_>,
    ) -> Option<Paced> {
        let chain = match submitted {
            Submitted::Piece(piece, launched) => {
                return self.pace_one(slot, stream, piece, |_| launched);
            }
            Submitted::Chain(launches) => launches,
        };
        let mut all: Option<Paced> = None;
        for (launch, _) in chain.iter().filter(|(launch, _)| launch.function != COPIER) {
            let launched = |state: &Self| match state.modules.function(launch.function) {
                Ok(function) => Launched::Kernel(Shape::new(launch, function.handle)),
                Err(_) => Launched::Graph { kernels: 1 },
            };
            let one = self.pace_one(slot, stream, Piece::Function(launch.function), launched)?;
            let all = all.get_or_insert(Paced { slot, cost_ns: 0, launches: 0 });
            all.cost_ns += one.cost_ns;
            all.launches += 1;
        }
        all
    }

    /// Whether a launch may wait for others to be submitted with it: what lasts is counted by
    /// itself, and what others wait for is not delayed.
    pub(crate) fn may_be_batched(&self, piece: Piece) -> bool {
        self.pacing.costs.may_take_less(piece, LASTS_NS) && self.may_be_delayed()
    }

    /// Whether what is submitted may wait for what comes behind it: not while the device is kept
    /// free for a client of the latency class.
    pub(crate) fn may_be_delayed(&self) -> bool {
        self.pacing.class == Class::Latency || !self.shared.flights.is_latency_busy()
    }

    /// After it.
    pub(crate) fn paced(&mut self, paced: Option<Paced>) {
        let Some(Paced { slot, cost_ns, launches }) = paced else { return };
        self.pacing.marks.launched(slot, Work { cost_ns, launches });
        let credit = self.credit();
        self.mark(credit.cost_ns / MARKS);
        if self.pacing.marks.in_flight().cost_ns >= IN_COMPANY.cost_ns {
            // Most of it has ended where the client waits for its work now and then.
            self.look_at_marks(credit.cost_ns / MARKS);
        }
        let in_flight = self.pacing.marks.in_flight();
        let each_ns = cost_ns / u64::from(launches.max(1));
        if each_ns >= LASTS_NS {
            self.shared.pace.note_lasting(in_flight.cost_ns);
        }
        let is_long = each_ns >= CONTENDS_NS && self.pacing.extent.lasts();
        let lasts = is_long || in_flight.cost_ns >= IN_COMPANY.cost_ns;
        let short = &mut self.pacing.short_launches;
        *short = if lasts { 0 } else { short.saturating_add(launches) };
        if *short >= MOST_SHORT {
            // It was taken for a contender by what it did before, or by a sample that others
            // lengthened.
            self.stop_contending();
            return;
        }
        let contends = lasts || self.pacing.contends;
        if contends && self.pacing.class == Class::Throughput && self.in_company() {
            self.contend();
        }
    }

    /// What a piece is taken to cost.
    pub(crate) fn known_cost_ns(&self, piece: Piece) -> u64 {
        self.pacing.costs.of(piece).unwrap_or(UNKNOWN_NS)
    }

    /// What a piece takes at least, as far as is known.
    pub(crate) fn least_cost_ns(&self, piece: Piece) -> u64 {
        self.pacing.costs.at_least(piece)
    }

    /// What a sample said of a piece.
    pub(crate) fn learn_cost(&mut self, piece: Piece, timed: Timed) {
        self.pacing.costs.learn(piece, timed);
    }

    /// Nothing is in the ring. Says how long the thread may sleep as far as pacing is concerned.
    pub(crate) fn pace_idle(&mut self, longest: Duration) -> Duration {
        self.pacing.rests = false;
        if !self.pacing.contends && !self.is_far_ahead() {
            return longest;
        }
        self.look_at_marks(0);
        if !self.pacing.contends {
            if !self.is_far_ahead() {
                return longest;
            }
            // All of it was submitted while nobody else was there.
            self.contend();
        }
        let in_flight = self.pacing.marks.in_flight();
        if in_flight.launches > 0 {
            let may_rest = self.shared.pace.may_rest(self.handle.id, &self.handle.memory);
            self.pacing.rests = may_rest;
            let concern = if may_rest { Concern::Nobody } else { Concern::End };
            return self.pacing.next_look(concern, longest);
        }
        let since = *self.pacing.quiet.get_or_insert_with(Instant::now);
        if since.elapsed() >= GRACE {
            self.stop_contending();
            return longest;
        }
        longest.min(GRACE)
    }

    /// Whether [`Self::pace_idle`] would say less now. For a thread that has announced its sleep.
    pub(crate) fn is_looked_for(&self) -> bool {
        self.pacing.rests && !self.shared.pace.is_resting(self.handle.id)
    }

    /// Whether a session has more in flight than company allows it.
    fn is_far_ahead(&self) -> bool {
        self.pacing.marks.in_flight().cost_ns >= IN_COMPANY.cost_ns
            && self.pacing.class == Class::Throughput
            && self.in_company()
    }

    /// All work is known to have ended.
    pub(crate) fn pace_settled(&mut self) {
        self.look_at_marks(0);
        self.pacing.marks.forget();
        self.stop_contending();
    }

    /// At the session's end, when its work has ended.
    pub(crate) fn end_pacing(&mut self) {
        self.shared.pace.leave(self.handle.id);
        self.pacing.marks.clear(&self.shared.context);
    }

    /// The driver's priority for a stream, or a launch, to which the client gave `wanted`.
    pub(crate) fn stream_priority(&self, wanted: i32) -> i32 {
        let Pacing { claim, class, .. } = self.pacing;
        stream_priority(wanted, claim.rank, class, self.context().stream_priorities())
    }

    /// Whether what is launched now has the device for itself, as far as this can be known.
    pub(crate) fn has_device(&self) -> bool {
        self.pacing.is_alone || !self.in_company()
    }

    fn in_company(&self) -> bool {
        self.shared.flights.in_company(&self.flight)
    }

    fn credit(&self) -> Work {
        let flights = &self.shared.flights;
        match self.pacing.class {
            Class::Throughput if flights.is_latency_busy() => BESIDE_LATENCY,
            Class::Throughput if flights.in_company(&self.flight) => IN_COMPANY,
            _ => ALONE,
        }
    }

    fn has_credit(&self, credit: Work) -> bool {
        let in_flight = self.pacing.marks.in_flight();
        in_flight.cost_ns < credit.cost_ns || in_flight.launches < credit.launches
    }

    fn mark(&mut self, least_ns: u64) {
        let streams = &self.streams;
        self.pacing.marks.mark(&self.shared.context, least_ns, |slot| streams.handle(slot));
    }

    /// Marks what has at least so much behind the last mark, and sees which marks have been
    /// reached.
    fn look_at_marks(&mut self, least_ns: u64) {
        if self.pacing.marks.is_empty() {
            return;
        }
        self.mark(least_ns);
        let look = self.pacing.marks.look(&self.shared.context);
        if look.reached == 0 {
            return;
        }
        self.pacing.settles_at_ns = SETTLE_NS;
        if self.pacing.looks.reached(&look) && look.overtook {
            // What was overdue still is, and what came after it has ended.
            self.pacing.marks.give_up();
        }
        self.read_samples();
        if self.pacing.contends {
            let (client, ended) = (self.handle.id, self.pacing.marks.is_empty());
            self.shared.pace.is_alive(client);
            self.shared.pace.change(|fairness| {
                let busy = Busy { measured_ns: look.busy_ns, estimated_ns: look.cost_ns };
                fairness.charge(client, busy);
                if ended {
                    fairness.settle(client);
                }
            });
        }
    }

    fn contend(&mut self) {
        // Relaxed: the number is all that there is.
        if let weight @ 1.. = self.pacing.new_weight.swap(0, Ordering::Relaxed) {
            self.pacing.claim.weight = weight;
        }
        let (claim, demand) = (self.pacing.claim, self.demand());
        let begins = !std::mem::replace(&mut self.pacing.contends, true);
        // What made it a contender is in flight, if it has not ended already.
        let is_at_work = begins && !self.pacing.marks.is_empty();
        let client = self.handle.id;
        if begins {
            self.shared.pace.is_alive(client);
        }
        self.shared.pace.change(|fairness| {
            fairness.contend(client, claim, demand);
            if is_at_work {
                fairness.submitted(client);
            }
        });
    }

    /// Leaves the contest until a launch that lasts: nothing is to be submitted, or not for a
    /// while.
    pub(crate) fn stop_contending(&mut self) {
        self.pacing.quiet = None;
        self.pacing.is_alone = false;
        self.pacing.held = Held::ForCredit;
        if std::mem::take(&mut self.pacing.contends) {
            let client = self.handle.id;
            self.shared.pace.change(|fairness| fairness.rest(client));
        }
    }

    fn ask_for_turn(&mut self) -> Verdict {
        let in_driver = match self.pacing.marks.is_empty() {
            true => InDriver::Nothing,
            false => InDriver::Something,
        };
        let answer = self.shared.pace.ask(self.handle.id, in_driver);
        self.pacing.held = Held::ForTurn;
        self.pacing.is_alone = answer.is_alone;
        if answer.was_given_up {
            // Others have waited in vain, perhaps for what this session has on the device.
            self.pacing.marks.give_up();
        }
        answer.verdict
    }

    /// Whether who is at work has not begun or ended anything for so long that waiting may be the
    /// reason; then the launch goes, and they are not waited for.
    fn others_have_stalled(&mut self) -> bool {
        let client = self.handle.id;
        let stalled = self.shared.pace.give_up_on_stalled(client, STALL);
        if stalled {
            log_server!("{} waits for kernels that do not end, and goes on", self.handle.label);
            self.shared.pace.change(|fairness| fairness.submitted(client));
        }
        stalled
    }
}
