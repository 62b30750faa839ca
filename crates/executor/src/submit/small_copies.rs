//! Small copies go with the launches around them: as nodes of the same chain, by a kernel of the
//! executor's ([`super::own_kernels`]).
//!
//! A program that exchanges a little with its host at each step (a halo, a residual) gives the
//! driver a launch, some copies and a wait, each a submission for which it queues behind others.
//! Here they are one. Only copies of a few bytes between memory of the session's own (what was
//! granted to it, and pinned regions, which the driver maps at the same address), aligned and
//! apart, in calm times; all others are the driver's, as before. Bounds are checked before a copy
//! may wait, so a wrong address is refused by the copy itself, as ever.

use super::batch::Batching;
use super::own_kernels::{COPIER, CopyParameters};
use super::waiting::Admission;
use crate::session::failure::Failure;
use crate::session::state::State;
use link::ring::Command;
use link::wire::command::{Copy, Launch, Opcode};
use zerocopy::{FromBytes, IntoBytes};

impl State {
    /// Keeps a copy that may go together with launches. What holds for launches as well has been
    /// looked at.
    pub(crate) fn admit_copy(&mut self, command: &Command<'_>) -> Admission {
        let Some((copy, _)) = command.parse::<Copy>() else { return Admission::ByItself };
        let Copy { stream, destination, source, size_bytes, .. } = copy;
        let Some(parameters) = CopyParameters::new(destination, source, size_bytes) else {
            return Admission::ByItself;
        };
        let may_wait = self.shared.batching == Batching::On
            && self.batches.has_room_for(stream)
            && self.batches.takes(COPIER)
            && !self.is_traced()
            && self.may_be_delayed()
            && self.may_take_signals()
            && self.memory.is_own(destination, size_bytes)
            && self.memory.is_own(source, size_bytes);
        if !may_wait {
            return Admission::ByItself;
        }
        let position = self.records.position;
        self.batches.add(command.header, parameters.shape(stream), parameters.as_bytes(), position);
        Admission::Waits
    }

    /// Does by itself a copy that waited.
    pub(crate) fn copy_one(&mut self, launch: &Launch, parameters: &[u8]) -> Result<(), Failure> {
        let (copy, _) = CopyParameters::read_from_prefix(parameters)
            .map_err(|_| Failure::Protocol("a copy that waited has no parameters".into()))?;
        self.history().call(Opcode::Copy);
        self.copy(Copy {
            stream: launch.stream,
            reserved: 0,
            destination: copy.destination,
            source: copy.source,
            size_bytes: copy.size_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::session::Step;
    use crate::testbed::{Bed, Client, Takes, refuse_next_graph, submitted, take};
    use cuda_abi::types::CUresult;
    use std::time::Duration;

    /// What a client posts that exchanges a little, and how often that gave the driver something to
    /// do.
    fn exchange(client: &mut Client, [device, host]: [u64; 2], bytes: u64) -> u32 {
        let before = submitted();
        client.post_launch();
        client.post_copy(host, device, bytes);
        client.post_copy(host + 0x1000, device + 0x1000, bytes);
        client.post_next_signal();
        assert_eq!(client.serve(), Step::Nothing);
        submitted() - before
    }

    /// The submissions of one exchange, once all is known and made that it takes.
    fn usual(client: &mut Client, ends: [u64; 2], bytes: u64) -> u32 {
        (1..64).map(|_| exchange(client, ends, bytes)).last().unwrap()
    }

    /// Until an exchange is one submission: whether kernels last is not known at first, and so
    /// nothing is calm.
    fn get_used_to(client: &mut Client, ends: [u64; 2]) {
        let began = std::time::Instant::now();
        while usual(client, ends, 2048) > 1 {
            assert!(began.elapsed() < std::time::Duration::from_secs(60));
        }
    }

    #[test]
    fn a_launch_two_copies_and_a_wait_are_one_submission() {
        let bed = Bed::new();
        let mut client = bed.open();
        let ends = client.some_memory();
        get_used_to(&mut client, ends);
        let counters = &bed.shared.counters;
        let before = counters.read(0);
        exchange(&mut client, ends, 2048);
        let after = counters.read(0);
        assert_eq!(after.kernels - before.kernels, 1, "copies are no kernels");
        assert_eq!(after.copied_bytes - before.copied_bytes, 2 * 2048);
        assert_eq!(after.chained_copies - before.chained_copies, 2);
        assert_eq!(after.chained_signals - before.chained_signals, 1);
        assert_eq!(usual(&mut client, ends, 1 << 20), 4, "large ones are the driver's");
        assert_eq!(usual(&mut client, ends, 2047), 4);
        let [device, host] = ends;
        assert_eq!(usual(&mut client, [device + 2, host], 2048), 4, "not aligned");
        assert_eq!(usual(&mut client, [device, device + 16], 2048), 4, "ends overlap");
    }

    #[test]
    fn a_node_gets_no_more_parameters_than_it_was_made_with() {
        // The driver of a test that writes ends it otherwise.
        take(Takes { between_events_ms: 0.001, launch: Duration::ZERO });
        let bed = Bed::new();
        let mut client = bed.open();
        let ends = client.some_memory();
        get_used_to(&mut client, ends);
        assert!(bed.shared.counters.read(0).chained_copies > 0);
    }

    #[test]
    fn copies_that_do_not_go_with_the_signal_count_once() {
        let bed = Bed::new();
        let mut client = bed.open();
        let ends = client.some_memory();
        get_used_to(&mut client, ends);
        let before = bed.shared.counters.read(0);
        refuse_next_graph();
        assert!(exchange(&mut client, ends, 2048) > 1, "the driver had no memory for all together");
        let after = bed.shared.counters.read(0);
        assert_eq!(after.copied_bytes - before.copied_bytes, 2 * 2048);
        assert_eq!(after.kernels - before.kernels, 1);
    }

    #[test]
    fn a_copy_of_what_is_not_the_clients_fails_as_it_does_alone() {
        let bed = Bed::new();
        let mut client = bed.open();
        let ends = client.some_memory();
        get_used_to(&mut client, ends);
        let [device, host] = ends;
        client.post_launch();
        client.post_copy(host, device, 2048);
        client.post_copy(host, device + (1 << 40), 2048);
        client.post_launch();
        assert_eq!(client.serve(), Step::Nothing);
        let error = client.session.state().handle.memory.error();
        assert_eq!(CUresult(error), CUresult::ERROR_INVALID_VALUE);
    }
}
