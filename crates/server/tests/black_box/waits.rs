//! Streams that wait for values, callers that wait for streams, and what other commands may do
//! meanwhile.

use super::fake_client::*;
use super::promises::{PTX, parameters};
use link::wire::command::{self as wire, Opcode};
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    ("every_stream_that_waits_is_looked_at", every_stream_that_waits_is_looked_at),
    (
        "streams_come_and_go_while_the_legacy_stream_waits",
        streams_come_and_go_while_the_legacy_stream_waits,
    ),
    ("a_caller_outlives_the_stream_it_waits_for", a_caller_outlives_the_stream_it_waits_for),
    ("memory_may_go_while_a_stream_waits_for_it", memory_may_go_while_a_stream_waits_for_it),
];

const NON_BLOCKING: u32 = 1;

fn create(client: &mut Client, stream: u32, flags: u32) {
    let body = wire::StreamCreate { stream, flags, ..Default::default() };
    client.post(Opcode::StreamCreate, &[body.as_bytes()]);
}

/// Makes a stream wait until the word at `address` is 1.
fn wait_value(client: &mut Client, stream: u32, address: u64) {
    const EQUAL: u32 = 1;
    let body = wire::StreamWriteValue {
        stream,
        value_bytes: 4,
        address,
        value: 1,
        flags: EQUAL,
        reserved: 0,
    };
    client.post(Opcode::StreamWaitValue, &[body.as_bytes()]);
}

fn fill(client: &mut Client, stream: u32, destination: u64, value: u32) {
    let body = wire::Fill {
        stream,
        element_bytes: 4,
        destination,
        width: 1,
        height: 1,
        value,
        ..Default::default()
    };
    client.post(Opcode::Fill, &[body.as_bytes()]);
}

/// Several values in device memory: one that does not come must not hide another.
fn every_stream_that_waits_is_looked_at() {
    let mut server = Server::start();
    let mut client = server.client();
    let grant = client.grow(4096);
    let word = |stream: u32| grant.address + u64::from(stream) * 256;
    for stream in 1..=4 {
        create(&mut client, stream, NON_BLOCKING);
        fill(&mut client, stream, word(stream), 0);
        client.finish(stream).unwrap();
    }
    for stream in 1..=3 {
        wait_value(&mut client, stream, word(stream));
    }
    for stream in [3, 1, 2] {
        fill(&mut client, 4, word(stream), 1);
        client.finish(stream).unwrap();
    }
}

fn streams_come_and_go_while_the_legacy_stream_waits() {
    let mut server = Server::start();
    let mut client = server.client();
    let flag = client.pinned(4096);
    client.host_bytes(flag, 4).fill(0);
    wait_value(&mut client, 0, flag);
    for flags in [0, NON_BLOCKING, 0] {
        create(&mut client, 1, flags);
        let destroy = wire::StreamDestroy { stream: 1, reserved: 0 };
        client.post(Opcode::StreamDestroy, &[destroy.as_bytes()]);
    }
    assert_eq!(client.try_call(Opcode::Ping, &[]).0, 0);
    // SAFETY: a word of a region, which stays mapped; the executor reads it atomically, too.
    unsafe { AtomicU32::from_ptr(flag as *mut u32) }.store(1, Ordering::Release);
    client.finish(0).unwrap();
}

/// A stream of another priority takes the slot, and a driver's stream is destroyed, while a caller
/// waits for the old one.
fn a_caller_outlives_the_stream_it_waits_for() {
    let mut server = Server::start();
    let mut client = server.client();
    let count = 1 << 20;
    let region = client.pinned(count * 4);
    client.function(0, PTX, 0, "add_one");
    create(&mut client, 1, NON_BLOCKING);
    for _ in 0..50 {
        client.launch(0, 1, count as u32 / 128, 128, &parameters(region, count as u32));
    }
    let wait = wire::StreamSynchronize { stream: 1, reserved: 0 };
    let destroy = wire::StreamDestroy { stream: 1, reserved: 0 };
    let other = wire::StreamCreate { stream: 1, flags: 1, priority: -1, ..Default::default() };
    let meanwhile =
        [(Opcode::StreamDestroy, destroy.as_bytes()), (Opcode::StreamCreate, other.as_bytes())];
    assert_eq!(client.call_before(Opcode::StreamSynchronize, wait.as_bytes(), &meanwhile), 0);
    let (words, _) = client.host_bytes(region, count as usize * 4).as_chunks::<4>();
    assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == 50), "it came too early");
}

fn memory_may_go_while_a_stream_waits_for_it() {
    let mut server = Server::start();
    let mut client = server.client();
    for _ in 0..20 {
        let grant = client.grow(4096);
        create(&mut client, 1, NON_BLOCKING);
        fill(&mut client, 1, grant.address, 0);
        client.finish(1).unwrap();
        wait_value(&mut client, 1, grant.address);
        assert_eq!(client.try_call(Opcode::Ping, &[]).0, 0);
        let release = wire::Release { address: grant.address, size_bytes: grant.size_bytes };
        assert_eq!(client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
        client.finish(1).unwrap();
        let destroy = wire::StreamDestroy { stream: 1, reserved: 0 };
        client.post(Opcode::StreamDestroy, &[destroy.as_bytes()]);
    }
}
