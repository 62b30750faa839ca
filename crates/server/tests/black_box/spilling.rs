//! Clients that together want more memory than the device has, by each policy.

use super::fake_client::*;
use super::promises::{PTX, parameters};
use cuda_abi::types::CUresult;
use link::wire::attach::RequestedLimits;
use link::wire::command::{self as wire, Opcode};
use link::wire::daemon::ServerSnapshot;
use link::wire::graph::{DescriptionWriter, GraphCreate, GraphLaunch};
use link::wire::sharing::{ShareMemory, Token};
use link::wire::virtual_memory as vmm;
use std::process::Command;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const ALL: &[super::Test] = &[
    ("clients_that_do_not_fit_take_turns_and_lose_nothing", take_turns_and_lose_nothing),
    ("memory_without_addresses_is_moved_and_comes_back", memory_without_addresses_is_moved),
    ("clients_that_are_never_idle_take_turns_too", never_idle_take_turns_too),
    ("what_is_shared_or_beyond_the_hosts_limit_stays", what_is_shared_or_beyond_the_limit_stays),
    ("without_a_policy_an_allocation_fails_at_once", without_a_policy_it_fails_at_once),
    ("a_queued_allocation_waits_alone", a_queued_allocation_waits_alone),
    ("a_queued_allocation_ends_in_time", a_queued_allocation_ends_in_time),
    ("a_killed_client_leaves_nothing_in_the_host", a_killed_client_leaves_nothing),
    ("a_dead_executor_takes_what_is_spilled_with_it", a_dead_executor_takes_it_along),
    ("random_sequences_under_spilling_lose_nothing", random_sequences_lose_nothing),
];

const MIB: u64 = 1 << 20;
/// The device's memory, and what each of two clients wants of it.
const DEVICE_MIB: u64 = 256;
const SHARE_BYTES: u64 = 150 * MIB;
const ADD_ONE: u32 = 0;
const OUT_OF_MEMORY: u32 = CUresult::ERROR_OUT_OF_MEMORY.0;

/// A server over a small device whose memory its two processes share.
pub(crate) struct Small {
    pub(crate) server: Server,
    _machine: Machine,
}

struct Machine(std::path::PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Small {
    pub(crate) fn start(device_mib: u64, variables: &[(&str, &str)]) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("openmps-spilling-{}-{number}", std::process::id());
        let machine = Machine(std::env::temp_dir().join(name));
        let (path, memory) = (machine.0.display().to_string(), device_mib.to_string());
        let of_device = [("OPENMPS_SOFT_MACHINE", &*path), ("OPENMPS_SOFT_MEMORY_MIB", &*memory)];
        let server = Server::start_with(&[&of_device, variables].concat());
        Self { server, _machine: machine }
    }
}

fn spilled_bytes(snapshot: &ServerSnapshot, client: usize) -> u64 {
    snapshot.clients[client].devices[0].spilled_bytes
}

/// A client with memory whose every word it knows.
struct Tenant {
    client: Client,
    grants: Vec<wire::GrowReply>,
    region: u64,
    value: u32,
}

/// Words are looked at in pieces of this length.
const PIECE_BYTES: u64 = 2 * MIB;

impl Tenant {
    fn new(mut client: Client, grants: &[u64], value: u32) -> Self {
        let region = client.pinned(PIECE_BYTES);
        client.function(0, PTX, ADD_ONE, "add_one");
        let grants = grants.iter().map(|bytes| client.grow(*bytes)).collect();
        let tenant = Self { client, grants, region, value };
        tenant.filled()
    }

    fn filled(mut self) -> Self {
        self.fill();
        self
    }

    fn fill(&mut self) {
        let value = self.value;
        for (address, number) in self.pieces() {
            let fill = wire::Fill {
                element_bytes: 4,
                destination: address,
                width: PIECE_BYTES / 4,
                height: 1,
                value: value.wrapping_add(number),
                ..Default::default()
            };
            self.client.post(Opcode::Fill, &[fill.as_bytes()]);
        }
        self.client.finish(0).unwrap();
    }

    /// Addresses of all pieces, and their numbers.
    fn pieces(&self) -> Vec<(u64, u32)> {
        let of = |grant: &wire::GrowReply| {
            let (address, count) = (grant.address, grant.size_bytes / PIECE_BYTES);
            (0..count).map(move |index| address + index * PIECE_BYTES)
        };
        self.grants.iter().flat_map(of).zip(0..).collect()
    }

    /// Adds one to every word by a kernel, and looks at every word.
    fn work(&mut self) {
        self.value = self.value.wrapping_add(1);
        for (address, number) in self.pieces() {
            let count = (PIECE_BYTES / 4) as u32;
            let body = parameters(address, count);
            self.client.launch(ADD_ONE, 0, count.div_ceil(1024), 1024, &body);
            self.check(address, self.value.wrapping_add(number));
        }
    }

    fn look(&mut self) {
        for (address, number) in self.pieces() {
            self.check(address, self.value.wrapping_add(number));
        }
    }

    fn check(&mut self, address: u64, expected: u32) {
        self.client.copy(0, self.region, address, PIECE_BYTES);
        self.client.finish(0).unwrap();
        let (words, _) = self.client.host_bytes(self.region, PIECE_BYTES as usize).as_chunks::<4>();
        let wrong = words.iter().find(|word| u32::from_ne_bytes(**word) != expected);
        assert_eq!(wrong, None, "at {address:#x}, expected {expected}");
    }
}

fn take_turns_and_lose_nothing() {
    let mut small = Small::start(DEVICE_MIB, &[("OPENMPS_MEMORY_POLICY", "spill")]);
    let server = &mut small.server;
    let mut one = Tenant::new(server.client(), &[100 * MIB, 40 * MIB, 10 * MIB], 1000);
    // Made before its memory goes, used afterwards: a graph that writes there, and an event.
    let graph_words = one.client.grow(PIECE_BYTES);
    let mut writer = DescriptionWriter::default();
    let fill = wire::Fill {
        element_bytes: 4,
        destination: graph_words.address,
        width: PIECE_BYTES / 4,
        height: 1,
        value: 77,
        ..Default::default()
    };
    writer.add(Opcode::Fill, &[fill.as_bytes()]);
    let description = writer.finish().unwrap();
    let region = one.client.pinned(4096);
    one.client.host_bytes(region, description.len()).copy_from_slice(&description);
    let create = GraphCreate {
        graph: 1,
        address: region,
        size_bytes: description.len() as u64,
        ..Default::default()
    };
    assert_eq!(one.client.try_call(Opcode::GraphCreate, &[create.as_bytes()]).0, 0);
    assert_eq!(spilled_bytes(&server.snapshot(), 0), 0);

    let mut two = Tenant::new(server.client(), &[SHARE_BYTES], 500_000);
    let snapshot = server.snapshot();
    assert!(spilled_bytes(&snapshot, 0) >= 2 * SHARE_BYTES - DEVICE_MIB * MIB, "{snapshot:?}");
    assert_eq!(spilled_bytes(&snapshot, 1), 0);
    assert_eq!(snapshot.clients[0].granted_bytes, 152 * MIB, "it counts for its client");
    // A question brings nothing back.
    let info: wire::MemoryInfoReply = one.client.call(Opcode::MemoryInfo, &[0u8; 0], &[]);
    assert_eq!(info.total_bytes, DEVICE_MIB * MIB);
    assert!(info.free_bytes < DEVICE_MIB * MIB - SHARE_BYTES, "{info:?}");
    assert!(spilled_bytes(&server.snapshot(), 0) > 0);
    for _ in 0..2 {
        one.work();
        assert!(spilled_bytes(&server.snapshot(), 1) > 0);
        two.work();
        assert!(spilled_bytes(&server.snapshot(), 0) > 0);
    }
    let launch = GraphLaunch { graph: 1, stream: 0 };
    one.client.post(Opcode::GraphLaunch, &[launch.as_bytes()]);
    one.check(graph_words.address, 77);
    one.look();
    two.look();
    // What is in host memory can be freed there.
    for grant in std::mem::take(&mut one.grants) {
        let release = wire::Release { address: grant.address, size_bytes: grant.size_bytes };
        assert_eq!(one.client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
    }
    let bytes = PIECE_BYTES;
    let snapshot = server.await_snapshot("what was freed is gone", |snapshot| {
        snapshot.clients[0].granted_bytes == bytes
    });
    assert!(spilled_bytes(&snapshot, 0) <= PIECE_BYTES);
    two.work();
    drop(two);
    drop(one);
    server.await_snapshot("nothing is left", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == 0 && device.spilled_bytes == 0
    });
}

/// Memory of `cuMemCreate`: mapped as a whole, in two halves the wrong way round, nowhere,
/// read-only, and shareable.
fn memory_without_addresses_is_moved() {
    const PIECE: u64 = 40 * MIB;
    const HALF: u64 = PIECE / 2;
    let mut small = Small::start(DEVICE_MIB, &[("OPENMPS_MEMORY_POLICY", "spill")]);
    let server = &mut small.server;
    let mut one = Tenant::new(server.client(), &[], 1);
    let reserve = vmm::AddressReserve { size_bytes: 4 * PIECE, alignment_bytes: 0 };
    let range: vmm::AddressReply = one.client.call(Opcode::AddressReserve, &reserve, &[]);
    let base = range.address;
    for (memory, sharing) in [(1, 0), (2, 0), (3, 0), (4, vmm::SHARING_DESCRIPTOR)] {
        let create = vmm::MemoryCreate { size_bytes: PIECE, memory, sharing };
        assert_eq!(one.client.try_call(Opcode::MemoryCreate, &[create.as_bytes()]).0, 0);
    }
    let map =
        |client: &mut Client, memory: u32, address: u64, size_bytes: u64, offset_bytes: u64| {
            let map = vmm::MemoryMap { address, size_bytes, offset_bytes, memory, reserved: 0 };
            assert_eq!(client.try_call(Opcode::MemoryMap, &[map.as_bytes()]).0, 0, "{map:x?}");
        };
    let allow = |client: &mut Client, address: u64, size_bytes: u64, access: u32| {
        let access = vmm::MemorySetAccess { address, size_bytes, access, reserved: 0 };
        assert_eq!(client.try_call(Opcode::MemorySetAccess, &[access.as_bytes()]).0, 0);
    };
    map(&mut one.client, 1, base, PIECE, 0);
    map(&mut one.client, 2, base + PIECE, HALF, HALF);
    map(&mut one.client, 2, base + PIECE + HALF, HALF, 0);
    map(&mut one.client, 3, base + 2 * PIECE, PIECE, 0);
    map(&mut one.client, 4, base + 3 * PIECE, PIECE, 0);
    allow(&mut one.client, base, 4 * PIECE, vmm::ACCESS_READ_WRITE);
    let whole = |index: u64| wire::GrowReply { address: base + index * PIECE, size_bytes: PIECE };
    one.grants = (0..4).map(whole).collect();
    one.fill();
    // A number alone holds this one, and nobody may use that one.
    let unmap = vmm::MemoryUnmap { address: base + 2 * PIECE, size_bytes: PIECE };
    assert_eq!(one.client.try_call(Opcode::MemoryUnmap, &[unmap.as_bytes()]).0, 0);
    allow(&mut one.client, base, PIECE, vmm::ACCESS_NONE);

    let mut two = Tenant::new(server.client(), &[SHARE_BYTES], 500_000);
    let snapshot = server.snapshot();
    assert!(spilled_bytes(&snapshot, 0) >= 2 * PIECE, "{snapshot:?}");
    assert!(spilled_bytes(&snapshot, 0) <= 3 * PIECE, "what can be shared stays");
    assert_eq!(snapshot.clients[0].granted_bytes, 4 * PIECE, "it counts for its client");
    // Back, with what was said of its mappings; then all of it is looked at.
    allow(&mut one.client, base, PIECE, vmm::ACCESS_READ_WRITE);
    map(&mut one.client, 3, base + 2 * PIECE, PIECE, 0);
    allow(&mut one.client, base + 2 * PIECE, PIECE, vmm::ACCESS_READ_WRITE);
    one.look();
    for _ in 0..2 {
        two.work();
        assert!(spilled_bytes(&server.snapshot(), 0) > 0);
        one.work();
        assert!(spilled_bytes(&server.snapshot(), 1) > 0);
    }
    // What is in host memory can be given up there.
    two.work();
    assert!(spilled_bytes(&server.snapshot(), 0) > 0);
    for memory in 1..=4 {
        let number = vmm::MemoryNumber { memory, reserved: 0 };
        assert_eq!(one.client.try_call(Opcode::MemoryRelease, &[number.as_bytes()]).0, 0);
    }
    let unmap = vmm::MemoryUnmap { address: base, size_bytes: 4 * PIECE };
    assert_eq!(one.client.try_call(Opcode::MemoryUnmap, &[unmap.as_bytes()]).0, 0);
    server.await_snapshot("what was given up is gone", |snapshot| {
        snapshot.clients[0].granted_bytes == 0 && spilled_bytes(snapshot, 0) == 0
    });
    two.look();
    drop((one, two));
    server.await_snapshot("nothing is left", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == 0 && device.spilled_bytes == 0
    });
}

fn never_idle_take_turns_too() {
    let variables = [("OPENMPS_MEMORY_POLICY", "spill"), ("OPENMPS_MEMORY_TURN_MS", "20")];
    let mut small = Small::start(64, &variables);
    let clients: Vec<Client> = (0..3).map(|_| small.server.client()).collect();
    std::thread::scope(|scope| {
        for (client, value) in clients.into_iter().zip([1, 1_000_000, 2_000_000]) {
            scope.spawn(move || {
                let mut tenant = Tenant::new(client, &[30 * MIB, 8 * MIB], value);
                for _ in 0..4 {
                    tenant.work();
                }
            });
        }
    });
    small.server.await_snapshot("nothing is left", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == 0 && device.spilled_bytes == 0
    });
}

fn what_is_shared_or_beyond_the_limit_stays() {
    let variables = [("OPENMPS_MEMORY_POLICY", "spill"), ("OPENMPS_MEMORY_SPILL_LIMIT", "64M")];
    let mut small = Small::start(DEVICE_MIB, &variables);
    let mut one = Tenant::new(small.server.client(), &[SHARE_BYTES], 1);
    let mut two = small.server.client();
    let grow = |client: &mut Client, size_bytes: u64| {
        client.try_call(Opcode::Grow, &[wire::Grow { size_bytes }.as_bytes()]).0
    };
    // All of it is one grant, for which the host has no room.
    assert_eq!(grow(&mut two, SHARE_BYTES), OUT_OF_MEMORY);
    one.work();
    let release = wire::Release { address: one.grants[0].address, size_bytes: SHARE_BYTES };
    assert_eq!(one.client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
    // Now it is in two, and one of them is shared.
    one.grants = vec![one.client.grow(40 * MIB), one.client.grow(150 * MIB)];
    let mut one = one.filled();
    let share = ShareMemory { address: one.grants[0].address, size_bytes: 4096 };
    let _: Token = one.client.call(Opcode::ShareMemory, &share, &[]);
    assert_eq!(grow(&mut two, 100 * MIB), OUT_OF_MEMORY);
    one.work();
    assert_eq!(grow(&mut two, 60 * MIB), 0, "that is free");
    assert_eq!(spilled_bytes(&small.server.snapshot(), 0), 0);
}

fn without_a_policy_it_fails_at_once() {
    let mut small = Small::start(DEVICE_MIB, &[]);
    let mut one = Tenant::new(small.server.client(), &[SHARE_BYTES], 1);
    let mut two = small.server.client();
    let grow = wire::Grow { size_bytes: SHARE_BYTES };
    assert_eq!(two.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
    one.work();
    two.grow(100 * MIB);
}

fn a_queued_allocation_waits_alone() {
    let mut small = Small::start(DEVICE_MIB, &[("OPENMPS_MEMORY_POLICY", "queue")]);
    let server = &mut small.server;
    let mut one = Tenant::new(server.client(), &[SHARE_BYTES], 1);
    let (mut two, mut third) = (server.client(), server.client());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let grant = two.grow(SHARE_BYTES);
            two.copy(0, grant.address, grant.address + 4096, 4096);
            two.finish(0).unwrap();
        });
        // The others go on: work, and memory that is there.
        one.work();
        third.grow(20 * MIB);
        assert!(!waits.is_finished(), "it cannot have memory that is not there");
        let release = wire::Release { address: one.grants[0].address, size_bytes: SHARE_BYTES };
        assert_eq!(one.client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
        waits.join().unwrap();
    });
    // A client that ends gives its memory to the next that waits.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.client.grow(SHARE_BYTES));
        drop(two);
        waits.join().unwrap();
    });
}

fn a_queued_allocation_ends_in_time() {
    let variables = [("OPENMPS_MEMORY_POLICY", "queue"), ("OPENMPS_MEMORY_WAIT_MS", "30")];
    let mut small = Small::start(DEVICE_MIB, &variables);
    let mut one = Tenant::new(small.server.client(), &[SHARE_BYTES], 1);
    let mut two = small.server.client();
    let began = Instant::now();
    let grow = wire::Grow { size_bytes: SHARE_BYTES };
    assert_eq!(two.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
    // The keeper counts whole milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(29));
    one.work();
    two.grow(20 * MIB);
    drop(one);
    // Nobody else has anything: nothing to wait for.
    small.server.await_snapshot("the first has gone", |snapshot| {
        snapshot.devices[0].granted_bytes == 20 * MIB
    });
    let grow = wire::Grow { size_bytes: DEVICE_MIB * MIB };
    assert_eq!(two.try_call(Opcode::Grow, &[grow.as_bytes()]).0, OUT_OF_MEMORY);
}

fn a_killed_client_leaves_nothing() {
    let mut small = Small::start(DEVICE_MIB, &[("OPENMPS_MEMORY_POLICY", "spill")]);
    let server = &mut small.server;
    let one = Tenant::new(server.client(), &[SHARE_BYTES], 1);
    let mut two = Tenant::new(server.client(), &[SHARE_BYTES], 2);
    assert!(spilled_bytes(&server.snapshot(), 0) > 0);
    drop(one);
    server.await_snapshot("the end of a client in host memory", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == SHARE_BYTES && device.spilled_bytes == 0
    });
    two.work();
    // One that waits for its memory, and is ended by an operator, is told.
    let mut third = server.client();
    third.grow(80 * MIB);
    two.look();
    drop((two, third));
    server.await_snapshot("nothing is left", |snapshot| snapshot.devices[0].granted_bytes == 0);
}

fn a_dead_executor_takes_it_along() {
    let mut small = Small::start(DEVICE_MIB, &[("OPENMPS_MEMORY_POLICY", "spill")]);
    let server = &mut small.server;
    let one = Tenant::new(server.client(), &[SHARE_BYTES], 1);
    let two = Tenant::new(server.client(), &[SHARE_BYTES], 2);
    let snapshot = server.snapshot();
    assert!(spilled_bytes(&snapshot, 0) > 0);
    let pid = snapshot.devices[0].executor_pid.to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    server.await_snapshot("another executor", |snapshot| {
        let device = &snapshot.devices[0];
        device.restarts == 1 && device.executor_pid != 0
    });
    // Those who had memory there, or work, are told; what they had goes back when they leave.
    drop((one, two));
    server.await_snapshot("nothing is left", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == 0 && device.spilled_bytes == 0
    });
    Tenant::new(server.client(), &[200 * MIB], 3).work();
}

/// Clients come, allocate, free, work and leave at random: every word stays right, sums hold, and a
/// refusal has a true reason.
fn random_sequences_lose_nothing() {
    const LIMIT_BYTES: u64 = 90 * MIB;
    /// What the driver and the session take besides grants, at most.
    const SLACK_BYTES: u64 = 8 * MIB;
    let seed = std::env::var("OPENMPS_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 2_654_435_761 + 1);
    println!("random spilling: OPENMPS_TEST_SEED={seed}");
    let mut state: u64 = seed | 1;
    let mut below = |end: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    };
    let device_bytes = 128 * MIB;
    let mut small = Small::start(128, &[("OPENMPS_MEMORY_POLICY", "spill")]);
    let mut tenants: Vec<(Tenant, Option<u64>)> = Vec::new();
    for step in 0..60u32 {
        let choice = below(10);
        if tenants.len() < 2 || (choice == 0 && tenants.len() < 4) {
            let limit = (below(2) == 0).then_some(LIMIT_BYTES);
            let wish = limit.map(|bytes| format!("0={}M", bytes / MIB));
            let limits = RequestedLimits { pinned_device_mem_limit: wish, ..Default::default() };
            let (connection, welcome) = small.server.attach(std::process::id(), limits).unwrap();
            let client = Client::open(connection, welcome);
            tenants.push((Tenant::new(client, &[], step * 1000), limit));
            continue;
        }
        let which = below(tenants.len() as u64) as usize;
        if choice == 1 {
            drop(tenants.swap_remove(which));
            continue;
        }
        let (tenant, limit) = &mut tenants[which];
        match choice {
            2..=4 => {
                let size_bytes = (1 + below(30)) * PIECE_BYTES;
                let grow = wire::Grow { size_bytes };
                let (status, reply) = tenant.client.try_call(Opcode::Grow, &[grow.as_bytes()]);
                let own: u64 = tenant.grants.iter().map(|grant| grant.size_bytes).sum();
                let most = limit.unwrap_or(u64::MAX).min(device_bytes);
                if status == OUT_OF_MEMORY {
                    assert!(own + size_bytes + SLACK_BYTES > most, "{own} and {size_bytes} fit");
                } else {
                    assert_eq!(status, 0);
                    assert!(own + size_bytes <= most, "{own} and {size_bytes} do not fit");
                    let grant = wire::GrowReply::read_from_prefix(&reply).unwrap().0;
                    tenant.grants.push(grant);
                    tenant.fill();
                }
            }
            5 if !tenant.grants.is_empty() => {
                let index = below(tenant.grants.len() as u64) as usize;
                let wire::GrowReply { address, size_bytes } = tenant.grants.swap_remove(index);
                let release = wire::Release { address, size_bytes };
                assert_eq!(tenant.client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
                tenant.fill();
            }
            _ => tenant.work(),
        }
        let device = small.server.snapshot().devices.remove(0);
        assert!(device.granted_bytes - device.spilled_bytes <= device_bytes, "{device:?}");
    }
    for (tenant, _) in &mut tenants {
        tenant.look();
    }
    drop(tenants);
    small.server.await_snapshot("nothing is left", |snapshot| {
        let device = &snapshot.devices[0];
        device.granted_bytes == 0 && device.spilled_bytes == 0
    });
}
