//! What a hostile server tells the daemon: messages, whole, mutated and in pieces, into the
//! daemon's core as plain code.
//!
//! The corpus in `server_words/` is replayed first. `cargo xtask fuzz server` goes on for longer:
//! `OPENMPS_FUZZ_SECONDS`, and `OPENMPS_TEST_SEED` to repeat a run. A packet that breaks something
//! is written to a file, whose path is printed; put into the corpus, it is replayed from then on.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use control::core::clients::Who;
use control::core::intake::Intake;
use control::core::{Config, ConnectionId, Core, Effect, Event, Limits, Provisioning};
use link::is_printable;
use link::pieces::Piece;
use link::wire::daemon::{MAX_SERVER_MESSAGE_BYTES, Peer, ToDaemon};
use serde_json::Value;

const SERVER: u32 = 975;
const OWNER: u32 = 1000;
const FRONT_END: ConnectionId = ConnectionId(1 << 40);
const MESSAGES: u64 = 3000;
/// Numbers at which arithmetic may stumble.
const NUMBERS: [u64; 8] = [0, 1, 2, 3, 975, 1 << 31, 1 << 53, u64::MAX];
const TEXTS: [&str; 5] = ["", "\u{1b}[2J\n", "\u{202e}\u{2028}", "GPU-0:/../x", "ACTIVE"];

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// A daemon's core with one server of a user's, and its clients.
struct World {
    core: Core,
    intake: Intake,
    /// Processes of clients that were handed on.
    pids: BTreeSet<u64>,
    connections: u64,
    hung_up: bool,
}

impl World {
    fn new() -> Self {
        let config = Config {
            daemon_pid: 969,
            daemon_uid: 0,
            daemon_gid: 0,
            provisioning: Provisioning::Concurrent,
            ready_devices: Vec::new(),
            membership: Default::default(),
        };
        let mut world = Self {
            core: Core::new(config, Limits::default()),
            intake: Intake::default(),
            pids: BTreeSet::new(),
            connections: 0,
            hung_up: false,
        };
        world.client();
        world.event(Event::ServerSpawned { pid: SERVER, uid: OWNER });
        world.event(Event::ServerSaid { server: SERVER, message: ToDaemon::Ready });
        for _ in 0..3 {
            world.client();
        }
        world
    }

    fn client(&mut self) {
        self.connections += 1;
        let pid = 100_000 + self.connections;
        self.pids.insert(pid);
        let hello = format!(
            r#"{{"versions": {{"oldest": 1, "newest": 1}}, "pid": 1, "pid_namespace": 0, "command": "client {pid}", "limits": {{}}}}"#
        );
        let peer = Peer { pid: pid as u32, uid: OWNER, gid: OWNER, ..Default::default() };
        self.event(Event::ClientArrived {
            connection: ConnectionId(self.connections),
            who: Box::new(Who { peer, ..Default::default() }),
            hello: serde_json::from_str(&hello).unwrap(),
            admission: None,
        });
    }

    fn event(&mut self, event: Event) {
        for effect in self.core.handle(Duration::ZERO, event) {
            match effect {
                Effect::Log { line, .. } => is_clean(&line),
                Effect::Reply { output, error, .. } => {
                    output.lines().chain(error.lines()).for_each(is_clean);
                }
                Effect::Refuse { message, .. } => is_clean(&message),
                Effect::Forward { server, .. } => self.event(Event::HandedOn { server }),
                _ => {}
            }
        }
    }

    /// One packet of the server's, as the daemon's loop takes it.
    fn packet(&mut self, packet: &[u8]) {
        match self.intake.take(packet) {
            Ok(Some(message)) => self.event(Event::ServerSaid { server: SERVER, message }),
            Ok(None) => {}
            Err(_) => self.hang_up(),
        }
    }

    /// The daemon listens to such a server no longer.
    fn hang_up(&mut self) {
        self.hung_up = true;
    }

    /// What holds whatever a server says.
    fn check(&mut self) {
        for line in ["ps", "get_client_list 975", "get_device_client_list", "device_query"] {
            let peer = Peer { pid: 1, uid: OWNER, gid: OWNER, ..Default::default() };
            let line = line.to_owned();
            self.event(Event::UiLine { connection: FRONT_END, peer, line });
            self.event(Event::ConnectionClosed { connection: FRONT_END });
        }
        let state = serde_json::to_value(self.core.state(&[])).unwrap();
        check_texts(&state);
        assert!(state.to_string().len() < 2 * MAX_SERVER_MESSAGE_BYTES, "the state grows");
        for server in state["state"]["servers"].as_array().unwrap() {
            let of = |list: &str| server["snapshot"][list].as_array().unwrap().clone();
            for client in of("clients").into_iter().chain(of("departed")) {
                assert!(self.pids.contains(&client["pid"].as_u64().unwrap()), "{client}");
                assert_eq!(client["uid"], OWNER, "{client}");
            }
        }
        assert!(self.core.clients().attached().count() <= self.pids.len());
    }
}

fn is_clean(text: &str) {
    assert!(text.chars().all(is_printable), "{text:?}");
}

fn check_texts(value: &Value) {
    match value {
        Value::String(text) => is_clean(text),
        Value::Array(all) => all.iter().for_each(check_texts),
        Value::Object(fields) => fields.values().for_each(check_texts),
        _ => {}
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server_words");
    let entries = std::fs::read_dir(directory).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Changes some leaf or member of a message.
fn mutate(words: &mut Value, random: &mut Random) {
    match words {
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            let key = fields.keys().nth(at).unwrap().clone();
            match random.below(12) {
                0 => drop(fields.remove(&key)),
                _ => mutate(fields.get_mut(&key).unwrap(), random),
            }
        }
        Value::Array(all) if !all.is_empty() => {
            let at = random.below(all.len());
            match random.below(8) {
                0 => drop(all.remove(at)),
                1 => {
                    let again = all[at].clone();
                    all.extend(std::iter::repeat_n(again, 1 + random.below(40)));
                }
                _ => mutate(&mut all[at], random),
            }
        }
        leaf => {
            *leaf = match random.below(6) {
                0 => Value::from(TEXTS[random.below(TEXTS.len())]),
                1 => Value::from(TEXTS[random.below(TEXTS.len())].repeat(random.below(2000))),
                2 => Value::Null,
                3 => Value::from(-1.5),
                _ => Value::from(NUMBERS[random.below(NUMBERS.len())]),
            }
        }
    }
}

fn packet(corpus: &[Vec<u8>], random: &mut Random) -> Vec<Vec<u8>> {
    let mut packet = corpus[random.below(corpus.len())].clone();
    if let Ok(mut words) = serde_json::from_slice::<Value>(&packet) {
        for _ in 0..random.below(6) {
            mutate(&mut words, random);
        }
        packet = serde_json::to_vec(&words).unwrap();
    }
    if random.below(10) == 0 {
        let at = random.below(packet.len());
        packet[at] = random.below(256) as u8;
    }
    let Some(text) = String::from_utf8(packet.clone()).ok().filter(|_| random.below(8) == 0) else {
        return vec![packet];
    };
    // In pieces, of which one may be wrong.
    let middle = text.floor_char_boundary(random.below(text.len()));
    let offset = if random.below(4) == 0 { random.below(1 << 20) } else { middle };
    let first = Piece { offset: 0, text: text[..middle].to_owned(), more: true };
    let second = Piece { offset, text: text[middle..].to_owned(), more: random.below(4) == 0 };
    [first, second].map(|piece| serde_json::to_vec(&ToDaemon::Piece(piece)).unwrap()).into()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn take(world: &mut World, packets: &[Vec<u8>]) {
    let taken = catch_unwind(AssertUnwindSafe(|| {
        packets.iter().for_each(|packet| world.packet(packet));
        world.check();
    }));
    if taken.is_err() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-server-words");
        let _ = std::fs::write(&path, packets.join(&b'\n'));
        panic!("these packets of a server break the daemon: {}", path.display());
    }
}

#[test]
fn the_corpus_changes_nothing() {
    for packet in corpus() {
        take(&mut World::new(), &[packet]);
    }
}

#[test]
fn mutated_words_of_a_server_change_nothing() {
    let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh) | 1;
    eprintln!("OPENMPS_TEST_SEED={seed}");
    let end = number("OPENMPS_FUZZ_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let corpus = corpus();
    let mut random = Random(seed);
    let mut world = World::new();
    let mut count = 0;
    while end.map_or(count < MESSAGES, |end| Instant::now() < end) {
        count += 1;
        if world.hung_up || count % 500 == 0 {
            world = World::new();
        }
        match random.below(20) {
            0 => world.client(),
            1 => {
                let client = 1 + random.below(world.connections as usize) as u64;
                world.event(Event::ClientEnded { client });
            }
            _ => {}
        }
        let packets = packet(&corpus, &mut random);
        take(&mut world, &packets);
    }
    eprintln!("{count} messages");
}
