//! Writes down what a real client library and a server say to each other, by standing between them.
//!
//! ```text
//! cargo test -p server --test black_box -- record LIBRARIES PROGRAM FILE
//! ```
//!
//! `LIBRARIES` is a directory with the client library as `libcuda.so.1`, `PROGRAM` the tests'
//! puppet. The library gets files of the recorder's own, so that the recorder sees each command
//! before the server does, and each result before the library does. `conversation.txt` was made so
//! by the library of the build that made version 1. It never changes; a new version gets a folder
//! of its own beside this one.

use super::super::{fake_client::Server, server_log};
use super::client::{Mapped, Socket};
use super::events::Event;
use link::call::{self, CallSlots};
use link::completion::CompletionWords;
use link::ring::{Consumer, Producer};
use link::session_memory::SessionMemory;
use link::shm;
use link::socket::Listener;
use link::spin::Spin;
use link::wire::attach::Hello;
use link::wire::command::{Copy, NO_CALL, Opcode};
use link::wire::layout::COMPLETION_BYTES;
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::ProtFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// A small program: a context, a module, memory, copies, launches and waits.
const ORDERS: &[u8] = b"open\nwork 3\n";
/// Streams of which completions are passed on.
const STREAMS: u32 = 64;
/// Memory is compared in pieces of so many bytes.
const PIECE_BYTES: usize = 64;

/// See the module's description.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    let [libraries, program, file] = arguments.as_slice() else {
        eprintln!("record LIBRARIES PROGRAM FILE");
        return ExitCode::FAILURE;
    };
    server_log::begin("record");
    let mut server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&directory.path().join("openmps-control")).unwrap();
    let mut child = Command::new(program)
        .arg0("puppet")
        .env_clear()
        .env("LD_LIBRARY_PATH", libraries)
        .env("CUDA_MPS_PIPE_DIRECTORY", directory.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(ORDERS).unwrap();
    let connection = loop {
        if let Some(connection) = listener.try_accept().unwrap() {
            break connection;
        }
        assert!(child.try_wait().unwrap().is_none(), "the program does not attach");
        std::thread::sleep(Duration::from_millis(1));
    };
    let mut relay = Relay::new(Socket::from(OwnedFd::from(connection)), &mut server);
    while relay.step() {}
    assert!(child.wait().unwrap().success());
    let lines: String = relay.events.iter().map(|event| event.line() + "\n").collect();
    std::fs::write(file, lines).unwrap();
    ExitCode::SUCCESS
}

/// Both connections of a client, and its session.
struct Relay {
    client: Socket,
    server: Socket,
    session: Option<Session>,
    events: Vec<Event>,
}

impl Relay {
    /// Hands the client over by its first packet.
    fn new(client: Socket, server: &mut Server) -> Self {
        let (packet, _) = super::client::patiently("a hello", || client.try_receive());
        let Ok(Hello::Client(hello)) = serde_json::from_slice(&packet) else {
            panic!("{packet:x?}")
        };
        let (ours, theirs) = Socket::pair();
        server.hand_over(hello, theirs.as_fd());
        let events = vec![Event::Asked(String::from_utf8(packet).unwrap())];
        Self { client, server: ours, session: None, events }
    }

    /// Passes on what has come; false when the client has left.
    fn step(&mut self) -> bool {
        if let Some((packet, _)) = self.client.try_receive() {
            if packet.is_empty() {
                return false;
            }
            self.server.send(&packet, &[]);
            self.events.push(Event::Asked(String::from_utf8(packet).unwrap()));
        }
        if let Some((packet, descriptors)) = self.server.try_receive() {
            let opened: Value = serde_json::from_slice(&packet).unwrap();
            let passed_on = match opened.get("context_opened") {
                Some(_) if descriptors.len() == 3 => {
                    let (session, theirs) = Session::between(descriptors);
                    self.session = Some(session);
                    theirs
                }
                _ => descriptors,
            };
            let passed_on: Vec<_> = passed_on.iter().map(AsFd::as_fd).collect();
            self.client.send(&packet, &passed_on);
            self.events.push(Event::Told(String::from_utf8(packet).unwrap()));
        }
        if let Some(session) = &mut self.session {
            session.step(&mut self.events);
        }
        std::thread::sleep(Duration::from_micros(20));
        true
    }
}

struct Region {
    mapped: Mapped,
    known: Vec<u8>,
}

/// The client's end of a session, which the recorder has made, and the server's.
struct Session {
    from_client: Socket,
    consumer: Consumer,
    memory: Arc<SessionMemory>,
    words: Mapped,
    to_server: Socket,
    producer: Producer,
    slots: CallSlots,
    of_server: Arc<SessionMemory>,
    words_of_server: CompletionWords,
    regions: BTreeMap<u64, Region>,
    /// What the device may write at any time: the destinations of copies to the host.
    awaited: Vec<Range<u64>>,
}

impl Session {
    fn between(descriptors: Vec<OwnedFd>) -> (Self, Vec<OwnedFd>) {
        let [file, words, socket]: [OwnedFd; 3] = descriptors.try_into().unwrap();
        let own_file = SessionMemory::create_file().unwrap();
        let own_words = CompletionWords::create_file().unwrap();
        let (from_client, theirs) = Socket::pair();
        let memory = Arc::new(SessionMemory::map(own_file.as_fd()).unwrap());
        let of_server = Arc::new(SessionMemory::map(file.as_fd()).unwrap());
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let session = Self {
            from_client,
            consumer: Consumer::new(Arc::clone(&memory)),
            memory,
            words: Mapped::new(own_words.as_fd(), COMPLETION_BYTES, both),
            to_server: socket.into(),
            producer: Producer::new(Arc::clone(&of_server)),
            slots: CallSlots::new(Arc::clone(&of_server)),
            words_of_server: CompletionWords::map(words.as_fd()).unwrap(),
            of_server,
            regions: BTreeMap::new(),
            awaited: Vec::new(),
        };
        let own_words = shm::read_only(own_words.as_fd()).unwrap();
        (session, vec![own_file, own_words, theirs])
    }

    fn step(&mut self, events: &mut Vec<Event>) {
        if let Some(count) = self.of_server.multiprocessors() {
            self.memory.set_multiprocessors(count);
        }
        let beat = self.of_server.shared().heartbeat.0.load(Ordering::Relaxed);
        self.memory.shared().heartbeat.0.store(beat, Ordering::Relaxed);
        assert_eq!(self.of_server.error(), 0);
        self.pass_completions(events);
        self.pass_files(events);
        while let Some(command) = self.consumer.take().unwrap() {
            let header = command.header;
            let bytes = [header.as_bytes(), command.body].concat();
            let body = command.body.to_vec();
            // It waits in the socket before its command is posted.
            self.pass_files(events);
            let wrote = self.changes().into_iter();
            events.extend(wrote.map(|(address, bytes)| Event::Wrote(address, bytes)));
            let opcode = Opcode::from_number(header.opcode).unwrap();
            if opcode == Opcode::Copy {
                let (copy, _) = Copy::read_from_prefix(&body).unwrap();
                self.awaited.push(copy.destination..copy.destination + copy.size_bytes);
            }
            let mut alive = || true;
            if header.call_slot == NO_CALL {
                events.push(Event::Posted(bytes));
                self.producer.post(opcode, NO_CALL, header.context, &[&body], &mut alive).unwrap();
                continue;
            }
            events.push(Event::Called(bytes));
            let claimed = self.slots.claim().unwrap();
            let slot = claimed.slot();
            self.producer.post(opcode, slot, header.context, &[&body], &mut alive).unwrap();
            let mut reply = Vec::new();
            let status = claimed.wait(&mut Spin::default(), &mut reply, &mut alive).unwrap();
            events.push(Event::Answered(status, reply.clone()));
            call::answer(&self.memory, header.call_slot, status, &reply).unwrap();
        }
    }

    fn pass_completions(&mut self, events: &mut Vec<Event>) {
        for stream in 0..STREAMS {
            let value = self.words_of_server.completed(stream);
            let known = self.words.long_word(8 * stream as usize).load(Ordering::Relaxed);
            if value == known {
                continue;
            }
            events.push(Event::Reached(stream as usize, value));
            // The client waits, and writes nothing.
            self.awaited.clear();
            let found = self.changes().into_iter();
            events.extend(found.map(|(address, bytes)| Event::Found(address, bytes)));
            self.words.long_word(8 * stream as usize).store(value, Ordering::Release);
            self.memory.wake_sleepers();
        }
    }

    fn pass_files(&mut self, events: &mut Vec<Event>) {
        while let Some((packet, descriptors)) = self.from_client.try_receive() {
            let [file] = descriptors.as_slice() else { return };
            let message: Value = serde_json::from_slice(&packet).unwrap();
            let size_bytes = rustix::fs::fstat(file).unwrap().st_size as usize;
            self.to_server.send(&packet, &[file.as_fd()]);
            let mapped = Mapped::new(file.as_fd(), size_bytes, ProtFlags::READ);
            let region = Region { mapped, known: vec![0; size_bytes] };
            self.regions.insert(message["address"].as_u64().unwrap(), region);
            events.push(Event::Region(size_bytes as u64, String::from_utf8(packet).unwrap()));
        }
    }

    /// What is another in regions than when this was last looked at, but for what is awaited.
    fn changes(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut changes: Vec<(u64, Vec<u8>)> = Vec::new();
        for (address, region) in &mut self.regions {
            let mut now = region.mapped.read(0, region.mapped.size_bytes());
            if now == region.known {
                continue;
            }
            for (at, known) in (*address..).zip(&region.known) {
                if self.awaited.iter().any(|awaited| awaited.contains(&at)) {
                    now[(at - address) as usize] = *known;
                }
            }
            let pieces = now.chunks(PIECE_BYTES).zip(region.known.chunks(PIECE_BYTES));
            for (at, (now, _)) in pieces.enumerate().filter(|(_, (now, known))| now != known) {
                let place = address + (at * PIECE_BYTES) as u64;
                match changes.last_mut().filter(|(at, of)| at + of.len() as u64 == place) {
                    Some((_, before)) => before.extend_from_slice(now),
                    None => changes.push((place, now.to_vec())),
                }
            }
            region.known = now;
        }
        changes
    }
}
