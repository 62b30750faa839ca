//! Sessions that take turns, each served from the test's own thread.

use super::super::session::Step;
use super::super::testbed::{Bed, Client, end_at_once};
use super::*;

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
    end_at_once(false);
    for client in [&mut company, &mut holder, &mut third] {
        assert_eq!(launch(client), Step::Nothing);
    }
    end_at_once(true);
    rest(&mut third);
    end_at_once(false);
    assert_eq!(launch(&mut holder), Step::Nothing, "it alone is at work");
    assert!(holder.session.state().pacing.has_turn);
    end_at_once(true);
    assert_eq!(launch(&mut quick), Step::Nothing);
    assert!(quick.session.state().pacing.contends && quick.session.state().pacing.marks.is_empty());
    assert_eq!(launch(&mut quick), Step::Held);
    let id = holder.session.state().handle.id;
    bed.shared.pace.change(|fairness| {
        fairness.charge(id, crate::policy::fairness::TURN_NS);
        Turns::Unchanged
    });
    rest(&mut holder);
    assert_eq!(quick.serve(), Step::Nothing, "that turn is over");
}

#[test]
fn a_launch_gets_past_work_that_is_overdue() {
    let bed = Bed::new();
    let (mut company, mut endless) = (bed.open(), bed.open());
    end_at_once(false);
    assert_eq!(launch(&mut company), Step::Nothing);
    for _ in 0..IN_COMPANY.launches {
        assert_eq!(launch(&mut endless), Step::Nothing);
    }
    assert_eq!(launch(&mut endless), Step::Held);
    endless.session.state().pacing.waited = 2 * PATIENCE;
    assert_eq!(endless.serve(), Step::Nothing, "it may be what they wait for");
    assert_eq!(launch(&mut endless), Step::Held, "it was not");
    endless.session.state().pacing.waited = 8 * PATIENCE;
    assert_eq!(endless.serve(), Step::Nothing);
    end_at_once(true);
}

#[test]
fn a_command_that_takes_long_is_known_to_those_who_wait_for_a_turn() {
    let bed = Bed::new();
    let (mut company, mut holder, mut other) = (bed.open(), bed.open(), bed.open());
    end_at_once(false);
    for client in [&mut company, &mut holder, &mut other] {
        assert_eq!(launch(client), Step::Nothing);
    }
    end_at_once(true);
    rest(&mut other);
    assert_eq!(launch(&mut other), Step::Held);
    // The holder's thread does something else, and does not see that its work has ended.
    holder.session.state().step_away();
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(other.serve(), Step::Nothing);
    holder.session.state().come_back();
}
