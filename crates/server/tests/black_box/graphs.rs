//! Executable graphs of hostile and of unlucky clients.

use super::fake_client::*;
use cuda_abi::types::CUresult;
use link::wire::command::{self as wire, Opcode};
use link::wire::graph::{
    DescriptionWriter, GraphCreate, GraphLaunch, GraphSet, MAX_DESCRIPTION_BYTES, write_node,
};
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    (
        "a_refused_change_leaves_the_graph_and_the_session",
        a_refused_change_leaves_the_graph_and_the_session,
    ),
    ("a_description_without_bounds_is_not_read", a_description_without_bounds_is_not_read),
];

fn fill(destination: u64, value: u32) -> wire::Fill {
    wire::Fill { element_bytes: 4, destination, width: 16, height: 1, value, ..Default::default() }
}

fn a_refused_change_leaves_the_graph_and_the_session() {
    let mut server = Server::start();
    let mut client = server.client();
    let region = client.pinned(4096);
    let grant = client.grow(4096);
    let mut writer = DescriptionWriter::default();
    let node = writer.add(Opcode::Fill, &[fill(grant.address, 5).as_bytes()]);
    let bytes = writer.finish().unwrap();
    client.host_bytes(region, bytes.len()).copy_from_slice(&bytes);
    let graph = 3;
    let create = GraphCreate {
        graph,
        flags: 0,
        address: region,
        size_bytes: bytes.len() as u64,
        ..Default::default()
    };
    assert_eq!(client.try_call(Opcode::GraphCreate, &[create.as_bytes()]).0, 0);
    for (destination, value, refusal) in
        [(0x1234, 6, CUresult::ERROR_INVALID_VALUE), (grant.address, 7, CUresult::SUCCESS)]
    {
        let mut changed = Vec::new();
        write_node(&mut changed, Opcode::Fill, &[fill(destination, value).as_bytes()]);
        let set = GraphSet { graph, node };
        client.post(Opcode::GraphSet, &[set.as_bytes(), &changed]);
        let launch = GraphLaunch { graph, stream: 0 };
        client.post(Opcode::GraphLaunch, &[launch.as_bytes()]);
        client.copy(0, region, grant.address, 64);
        client.finish(0).unwrap();
        assert_eq!(client.memory.take_refusal(), refusal.0);
        let expected = if refusal == CUresult::SUCCESS { value } else { 5 };
        let (words, _) = client.host_bytes(region, 64).as_chunks::<4>();
        assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == expected), "{words:?}");
    }
}

fn a_description_without_bounds_is_not_read() {
    let mut server = Server::start();
    let mut client = server.client();
    let size_bytes = MAX_DESCRIPTION_BYTES + 4096;
    let address = client.pinned(size_bytes);
    let create = GraphCreate { graph: 1, flags: 0, address, size_bytes, ..Default::default() };
    let (status, _) = client.try_call(Opcode::GraphCreate, &[create.as_bytes()]);
    assert_eq!(status, CUresult::ERROR_INVALID_VALUE.0);
}
