//! Libraries of version 1 of the client wire are served, as long as this build speaks it: one that
//! was recorded, and one with its own copies of the layouts.

mod client;
mod events;
pub(crate) mod recorder;

use super::fake_client::Server;
use client::{HEADER_BYTES, Mapped, Session, Socket, region};
use events::Event;
use link::wire::attach::{ClientHello, Hello};
use rustix::fd::{AsFd, OwnedFd};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const ALL: &[super::Test] = &[
    (
        "a_recorded_library_of_version_1_gets_the_results_that_it_got",
        a_recorded_library_of_version_1_gets_the_results_that_it_got,
    ),
    ("a_client_of_version_1_computes", a_client_of_version_1_computes),
    ("no_version_in_common_is_said", no_version_in_common_is_said),
];

/// By `cargo test -p server --test black_box -- record`: see [`recorder`].
const CONVERSATION: &str = include_str!("conversation.txt");

/// Hands a client over whose first packet this is, as the daemon does.
fn attach(server: &mut Server, hello: &str) -> Socket {
    let Ok(Hello::Client(hello)) = serde_json::from_str(hello) else { panic!("{hello}") };
    let (ours, theirs) = Socket::pair();
    let hello = ClientHello { pid: std::process::id(), ..hello };
    server.hand_over(hello, theirs.as_fd());
    ours
}

fn a_recorded_library_of_version_1_gets_the_results_that_it_got() {
    let mut server = Server::start();
    let mut replay = Replay::default();
    let mut found = 0;
    for event in CONVERSATION.lines().map(Event::of_line) {
        found += usize::from(matches!(event, Event::Found(..)));
        replay.act(&mut server, event);
    }
    assert!(found > 0, "no result was looked at");
    let snapshot = server.snapshot();
    assert_eq!(snapshot.clients.len(), 1);
    assert!(snapshot.clients[0].devices.iter().any(|device| device.kernels > 0), "{snapshot:?}");
}

/// A client that says what the recorded one said.
#[derive(Default)]
struct Replay {
    socket: Option<Socket>,
    session: Option<Session>,
    regions: BTreeMap<u64, Mapped>,
    /// Base, length and base now of the recorded windows.
    windows: Vec<[u64; 3]>,
    /// Addresses in them that answers gave, and give now.
    given: BTreeMap<u64, u64>,
    /// What is to be answered.
    called: Option<(u32, Vec<u8>)>,
}

impl Replay {
    fn act(&mut self, server: &mut Server, event: Event) {
        match event {
            Event::Asked(packet) => match &self.socket {
                None => self.socket = Some(attach(server, &packet)),
                Some(socket) => socket.send(packet.as_bytes(), &[]),
            },
            Event::Told(packet) => {
                let recorded: Value = serde_json::from_str(&packet).unwrap();
                let (told, descriptors) = self.socket.as_ref().unwrap().receive();
                assert_covers(&told, &recorded, "");
                self.hear(&told, &recorded, descriptors);
            }
            Event::Region(size_bytes, packet) => {
                let mut packet: Value = serde_json::from_str(&packet).unwrap();
                let address = packet["address"].as_u64().unwrap();
                packet["address"] = self.now(address).into();
                let (file, mapped) = region(size_bytes as usize);
                let session = self.session.as_ref().unwrap();
                session.socket.send(packet.to_string().as_bytes(), &[file.as_fd()]);
                self.regions.insert(address, mapped);
            }
            Event::Wrote(address, bytes) => {
                let (region, offset) = self.region(address);
                region.write(offset, &bytes);
            }
            Event::Posted(command) => {
                let command = self.moved(&command);
                self.session.as_mut().unwrap().post(&command);
            }
            Event::Called(command) => {
                let command = self.moved(&command);
                self.called = Some(self.session.as_mut().unwrap().call(&command));
            }
            Event::Answered(status, recorded) => {
                let (now, reply) = self.called.take().unwrap();
                assert_eq!(now, status, "{reply:x?}");
                assert!(reply.len() >= recorded.len(), "{reply:x?} instead of {recorded:x?}");
                for (was, is) in words(&recorded).zip(words(&reply)) {
                    if self.window(was).is_some() {
                        self.given.insert(was, is);
                    }
                }
            }
            Event::Reached(stream, value) => {
                self.session.as_ref().unwrap().wait_for(stream, value);
            }
            Event::Found(address, bytes) => {
                let (region, offset) = self.region(address);
                assert!(region.read(offset, bytes.len()) == bytes, "the result is another one");
            }
        }
    }

    fn hear(&mut self, told: &Value, recorded: &Value, descriptors: Vec<OwnedFd>) {
        if let (Some(is), Some(was)) = (told.get("context_opened"), recorded.get("context_opened"))
        {
            for window in ["device_window", "host_window"] {
                let field = |of: &Value, name: &str| of[window][name].as_u64().unwrap();
                let [base, length] = ["base", "size_bytes"].map(|name| field(was, name));
                self.windows.push([base, length, field(is, "base")]);
            }
            if was["first"] == json!(true) {
                self.session = Some(Session::open(descriptors));
            }
        }
    }

    fn window(&self, address: u64) -> Option<&[u64; 3]> {
        self.windows.iter().find(|[base, length, _]| (*base..base + length).contains(&address))
    }

    /// Where an address of the recorded client is now.
    fn now(&self, address: u64) -> u64 {
        let Some([base, _, is]) = self.window(address) else { return address };
        match self.given.range(base..=&address).next_back() {
            Some((was, is)) => address - was + is,
            None => address - base + is,
        }
    }

    /// A command with its addresses as they are now.
    fn moved(&self, command: &[u8]) -> Vec<u8> {
        let (header, body) = command.split_at(HEADER_BYTES);
        let body = words(body).flat_map(|word| self.now(word).to_le_bytes());
        header.iter().copied().chain(body).collect()
    }

    fn region(&self, address: u64) -> (&Mapped, usize) {
        let (base, region) = self.regions.range(..=address).next_back().unwrap();
        (region, (address - base) as usize)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// All that was there then is there now, of the same kind.
fn assert_covers(now: &Value, then: &Value, place: &str) {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            for (name, then) in then {
                let place = format!("{place}/{name}");
                let now = now.get(name).unwrap_or_else(|| panic!("{place} is missing"));
                assert_covers(now, then, &place);
            }
        }
        (Value::Array(now), Value::Array(then)) => {
            assert!(now.is_empty() == then.is_empty(), "{place}: {now:?} instead of {then:?}");
            if let (Some(now), Some(then)) = (now.first(), then.first()) {
                assert_covers(now, then, place);
            }
        }
        _ => assert_eq!(std::mem::discriminant(now), std::mem::discriminant(then), "{place}"),
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    opcode: u16,
    call_slot: u16,
    size_bytes: u32,
    context: u32,
    reserved: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Range {
    address: u64,
    size_bytes: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RegionMap {
    address: u64,
    size_bytes: u64,
    kind: u32,
    reserved: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct ModuleLoad {
    module: u32,
    optimization_level: u32,
    max_registers: u32,
    log_bytes: u32,
    address: u64,
    size_bytes: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FunctionGet {
    module: u32,
    function: u32,
    name_bytes: u32,
    reserved: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Launch {
    function: u32,
    stream: u32,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    parameter_bytes: u32,
    attributes: u32,
    reserved: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Copy1d {
    stream: u32,
    reserved: u32,
    destination: u64,
    source: u64,
    size_bytes: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Signal {
    stream: u32,
    reserved: u32,
    value: u64,
}

const SIGNAL: u16 = 12;
const GROW: u16 = 30;
const MEMORY_INFO: u16 = 32;
const REGION_MAP: u16 = 33;
const COPY: u16 = 40;
const MODULE_LOAD: u16 = 50;
const FUNCTION_GET: u16 = 52;
const LAUNCH: u16 = 60;
const PINNED: u32 = 1;

fn command(opcode: u16, body: &[u8], rest: &[u8]) -> Vec<u8> {
    let length = HEADER_BYTES + body.len() + rest.len();
    let size_bytes = length.next_multiple_of(HEADER_BYTES);
    let header =
        Header { opcode, call_slot: 0, size_bytes: size_bytes as u32, context: 1, reserved: 0 };
    let mut bytes = [header.as_bytes(), body, rest].concat();
    bytes.resize(size_bytes, 0);
    bytes
}

const HELLO: &str = r#"{"client":{"versions":{"oldest":1,"newest":1},"pid":7,"pid_namespace":0,"command":"old","limits":{}}}"#;
const OPEN_CONTEXT: &[u8] = br#"{"open_context":{"device":0}}"#;

const TRIPLE: &str = r"
.version 6.0
.target sm_50
.address_size 64
.visible .entry triple(.param .u64 values)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [values];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r1, [%rd2];
    mul.lo.u32 %r2, %r1, 3;
    st.global.u32 [%rd2], %r2;
    ret;
}
";

fn a_client_of_version_1_computes() {
    const COUNT: u32 = 64;
    const VALUES_BYTES: usize = COUNT as usize * 4;
    const REGION_BYTES: usize = 1 << 16;
    const IMAGE_OFFSET: usize = 4096;
    let mut server = Server::start();
    let socket = attach(&mut server, HELLO);
    let (welcome, _) = socket.receive();
    let welcome = &welcome["welcome"];
    assert_eq!(welcome["version"], json!(1), "{welcome}");
    assert!(welcome["devices"][0]["total_memory_bytes"].as_u64() > Some(0), "{welcome}");
    socket.send(OPEN_CONTEXT, &[]);
    let (opened, descriptors) = socket.receive();
    let opened = &opened["context_opened"];
    assert_eq!((&opened["context_id"], &opened["first"]), (&json!(1), &json!(true)), "{opened}");
    let mut session = Session::open(descriptors);
    let call = |session: &mut Session, opcode, body: &[u8], rest: &[u8]| {
        let (status, reply) = session.call(&command(opcode, body, rest));
        assert_eq!(status, 0, "opcode {opcode}: {}", String::from_utf8_lossy(&reply));
        reply
    };

    let address = opened["host_window"]["base"].as_u64().unwrap();
    let (file, host) = region(REGION_BYTES);
    session.socket.send(json!({ "address": address }).to_string().as_bytes(), &[file.as_fd()]);
    let map = RegionMap { address, size_bytes: REGION_BYTES as u64, kind: PINNED, reserved: 0 };
    call(&mut session, REGION_MAP, map.as_bytes(), &[]);
    let values: Vec<u32> = (0..COUNT).map(|at| at * 7 + 1).collect();
    host.write(0, values.as_bytes());
    host.write(IMAGE_OFFSET, TRIPLE.as_bytes());

    let wanted = VALUES_BYTES as u64;
    let grant = call(&mut session, GROW, wanted.as_bytes(), &[]);
    let (grant, _) = Range::read_from_prefix(&grant).unwrap();
    assert!(grant.size_bytes >= VALUES_BYTES as u64);
    let free = call(&mut session, MEMORY_INFO, &[], &[]);
    assert!(words(&free).count() == 2 && words(&free).all(|bytes| bytes > 0), "{free:x?}");
    let load = ModuleLoad {
        module: 1,
        optimization_level: u32::MAX,
        max_registers: 0,
        log_bytes: 0,
        address: address + IMAGE_OFFSET as u64,
        size_bytes: TRIPLE.len() as u64 + 1,
    };
    call(&mut session, MODULE_LOAD, load.as_bytes(), &[]);
    let name = b"triple";
    let get = FunctionGet { module: 1, function: 1, name_bytes: name.len() as u32, reserved: 0 };
    let function = call(&mut session, FUNCTION_GET, get.as_bytes(), name);
    let [parameters, _, prints, _]: [u32; 4] = <[u32; 4]>::read_from_prefix(&function).unwrap().0;
    assert_eq!((parameters, prints), (1, 0));
    assert_eq!(function[16..24], [0, 0, 0, 0, 8, 0, 0, 0], "one parameter of 8 bytes");

    let copy = |destination, source| {
        let size_bytes = VALUES_BYTES as u64;
        let body = Copy1d { stream: 0, reserved: 0, destination, source, size_bytes };
        command(COPY, body.as_bytes(), &[])
    };
    let launch = Launch {
        function: 1,
        stream: 0,
        grid: [1; 3],
        block: [COUNT, 1, 1],
        dynamic_shared_bytes: 0,
        parameter_bytes: 8,
        attributes: 0,
        reserved: 0,
    };
    session.post(&copy(grant.address, address));
    session.post(&command(LAUNCH, launch.as_bytes(), grant.address.as_bytes()));
    session.post(&copy(address, grant.address));
    let signal = Signal { stream: 0, reserved: 0, value: 1 };
    session.post(&command(SIGNAL, signal.as_bytes(), &[]));
    session.wait_for(0, 1);
    let tripled: Vec<u32> = values.iter().map(|value| value * 3).collect();
    assert_eq!(host.read(0, VALUES_BYTES), tripled.as_bytes());

    socket.send(br#"{"close_context":{"device":0}}"#, &[]);
    assert_eq!(socket.receive().0, json!("context_closed"));
}

fn no_version_in_common_is_said() {
    let mut server = Server::start();
    for (oldest, newest, words) in [
        (2, 3, "restart the daemon"),
        (u32::MAX, u32::MAX, "restart the daemon"),
        (0, 0, "update the library"),
        (1, 0, "update the library"),
    ] {
        let mut hello: Value = serde_json::from_str(HELLO).unwrap();
        hello["client"]["versions"] = json!({ "oldest": oldest, "newest": newest });
        let socket = attach(&mut server, &hello.to_string());
        let (refused, _) = socket.receive();
        let refused = &refused["refused"];
        assert_eq!(refused["code"], json!(806), "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(words) && message.contains("version 1"), "{message}");
    }
    // The future's library that still speaks version 1, and says what nobody knows yet.
    let hello = HELLO.replace(r#""newest":1}"#, r#""newest":9}, "of the future":[1]"#);
    let socket = attach(&mut server, &hello);
    assert_eq!(socket.receive().0["welcome"]["version"], json!(1));
}
