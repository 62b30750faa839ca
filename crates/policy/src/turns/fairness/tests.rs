//! What clients may do, one act after the other.

use super::*;
use proptest::prelude::*;

const US: u64 = 1_000;

/// Kernels that fill so much of the device, and last.
pub(super) fn lasting(footprint: u32) -> Demand {
    Demand { room: Room::anywhere(footprint), kernels: Kernels::Lasting }
}

/// So much, seen with nobody else there.
pub(super) fn busy(ns: u64) -> Busy {
    Busy { measured_ns: ns, estimated_ns: ns }
}

#[test]
fn a_client_whose_kernels_are_not_known_yet_is_held_for_one_that_fills_the_device() {
    let mut fairness = Fairness::default();
    fairness.contend(1, Claim::default(), lasting(0));
    assert!(!fairness.is_contest(), "alone");
    fairness.contend(2, Claim::default(), lasting(10));
    assert!(fairness.is_contest());
    fairness.contend(1, Claim::default(), lasting(10));
    assert!(!fairness.is_contest(), "both fit");
}

#[test]
fn who_fits_beside_the_others_never_waits() {
    let mut policy = Fairness::default();
    for client in 0..4 {
        policy.contend(client, Claim::default(), lasting(250));
    }
    for client in (0..4).chain(0..4) {
        assert_eq!(policy.ask(client), Verdict::Go);
        policy.charge(client, busy(100 * TURN_NS));
    }
}

#[test]
fn who_was_away_is_owed_no_more_than_a_turn() {
    let mut policy = Fairness::default();
    let claim = Claim::default();
    policy.contend(0, claim, lasting(1000));
    policy.contend(1, claim, lasting(1000));
    for _ in 0..100 {
        assert_eq!(policy.ask(0), Verdict::Go);
        policy.charge(0, busy(TURN_NS));
        policy.settle(0);
        assert_eq!(policy.ask(1), Verdict::Go);
        policy.charge(1, busy(TURN_NS));
        policy.settle(1);
    }
    policy.contend(2, claim, lasting(1000));
    let mut turns = [0; 3];
    for _ in 0..12 {
        for client in 0..3 {
            if policy.ask(client) == Verdict::Go {
                turns[client as usize] += 1;
                policy.charge(client, busy(TURN_NS));
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
    policy.contend(0, Claim::default(), lasting(1000));
    policy.contend(1, Claim::default(), lasting(1000));
    assert_eq!(policy.ask(0), Verdict::Go);
    assert_eq!(policy.ask(1), Verdict::Wait);
    policy.give_up_on(0);
    assert_eq!(policy.ask(1), Verdict::Go);
    policy.contend(0, Claim::default(), lasting(1000));
    assert_eq!(policy.ask(0), Verdict::Wait);
}

#[test]
fn nobody_waits_for_who_has_something_else_to_do() {
    let mut policy = Fairness::default();
    policy.contend(0, Claim::default(), lasting(1000));
    policy.contend(1, Claim::default(), lasting(1000));
    assert_eq!(policy.ask(0), Verdict::Go);
    assert_eq!(policy.ask(1), Verdict::Wait);
    policy.step_aside(0);
    assert_eq!(policy.take_served(), [0, 1]);
    assert_eq!(policy.ask(1), Verdict::Go);
    assert_eq!(policy.ask(0), Verdict::Wait, "its turn is over, and it is back");
    policy.charge(1, busy(TURN_NS));
    policy.settle(1);
    assert_eq!(policy.ask(0), Verdict::Go);
}

#[test]
fn who_alone_is_at_work_when_a_contest_begins_gets_the_first_turn() {
    let mut policy = Fairness::default();
    policy.contend(0, Claim::default(), lasting(1000));
    policy.submitted(0);
    policy.contend(1, Claim::default(), lasting(1000));
    assert_eq!(policy.ask(1), Verdict::Wait);
    assert_eq!(policy.ask(0), Verdict::Go, "what runs may be waiting for it");
    let mut policy = Fairness::default();
    for client in 0..3 {
        policy.contend(client, Claim::default(), lasting(1000));
    }
    policy.submitted(0);
    policy.submitted(1);
    assert_eq!((policy.ask(0), policy.ask(2)), (Verdict::Wait, Verdict::Wait));
    policy.settle(1);
}

#[test]
fn short_kernels_are_no_contest_until_one_client_has_others() {
    let mut policy = Fairness::default();
    let short = Demand { room: Room::anywhere(ALL), kernels: Kernels::Short };
    for client in 0..8 {
        policy.contend(client, Claim::default(), short);
    }
    assert!((0..8).all(|client| policy.ask(client) == Verdict::Go) && !policy.is_contest());
    policy.contend(8, Claim::default(), lasting(ALL));
    assert!(policy.is_contest());
    assert_eq!(policy.ask(8), Verdict::Wait, "there is work of all others");
    policy.leave(8);
    assert!(!policy.is_contest());
    policy.contend(0, Claim { weight: 3, rank: Rank::Normal }, short);
    assert!(policy.is_contest(), "it is due more than the driver would give it");
}

proptest! {
    #[test]
    fn whatever_clients_do_somebody_may_go_on(
        acts in prop::collection::vec((0u64..5, 0u8..6, 0u32..1200), 1..300)
    ) {
        let mut policy = Fairness::default();
        let mut in_flight = [false; 5];
        for (client, act, number) in acts {
            let place = client as usize;
            match act {
                0 => policy.contend(client, Claim::default(), lasting(number)),
                1 => {
                    if in_flight[place] {
                        policy.charge(client, busy(u64::from(number) * 10 * US));
                        policy.settle(client);
                    }
                    policy.rest(client);
                    in_flight[place] = false;
                }
                2 | 3 => in_flight[place] |= policy.ask(client) == Verdict::Go,
                _ => {
                    policy.charge(client, busy(u64::from(number) * 10 * US));
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
