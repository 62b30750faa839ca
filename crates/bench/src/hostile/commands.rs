//! Mutated commands for the ring: most could be right, some are changed in a few bytes, some have
//! headers that are wrong.
//!
//! What they name is what a client has that speaks the ring by hand: see [`Targets`]. No input
//! makes a kernel fault or run for long, so that what one breaks is broken by how it was read.

use super::{Random, mutate};
use link::wire::array::{ArrayCopy, ArrayCreate, ArrayEnd, ArrayLevel, TextureCreate};
use link::wire::command::{self as wire, ALIGN, Header, NO_CALL, Opcode};
use link::wire::graph::{Dependency, DescriptionHeader, GraphCreate, GraphSet, NodeHeader};
use link::wire::peer;
use link::wire::query::{ClusterOccupancy, TensorMapEncode};
use link::wire::virtual_memory as vmm;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the hostile client's region and of its device memory.
pub const REGION_BYTES: u64 = 1 << 20;
/// Number of the one function that can be launched; it touches no memory, as a fault ends every
/// client's work.
pub const FUNCTION: u32 = 7;
/// In a graph's description, where grids cannot be held small, no function has a number like it.
const NO_FUNCTION: u32 = 0x4040_4040;

/// Its code: PTX without end mark.
pub const IDLE: &str = ".version 7.0 .target sm_70 .address_size 64
    .visible .global .align 4 .u32 counter = 5;
    .visible .entry idle(.param .u64 data, .param .u32 count) { ret; }";

/// Number of the module that has it, and a variable `counter`.
pub const MODULE: u32 = 3;

/// What the writer of the commands has: streams 1 to 3, events 0 to 3, [`MODULE`] with
/// [`FUNCTION`], and two ranges of [`REGION_BYTES`].
#[derive(Clone, Copy, Debug)]
pub struct Targets {
    /// Address of a pinned region. Its second half begins with [`IDLE`], for loads of modules, its
    /// first half with a graph's [`description`].
    pub region: u64,
    /// Address of device memory.
    pub device: u64,
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
fn seed(random: &mut Random, targets: &Targets) -> (Opcode, Vec<u8>) {
    // What waits for a descriptor that does not come, or ends the session in any case, costs time.
    let mut opcode = random.pick(Opcode::ALL);
    if matches!(opcode, Opcode::RegionMap | Opcode::MemoryImport) && random.below(40) != 0 {
        opcode = Opcode::Copy;
    }
    let small = |random: &mut Random| random.below(4) as u32;
    let stream = small(random);
    let (device, region) = (targets.device, targets.region);
    let offset = random.below(1 << 12) as u64 * 8;
    let size_bytes = random.below(1 << 14) as u64;
    let number = small(random);
    let body = match opcode {
        Opcode::Copy => {
            let (destination, source) =
                random.pick(&[(device, region), (region, device), (device + 8, device)]);
            let (destination, source) = (destination + offset, source + offset);
            wire::Copy { stream, reserved: 0, destination, source, size_bytes }.as_bytes().to_vec()
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

/// An input: some commands, some of them changed, some with headers that are wrong.
pub fn input(random: &mut Random, targets: &Targets) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(8) {
        let (opcode, mut body) = seed(random, targets);
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
pub fn description(random: &mut Random, targets: &Targets) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = random.below(6) as u32;
    bytes.extend(DescriptionHeader { nodes: count, edges: count.saturating_sub(1) }.as_bytes());
    for _ in 0..count {
        let (opcode, body) = match random.below(4) {
            0 => (
                Opcode::Copy,
                wire::Copy {
                    destination: targets.device,
                    source: targets.region,
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
                    destination: targets.device,
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
