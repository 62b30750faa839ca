use super::*;
use crate::executor::testbed::{Bed, submitted};
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
