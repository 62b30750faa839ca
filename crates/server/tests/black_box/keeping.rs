//! Memory that a client has given up and its session keeps for a while: it counts for nobody, and
//! whoever needs it gets it.

use super::fake_client::*;
use super::spilling::Small;
use cuda_abi::types::CUresult;
use link::wire::attach::RequestedLimits;
use link::wire::command::{self as wire, Opcode};
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    ("what_is_given_up_is_had_again_at_once_and_counts_for_nobody", had_again_and_not_counted),
    ("what_is_kept_goes_to_whoever_needs_it", goes_to_whoever_needs_it),
    ("what_is_kept_is_no_part_of_a_limit", no_part_of_a_limit),
    ("what_is_given_up_cannot_be_named_any_more", cannot_be_named),
];

const MIB: u64 = 1 << 20;
const DEVICE_MIB: u64 = 512;
/// What a session keeps at most of such a device.
const KEPT_BYTES: u64 = 8 * MIB;
const OUT_OF_MEMORY: u32 = CUresult::ERROR_OUT_OF_MEMORY.0;

fn release(client: &mut Client, grant: wire::GrowReply) {
    let wire::GrowReply { address, size_bytes } = grant;
    let release = wire::Release { address, size_bytes };
    assert_eq!(client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
}

fn free_bytes(client: &mut Client) -> u64 {
    client.call::<wire::MemoryInfoReply>(Opcode::MemoryInfo, &[0u8; 0], &[]).free_bytes
}

fn had_again_and_not_counted() {
    let mut small = Small::start(DEVICE_MIB, &[]);
    let mut client = small.server.client();
    let free = free_bytes(&mut client);
    let granted = small.server.snapshot().clients[0].granted_bytes;
    let first = client.grow(KEPT_BYTES);
    release(&mut client, first);
    assert_eq!(free_bytes(&mut client), free);
    assert_eq!(small.server.snapshot().clients[0].granted_bytes, granted);
    let again = client.grow(KEPT_BYTES - MIB / 2);
    assert_eq!((again.address, again.size_bytes), (first.address, KEPT_BYTES), "it was kept");
    assert_eq!(small.server.snapshot().clients[0].granted_bytes, granted + KEPT_BYTES);
    release(&mut client, again);
    let other = client.grow(KEPT_BYTES / 2);
    assert_eq!(other.size_bytes, KEPT_BYTES / 2, "too much of it would be wasted");
}

fn goes_to_whoever_needs_it() {
    let mut small = Small::start(DEVICE_MIB, &[]);
    let (mut one, mut two) = (small.server.client(), small.server.client());
    let kept = one.grow(KEPT_BYTES);
    release(&mut one, kept);
    // All that there is, what `one` keeps included.
    let rest = free_bytes(&mut two) / (2 * MIB) * (2 * MIB);
    two.grow(rest);
    let grow = wire::Grow { size_bytes: KEPT_BYTES };
    assert_eq!(one.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
    assert_eq!(two.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
    drop(two);
    small.server.await_snapshot("the end of the other's session", |now| {
        now.devices[0].granted_bytes < DEVICE_MIB * MIB / 2
    });
    one.grow(KEPT_BYTES);
}

fn no_part_of_a_limit() {
    let mut small = Small::start(DEVICE_MIB, &[]);
    let limits =
        RequestedLimits { pinned_device_mem_limit: Some("0=32M".into()), ..Default::default() };
    let (connection, welcome) = small.server.attach(std::process::id(), limits).unwrap();
    let mut client = Client::open(connection, welcome);
    let kept = client.grow(KEPT_BYTES);
    release(&mut client, kept);
    let left = free_bytes(&mut client);
    // More than the limit leaves beside what is kept.
    client.grow(left / (2 * MIB) * (2 * MIB));
    let grow = wire::Grow { size_bytes: KEPT_BYTES };
    assert_eq!(client.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
}

fn cannot_be_named() {
    let mut small = Small::start(DEVICE_MIB, &[]);
    let mut client = small.server.client();
    let grant = client.grow(KEPT_BYTES);
    release(&mut client, grant);
    let wire::GrowReply { address, size_bytes } = grant;
    let release = wire::Release { address, size_bytes };
    let invalid = CUresult::ERROR_INVALID_VALUE.0;
    assert_eq!(
        client.try_call(Opcode::Release, &[release.as_bytes()]).0,
        invalid,
        "given up twice"
    );
    client.copy(0, address, address, 4096);
    assert!(client.finish(0).is_err(), "the session fails: its client has named what it has not");
}
