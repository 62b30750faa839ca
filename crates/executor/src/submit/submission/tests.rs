//! What holds for all kinds of work.

use crate::session::Step;
use crate::testbed::{
    Bed, CODE_WITH_VARIABLE, Client, Takes, Work as Ends, load_of, refuse_next_graph, set_work,
    submitted, take,
};
use link::wire::array::{ArrayCopy, ArrayEnd};
use link::wire::command::{GlobalGet, GlobalGetReply, Opcode, StreamWriteValue};
use link::wire::graph::{DescriptionWriter, GraphCreate, GraphLaunch};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How often a launch for which its client waits gave the driver something to do.
fn round(client: &mut Client) -> u32 {
    let before = submitted();
    client.post_launch();
    client.post_next_signal();
    assert_eq!(client.serve(), Step::Nothing);
    submitted() - before
}

#[test]
fn what_is_waited_for_has_ended_whatever_it_is() {
    let bed = Bed::new();
    let mut client = bed.open();
    let description = DescriptionWriter::default().finish().unwrap();
    client.session.state().make_graph(GraphCreate::default(), &description).unwrap();
    // Completion words are written, and no event is ever reached: nothing is learned of the graph,
    // so that it is taken to last.
    take(Takes { between_events_ms: 0.001, launch: Duration::ZERO });
    set_work(Ends::Lasts);
    for time in 0..100 {
        client.post(Opcode::GraphLaunch, GraphLaunch { graph: 0, stream: 0 }.as_bytes());
        client.post_next_signal();
        assert_eq!(client.serve(), Step::Nothing, "it is not held, time {time}");
    }
}

#[test]
fn a_signal_goes_behind_launches_that_the_driver_refused_to_take_with_it() {
    let bed = Bed::new();
    let mut client = bed.open();
    let began = Instant::now();
    while round(&mut client) > 1 {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    refuse_next_graph();
    assert_eq!(round(&mut client), 2, "the launch, and the signal behind it");
    assert_eq!(client.session.state().handle.memory.error(), 0);
    assert_eq!(round(&mut client), 1, "together again");
}

#[test]
fn whatever_writes_to_memory_may_change_variables() {
    let bed = Bed::new();
    let mut client = bed.open();
    let [_, memory] = client.some_memory();
    let state = client.session.state();
    state.load_image(load_of(1, CODE_WITH_VARIABLE), CODE_WITH_VARIABLE.to_vec(), None).unwrap();
    state.reply.clear();
    state.global_get(GlobalGet { module: 1, name_bytes: 1 }, b"x").unwrap();
    let GlobalGetReply { address, .. } = GlobalGetReply::read_from_bytes(&state.reply).unwrap();
    let end = |address| ArrayEnd { address, pitch_bytes: 8, rows: 1, ..Default::default() };
    let copy = ArrayCopy {
        destination: end(address),
        source: end(memory),
        width_bytes: 8,
        height: 1,
        depth: 1,
        ..Default::default()
    };
    let write = StreamWriteValue { value_bytes: 8, address, ..Default::default() };
    for (opcode, body) in
        [(Opcode::ArrayCopy, copy.as_bytes()), (Opcode::StreamWriteValue, write.as_bytes())]
    {
        client.post(opcode, body);
        assert_eq!(client.serve(), Step::Nothing);
        let state = client.session.state();
        assert_eq!(state.handle.memory.error(), 0);
        assert_eq!(state.modules.changed(), [1], "{opcode:?}");
        state.modules.values(1).unwrap().changed = false;
    }
}
