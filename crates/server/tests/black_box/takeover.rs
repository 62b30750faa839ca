//! What becomes of clients when the executor that served them is gone.

use crate::fake_client::{Client, SOON, Server, open_context};
use crate::promises::{POKE, PTX, parameters};
use crate::server_log;
use cuda_abi::types::{CUarray_format, CUresourcetype, CUresult};
use link::completion::CompletionError;
use link::wire::array::{
    ArrayCreate, ArrayLevel, ArrayNumber, SURFACE, TEXTURE, TextureCreate, TextureHandle,
};
use link::wire::attach::{ClientReply, ClientRequest, RequestedLimits};
use link::wire::command::{self as wire, Opcode};
use link::wire::daemon::{ServerStatus, ToDaemon, ToServer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    ("a_fault_costs_the_one_who_made_it", a_fault_costs_the_one_who_made_it),
    ("a_killed_executor_costs_who_had_work", a_killed_executor_costs_who_had_work),
    ("faults_in_a_row_are_survived", faults_in_a_row_are_survived),
    ("signals_do_not_go_back_in_the_next_executor", signals_do_not_go_back),
    ("what_has_ended_is_not_made_again", what_has_ended_is_not_made_again),
    ("who_is_terminated_meanwhile_does_not_go_on", who_is_terminated_meanwhile_does_not_go_on),
    ("who_maps_a_region_in_a_fault_is_served", who_maps_a_region_is_served),
    ("who_comes_during_a_fault_is_refused_where_wished", who_comes_is_refused_where_wished),
    ("who_comes_during_a_fault_waits", who_comes_waits),
    ("a_standby_that_is_being_made_takes_over", a_standby_that_is_being_made_takes_over),
    ("as_many_stand_by_as_are_wished", as_many_stand_by_as_are_wished),
];

const COUNT: u32 = 1000;
const REGION_BYTES: u64 = 2 << 20;

/// Code without variables of its own.
fn code() -> String {
    PTX.replace(".visible .global .align 4 .u32 counter = 5;", "")
}
const ADD_ONE: u32 = 0;

/// A client with memory, code, a stream and an event, whose numbers grow by one at a time.
struct Counting {
    client: Client,
    device: u64,
    host: u64,
    stream: u32,
    rounds: u32,
}

impl Counting {
    fn start(mut client: Client) -> Self {
        let bytes = u64::from(COUNT) * 4;
        let host = client.pinned(bytes.next_multiple_of(4096));
        let device = client.grow(bytes).address;
        client.function(0, &code(), ADD_ONE, "add_one");
        let stream = wire::StreamCreate { stream: 1, flags: 1, ..Default::default() };
        client.post(Opcode::StreamCreate, &[stream.as_bytes()]);
        client.post(Opcode::EventCreate, &[wire::EventCreate { event: 7, flags: 2 }.as_bytes()]);
        client.host_bytes(host, bytes as usize).fill(0);
        client.copy(1, device, host, bytes);
        client.finish(1).unwrap();
        Self { client, device, host, stream: 1, rounds: 0 }
    }

    /// Adds one to what lies on the device, and looks at all of it.
    fn go_on(&mut self) {
        let bytes = u64::from(COUNT) * 4;
        let Self { client, device, host, stream, .. } = self;
        client.launch(ADD_ONE, *stream, COUNT.div_ceil(128), 128, &parameters(*device, COUNT));
        client.copy(*stream, *host, *device, bytes);
        client.finish(*stream).unwrap();
        self.rounds += 1;
        let (words, _) = client.host_bytes(*host, bytes as usize).as_chunks::<4>();
        assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == self.rounds));
    }
}

pub(crate) fn culprit(server: &mut Server) -> Client {
    let mut culprit = server.client();
    culprit.function(0, &code(), POKE, "poke");
    culprit
}

pub(crate) fn fault(culprit: &mut Client) {
    culprit.launch(POKE, 0, 1, 1, 0x10u64.as_bytes());
    let ended = culprit.finish(0);
    assert_eq!(ended, Err(CompletionError::SessionFailed(CUresult::ERROR_ILLEGAL_ADDRESS.0)));
}

/// What a completion word has reached it has reached for every executor.
fn signals_do_not_go_back() {
    const FAR: u64 = 1 << 40;
    let mut server = Server::start();
    let mut client = culprit(&mut server);
    let place = client.pinned(4096);
    let signal = wire::Signal { stream: 0, reserved: 0, value: FAR };
    client.post(Opcode::Signal, &[signal.as_bytes()]);
    let deadline = Instant::now() + SOON;
    while client.words.completed(0) != FAR {
        assert!(Instant::now() < deadline, "the signal does not come");
        std::thread::yield_now();
    }
    fault(&mut culprit(&mut server));
    hear_recovery(&mut server);
    // As what the last executor did not commit, which is done again.
    client.post(Opcode::Signal, &[signal.as_bytes()]);
    assert_eq!(client.try_call(Opcode::Ping, &[]).0, 0);
    client.launch(POKE, 0, 1, 1, place.as_bytes());
    client.post(Opcode::Signal, &[signal.as_bytes()]);
    while !client.connection.is_closed() {
        assert!(
            Instant::now() < deadline,
            "a signal was taken that says that the kernel has ended"
        );
        std::thread::yield_now();
    }
}

pub(crate) fn hear_recovery(server: &mut Server) {
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Fault)));
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Active)));
}

fn a_fault_costs_the_one_who_made_it() {
    let mut server = Server::start();
    let mut idle = Counting::start(server.client());
    idle.go_on();
    let mut bad = culprit(&mut server);
    fault(&mut bad);
    idle.go_on();
    hear_recovery(&mut server);
    // Its memory is still there, more is to be had, and it is counted on.
    idle.client.grow(1 << 20);
    idle.go_on();
    let snapshot = server.snapshot();
    let device = &snapshot.devices[0];
    let kernels: Vec<u64> = snapshot.clients.iter().map(|client| client.kernels).collect();
    assert_eq!(kernels[0], 3);
    assert!(device.kernels_ever >= 3);
    drop((idle, bad));
    server.await_snapshot("the end of both", |snapshot| {
        snapshot.clients.is_empty() && snapshot.devices[0].granted_bytes == 0
    });
    crate::promises::compute(&mut server.client(), 1000);
}

fn a_killed_executor_costs_who_had_work() {
    let mut server = Server::start();
    let mut idle = Counting::start(server.client());
    let mut busy = Counting::start(server.client());
    // Nobody has asked whether this has ended, and nobody will know.
    let parameters = parameters(busy.device, COUNT);
    for _ in 0..100 {
        busy.client.launch(ADD_ONE, 1, COUNT.div_ceil(128), 128, &parameters);
    }
    let executor = server.snapshot().devices[0].executor_pid;
    let pid = rustix::process::Pid::from_raw(executor as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    hear_recovery(&mut server);
    idle.go_on();
    assert_ne!(server.snapshot().devices[0].executor_pid, executor);
    // Killed before, while or after its work was done: then it goes on as well.
    match busy.client.finish(1) {
        Err(CompletionError::SessionFailed(code)) => {
            assert_eq!(code, CUresult::ERROR_LAUNCH_FAILED.0);
        }
        other => assert_eq!(other, Ok(())),
    }
}

fn faults_in_a_row_are_survived() {
    let mut server = Server::start();
    let mut idle: Vec<Counting> = (0..3).map(|_| Counting::start(server.client())).collect();
    for _ in 0..5 {
        let mut bad = culprit(&mut server);
        fault(&mut bad);
        hear_recovery(&mut server);
        idle.iter_mut().for_each(Counting::go_on);
    }
    let log = crate::server_log::text();
    let own = std::process::id();
    let line = format!("Client {{PID: {own}, Context: 1}} encountered a fatal GPU error.");
    assert_eq!(log.matches(&line).count(), 5, "{log}");
    assert!(log.contains("poke"), "{log}");
}

/// What only the driver has.
fn textures_come_and_go(client: &mut Client) {
    let format = CUarray_format::UNSIGNED_INT32.0;
    let array = ArrayCreate {
        array: 1,
        width: 64,
        height: 64,
        format,
        channels: 1,
        levels: 2,
        ..Default::default()
    };
    assert_eq!(client.try_call(Opcode::ArrayCreate, &[array.as_bytes()]).0, 0);
    let level = ArrayLevel { mipmapped: 1, level: 1, array: 2, reserved: 0 };
    assert_eq!(client.try_call(Opcode::ArrayLevel, &[level.as_bytes()]).0, 0);
    for object in [TEXTURE, SURFACE] {
        let (resource, array) = (CUresourcetype::ARRAY.0, 2);
        let create = TextureCreate { object, resource, array, ..Default::default() };
        let texture: TextureHandle = client.call(Opcode::TextureCreate, &create, &[]);
        assert_eq!(client.try_call(Opcode::TextureDestroy, &[texture.as_bytes()]).0, 0);
    }
    let destroy = ArrayNumber { array: 1, reserved: 0 };
    assert_eq!(client.try_call(Opcode::ArrayDestroy, &[destroy.as_bytes()]).0, 0);
}

fn what_has_ended_is_not_made_again() {
    let mut server = Server::start();
    let mut idle = Counting::start(server.client());
    let client = &mut idle.client;
    for round in 0..2000_u32 {
        let event = 100 + round % 3;
        client.post(Opcode::EventCreate, &[wire::EventCreate { event, flags: 2 }.as_bytes()]);
        let destroy = wire::EventDestroy { event, reserved: 0 };
        client.post(Opcode::EventDestroy, &[destroy.as_bytes()]);
    }
    let grant = client.grow(1 << 20);
    let release = wire::Release { address: grant.address, size_bytes: grant.size_bytes };
    assert_eq!(client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
    textures_come_and_go(client);
    let granted = server.snapshot().devices[0].granted_bytes;
    fault(&mut culprit(&mut server));
    hear_recovery(&mut server);
    idle.go_on();
    assert_eq!(server.snapshot().devices[0].granted_bytes, granted);
    // The numbers are free again, as they were.
    let create = wire::EventCreate { event: 100, flags: 2 };
    idle.client.post(Opcode::EventCreate, &[create.as_bytes()]);
    idle.go_on();
}

fn who_is_terminated_meanwhile_does_not_go_on() {
    let mut server = Server::start_with(&[("OPENMPS_STANDBY", "0")]);
    let idle = Counting::start(server.client());
    fault(&mut culprit(&mut server));
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Fault)));
    let pid = std::process::id();
    server.daemon.send(&ToServer::Terminate { id: 1, pid }, &[], SOON).unwrap();
    let terminated = CUresult::ERROR_MPS_CLIENT_TERMINATED.0;
    loop {
        match server.hear() {
            ToDaemon::Terminated { code, .. } => break assert_eq!(code, 0),
            other => assert!(matches!(other, ToDaemon::Status(_)), "{other:?}"),
        }
    }
    let (memory, began) = (&idle.client.memory, Instant::now());
    while memory.error() == 0 && began.elapsed() < 2 * SOON {
        std::thread::yield_now();
    }
    assert_eq!(memory.error(), terminated);
}

/// Its file is on its way to one executor when that ends: the next one gets it.
fn who_maps_a_region_is_served() {
    const FAULTS: usize = 20;
    const MAPPERS: usize = 3;
    let mut server = Server::start();
    let clients: Vec<Client> = (0..MAPPERS).map(|_| server.client()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for mut client in clients {
            let is_over = &is_over;
            threads.spawn(move || {
                // Relaxed: a wish; no data travels with it.
                while !is_over.load(Ordering::Relaxed) {
                    let address = client.pinned(REGION_BYTES);
                    client.unpin(address, REGION_BYTES);
                }
            });
        }
        for _ in 0..FAULTS {
            let mut bad = culprit(&mut server);
            fault(&mut bad);
            hear_recovery(&mut server);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// While the file that it names exists, executors do not begin: a server stays in state FAULT for
/// as long as a test wants.
const HOLD_VARIABLE: &str = "OPENMPS_TEST_HOLD_EXECUTORS";

/// The file to which executors that are held write their process ids, a line each.
fn began(hold: &Path) -> PathBuf {
    hold.with_extension("began")
}

/// In the executor's process.
pub(crate) fn wait_while_held() {
    let Some(held) = std::env::var_os(HOLD_VARIABLE).map(PathBuf::from) else { return };
    if held.exists() {
        let begun = std::fs::File::options().append(true).create(true).open(began(&held));
        let _ = begun.and_then(|mut file| writeln!(file, "{}", std::process::id()));
    }
    while held.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server in state FAULT, with an idle client and the one who made the fault, until `hold` is
/// removed; `during_fault` is what `OPENMPS_DURING_FAULT` says.
fn server_in_fault(hold: &Path, during_fault: &str) -> (Server, Counting, Client) {
    let mut server = Server::start_with(&[
        ("OPENMPS_DURING_FAULT", during_fault),
        ("OPENMPS_STANDBY", "0"),
        (HOLD_VARIABLE, hold.to_str().expect("a path of ASCII")),
    ]);
    let mut idle = Counting::start(server.client());
    idle.go_on();
    let mut bad = culprit(&mut server);
    std::fs::write(hold, "").unwrap();
    fault(&mut bad);
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Fault)));
    (server, idle, bad)
}

fn who_comes_is_refused_where_wished() {
    let directory = tempfile::tempdir().unwrap();
    let hold = directory.path().join("hold");
    let (mut server, mut idle, _bad) = server_in_fault(&hold, "refuse");
    let own = std::process::id();
    let (connection, welcome) = server.attach(own, RequestedLimits::default()).unwrap();
    for _ in 0..2 {
        let refusal = open_context(&connection).expect_err("the server is in state FAULT");
        assert_eq!(refusal.code, CUresult::ERROR_MPS_SERVER_NOT_READY.0, "{}", refusal.message);
    }
    std::fs::remove_file(&hold).unwrap();
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Active)));
    // Who was there before was not refused anything, and who was refused may come again.
    idle.go_on();
    crate::promises::compute(&mut Client::open(connection, welcome), 1000);
}

fn who_comes_waits() {
    let directory = tempfile::tempdir().unwrap();
    let hold = directory.path().join("hold");
    let (mut server, mut idle, _bad) = server_in_fault(&hold, "wait");
    let own = std::process::id();
    let (connection, _) = server.attach(own, RequestedLimits::default()).unwrap();
    let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    connection.send(&wanted, &[], SOON).unwrap();
    server.await_snapshot("the client that waits", |snapshot| snapshot.clients.len() == 3);
    assert!(connection.try_receive::<ClientReply>().unwrap().is_none());
    std::fs::remove_file(&hold).unwrap();
    let reply = connection.receive::<ClientReply>(SOON).unwrap().message;
    assert!(matches!(reply, ClientReply::ContextOpened(_)), "{reply:?}");
    idle.go_on();
}

pub(crate) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn count_standbys() -> usize {
    server_log::text().matches("stands by for device 0").count()
}

/// It is nearer to its context than a new one would be. A fault that finds none ready has one more
/// kept.
fn a_standby_that_is_being_made_takes_over() {
    let directory = tempfile::tempdir().unwrap();
    let hold = directory.path().join("hold");
    let mut server = Server::start_with(&[(HOLD_VARIABLE, hold.to_str().unwrap())]);
    let mut idle = Counting::start(server.client());
    idle.go_on();
    // Only now: the first executor has begun.
    std::fs::write(&hold, "").unwrap();
    let mut bad = culprit(&mut server);
    let begun = || std::fs::read_to_string(began(&hold)).unwrap_or_default();
    wait_for("the standby's process", || begun().ends_with('\n'));
    fault(&mut bad);
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Fault)));
    let standby: u32 = begun().lines().next().unwrap().parse().unwrap();
    std::fs::remove_file(&hold).unwrap();
    idle.go_on();
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Active)));
    assert_eq!(server.snapshot().devices[0].executor_pid, standby);
    wait_for("one more", || count_standbys() == 2);
    idle.go_on();
}

fn as_many_stand_by_as_are_wished() {
    let mut server = Server::start_with(&[("OPENMPS_STANDBY", "2")]);
    let mut idle = Counting::start(server.client());
    wait_for("two standbys", || count_standbys() == 2);
    for _ in 0..2 {
        let before = server.snapshot().devices[0].standby_pid;
        assert_ne!(before, 0);
        let mut bad = culprit(&mut server);
        fault(&mut bad);
        hear_recovery(&mut server);
        assert_eq!(server.snapshot().devices[0].executor_pid, before);
        idle.go_on();
    }
}
