use super::*;
use crate::session::Step;
use crate::testbed::{Bed, Client, submitted};
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

#[test]
fn a_piece_is_a_power_of_two() {
    assert_eq!([0, 1, 2, 3, 19, 32].map(piece), [0, 1, 2, 2, 16, 32]);
}

#[test]
fn what_begins_a_burst_goes_and_the_rest_waits_as_it_was() {
    let bed = Bed::new();
    let mut client = bed.open();
    let state = client.session.state();
    for index in 0..7 {
        let launch = Launch { grid: [1; 3], block: [32, 1, 1], ..Launch::new_zeroed() };
        let header = Header { call_slot: NO_CALL, ..Header::new_zeroed() };
        let parameters = vec![index; 8 * usize::from(index)];
        state.batches.add(header, launch, &parameters, 64 * u64::from(index));
    }
    let before = submitted();
    let (refused, position) = state.submit_beginning();
    assert!(refused.is_empty());
    assert_eq!(position, Some(64 * 3));
    assert_eq!(submitted() - before, 4, "there is no chain yet");
    let left = state.with_waiting(|_, all| {
        all.iter().map(|(_, parameters)| parameters.to_vec()).collect::<Vec<_>>()
    });
    assert_eq!(left, [4, 5, 6].map(|index| vec![index; 8 * usize::from(index)]));
    state.submit_batch();
    assert!(state.batch_is_empty());
    assert_eq!(submitted() - before, 7);
}

#[test]
fn a_lone_launch_goes_at_once_and_nearly_never_with_a_look_for_a_signal_that_did_not_come() {
    const LAUNCHES: u32 = 10_000;
    let bed = Bed::new();
    let mut client = bed.open();
    let launch = |client: &mut Client| {
        let before = submitted();
        client.post_launch();
        assert_eq!(client.serve(), Step::Nothing);
        assert!(client.session.state().batch_is_empty());
        assert!(submitted() > before);
    };
    // Whether kernels last is not known at first, and what is not calm has no looks.
    let began = Instant::now();
    while client.session.nearness().looks() == 0 {
        launch(&mut client);
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    (0..LAUNCHES).for_each(|_| launch(&mut client));
    let looks = client.session.nearness().looks();
    // The first eight ever more rarely, then one in 256.
    assert!(looks <= 8 + LAUNCHES / 256, "{looks} looks");
}
