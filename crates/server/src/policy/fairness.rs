//! Who may submit next, where several clients keep the device busy: turns by weighted virtual time.
//!
//! A client *contends* when its work lasts, so that it waits for the device rather than for its own program. Contenders whose kernels fit on the
//! device together run at the same time and nobody is held. Those that do not fit take turns: one submits, the others wait, and a turn passes,
//! when it has lasted long enough and its work has ended, to the waiting client that has had least, by its weight. What a turn costs is the time
//! in which its streams were busy, as the device measured it, so a kernel that outlasts its turn is paid back by the turns that follow.
//! Turns do not overlap, which is what makes that measure true: of kernels that share the device nobody can say which of them took the time.
//!
//! Pure: no clock, no driver. Times are nanoseconds of the device; the executor ([`crate::executor`]'s `pacing`) measures them.

use link::wire::shares::MOST_WEIGHT;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a turn lasts at least, if there is work for it. Long against the gap between two turns, short against a second.
pub const TURN_NS: u64 = 4_000_000;
/// The whole device, as a footprint.
const ALL: u32 = 1000;
/// Weight of a client that says nothing.
pub const DEFAULT_WEIGHT: u32 = 1;
/// So many times less is given to a client below normal priority.
const BELOW_NORMAL: u64 = 8;
/// Virtual time runs in these units per nanosecond, so that large weights do not round it away.
const UNITS: u64 = 8 * MOST_WEIGHT as u64;

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

/// The answer to a client that has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Submit it.
    Go,
    /// Ask again when the turn has passed.
    Wait,
}

/// Whether it is somebody's turn after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// As before.
    Unchanged,
    /// Those who wait should ask again.
    Passed,
}

#[derive(Debug)]
struct Contender {
    claim: Claim,
    /// It has work that lasts.
    contends: bool,
    /// Virtual time that it has had. Wide enough for centuries.
    had: u128,
    /// Share of the device that its kernels take, of 1,000.
    footprint: u32,
    /// It has asked, and was told to wait.
    waits: bool,
    /// It may have work on the device.
    in_flight: bool,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    client: u64,
    used_ns: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Fairness {
    clients: BTreeMap<u64, Contender>,
    turn: Option<Turn>,
    /// Virtual time of the client that got a turn last: who comes anew is not far behind.
    now: u128,
}

impl Fairness {
    /// A client begins to contend, or says that it still does. `footprint` is the part of the device that its kernels fill, of 1,000; 0: not known, as if all.
    pub fn contend(&mut self, client: u64, claim: Claim, footprint: u32) {
        let earliest = self.now.saturating_sub(u128::from(TURN_NS * claim.price()));
        let contender = self.clients.entry(client).or_insert(Contender {
            claim,
            contends: true,
            had: 0,
            footprint: ALL,
            waits: false,
            in_flight: false,
        });
        contender.claim = claim;
        contender.contends = true;
        contender.footprint = if footprint == 0 { ALL } else { footprint.min(ALL) };
        contender.had = contender.had.max(earliest);
    }

    /// A client has no more work for now. What it has had is remembered: to pause pays nothing back.
    pub fn rest(&mut self, client: u64) -> Turns {
        let Some(contender) = self.clients.get_mut(&client) else { return Turns::Unchanged };
        contender.contends = false;
        contender.waits = false;
        contender.in_flight = false;
        self.turn.take_if(|turn| turn.client == client);
        self.pass_on()
    }

    /// A client has left, and its work has ended.
    pub fn leave(&mut self, client: u64) -> Turns {
        let turns = self.rest(client);
        self.clients.remove(&client);
        turns
    }

    fn contenders(&self) -> impl Iterator<Item = (u64, &Contender)> {
        let clients = self.clients.iter().map(|(&client, contender)| (client, contender));
        clients.filter(|(_, contender)| contender.contends)
    }

    /// Whether the contenders do not fit on the device together.
    pub fn is_contest(&self) -> bool {
        self.contenders().nth(1).is_some()
            && self.contenders().map(|(_, contender)| contender.footprint).sum::<u32>() > ALL
    }

    /// Whose turn it is, so that no other contender has work on the device.
    pub fn holder(&self) -> Option<u64> {
        self.turn.map(|turn| turn.client)
    }

    /// A contender has submitted work without asking, before it contended.
    pub fn submitted(&mut self, client: u64) {
        self.go(client);
    }

    /// A contender has work to submit.
    pub fn ask(&mut self, client: u64) -> Verdict {
        if !self.is_contest() {
            self.turn = None;
            return self.go(client);
        }
        let contender = self.clients.get_mut(&client).filter(|contender| contender.contends);
        let Some(contender) = contender else { return Verdict::Go };
        contender.waits = true;
        self.pass_on();
        match self.turn {
            Some(turn) if turn.client == client && !self.is_over(turn) => self.go(client),
            _ => Verdict::Wait,
        }
    }

    fn go(&mut self, client: u64) -> Verdict {
        if let Some(contender) = self.clients.get_mut(&client) {
            contender.waits = false;
            contender.in_flight = true;
        }
        Verdict::Go
    }

    /// A client's streams were busy for so long since the last time. Counts in a contest only: who uses what nobody else wants owes nothing.
    pub fn charge(&mut self, client: u64, busy_ns: u64) {
        let is_contest = self.is_contest();
        if let Some(contender) = self.clients.get_mut(&client).filter(|_| is_contest) {
            let price = u128::from(contender.claim.price());
            contender.had = contender.had.saturating_add(u128::from(busy_ns) * price);
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.client == client) {
            turn.used_ns = turn.used_ns.saturating_add(busy_ns);
        }
    }

    /// All that a client had submitted has ended.
    pub fn settle(&mut self, client: u64) -> Turns {
        let Some(contender) = self.clients.get_mut(&client) else { return Turns::Unchanged };
        contender.in_flight = false;
        self.pass_on()
    }

    /// A client's thread has something else to do for a while, and submits nothing: nobody waits for it until it asks again.
    pub fn step_aside(&mut self, client: u64) -> Turns {
        let Some(contender) = self.clients.get_mut(&client) else { return Turns::Unchanged };
        contender.waits = false;
        contender.in_flight = false;
        self.turn.take_if(|turn| turn.client == client);
        self.pass_on()
    }

    /// The turn has stood still for too long: work that does not end, or that waits for another client's. It is left out until it ends.
    pub fn give_up_on_turn(&mut self) -> Turns {
        for contender in self.clients.values_mut() {
            contender.in_flight = false;
        }
        match self.turn {
            Some(turn) => self.rest(turn.client),
            None => self.pass_on(),
        }
    }

    /// Whether a turn has had its time, and somebody waits who has had no more.
    fn is_over(&self, turn: Turn) -> bool {
        let Some(holder) = self.clients.get(&turn.client) else { return true };
        let is_due = |contender: &Contender| contender.waits && contender.had <= holder.had;
        turn.used_ns >= TURN_NS && self.contenders().any(|(_, contender)| is_due(contender))
    }

    /// Gives the next turn, if the present one is over and all work of contenders has ended.
    fn pass_on(&mut self) -> Turns {
        if self.turn.is_some_and(|turn| !self.is_over(turn)) {
            return Turns::Unchanged;
        }
        let Some((client, had)) = self.next() else { return Turns::Unchanged };
        self.now = self.now.max(had);
        self.turn = Some(Turn { client, used_ns: 0 });
        Turns::Passed
    }

    /// Who is to have the next turn, if it may begin, and what that client has had.
    fn next(&self) -> Option<(u64, u128)> {
        let mut at_work = self.contenders().filter(|(_, contender)| contender.in_flight);
        let next = match (at_work.next(), at_work.next()) {
            (None, _) => {
                let waiting = self.contenders().filter(|(_, contender)| contender.waits);
                waiting.min_by_key(|(client, contender)| (contender.had, *client))
            }
            // It submitted before this was a contest, and what runs may be waiting for what it asks for.
            (Some(only), None) if self.turn.is_none() && only.1.waits => Some(only),
            _ => None,
        };
        next.map(|(client, contender)| (client, contender.had))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1_000;

    /// A client that always has work: kernels of one length, so many in flight at once.
    #[derive(Clone, Copy, Debug)]
    struct Greedy {
        kernel_ns: u64,
        depth: u64,
        claim: Claim,
    }

    fn greedy(kernel_ns: u64) -> Greedy {
        Greedy { kernel_ns, depth: 2, claim: Claim::default() }
    }

    /// Lets them have a device that does one kernel at a time, in the order in which they were submitted; gives what each got, in nanoseconds.
    fn share(clients: &[Greedy], total_ns: u64) -> Vec<u64> {
        let mut policy = Fairness::default();
        for (client, greedy) in clients.iter().enumerate() {
            policy.contend(client as u64, greedy.claim, 1000);
        }
        let mut got = vec![0; clients.len()];
        let mut queue = std::collections::VecDeque::new();
        let mut queued = vec![0; clients.len()];
        while got.iter().sum::<u64>() < total_ns {
            for (client, greedy) in clients.iter().enumerate() {
                while queued[client] < greedy.depth && policy.ask(client as u64) == Verdict::Go {
                    queue.push_back(client);
                    queued[client] += 1;
                }
            }
            let client: usize = queue.pop_front().expect("somebody may always go on");
            queued[client] -= 1;
            got[client] += clients[client].kernel_ns;
            policy.charge(client as u64, clients[client].kernel_ns);
            if queued[client] == 0 {
                policy.settle(client as u64);
            }
        }
        got
    }

    fn assert_shares(got: &[u64], clients: &[Greedy]) {
        let weigh = |claim: Claim| 1.0 / claim.price() as f64;
        let weights: f64 = clients.iter().map(|client| weigh(client.claim)).sum();
        let total: u64 = got.iter().sum();
        for (&got, client) in got.iter().zip(clients) {
            let fair = total as f64 * weigh(client.claim) / weights;
            let off = (got as f64 - fair).abs() / fair;
            assert!(off < 0.1, "{got} ns of {total}, {fair} would be fair: {clients:?}");
        }
    }

    #[test]
    fn kernels_of_different_lengths_get_equal_time_within_a_second() {
        let clients = [greedy(100 * US), greedy(5_000 * US)];
        assert_shares(&share(&clients, 1_000_000_000), &clients);
        let clients = [greedy(100 * US), greedy(5_000 * US), greedy(20 * US), greedy(1_000 * US)];
        assert_shares(&share(&clients, 1_000_000_000), &clients);
    }

    #[test]
    fn a_client_whose_kernels_are_not_known_yet_is_held_for_one_that_fills_the_device() {
        let mut fairness = Fairness::default();
        fairness.contend(1, Claim::default(), 0);
        assert!(!fairness.is_contest(), "alone");
        fairness.contend(2, Claim::default(), 10);
        assert!(fairness.is_contest());
        fairness.contend(1, Claim::default(), 10);
        assert!(!fairness.is_contest(), "both fit");
    }

    #[test]
    fn time_goes_by_weight_and_rank() {
        let mut clients = [greedy(100 * US), greedy(5_000 * US)];
        clients[0].claim.weight = 3;
        assert_shares(&share(&clients, 1_000_000_000), &clients);
        clients[0].claim = Claim { weight: 1, rank: Rank::BelowNormal };
        let got = share(&clients, 2_000_000_000);
        assert!(got[0] > 0 && got[0] * 6 < got[1], "{got:?}");
    }

    #[test]
    fn who_fits_beside_the_others_never_waits() {
        let mut policy = Fairness::default();
        for client in 0..4 {
            policy.contend(client, Claim::default(), 250);
        }
        for client in (0..4).chain(0..4) {
            assert_eq!(policy.ask(client), Verdict::Go);
            policy.charge(client, 100 * TURN_NS);
        }
    }

    #[test]
    fn who_was_away_is_owed_no_more_than_a_turn() {
        let mut policy = Fairness::default();
        let claim = Claim::default();
        policy.contend(0, claim, 1000);
        policy.contend(1, claim, 1000);
        for _ in 0..100 {
            assert_eq!(policy.ask(0), Verdict::Go);
            policy.charge(0, TURN_NS);
            policy.settle(0);
            assert_eq!(policy.ask(1), Verdict::Go);
            policy.charge(1, TURN_NS);
            policy.settle(1);
        }
        policy.contend(2, claim, 1000);
        let mut turns = [0; 3];
        for _ in 0..12 {
            for client in 0..3 {
                if policy.ask(client) == Verdict::Go {
                    turns[client as usize] += 1;
                    policy.charge(client, TURN_NS);
                    policy.settle(client);
                }
            }
        }
        let total: i32 = turns.iter().sum();
        assert!(turns[2] <= total / 3 + 2, "{turns:?}");
    }

    #[test]
    fn a_turn_that_stands_still_is_left_out() {
        let mut policy = Fairness::default();
        policy.contend(0, Claim::default(), 1000);
        policy.contend(1, Claim::default(), 1000);
        assert_eq!(policy.ask(0), Verdict::Go);
        assert_eq!(policy.ask(1), Verdict::Wait);
        assert_eq!(policy.give_up_on_turn(), Turns::Passed);
        assert_eq!(policy.ask(1), Verdict::Go);
        policy.contend(0, Claim::default(), 1000);
        assert_eq!(policy.ask(0), Verdict::Wait);
    }

    #[test]
    fn nobody_waits_for_who_has_something_else_to_do() {
        let mut policy = Fairness::default();
        policy.contend(0, Claim::default(), 1000);
        policy.contend(1, Claim::default(), 1000);
        assert_eq!(policy.ask(0), Verdict::Go);
        assert_eq!(policy.ask(1), Verdict::Wait);
        assert_eq!(policy.step_aside(0), Turns::Passed);
        assert_eq!((policy.ask(1), policy.holder()), (Verdict::Go, Some(1)));
        assert_eq!(policy.ask(0), Verdict::Wait, "its turn is over, and it is back");
        policy.charge(1, TURN_NS);
        assert_eq!(policy.settle(1), Turns::Passed);
        assert_eq!(policy.ask(0), Verdict::Go);
    }

    #[test]
    fn who_alone_is_at_work_when_a_contest_begins_gets_the_first_turn() {
        let mut policy = Fairness::default();
        policy.contend(0, Claim::default(), 1000);
        policy.submitted(0);
        policy.contend(1, Claim::default(), 1000);
        assert_eq!(policy.ask(1), Verdict::Wait);
        assert_eq!(policy.ask(0), Verdict::Go, "what runs may be waiting for it");
        let mut policy = Fairness::default();
        for client in 0..3 {
            policy.contend(client, Claim::default(), 1000);
        }
        policy.submitted(0);
        policy.submitted(1);
        assert_eq!((policy.ask(0), policy.ask(2)), (Verdict::Wait, Verdict::Wait));
        assert_eq!(policy.settle(1), Turns::Passed);
    }

    proptest! {
        #[test]
        fn any_lengths_depths_and_weights_are_shared_by_weight(
            clients in prop::collection::vec((10u64..5_000, 1u64..4, 1u32..4), 2..6)
        ) {
            let clients: Vec<Greedy> = clients
                .into_iter()
                .map(|(length_us, depth, weight)| Greedy {
                    kernel_ns: length_us * US,
                    depth,
                    claim: Claim { weight, rank: Rank::Normal },
                })
                .collect();
            // Long enough for the smallest share to be many turns.
            assert_shares(&share(&clients, 4_000_000_000), &clients);
        }

        #[test]
        fn whatever_clients_do_somebody_may_go_on(
            acts in prop::collection::vec((0u64..5, 0u8..6, 0u32..1200), 1..300)
        ) {
            let mut policy = Fairness::default();
            let mut in_flight = [false; 5];
            for (client, act, number) in acts {
                let place = client as usize;
                match act {
                    0 => policy.contend(client, Claim::default(), number),
                    1 => {
                        if in_flight[place] {
                            policy.charge(client, u64::from(number) * 10 * US);
                            policy.settle(client);
                        }
                        policy.rest(client);
                        in_flight[place] = false;
                    }
                    2 | 3 => in_flight[place] |= policy.ask(client) == Verdict::Go,
                    _ => {
                        policy.charge(client, u64::from(number) * 10 * US);
                        policy.settle(client);
                        in_flight[place] = false;
                    }
                }
            }
            // Once all work has ended and those that ask no more have said so, whoever asks is served.
            for client in 0..5 {
                policy.settle(client);
            }
            for client in 1..5 {
                policy.rest(client);
            }
            prop_assert_eq!(policy.ask(0), Verdict::Go);
        }
    }
}
