//! What holds for all kinds of work.

use crate::session::Step;
use crate::testbed::{
    Bed, CODE_WITH_VARIABLE, Client, Takes, Work as Ends, load_of, refuse_next_graph, set_work,
    submitted, take,
};
use link::wire::array::{ArrayCopy, ArrayEnd};
use link::wire::command::{
    Copy, Copy3d, Fill, GlobalGet, GlobalGetReply, Opcode, StreamWriteValue,
};
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

/// A client that has the address of the variable of its module 1, that address, and memory.
fn client_with_address(bed: &Bed) -> (Client, u64, u64) {
    let mut client = bed.open();
    let [_, memory] = client.some_memory();
    let state = client.session.state();
    state.load_image(load_of(1, CODE_WITH_VARIABLE), CODE_WITH_VARIABLE.to_vec(), None).unwrap();
    state.reply.clear();
    state.global_get(GlobalGet { module: 1, name_bytes: 1 }, b"x").unwrap();
    let GlobalGetReply { address, .. } = GlobalGetReply::read_from_bytes(&state.reply).unwrap();
    (client, address, memory)
}

/// All that writes `bytes` bytes in `to`, some of it by what is in `from`.
fn writes(to: u64, from: u64, bytes: u32) -> Vec<(Opcode, Vec<u8>)> {
    let size_bytes = u64::from(bytes);
    let copy = Copy { destination: to, source: from, size_bytes, ..Default::default() };
    let box_copy = Copy3d {
        destination: to,
        source: from,
        width_bytes: size_bytes,
        height: 1,
        depth: 1,
        ..Default::default()
    };
    let fill = Fill {
        element_bytes: 1,
        destination: to,
        width: size_bytes,
        height: 1,
        ..Default::default()
    };
    let end = |address| ArrayEnd { address, pitch_bytes: 8, rows: 1, ..Default::default() };
    let array_copy = ArrayCopy {
        destination: end(to),
        source: end(from),
        width_bytes: size_bytes,
        height: 1,
        depth: 1,
        ..Default::default()
    };
    let write = StreamWriteValue { value_bytes: bytes, address: to, ..Default::default() };
    vec![
        (Opcode::Copy, copy.as_bytes().to_vec()),
        (Opcode::Copy3d, box_copy.as_bytes().to_vec()),
        (Opcode::Fill, fill.as_bytes().to_vec()),
        (Opcode::ArrayCopy, array_copy.as_bytes().to_vec()),
        (Opcode::StreamWriteValue, write.as_bytes().to_vec()),
    ]
}

/// Has each done; `changed` are the modules whose variables it may have changed.
fn each_changes(client: &mut Client, writes: Vec<(Opcode, Vec<u8>)>, changed: &[u32]) {
    for (opcode, body) in writes {
        client.post(opcode, &body);
        assert_eq!(client.serve(), Step::Nothing);
        let state = client.session.state();
        assert_eq!(state.handle.memory.error(), 0, "{opcode:?}");
        assert_eq!(state.modules.changed(), changed, "{opcode:?}");
        assert_eq!(state.standing.has_unsaved(), !changed.is_empty(), "{opcode:?}");
        state.save_variables();
        assert!(!state.standing.has_unsaved());
    }
}

#[test]
fn whatever_writes_to_variables_changes_them() {
    let bed = Bed::new();
    let (mut client, variable, memory) = client_with_address(&bed);
    each_changes(&mut client, writes(variable, memory, 8), &[1]);
    each_changes(&mut client, writes(variable + 4, memory, 4), &[1]);
}

#[test]
fn what_reads_variables_or_writes_elsewhere_leaves_them_as_they_are() {
    let bed = Bed::new();
    let (mut client, variable, memory) = client_with_address(&bed);
    each_changes(&mut client, writes(memory, variable, 8), &[]);
    each_changes(&mut client, writes(memory, memory + 64, 8), &[]);
}

#[test]
fn any_kernel_may_change_a_variable_whose_address_the_client_has() {
    let bed = Bed::new();
    let (mut client, ..) = client_with_address(&bed);
    // Its kernel is another module's, but may be told where the variable is.
    client.post_launch();
    assert_eq!(client.serve(), Step::Nothing);
    let state = client.session.state();
    assert_eq!(state.modules.changed(), [1]);
    assert!(state.standing.has_unsaved());
}
