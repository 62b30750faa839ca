//! Sessions that take turns, each served from the test's own thread.

use super::looks::{PATIENCE, UNASKED};
use super::*;
use crate::session::Step;
use crate::testbed::{Bed, Client, Takes, Work, set_work, submitted, take};
use policy::turns::fairness::Busy;

/// Launches a kernel of which nothing is known, so that it is taken to last.
fn launch(client: &mut Client) -> Step {
    client.post_launch();
    client.serve()
}

/// Looks at the marks, as a session's thread does that has nothing to do.
fn rest(client: &mut Client) {
    client.session.state().pace_idle(Duration::ZERO);
}

#[test]
fn what_has_ended_when_its_session_begins_to_contend_is_not_waited_for() {
    let bed = Bed::new();
    let (mut company, mut holder, mut third, mut quick) =
        (bed.open(), bed.open(), bed.open(), bed.open());
    set_work(Work::Lasts);
    for client in [&mut company, &mut holder, &mut third] {
        assert_eq!(launch(client), Step::Nothing);
    }
    set_work(Work::EndsAtOnce);
    rest(&mut third);
    set_work(Work::Lasts);
    assert_eq!(launch(&mut holder), Step::Nothing, "it alone is at work");
    assert!(holder.session.state().pacing.is_alone);
    set_work(Work::EndsAtOnce);
    assert_eq!(launch(&mut quick), Step::Nothing);
    assert!(quick.session.state().pacing.contends && quick.session.state().pacing.marks.is_empty());
    assert_eq!(launch(&mut quick), Step::Held);
    let id = holder.session.state().handle.id;
    bed.shared.pace.change(|fairness| {
        let turn_ns = policy::turns::fairness::TURN_NS;
        fairness.charge(id, Busy { measured_ns: turn_ns, estimated_ns: turn_ns });
    });
    rest(&mut holder);
    assert_eq!(quick.serve(), Step::Nothing, "that turn is over");
}

#[test]
fn a_launch_gets_past_work_that_is_overdue() {
    let bed = Bed::new();
    let (mut company, mut endless) = (bed.open(), bed.open());
    set_work(Work::Lasts);
    assert_eq!(launch(&mut company), Step::Nothing);
    for _ in 0..IN_COMPANY.launches {
        assert_eq!(launch(&mut endless), Step::Nothing);
    }
    assert_eq!(launch(&mut endless), Step::Held);
    endless.session.state().pacing.looks.waited = 2 * PATIENCE;
    assert_eq!(endless.serve(), Step::Nothing, "it may be what they wait for");
    assert_eq!(launch(&mut endless), Step::Held, "it was not");
    endless.session.state().pacing.looks.waited = 8 * PATIENCE;
    assert_eq!(endless.serve(), Step::Nothing);
    set_work(Work::EndsAtOnce);
}

#[test]
fn a_command_that_takes_long_is_known_to_those_who_wait_for_a_turn() {
    let bed = Bed::new();
    let (mut company, mut holder, mut other) = (bed.open(), bed.open(), bed.open());
    set_work(Work::Lasts);
    for client in [&mut company, &mut holder, &mut other] {
        assert_eq!(launch(client), Step::Nothing);
    }
    set_work(Work::EndsAtOnce);
    rest(&mut other);
    assert_eq!(launch(&mut other), Step::Held);
    // The holder's thread does something else, and does not see that its work has ended.
    holder.session.state().step_away();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(other.serve(), Step::Nothing);
    holder.session.state().come_back();
}

#[test]
fn a_thread_with_nothing_to_submit_looks_seldom_unless_others_wait_for_its_turns_end() {
    let bed = Bed::new();
    let mut clients: Vec<Client> = (0..4).map(|_| bed.open()).collect();
    let mut wide = bed.open();
    for client in &mut clients {
        // A large device, on which all their kernels have room.
        client.session.state().pacing.extent.multiprocessors = 132;
    }
    set_work(Work::Lasts);
    for client in &mut clients {
        assert_eq!(launch(client), Step::Nothing);
    }
    let next_look = |client: &mut Client| client.session.state().pace_idle(Duration::MAX);
    for client in &mut clients {
        assert_eq!(next_look(client), UNASKED, "it is in nobody's way");
        assert!(client.session.state().pacing.contends && !client.session.state().is_looked_for());
    }
    assert_eq!(launch(&mut wide), Step::Nothing);
    for client in &mut clients {
        assert!(client.session.state().is_looked_for(), "it is woken");
        assert!(next_look(client) < UNASKED / 8, "another one waits for its end");
    }
    set_work(Work::EndsAtOnce);
}

/// How often eight clients have given the driver something to do, each for a launch for which it
/// waits.
fn round(clients: &mut [Client], value: u64) -> u32 {
    let before = submitted();
    for client in clients {
        client.post_launch();
        client.post_signal(value);
        assert_eq!(client.serve(), Step::Nothing, "nobody is held");
        let in_flight = client.session.state().pacing.marks.in_flight();
        assert!(in_flight.cost_ns < 2 * UNKNOWN_NS, "what is waited for has ended: {in_flight:?}");
    }
    submitted() - before
}

#[test]
fn clients_that_wait_get_one_submission_each_although_the_driver_is_contended() {
    let bed = Bed::new();
    let mut clients: Vec<Client> = (0..8).map(|_| bed.open()).collect();
    for client in &mut clients {
        // A large device, on which all their kernels have room.
        client.session.state().pacing.extent.multiprocessors = 132;
    }
    // What lies between the events of a short kernel is the time in which the driver accepts it.
    take(Takes { between_events_ms: 0.025, launch: Duration::from_micros(12) });
    let began = Instant::now();
    let mut rounds = 0;
    let contend = |clients: &mut [Client]| {
        clients.iter_mut().any(|client| client.session.state().pacing.contends)
    };
    while round(&mut clients, rounds + 1) > 8 || !bed.shared.pace.is_calm() || contend(&mut clients)
    {
        rounds += 1;
        assert!(began.elapsed() < Duration::from_secs(60), "{rounds} rounds");
    }
    println!("all together after {rounds} rounds, {:?}", began.elapsed());
    for _ in 0..2000 {
        rounds += 1;
        assert_eq!(round(&mut clients, rounds + 1), 8, "in round {rounds}");
        for client in &mut clients {
            let in_flight = client.session.state().pacing.marks.in_flight();
            assert!(in_flight.cost_ns < IN_COMPANY.cost_ns / MARKS, "no marks: {in_flight:?}");
        }
    }
}
