//! Mutated commands in the ring: whoever writes them may lose its session. The executor lives, nothing panics, memory stays bounded, and
//! an innocent client's results are right throughout.
//!
//! `cargo xtask fuzz ring` goes on for longer: `OPENMPS_FUZZ_SECONDS`, and `OPENMPS_TEST_SEED` to repeat a run. An input is what lies in the ring
//! between two looks at it; one that breaks something is written to a file, whose path is printed.

use super::fake_client::*;
use super::promises::compute;
use link::doorbell::Doorbell;
use link::wire::array::{ArrayCopy, ArrayCreate, ArrayEnd, ArrayLevel, TextureCreate};
use link::wire::attach::RequestedLimits;
use link::wire::command::{self as wire, ALIGN, Header, NO_CALL, Opcode};
use link::wire::graph::{Dependency, DescriptionHeader, GraphCreate, GraphSet, NodeHeader};
use link::wire::layout::{RING_BYTES, RING_OFFSET};
use link::wire::peer;
use link::wire::query::{ClusterOccupancy, TensorMapEncode};
use link::wire::virtual_memory as vmm;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const ALL: &[super::Test] =
    &[("mutated_commands_end_their_writer_at_most", mutated_commands_end_their_writer_at_most)];

const SECONDS: u64 = 5;
/// Longest that the executor may take for an input.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a hostile client may have, and what the executor may grow by for all of them.
const MEMORY_LIMIT: &str = "0=64M";
const GROWTH_BYTES: u64 = 1 << 30;
/// Bytes of the hostile client's region and of its device memory.
const REGION_BYTES: u64 = 1 << 20;
/// Number of the one function that can be launched; it touches no memory, as a fault ends every client's work.
const FUNCTION: u32 = 7;
/// In a graph's description, where grids cannot be held small, no function has a number like it.
const NO_FUNCTION: u32 = 0x4040_4040;

const IDLE: &str = ".version 7.0 .target sm_70 .address_size 64
    .visible .global .align 4 .u32 counter = 5;
    .visible .entry idle(.param .u64 data, .param .u32 count) { ret; }";

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A client whose ring is written by hand.
struct Hostile {
    client: Client,
    tail: u64,
    region: u64,
    device: u64,
    inputs: usize,
}

impl Hostile {
    fn start(server: &mut Server) -> Self {
        let limits = RequestedLimits {
            pinned_device_mem_limit: Some(MEMORY_LIMIT.into()),
            ..Default::default()
        };
        let (connection, welcome) =
            server.attach(std::process::id(), limits).expect("a client is taken");
        let mut client = Client::open(connection, welcome);
        let region = client.pinned(REGION_BYTES);
        let device = client.grow(REGION_BYTES).address;
        client.function(3, IDLE, FUNCTION, "idle");
        for number in 1..4 {
            let stream = wire::StreamCreate { stream: number, flags: 1, ..Default::default() };
            client.post(Opcode::StreamCreate, &[stream.as_bytes()]);
        }
        for event in 0..4 {
            let event = wire::EventCreate { event, flags: 0 };
            client.post(Opcode::EventCreate, &[event.as_bytes()]);
        }
        let tail = client.posted_bytes();
        Self { client, tail, region, device, inputs: 0 }
    }

    /// Writes an input into the ring and waits until it is taken, or the session is over. Says whether the session goes on.
    fn send(&mut self, input: &[u8]) -> bool {
        let file = &self.client.session_file;
        let (mut at, mut rest) = (self.tail, input);
        while !rest.is_empty() {
            let place = at as usize % RING_BYTES;
            let (piece, behind) = rest.split_at(rest.len().min(RING_BYTES - place));
            let written = rustix::io::pwrite(file, piece, (RING_OFFSET + place) as u64);
            assert_eq!(written, Ok(piece.len()));
            at += piece.len() as u64;
            rest = behind;
        }
        self.tail = at;
        self.inputs += 1;
        let shared = self.client.memory.shared();
        // Release: pairs with the acquire in the ring's consumer.
        shared.tail.0.store(self.tail, Ordering::Release);
        Doorbell::new(&shared.consumer_asleep.0).ring();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.client.connection.is_closed() {
                return false;
            }
            // Acquire: pairs with the release of the ring's consumer.
            if shared.head.0.load(Ordering::Acquire) == self.tail {
                return true;
            }
            assert!(Instant::now() < deadline, "the executor does not take what is in the ring");
            std::thread::yield_now();
        }
    }
}

fn command(opcode: u16, slot: u16, body: &[u8]) -> Vec<u8> {
    let size = (size_of::<Header>() + body.len()).next_multiple_of(ALIGN);
    let header =
        Header { opcode, call_slot: slot, size_bytes: size as u32, context: 1, reserved: 0 };
    let mut bytes = [header.as_bytes(), body].concat();
    bytes.resize(size, 0);
    bytes
}

/// A command of a random opcode that could be right.
fn seed(random: &mut Random, client: &Hostile) -> (Opcode, Vec<u8>) {
    // What waits for a descriptor that does not come, or ends the session in any case, costs time.
    let mut opcode = random.pick(Opcode::ALL);
    if matches!(opcode, Opcode::RegionMap | Opcode::MemoryImport) && random.below(40) != 0 {
        opcode = Opcode::Copy;
    }
    let small = |random: &mut Random| random.below(4) as u32;
    let stream = small(random);
    let (device, region) = (client.device, client.region);
    let offset = random.below(1 << 12) as u64 * 8;
    let size_bytes = random.below(1 << 14) as u64;
    let number = small(random);
    let body = match opcode {
        Opcode::Copy | Opcode::CopyNow => {
            let (destination, source) =
                random.pick(&[(device, region), (region, device), (device + 8, device)]);
            let (destination, source) = (destination + offset, source + offset);
            match opcode {
                Opcode::Copy => wire::Copy { stream, reserved: 0, destination, source, size_bytes }
                    .as_bytes()
                    .to_vec(),
                _ => wire::CopyNow { destination, source, size_bytes }.as_bytes().to_vec(),
            }
        }
        Opcode::Copy3d => wire::Copy3d {
            stream,
            destination: device,
            destination_pitch_bytes: 64,
            destination_slice_bytes: 1024,
            source: region,
            source_pitch_bytes: 128,
            source_slice_bytes: 4096,
            width_bytes: 48,
            height: 8,
            depth: 3,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::Fill => wire::Fill {
            stream,
            element_bytes: random.pick(&[1, 2, 4]),
            destination: device + offset,
            pitch_bytes: 256,
            width: 16,
            height: 1 + random.below(8) as u64,
            value: 0xabcd,
            reserved: 0,
        }
        .as_bytes()
        .to_vec(),
        Opcode::StreamWaitPeer => peer::StreamWaitPeer {
            stream,
            device: number & 3,
            slot: number,
            reserved: 0,
            value: u64::from(number),
        }
        .as_bytes()
        .to_vec(),
        Opcode::StreamWriteValue | Opcode::StreamWaitValue => wire::StreamWriteValue {
            stream,
            value_bytes: random.pick(&[4, 8]),
            address: random.pick(&[device, region]) + offset,
            value: 0,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::RegionUnmap => {
            wire::RegionUnmap { address: region, size_bytes: REGION_BYTES }.as_bytes().to_vec()
        }
        Opcode::Release => {
            wire::Release { address: device, size_bytes: REGION_BYTES }.as_bytes().to_vec()
        }
        Opcode::Grow => {
            wire::Grow { size_bytes: size_bytes << random.below(40) }.as_bytes().to_vec()
        }
        Opcode::ModuleLoad => wire::ModuleLoad {
            module: number,
            optimization_level: u32::MAX,
            max_registers: 0,
            log_bytes: 512,
            address: region + (REGION_BYTES / 2),
            size_bytes: IDLE.len() as u64 + 1,
        }
        .as_bytes()
        .to_vec(),
        Opcode::FunctionGet => {
            let get =
                wire::FunctionGet { module: 3, function: 5 + number, name_bytes: 4, reserved: 0 };
            [get.as_bytes(), b"idle"].concat()
        }
        Opcode::GlobalGet => {
            [wire::GlobalGet { module: 3, name_bytes: 7 }.as_bytes(), b"counter"].concat()
        }
        Opcode::Launch => {
            let launch = wire::Launch {
                function: FUNCTION,
                stream,
                grid: [2, 1, 1],
                block: [32, 1, 1],
                parameter_bytes: 12,
                attributes: number,
                ..Default::default()
            };
            let attributes = vec![wire::LaunchAttribute::default(); number as usize];
            [launch.as_bytes(), attributes.as_bytes(), &[0; 12]].concat()
        }
        Opcode::Occupancy => {
            wire::Occupancy { function: FUNCTION, block_threads: 32 * number, ..Default::default() }
                .as_bytes()
                .to_vec()
        }
        Opcode::ClusterOccupancy => ClusterOccupancy {
            function: FUNCTION,
            question: number,
            grid: [4, 1, 1],
            block: [32, 1, 1],
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::TensorMapEncode => TensorMapEncode {
            address: device,
            dimensions: [64, 8, 1, 1, 1],
            strides_bytes: [256, 4096, 4096, 4096],
            box_dimensions: [16, 4, 1, 1, 1],
            element_strides: [1; 5],
            data_type: 2,
            rank: 1 + number,
            mode: number,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::GraphCreate => GraphCreate {
            graph: number,
            flags: 0,
            address: region,
            size_bytes: 4096,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::GraphSet => {
            let set = GraphSet { graph: number, node: small(random) };
            let copy = wire::Copy {
                destination: device,
                source: region,
                size_bytes: 64,
                ..Default::default()
            };
            let node = NodeHeader {
                opcode: Opcode::Copy as u32,
                size_bytes: size_of::<wire::Copy>() as u32,
            };
            [set.as_bytes(), node.as_bytes(), copy.as_bytes()].concat()
        }
        Opcode::MemoryCreate => {
            vmm::MemoryCreate { size_bytes: 2 << 20, memory: number, sharing: small(random) & 1 }
                .as_bytes()
                .to_vec()
        }
        Opcode::AddressReserve => {
            vmm::AddressReserve { size_bytes: 2 << 20, alignment_bytes: 0 }.as_bytes().to_vec()
        }
        Opcode::ArrayCreate => ArrayCreate {
            width: 16,
            height: 8,
            depth: u64::from(small(random)),
            format: random.pick(&[1, 2, 3, 8, 0x10, 0x20]),
            channels: random.pick(&[1, 2, 4]),
            flags: small(random),
            levels: small(random),
            array: number,
            reserved: 0,
        }
        .as_bytes()
        .to_vec(),
        Opcode::ArrayLevel => {
            ArrayLevel { mipmapped: number, level: 1, array: 9, reserved: 0 }.as_bytes().to_vec()
        }
        Opcode::ArrayCopy => ArrayCopy {
            stream,
            destination: ArrayEnd { array: number, ..Default::default() },
            source: ArrayEnd { address: region, pitch_bytes: 64, rows: 8, ..Default::default() },
            width_bytes: 16,
            height: 4,
            depth: 1,
            ..Default::default()
        }
        .as_bytes()
        .to_vec(),
        Opcode::TextureCreate => {
            TextureCreate { object: small(random), array: number, ..Default::default() }
                .as_bytes()
                .to_vec()
        }
        // Small numbers everywhere: streams, events, modules, limits.
        _ => {
            let words = 2 + random.below(16);
            let mut word = || random.pick(&[0u32, 0, 1, 1, 2, 3, 5, 8, 0x1000]).to_le_bytes();
            (0..words).flat_map(|_| word()).collect()
        }
    };
    (opcode, body)
}

/// Changes a few bytes or numbers.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => {
                let more = random.below(200);
                bytes.resize(bytes.len() + more, random.bits() as u8);
            }
            _ => {
                let width = random.pick(&[2usize, 4, 8]);
                let at = at / width * width;
                let value = random.pick(&[
                    0,
                    1,
                    u64::MAX,
                    u64::MAX - 7,
                    0x8000_0000,
                    0x7fff_ffff,
                    1 << 63,
                    1 << 20,
                    0x1_0000_0000,
                ]);
                if let Some(field) = bytes.get_mut(at..at + width) {
                    field.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
    }
}

/// An input: some commands, some of them changed, some with headers that are wrong.
fn input(random: &mut Random, client: &Hostile) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(8) {
        let (opcode, mut body) = seed(random, client);
        if random.below(4) == 0 {
            mutate(random, &mut body);
        }
        body.truncate(60_000);
        let number = match random.below(200) {
            0 => random.bits() as u16,
            _ => opcode as u16,
        };
        let slot = match random.below(4) {
            0 => random.below(40) as u16,
            _ => NO_CALL,
        };
        let mut one = command(number, slot, &body);
        if random.below(200) == 0 {
            let at = random.below(size_of::<Header>());
            one[at] = random.bits() as u8;
        }
        bytes.extend(one);
    }
    keep_grids_small(&mut bytes);
    bytes
}

/// A grid of 2^48 blocks is no fault, and takes as long as it takes.
fn keep_grids_small(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some((header, _)) =
        bytes.get(at..).and_then(|rest| Header::read_from_prefix(rest).ok())
    {
        let body = at + size_of::<Header>();
        if header.opcode == Opcode::Launch as u16 {
            let grid = body + std::mem::offset_of!(wire::Launch, grid);
            for axis in 0..3 {
                if let Some(field) = bytes.get_mut(grid + 4 * axis + 1..grid + 4 * axis + 4) {
                    field.fill(0);
                }
            }
        }
        if header.size_bytes == 0 {
            return;
        }
        at += header.size_bytes as usize;
    }
}

/// A graph's description: fills, copies and kernels in a chain.
fn description(random: &mut Random, client: &Hostile) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = random.below(6) as u32;
    bytes.extend(DescriptionHeader { nodes: count, edges: count.saturating_sub(1) }.as_bytes());
    for _ in 0..count {
        let (opcode, body) = match random.below(4) {
            0 => (
                Opcode::Copy,
                wire::Copy {
                    destination: client.device,
                    source: client.region,
                    size_bytes: 256,
                    ..Default::default()
                }
                .as_bytes()
                .to_vec(),
            ),
            1 => (
                Opcode::Fill,
                wire::Fill {
                    element_bytes: 4,
                    destination: client.device,
                    width: 64,
                    height: 1,
                    ..Default::default()
                }
                .as_bytes()
                .to_vec(),
            ),
            2 => (
                Opcode::Launch,
                wire::Launch {
                    function: NO_FUNCTION,
                    grid: [1; 3],
                    block: [32, 1, 1],
                    ..Default::default()
                }
                .as_bytes()
                .to_vec(),
            ),
            _ => (Opcode::Ping, Vec::new()),
        };
        let node = NodeHeader { opcode: opcode as u32, size_bytes: body.len() as u32 };
        bytes.extend(node.as_bytes());
        bytes.extend(&body);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    for before in 0..count.saturating_sub(1) {
        bytes.extend(Dependency { before, after: before + 1 }.as_bytes());
    }
    mutate(random, &mut bytes);
    bytes.resize(4096, 0);
    bytes
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Resident memory of a process's children.
fn children_bytes(process: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let resident = |child: &str| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{child}/statm")).ok()?;
        Some(status.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
    };
    children.unwrap_or_default().split_whitespace().filter_map(resident).sum()
}

fn mutated_commands_end_their_writer_at_most() {
    let mut server = Server::start();
    let mut good = server.client();
    compute(&mut good, 1000);
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "fuzz ring: OPENMPS_TEST_SEED={seed}");
    let end =
        Instant::now() + Duration::from_secs(number("OPENMPS_FUZZ_SECONDS").unwrap_or(SECONDS));
    let (mut count, mut sessions, mut before) = (0u64, 0u64, None);
    let mut hostile: Option<Hostile> = None;
    while Instant::now() < end {
        let mut random = Random(seed ^ count.wrapping_mul(0x9e37_79b9));
        let client = hostile.get_or_insert_with(|| {
            sessions += 1;
            Hostile::start(&mut server)
        });
        let (graph, region) = (description(&mut random, client), client.region);
        client.client.host_bytes(region, graph.len()).copy_from_slice(&graph);
        let text = client.client.host_bytes(region + REGION_BYTES / 2, IDLE.len() + 1);
        text[..IDLE.len()].copy_from_slice(IDLE.as_bytes());
        text[random.below(IDLE.len())] ^= u8::from(random.below(2) == 0);
        let bytes = input(&mut random, client);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.send(&bytes)));
        let goes_on = match ended {
            Ok(goes_on) => goes_on && client.inputs < 40,
            Err(_) => fail(count, &bytes, "hangs"),
        };
        if !goes_on {
            hostile = None;
        }
        if good.connection.is_closed() || good.try_call(Opcode::Ping, &[]).0 != 0 {
            fail(count, &bytes, "ends another client");
        }
        if count.is_multiple_of(100) {
            if super::server_log::text().contains("panicked") {
                fail(count, &bytes, "or one of the last hundred panics");
            }
            let now = children_bytes(server.child.id());
            let first = *before.get_or_insert(now);
            if now > first + GROWTH_BYTES {
                fail(count, &bytes, "or those before it take memory");
            }
        }
        count += 1;
    }
    drop(hostile);
    server.await_snapshot("the end of hostile clients", |snapshot| snapshot.clients.len() == 1);
    assert!(!super::server_log::text().contains("panicked"));
    good.finish(0).expect("the innocent client's work ends");
    let mut another = server.client();
    compute(&mut another, 1000);
    let _ = writeln!(std::io::stderr(), "fuzz ring: {count} inputs, {sessions} sessions");
}

fn fail(count: u64, bytes: &[u8], what: &str) -> ! {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-ring-{count}"));
    let _ = std::fs::write(&path, bytes);
    panic!("fuzz ring: input {count} {what}: {}", path.display());
}
