//! What launches cost the executor, in instructions of its own code. A count that is a tenth above
//! or below what is stored here is an error: see CONTRIBUTING.md.
//!
//! Other libraries' instructions are left out, since they differ between machines. The client's
//! side of a launch is in `tests/tests/instructions.rs`.

use super::session::Step;
use super::testbed::{Bed, Client, submitted};
use executor_link::standing::Standing;
use instruction_counts::{Code, Stored};
use link::wire::command::{Opcode, StreamCreate};
use rustix::fd::AsFd;
use zerocopy::IntoBytes;

/// Launches that wait together: a full batch.
const TOGETHER: u64 = crate::submit::waiting::MOST_WAITING as u64;
/// Until chains are made, and what kernels cost is known.
const BEFORE: usize = 40;
/// The round with the fewest counts. A trap takes microseconds, on some virtual machines some
/// twenty.
const ROUNDS: usize = 3;

/// Of the test build, for each launch.
const LAUNCH_OF_A_BATCH: Stored = Stored {
    what: "a launch of a batch",
    instructions: 1543,
    why: "copies may go between the launches of a chain; traces, guard, repeatable work and variables are a test each",
};
const LAUNCH_WITH_ITS_SIGNAL: Stored = Stored {
    what: "a launch with its signal",
    instructions: 4502,
    why: "copies may go between the launches of a chain; a commit before a signalled launch",
};
/// Of this, for each command, what is for the next executor.
const STANDING: Stored = Stored {
    what: "where a session stands, for a launch",
    instructions: 44,
    why: "the next executor finds where each command stood; 6 are the loop of the test",
};

/// How many instructions of this program `act` takes, and what it returned.
fn count<T>(act: impl FnOnce() -> T) -> (u64, T) {
    let this_program = Code::around(assert_stored as *const ()).unwrap();
    instruction_counts::count(&this_program, act).unwrap_or_else(|error| panic!("{error}"))
}

/// The fewest instructions in which what `post` posts is done, and how much it gave the driver to
/// do.
fn fewest(client: &mut Client, mut post: impl FnMut(&mut Client)) -> (u64, u32) {
    for _ in 0..BEFORE {
        post(client);
        assert_eq!(client.serve(), Step::Nothing, "it waits");
    }
    let mut round = || {
        post(client);
        let before = submitted();
        let (instructions, step) = count(|| client.serve());
        assert_eq!(step, Step::Nothing, "it waits");
        (instructions, submitted() - before)
    };
    (0..ROUNDS).map(|_| round()).min().unwrap()
}

#[track_caller]
fn assert_stored(stored: Stored, counted: u64) {
    stored.check(counted).unwrap_or_else(|change| panic!("{change}"));
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "what is stored was counted in the test build")]
fn launches_take_the_instructions_that_are_stored() {
    let bed = Bed::new();
    let mut client = bed.open();
    let (all, submissions) = fewest(&mut client, |client| {
        (0..TOGETHER).for_each(|_| client.post_launch());
    });
    assert_eq!(submissions, 1, "they go together");
    assert_stored(LAUNCH_OF_A_BATCH, all / TOGETHER);
    let mut value = 0;
    let (both, submissions) = fewest(&mut client, |client| {
        value += 1;
        client.post_launch();
        client.post_signal(value);
    });
    assert_eq!(submissions, 1, "the signal goes with it");
    assert_stored(LAUNCH_WITH_ITS_SIGNAL, both);
}

#[test]
fn launches_and_waits_write_no_journal_and_tell_the_keeper_nothing() {
    const ROUNDS: u64 = 200;
    let bed = Bed::new();
    let mut client = bed.open();
    let rounds = |client: &mut Client, from: u64| {
        for value in from..from + ROUNDS {
            // What `infer` does: launches, some of which find others in the ring, and a wait.
            (0..20).for_each(|_| client.post_launch());
            client.post_signal(value);
            assert_eq!(client.serve(), Step::Nothing, "it waits");
        }
    };
    rounds(&mut client, 1);
    bed.told_keeper();
    let written = client.session.state().records.journal_bytes();
    rounds(&mut client, 1 + ROUNDS);
    assert_eq!(client.session.state().records.journal_bytes(), written);
    assert_eq!(bed.told_keeper(), 0);
    // What is to be made again is written down.
    let stream = StreamCreate { stream: 1, ..Default::default() };
    client.post(Opcode::StreamCreate, stream.as_bytes());
    assert_eq!(client.serve(), Step::Nothing);
    assert!(client.session.state().records.journal_bytes() > written);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "what is stored was counted in the test build")]
fn where_a_session_stands_is_a_few_words_for_each_command() {
    const TIMES: u64 = 100;
    let file = Standing::create_file().unwrap();
    let standing = Standing::map(file.as_fd()).unwrap();
    let all = || {
        for position in (1..=TIMES).map(|time| 16 * time) {
            standing.begin(Opcode::Launch as u16);
            standing.note_submitted(0);
            standing.commit(position);
        }
    };
    let (instructions, ()) = count(all);
    assert_stored(STANDING, instructions / TIMES);
}
