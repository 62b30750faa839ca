//! A server for tests: daemon, keeper and executor in threads of the test, with plain memory for a
//! device.
//!
//! It speaks the wire as a real one does and does every command at once, in ring order. Its only
//! kernel adds a number to words.

use cuda_abi::types::CUresult;
use link::call;
use link::completion::CompletionWords;
use link::ring::{Command, Consumer};
use link::session_memory::SessionMemory;
use link::socket::{Connection, Listener};
use link::spin::Cores;
use link::wire::attach::*;
use link::wire::command::{self as wire, NO_CALL, Opcode};
use link::wire::graph::{Description, GraphCreate, Node};
use link::wire::query::{ClusterReply, TensorMapEncode, TensorMapReply};
use link::wire::version::Versions;
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

pub(super) const DEVICE_WINDOW: Window = Window { base: 0x2000_0000_0000, size_bytes: 1 << 32 };
const HOST_WINDOW: Window = Window { base: 0x2100_0000_0000, size_bytes: 1 << 32 };
const TIMEOUT: Duration = Duration::from_secs(30);
/// A launch of so many blocks is refused by the fake's driver.
pub(super) const REFUSED_GRID: u32 = 77;
/// A graph with a copy of so many bytes is refused: out of memory.
pub(super) const REFUSED_COPY_BYTES: u64 = 77;
/// What the fake's device has.
const MEMORY_BYTES: u64 = 64 << 20;

/// How many events the executor was told to create.
pub(super) static EVENTS_CREATED: AtomicU32 = AtomicU32::new(0);
/// Commands that the executor took.
pub(super) static COMMANDS: AtomicU32 = AtomicU32::new(0);
/// Those of them whose caller waited for the answer.
pub(super) static CALLS: AtomicU32 = AtomicU32::new(0);
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` as it was set last, of whichever function.
pub(super) static MOST_DYNAMIC_SHARED_BYTES: AtomicI32 = AtomicI32::new(0);
/// SMs of the fake's device, and those that a client has.
const MULTIPROCESSORS: u32 = 3;
const SHARE: u32 = 2;
/// Shared memory that a block of the fake's device can have when its kernel asks for it.
const SHARED_BYTES: i32 = 8192;
/// What the fake's kernel takes of it by itself.
pub(super) const STATIC_SHARED_BYTES: i32 = 1024;
/// The most that is left.
pub(super) const DYNAMIC_SHARED_BYTES: i32 = SHARED_BYTES - STATIC_SHARED_BYTES;

/// Serves one client at `directory` until it is gone, or the fake is told to die.
pub(super) fn serve(directory: &Path) {
    let listener = Listener::bind(&directory.join(link::wire::DAEMON_SOCKET)).unwrap();
    std::thread::spawn(move || {
        let client = loop {
            match listener.try_accept().unwrap() {
                Some(client) => break client,
                None => std::thread::yield_now(),
            }
        };
        let hello = client.receive::<Hello>(TIMEOUT).unwrap();
        assert!(matches!(hello.message, Hello::Client(_)));
        client.send(&HelloReply::Welcome(welcome()), &[], TIMEOUT).unwrap();
        let mut contexts = 0;
        while let Ok(request) = client.receive::<ClientRequest>(TIMEOUT) {
            match request.message {
                ClientRequest::OpenContext { .. } => {
                    contexts += 1;
                    let opened = ContextOpened {
                        context_id: contexts,
                        first: contexts == 1,
                        device_window: DEVICE_WINDOW,
                        host_window: HOST_WINDOW,
                        multiprocessors: None,
                    };
                    let files = if contexts == 1 { open_session() } else { Vec::new() };
                    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    client.send(&ClientReply::ContextOpened(opened), &files, TIMEOUT).unwrap();
                }
                ClientRequest::FaultsDevice => {
                    client.send(&ClientReply::FaultsDevice, &[], TIMEOUT).unwrap();
                }
                ClientRequest::CloseContext { .. } => {
                    client.send(&ClientReply::ContextClosed, &[], TIMEOUT).unwrap();
                }
            }
        }
    });
}

fn welcome() -> Welcome {
    // Threads per block, block and grid dimensions, multiprocessors, compute capability, PCI
    // numbers, and what is overridden.
    let attributes = vec![
        (1, 1024),
        (2, 1024),
        (3, 1024),
        (4, 64),
        (5, i32::MAX),
        (6, 65535),
        (7, 65535),
        (16, MULTIPROCESSORS as i32),
        (75, 7),
        (76, 5),
        (33, 1),
        (34, 2),
        (50, 3),
        (91, 1),
        (97, SHARED_BYTES),
        (107, 1),
    ];
    let device = DeviceInfo {
        name: "a fake Software GPU".into(),
        uuid: [7; 16],
        uuid_v2: [8; 16],
        pci_bus_id: "0003:01:02.0".into(),
        total_memory_bytes: MEMORY_BYTES,
        told_memory_bytes: None,
        attributes,
        stream_priorities: (0, -5),
        code: DeviceCode::PtxOnly,
        granularity_bytes: (2 << 20, 2 << 20),
        linear_texture_texels: [1 << 28; 5],
        peers: Vec::new(),
        closed: false,
    };
    Welcome {
        version: Versions::ours().newest,
        client_id: 1,
        server_pid: 1,
        driver_version: 13050,
        devices: vec![device],
    }
}

struct Executor {
    memory: Arc<SessionMemory>,
    words: CompletionWords,
    socket: Connection,
    granted_bytes: u64,
    /// By number of the function.
    attributes: HashMap<u32, BTreeMap<i32, i32>>,
    reply: Vec<u8>,
}

fn open_session() -> Vec<OwnedFd> {
    let session = SessionMemory::create_file().unwrap();
    let memory = Arc::new(SessionMemory::map(session.as_fd()).unwrap());
    let completion = CompletionWords::create_file().unwrap();
    let words = CompletionWords::map_writable(completion.as_fd()).unwrap();
    let (socket, other) = Connection::pair().unwrap();
    let mut executor = Executor {
        memory: Arc::clone(&memory),
        words,
        socket,
        granted_bytes: 0,
        attributes: HashMap::new(),
        reply: Vec::new(),
    };
    std::thread::spawn(move || {
        // As the real one: the client has its session already.
        std::thread::sleep(Duration::from_millis(20));
        memory.set_multiprocessors(SHARE);
        let mut consumer = Consumer::new(memory);
        loop {
            while let Some(command) = consumer.take().unwrap() {
                if !executor.execute(&command) {
                    return;
                }
            }
            consumer.wait(Cores::Spare, Duration::from_millis(100), &mut || false);
        }
    });
    vec![session, completion, other.into()]
}

impl Executor {
    /// Does a command; false when the executor is to die.
    fn execute(&mut self, command: &Command<'_>) -> bool {
        self.reply.clear();
        let opcode = Opcode::from_number(command.header.opcode).unwrap();
        // Relaxed: the test reads them when a later command has been answered.
        COMMANDS.fetch_add(1, Ordering::Relaxed);
        CALLS.fetch_add((command.header.call_slot != NO_CALL).into(), Ordering::Relaxed);
        let status = match opcode {
            Opcode::Signal => {
                let (wire::Signal { stream, value, .. }, _) = command.parse().unwrap();
                self.complete(stream, value)
            }
            Opcode::EventRecord => {
                let (wire::EventRecord { stream, value, .. }, _) = command.parse().unwrap();
                self.complete(stream, value)
            }
            Opcode::EventCreate => {
                // Relaxed: the test reads it when a later command has been answered.
                EVENTS_CREATED.fetch_add(1, Ordering::Relaxed);
                0
            }
            Opcode::EventElapsed => {
                self.answer(&wire::EventElapsedReply { milliseconds: 1.5, reserved: 0 })
            }
            Opcode::Grow => self.grow(command.parse::<wire::Grow>().unwrap().0.size_bytes),
            Opcode::Release => {
                self.granted_bytes -= command.parse::<wire::Release>().unwrap().0.size_bytes;
                0
            }
            Opcode::MemoryInfo => {
                let free_bytes = MEMORY_BYTES - self.granted_bytes;
                self.answer(&wire::MemoryInfoReply { free_bytes, total_bytes: MEMORY_BYTES })
            }
            Opcode::RegionMap => {
                let region: wire::RegionMap = command.parse().unwrap().0;
                let file = self.socket.receive::<RegionFile>(TIMEOUT).unwrap();
                assert_eq!((file.message.address, file.descriptors.len()), (region.address, 1));
                0
            }
            Opcode::Copy => {
                let c: wire::Copy = command.parse().unwrap().0;
                copy(c.destination, c.source, c.size_bytes);
                0
            }
            Opcode::GraphCreate => {
                let create: GraphCreate = command.parse().unwrap().0;
                // SAFETY: the client lends the description for the time of this call.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        create.address as *const u8,
                        create.size_bytes as usize,
                    )
                };
                let copies_too_much = |node: &Node<'_>| {
                    node.opcode == Opcode::Copy
                        && wire::Copy::read_from_prefix(node.body).unwrap().0.size_bytes
                            == REFUSED_COPY_BYTES
                };
                let (description, _) = Description::parse(bytes).unwrap();
                if description.nodes.iter().any(copies_too_much) { 2 } else { 0 }
            }
            Opcode::Copy3d => {
                copy_3d(command.parse().unwrap().0);
                0
            }
            Opcode::Fill => {
                fill(command.parse().unwrap().0);
                0
            }
            Opcode::ModuleLoad => {
                let load: wire::ModuleLoad = command.parse().unwrap().0;
                // SAFETY: the client lends the image for the time of this call.
                let image = unsafe {
                    std::slice::from_raw_parts(load.address as *const u8, load.size_bytes as usize)
                };
                let fails = image.starts_with(b"// bad");
                let log = if fails { &b"on line 1"[..] } else { b"" };
                self.answer(&wire::ModuleLoadReply {
                    info_bytes: 0,
                    error_bytes: log.len() as u32,
                });
                self.reply.extend_from_slice(log);
                if fails { 218 } else { 0 }
            }
            Opcode::FunctionGet => {
                let (get, rest) = command.parse::<wire::FunctionGet>().unwrap();
                if &rest[..get.name_bytes as usize] == b"add" {
                    self.describe(get.function)
                } else {
                    500
                }
            }
            Opcode::FunctionSetAttribute => self.set_attribute(command.parse().unwrap().0),
            Opcode::FunctionAttributes => {
                let asked: wire::FunctionAttributes = command.parse().unwrap().0;
                let attributes = self.attributes[&asked.function].clone();
                let count = attributes.len() as u32;
                self.answer(&wire::FunctionAttributesReply { attributes: count, reserved: 0 });
                self.answer_attributes(&attributes)
            }
            Opcode::ClusterOccupancy => self.answer(&ClusterReply { value: 6, reserved: 0 }),
            Opcode::TensorMapEncode => self.encode(command.parse().unwrap().0),
            Opcode::GlobalGet => self.answer(&wire::GlobalGetReply {
                address: DEVICE_WINDOW.base,
                size_bytes: 64,
                managed: 0,
                reserved: 0,
            }),
            Opcode::Occupancy => {
                self.answer(&wire::OccupancyReply { blocks: 2, block_threads: 256 })
            }
            Opcode::Launch => {
                let (launch, rest) = command.parse::<wire::Launch>().unwrap();
                if launch.grid[0] == REFUSED_GRID {
                    self.memory.refuse(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES.0);
                    return true;
                }
                add(&rest[launch.attributes as usize * size_of::<wire::LaunchAttribute>()..]);
                0
            }
            // What a test asks for when the server is to die.
            Opcode::LimitSet => return false,
            _ => 0,
        };
        if command.header.call_slot != NO_CALL {
            call::answer(&self.memory, command.header.call_slot, status, &self.reply).unwrap();
        } else {
            assert_eq!(status, 0, "{opcode:?}");
        }
        true
    }

    fn answer(&mut self, reply: &(impl IntoBytes + zerocopy::Immutable)) -> u32 {
        self.reply.extend_from_slice(reply.as_bytes());
        0
    }

    fn describe(&mut self, function: u32) -> u32 {
        // Registers, most threads of a block, shared memory of its own, most that it can get,
        // carve-out, clusters beyond eight blocks.
        let attributes =
            [(4, 100), (0, 512), (1, STATIC_SHARED_BYTES), (8, 4096), (9, -1), (14, 0)];
        let attributes: BTreeMap<i32, i32> = attributes.into_iter().collect();
        let count = attributes.len() as u32;
        self.answer(&wire::FunctionGetReply {
            parameters: 3,
            attributes: count,
            ..Default::default()
        });
        for (offset, size_bytes) in [(0, 8), (8, 4), (12, 4)] {
            self.answer(&wire::Parameter { offset, size_bytes });
        }
        self.answer_attributes(&attributes);
        self.attributes.insert(function, attributes);
        0
    }

    fn answer_attributes(&mut self, attributes: &BTreeMap<i32, i32>) -> u32 {
        for (&attribute, &value) in attributes {
            self.answer(&wire::FunctionAttribute { attribute, value });
        }
        0
    }

    /// As a driver does it: 0, or CUDA_ERROR_INVALID_VALUE.
    fn set_attribute(&mut self, wanted: wire::FunctionSetAttribute) -> u32 {
        let wire::FunctionSetAttribute { function, attribute, value, .. } = wanted;
        let is_valid = match attribute {
            wire::CACHE_CONFIG => return u32::from(!(0..=3).contains(&value)),
            8 => (0..=DYNAMIC_SHARED_BYTES).contains(&value),
            9 => (-1..=100).contains(&value),
            14 => true,
            _ => false,
        };
        if is_valid {
            self.attributes.get_mut(&function).unwrap().insert(attribute, value);
        }
        if is_valid && attribute == 8 {
            MOST_DYNAMIC_SHARED_BYTES.store(value, Ordering::Relaxed);
        }
        u32::from(!is_valid)
    }

    /// A map shows its address, unless its elements are of type 1.
    fn encode(&mut self, wanted: TensorMapEncode) -> u32 {
        let TensorMapEncode { address, data_type, .. } = wanted;
        if !address.is_multiple_of(16) {
            return 1;
        }
        let mut bytes = [0; 16];
        bytes[3] = if data_type == 1 { !address } else { address };
        bytes[4] = wanted.dimensions[0];
        self.answer(&TensorMapReply { bytes })
    }

    fn complete(&self, stream: u32, value: u64) -> u32 {
        let word = (self.words.range().0 + u64::from(stream) * 8) as *mut u64;
        // SAFETY: a word of the completion file, which lives as long as `self`.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let before = word.swap(value, Ordering::Release);
        assert!(before < value, "stream {stream}: {before} then {value}");
        self.memory.wake_sleepers();
        0
    }

    fn grow(&mut self, size_bytes: u64) -> u32 {
        let size_bytes = size_bytes.next_multiple_of(2 << 20);
        if self.granted_bytes + size_bytes > MEMORY_BYTES {
            return 2;
        }
        static NEXT: AtomicU64 = AtomicU64::new(DEVICE_WINDOW.base);
        let address = NEXT.fetch_add(size_bytes, Ordering::Relaxed);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: inside the device window, which the client has only reserved.
        unsafe {
            let all = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(address as *mut _, size_bytes as usize, all, flags).unwrap();
        }
        self.granted_bytes += size_bytes;
        self.answer(&wire::GrowReply { address, size_bytes })
    }
}

fn copy(destination: u64, source: u64, size_bytes: u64) {
    // SAFETY: the client names mapped memory, or the test crashes.
    unsafe { std::ptr::copy(source as *const u8, destination as *mut u8, size_bytes as usize) };
}

fn copy_3d(c: wire::Copy3d) {
    for slice in 0..c.depth {
        for row in 0..c.height {
            copy(
                c.destination + slice * c.destination_slice_bytes + row * c.destination_pitch_bytes,
                c.source + slice * c.source_slice_bytes + row * c.source_pitch_bytes,
                c.width_bytes,
            );
        }
    }
}

fn fill(f: wire::Fill) {
    for row in 0..f.height {
        for x in 0..f.width {
            let at = f.destination + row * f.pitch_bytes + x * u64::from(f.element_bytes);
            copy(at, f.value.as_bytes().as_ptr() as u64, f.element_bytes.into());
        }
    }
}

/// The kernel: words, their number, what to add.
fn add(parameters: &[u8]) {
    let (address, rest) = u64::read_from_prefix(parameters).unwrap();
    let (count, rest) = u32::read_from_prefix(rest).unwrap();
    let (value, _) = u32::read_from_prefix(rest).unwrap();
    for i in 0..u64::from(count) {
        let word = (address + i * 4) as *mut u32;
        // SAFETY: the client names mapped memory, or the test crashes.
        unsafe { word.write(word.read().wrapping_add(value)) };
    }
}
