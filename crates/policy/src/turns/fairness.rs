//! Who may submit next, where several clients keep the device busy: turns by weighted virtual time.
//!
//! A client *contends* when its work lasts, so that it waits for the device rather than for its own
//! program. Contenders for whose kernels there is room on the device at the same time ([`room`])
//! run at the same time and nobody is held. Those for whom there is not take turns: as many have
//! one as there is room for, the others wait. What a turn costs is the time in which the client's
//! streams were busy, as the device measured it, so a kernel that outlasts its turn is paid back by
//! the turns that follow. Turns of clients that do not fit together do not overlap, which is what
//! makes that measure true: of kernels that share SMs nobody can say which of them took the time.
//!
//! The one who comes next is who waits and has had least, by its weight. If there is no room, turns
//! end that have lasted long enough, no more of them than needed, and none until all that are
//! needed may. Who comes after has a turn *meanwhile*, in what is left: it ends as soon as it is in
//! the way. So a wide client does not starve behind narrow ones, and they do not wait for it longer
//! than it could use what they leave.
//!
//! Short kernels of many clients need no turns: the driver takes them one after the other,
//! whoever's they are. They are held only for what lasts, and where weights say that some are due
//! more.
//!
//! Pure: no clock, no driver. Times are nanoseconds of the device; the executor
//! (the executor's `pacing`) measures them.

pub mod room;
mod turns;

use link::wire::shares::MOST_WEIGHT;
use room::{ALL, Room, is_room};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a turn lasts at least, if there is work for it. Long against the gap between two turns,
/// short against a second.
pub const TURN_NS: u64 = 4_000_000;
/// Weight of a client that says nothing.
pub const DEFAULT_WEIGHT: u32 = 1;
/// So many times less is given to a client below normal priority.
const BELOW_NORMAL: u64 = 8;
/// Virtual time runs in these units per nanosecond, so that large weights do not round it away.
const UNITS: u64 = 8 * MOST_WEIGHT as u64;
/// Who has had so many turns more than the first who waits has no more of the room that this one
/// cannot use yet, since what it submits there may last.
const FAR_AHEAD: u64 = 4;
/// Room that this one could not use anyway is charged for so many times less from then on, so that
/// the debt does not grow for ever.
const DISCOUNT: u128 = 16;
/// A turn lasts no more than so many times longer where others' work takes its room, too.
const MOST_CROWDED: u64 = 64;
/// Smaller changes of a footprint than this are not looked at.
const CHANGE: u32 = ALL / 64;

/// What a client is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rank {
    /// As all are.
    Normal,
    /// `CUDA_MPS_CLIENT_PRIORITY=1`.
    BelowNormal,
}

/// A client's claim on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its share is to those of others as the weights are; 1 to [`MOST_WEIGHT`].
    pub weight: u32,
    /// Its rank.
    pub rank: Rank,
}

impl Default for Claim {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, rank: Rank::Normal }
    }
}

impl Claim {
    /// What a nanosecond costs in virtual time.
    fn price(self) -> u64 {
        let weight = u64::from(self.weight.clamp(1, MOST_WEIGHT));
        match self.rank {
            Rank::Normal => UNITS / weight,
            Rank::BelowNormal => BELOW_NORMAL * UNITS / weight,
        }
    }
}

/// The kernels that a client spends its time in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// So short that the driver's own order is fair among such clients.
    Short,
    /// Others' would wait for them.
    Lasting,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// What its kernels fill.
    pub room: Room,
    /// How long they are.
    pub kernels: Kernels,
}

/// The answer to a client that has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Submit it.
    Go,
    /// Ask again when a turn has passed.
    Wait,
}

/// For how long a client's streams were busy, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// By the device's clock: with what others did, if they were there.
    pub measured_ns: u64,
    /// What the work that has ended was thought to cost. Counts where others' work was in its room,
    /// if it is less.
    pub estimated_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    used_ns: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It has its time.
    Due,
    /// It has room that the first who waits cannot use now.
    Meanwhile,
    /// It has room that nobody who waits could use anyway.
    Beside,
}

impl Turn {
    fn has_had_its_time(&self) -> bool {
        self.kind != Kind::Due || self.used_ns >= TURN_NS
    }
}

#[derive(Debug)]
struct Contender {
    claim: Claim,
    demand: Demand,
    /// It has work that lasts.
    contends: bool,
    /// Virtual time that it has had. Wide enough for centuries.
    had: u128,
    /// It has asked, and was told to wait.
    waits: bool,
    turn: Option<Turn>,
    /// When it got its last turn: the number of turns given before.
    last_turn: u64,
    /// It may have work on the device.
    in_flight: bool,
    /// What it has there is of a turn that has ended.
    leaves: bool,
    /// What it is charged for next ran in the room that others' work took as well.
    was_crowded: bool,
    /// It ran in room that the first who waits could not use anyway.
    is_beside: bool,
}

impl Contender {
    fn is_at_work(&self) -> bool {
        self.contends && (self.in_flight || self.turn.is_some())
    }

    /// It submits no more, or its turn is another's.
    fn end_turn(&mut self) {
        self.turn = None;
        self.leaves = self.in_flight;
    }

    fn is_far_ahead_of(&self, had: u128) -> bool {
        self.had > had + u128::from(FAR_AHEAD * TURN_NS * self.claim.price())
    }

    fn forget_work(&mut self) {
        self.in_flight = false;
        self.leaves = false;
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Fairness {
    clients: BTreeMap<u64, Contender>,
    /// There is not room for all contenders.
    is_contest: bool,
    /// Their claims differ.
    is_unequal: bool,
    /// Virtual time of the client that got a turn last because it was due: who comes anew is not
    /// far behind.
    now: u128,
    /// How many turns have been given.
    turns_given: u64,
    /// To whom, since [`Self::take_served`].
    served: Vec<u64>,
}

impl Fairness {
    /// A client begins to contend, or says that it still does.
    pub fn contend(&mut self, client: u64, claim: Claim, demand: Demand) {
        let earliest = self.now.saturating_sub(u128::from(TURN_NS * claim.price()));
        let is_new = !self.clients.contains_key(&client);
        let contender = self.clients.entry(client).or_insert(Contender {
            claim,
            demand,
            contends: false,
            had: 0,
            waits: false,
            turn: None,
            last_turn: 0,
            in_flight: false,
            leaves: false,
            was_crowded: false,
            is_beside: false,
        });
        contender.had = contender.had.max(earliest);
        let known = contender.demand;
        let is_near = demand.room.footprint.abs_diff(known.room.footprint) < CHANGE
            && (demand.room.place, demand.kernels) == (known.room.place, known.kernels);
        if is_new || !contender.contends || contender.claim != claim || !is_near {
            (contender.claim, contender.demand, contender.contends) = (claim, demand, true);
            self.contenders_changed();
        }
    }

    /// A client has no more work for now. What it has had is remembered: to pause pays nothing
    /// back.
    pub fn rest(&mut self, client: u64) {
        let Some(contender) = self.clients.get_mut(&client) else { return };
        contender.waits = false;
        contender.forget_work();
        contender.turn = None;
        contender.was_crowded = false;
        if std::mem::take(&mut contender.contends) {
            self.contenders_changed();
        }
        self.pass_on();
    }

    /// A client has left, and its work has ended.
    pub fn leave(&mut self, client: u64) {
        self.rest(client);
        self.clients.remove(&client);
    }

    fn contenders(&self) -> impl Iterator<Item = (u64, &Contender)> {
        let clients = self.clients.iter().map(|(&client, contender)| (client, contender));
        clients.filter(|(_, contender)| contender.contends)
    }

    fn contenders_changed(&mut self) {
        let prices = || self.contenders().map(|(_, contender)| contender.claim.price());
        let is_unequal = prices().max() != prices().min();
        self.is_unequal = is_unequal;
        let all: Vec<u64> = self.contenders().map(|(client, _)| client).collect();
        self.is_contest = !self.fit(&all);
        if !self.is_contest {
            for contender in self.clients.values_mut() {
                contender.turn = None;
                contender.leaves = false;
            }
        }
    }

    /// Whether these can be at work at the same time without being unfair to each other.
    fn fit(&self, clients: &[u64]) -> bool {
        if clients.len() < 2 {
            return true;
        }
        let demands = clients.iter().filter_map(|client| self.clients.get(client));
        let (mut lasting, mut short) = (Vec::new(), Vec::new());
        for Contender { demand, .. } in demands {
            match demand.kernels {
                Kernels::Short if !self.is_unequal => short.push(demand.room),
                _ => lasting.push(demand.room),
            }
        }
        if lasting.is_empty() || !is_room(&lasting) {
            return lasting.is_empty();
        }
        short.into_iter().all(|room| {
            lasting.push(room);
            let fits = is_room(&lasting);
            lasting.pop();
            fits
        })
    }

    /// Whether there is not room for all contenders.
    pub fn is_contest(&self) -> bool {
        self.is_contest
    }

    /// Whether a client may submit without asking again.
    pub fn may_go(&self, client: u64) -> bool {
        let contender = self.clients.get(&client).filter(|contender| contender.contends);
        !self.is_contest || contender.is_none_or(|contender| contender.turn.is_some())
    }

    /// Whether a client has a turn, and no other contender has work on the device.
    pub fn is_alone(&self, client: u64) -> bool {
        let has_turn = self.clients.get(&client).is_some_and(|it| it.turn.is_some());
        let mut others = self.contenders().filter(|&(other, _)| other != client);
        has_turn && others.all(|(_, contender)| !contender.is_at_work())
    }

    /// The contenders that may have work on the device, or submit some.
    pub fn at_work(&self) -> impl Iterator<Item = u64> {
        let at_work = self.contenders().filter(|(_, contender)| contender.is_at_work());
        at_work.map(|(client, _)| client)
    }

    /// Who was given a turn since the last time.
    pub fn take_served(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.served)
    }

    /// A contender has submitted work without asking: before it contended, or in spite of an
    /// answer.
    pub fn submitted(&mut self, client: u64) {
        self.go(client);
    }

    /// A contender has work to submit.
    pub fn ask(&mut self, client: u64) -> Verdict {
        let is_contest = self.is_contest;
        let contender = self.clients.get_mut(&client).filter(|contender| contender.contends);
        let Some(contender) = contender else { return Verdict::Go };
        if !is_contest {
            return self.go(client);
        }
        contender.waits = true;
        if contender.turn.is_none_or(|turn| turn.has_had_its_time()) {
            self.pass_on();
        }
        match self.may_go(client) {
            true => self.go(client),
            false => Verdict::Wait,
        }
    }

    fn go(&mut self, client: u64) -> Verdict {
        let begins = self.clients.get_mut(&client).is_some_and(|contender| {
            contender.waits = false;
            !std::mem::replace(&mut contender.in_flight, true)
        });
        if begins && self.is_contest && self.is_crowded() {
            let at_work = self.clients.values_mut().filter(|contender| contender.in_flight);
            at_work.for_each(|contender| contender.was_crowded = true);
        }
        Verdict::Go
    }

    /// Whether there is not room for all that is on the device, so that its kernels take longer
    /// than by themselves.
    fn is_crowded(&self) -> bool {
        let in_flight = self.contenders().filter(|(_, contender)| contender.in_flight);
        let rooms: Vec<Room> = in_flight.map(|(_, contender)| contender.demand.room).collect();
        rooms.len() > 1 && !is_room(&rooms)
    }

    /// A client's streams were busy since the last time. Counts in a contest only: who uses what
    /// nobody else wants owes nothing.
    pub fn charge(&mut self, client: u64, busy: Busy) {
        let is_contest = self.is_contest;
        let waiting = self.contenders().filter(|(_, contender)| contender.waits);
        let first = waiting.map(|(_, contender)| contender.had).min();
        let Some(contender) = self.clients.get(&client) else { return };
        let is_crowded = contender.was_crowded && self.is_crowded();
        let Some(contender) = self.clients.get_mut(&client) else { return };
        let own_ns = match std::mem::replace(&mut contender.was_crowded, is_crowded) {
            true => busy.measured_ns.min(busy.estimated_ns),
            false => busy.measured_ns,
        };
        if let Some(turn) = contender.turn.as_mut() {
            turn.used_ns = turn.used_ns.saturating_add(own_ns.max(busy.measured_ns / MOST_CROWDED));
        }
        if !is_contest {
            return;
        }
        let price = u128::from(contender.claim.price());
        let mut cost = u128::from(own_ns) * price;
        if contender.is_beside && first.is_some_and(|first| contender.is_far_ahead_of(first)) {
            cost /= DISCOUNT;
        }
        contender.had = contender.had.saturating_add(cost);
    }

    /// All that a client had submitted has ended.
    pub fn settle(&mut self, client: u64) {
        let Some(contender) = self.clients.get_mut(&client) else { return };
        contender.forget_work();
        contender.was_crowded = false;
        self.pass_on();
    }

    /// A client's thread has something else to do for a while, and submits nothing: nobody waits
    /// for it until it asks again.
    pub fn step_aside(&mut self, client: u64) {
        let Some(contender) = self.clients.get_mut(&client) else { return };
        contender.waits = false;
        contender.forget_work();
        contender.turn = None;
        self.pass_on();
    }

    /// A client's work does not end, or waits for another client's: others do not wait for it any
    /// more. If it has a turn, it is left out until it says that it contends.
    pub fn give_up_on(&mut self, client: u64) {
        match self.clients.get_mut(&client) {
            Some(contender) if contender.turn.is_some() => self.rest(client),
            Some(_) => self.settle(client),
            None => {}
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
