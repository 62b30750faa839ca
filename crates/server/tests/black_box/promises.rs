//! What the server promises, each as one test.

use super::fake_client::*;
use cuda_abi::types::CUresult;
use link::completion::CompletionError;
use link::wire::attach::RequestedLimits;
use link::wire::command::{self as wire, Opcode};
use link::wire::daemon::{ShutdownMode, ToDaemon, ToServer};
use std::process::Command;
use zerocopy::IntoBytes;

pub(crate) const PTX: &str = include_str!("add_one.ptx");
const ADD_ONE: u32 = 0;
pub(crate) const POKE: u32 = 1;

pub(crate) const ALL: &[super::Test] = &[
    ("a_client_computes_and_the_server_counts_it", a_client_computes_and_the_server_counts_it),
    ("launches_are_metered", launches_are_metered),
    ("streams_keep_cudas_order", streams_keep_cudas_order),
    ("foreign_addresses_and_bad_images_are_refused", foreign_addresses_and_bad_images_are_refused),
    ("garbage_in_the_ring_ends_its_writer_only", garbage_in_the_ring_ends_its_writer_only),
    (
        "numbers_beyond_the_last_end_their_writer_only",
        numbers_beyond_the_last_end_their_writer_only,
    ),
    ("a_refused_launch_is_reported_once", a_refused_launch_is_reported_once),
    ("refused_launches_do_not_fill_the_log", refused_launches_do_not_fill_the_log),
    ("the_forty_ninth_context_is_refused", the_forty_ninth_context_is_refused),
    ("a_killed_client_is_forgotten", a_killed_client_is_forgotten),
    (
        "what_a_client_that_left_had_queued_is_not_run",
        what_a_client_that_left_had_queued_is_not_run,
    ),
    ("nothing_leaks_over_many_clients", nothing_leaks_over_many_clients),
    ("made_up_partitions_are_refused", made_up_partitions_are_refused),
    ("a_terminated_client_is_told", a_terminated_client_is_told),
    ("a_draining_server_takes_no_one_and_ends", a_draining_server_takes_no_one_and_ends),
];

pub(crate) fn parameters(data: u64, count: u32) -> Vec<u8> {
    [data.as_bytes(), count.as_bytes()].concat()
}

/// Adds one to `count` numbers by way of the device and checks them.
pub(crate) fn compute(client: &mut Client, count: u32) {
    let bytes = u64::from(count) * 4;
    let region = client.pinned(bytes.next_multiple_of(4096));
    let grant = client.grow(bytes);
    let reply = client.function(0, PTX, ADD_ONE, "add_one");
    assert_eq!(reply.parameters, 2);
    let numbers: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
    client.host_bytes(region, bytes as usize).copy_from_slice(&numbers);
    client.copy(0, grant.address, region, bytes);
    client.launch(ADD_ONE, 0, count.div_ceil(128), 128, &parameters(grant.address, count));
    client.copy(0, region, grant.address, bytes);
    client.finish(0).unwrap();
    let (words, _) = client.host_bytes(region, bytes as usize).as_chunks::<4>();
    assert!(words.iter().zip(1u32..).all(|(word, expected)| u32::from_ne_bytes(*word) == expected));
}

fn a_client_computes_and_the_server_counts_it() {
    let mut server = Server::start();
    let mut client = server.client();
    assert!(!client.welcome.devices[0].attributes.is_empty());
    compute(&mut client, 10_000);
    let ping = client.try_call(Opcode::Ping, &[]);
    assert_eq!(ping.0, 0);
    let snapshot = server.snapshot();
    assert_eq!(snapshot.clients.len(), 1);
    assert_eq!(snapshot.clients[0].kernels, 1);
    assert_eq!(snapshot.clients[0].copied_bytes, 80_000);
    assert!(snapshot.clients[0].granted_bytes >= 40_000);
    assert_eq!(snapshot.devices[0].kernels_ever, 1);
    drop(client);
    let after = server.await_snapshot("the end of the session", |snapshot| {
        snapshot.devices[0].granted_bytes == 0
    });
    assert!(after.clients.is_empty());
    assert_eq!(after.departed[0].kernels, 1);
    assert_eq!(after.devices[0].kernels_ever, 1);
}

/// A chain over the legacy stream, a blocking stream and a waiting one, where each step reads what
/// the one before wrote.
fn launches_are_metered() {
    let mut server = Server::start();
    let mut client = server.client();
    let region = client.pinned(4096);
    client.function(0, PTX, ADD_ONE, "add_one");
    let deadline = std::time::Instant::now() + SOON;
    loop {
        for _ in 0..100 {
            client.launch(ADD_ONE, 0, 8, 128, &parameters(region, 1000));
        }
        client.finish(0).unwrap();
        let snapshot = server.snapshot();
        let share = &snapshot.clients[0].devices[0];
        assert_eq!(share.kernels, snapshot.clients[0].kernels);
        assert!(share.launch_counts.iter().sum::<u64>() > 0 && share.launch_time_ns > 0);
        if share.gpu_time_ns > 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "no kernel's time was sampled: {share:?}");
    }
}

fn streams_keep_cudas_order() {
    let mut server = Server::start();
    let mut client = server.client();
    let count = 4096u32;
    let bytes = u64::from(count) * 4;
    let grant = client.grow(bytes);
    let region = client.pinned(bytes);
    client.function(0, PTX, ADD_ONE, "add_one");
    for (stream, flags) in [(1, 0), (2, 1)] {
        let create = wire::StreamCreate { stream, flags, ..Default::default() };
        client.post(Opcode::StreamCreate, &[create.as_bytes()]);
    }
    client.post(Opcode::EventCreate, &[wire::EventCreate { event: 7, flags: 0 }.as_bytes()]);
    let fill = wire::Fill {
        stream: 0,
        element_bytes: 4,
        destination: grant.address,
        width: count.into(),
        height: 1,
        value: 100,
        ..Default::default()
    };
    client.post(Opcode::Fill, &[fill.as_bytes()]);
    let arguments = parameters(grant.address, count);
    let rounds = 20;
    for _ in 0..rounds {
        client.launch(ADD_ONE, 0, count / 128, 128, &arguments);
        client.launch(ADD_ONE, 1, count / 128, 128, &arguments);
        client.launch(ADD_ONE, 0, count / 128, 128, &arguments);
        client.record(7, 0);
        let wait = wire::StreamWaitEvent { stream: 2, event: 7, ..Default::default() };
        client.post(Opcode::StreamWaitEvent, &[wait.as_bytes()]);
        client.launch(ADD_ONE, 2, count / 128, 128, &arguments);
        client.finish(2).unwrap();
    }
    client.copy(2, region, grant.address, bytes);
    let synchronize = wire::StreamSynchronize { stream: 2, reserved: 0 };
    assert_eq!(client.try_call(Opcode::StreamSynchronize, &[synchronize.as_bytes()]).0, 0);
    let (words, _) = client.host_bytes(region, bytes as usize).as_chunks::<4>();
    assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == 100 + 4 * rounds));
}

fn foreign_addresses_and_bad_images_are_refused() {
    let mut server = Server::start();
    let mut owner = server.client();
    let secret = owner.grow(4096);
    let mut thief = server.client();
    let region = thief.pinned(4096);
    thief.copy(0, region, secret.address, 4096);
    let ended = thief.finish(0);
    assert_eq!(ended, Err(CompletionError::SessionFailed(CUresult::ERROR_INVALID_VALUE.0)));
    for image in [
        &b"\x50\xed\x55\xba\x01\x00\x10\x00\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
        b"\x7fELF",
        b".version 99.9\n.target",
    ] {
        thief.host_bytes(region, image.len()).copy_from_slice(image);
        let load = wire::ModuleLoad {
            module: 3,
            optimization_level: u32::MAX,
            log_bytes: 512,
            address: region,
            size_bytes: image.len() as u64,
            ..Default::default()
        };
        let (status, _) = thief.try_call(Opcode::ModuleLoad, &[load.as_bytes()]);
        assert!(status != 0, "image {image:?} was taken");
    }
    compute(&mut owner, 1000);
}

fn garbage_in_the_ring_ends_its_writer_only() {
    let mut server = Server::start();
    let mut good = server.client();
    let mut bad = server.client();
    bad.memory.shared().tail.0.store(12_345, std::sync::atomic::Ordering::Release);
    bad.memory.wake_consumer();
    server.await_snapshot("the disconnection", |snapshot| snapshot.clients.len() == 1);
    assert!(bad.connection.is_closed());
    let mut worse = server.client();
    let unknown = [0u8; 16];
    worse.post(Opcode::Grow, &[]);
    worse.post(Opcode::Ping, &[&unknown]);
    server.await_snapshot("the disconnection", |snapshot| snapshot.clients.len() == 1);
    compute(&mut good, 1000);
    // Its descriptors are still here, and harm nobody.
    bad.post(Opcode::Ping, &[]);
}

fn numbers_beyond_the_last_end_their_writer_only() {
    let mut server = Server::start();
    let mut good = server.client();
    let beyond = u32::MAX;
    let launch =
        wire::Launch { function: beyond, grid: [1; 3], block: [1; 3], ..Default::default() };
    let copy = wire::Copy { stream: beyond, ..Default::default() };
    let signal = wire::Signal { stream: beyond, reserved: 0, value: 1 };
    let record = wire::EventRecord { event: beyond, ..Default::default() };
    let unload = wire::ModuleUnload { module: beyond, ..Default::default() };
    let commands: [(Opcode, &[u8]); 5] = [
        (Opcode::Launch, launch.as_bytes()),
        (Opcode::Copy, copy.as_bytes()),
        (Opcode::Signal, signal.as_bytes()),
        (Opcode::EventRecord, record.as_bytes()),
        (Opcode::ModuleUnload, unload.as_bytes()),
    ];
    for (opcode, body) in commands {
        let mut bad = server.client();
        bad.post(opcode, &[body]);
        server.await_snapshot("the disconnection", |snapshot| snapshot.clients.len() == 1);
        assert!(bad.connection.is_closed(), "{opcode:?}");
    }
    compute(&mut good, 1000);
}

fn a_refused_launch_is_reported_once() {
    let mut server = Server::start();
    let mut client = server.client();
    let grant = client.grow(4096);
    client.function(0, PTX, ADD_ONE, "add_one");
    let arguments = parameters(grant.address, 1);
    // More threads than a block may have: what a client of ours refuses itself, and the driver
    // must.
    client.launch(ADD_ONE, 0, 1, 4096, &arguments);
    client.launch(ADD_ONE, 0, 1, 4096, &arguments);
    client.finish(0).unwrap();
    assert_eq!(client.memory.error(), 0, "the session goes on");
    assert_eq!(client.memory.take_refusal(), CUresult::ERROR_INVALID_VALUE.0);
    assert_eq!(client.memory.take_refusal(), 0);
    client.launch(ADD_ONE, 0, 1, 128, &arguments);
    client.finish(0).unwrap();
    assert_eq!(client.memory.take_refusal(), 0);
    assert_eq!(server.snapshot().clients[0].kernels, 1);
}

fn refused_launches_do_not_fill_the_log() {
    let mut server = Server::start();
    let mut client = server.client();
    let grant = client.grow(4096);
    client.function(0, PTX, ADD_ONE, "add_one");
    for _ in 0..200 {
        client.launch(ADD_ONE, 0, 1, 4096, &parameters(grant.address, 1));
    }
    client.finish(0).unwrap();
    let lines = super::server_log::text().matches("failed: ").count();
    assert!((1..100).contains(&lines), "{lines} lines");
}

fn the_forty_ninth_context_is_refused() {
    let mut server = Server::start();
    let clients: Vec<Client> = (0..48).map(|_| server.client()).collect();
    let (late, _) = server.attach(std::process::id(), RequestedLimits::default()).unwrap();
    let refusal = open_context(&late).unwrap_err();
    assert_eq!(refusal.code, CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0);
    drop(clients);
    server.await_snapshot("the end of 48 clients", |snapshot| snapshot.clients.len() == 1);
    open_context(&late).unwrap();
}

fn a_killed_client_is_forgotten() {
    let mut server = Server::start();
    // The socket stays open here, as in a forked child: the process's end must do.
    let mut process = Command::new("sleep").arg("600").spawn().unwrap();
    let (connection, welcome) = server.attach(process.id(), RequestedLimits::default()).unwrap();
    let mut client = Client::open(connection, welcome);
    compute(&mut client, 100_000);
    process.kill().unwrap();
    let end = server.await_snapshot("the end of the session", |snapshot| {
        snapshot.clients.is_empty() && snapshot.devices[0].granted_bytes == 0
    });
    assert_eq!(end.departed[0].pid, process.id());
    process.wait().unwrap();
}

fn count_entries(path: String) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

fn what_a_client_that_left_had_queued_is_not_run() {
    const LAUNCHES: u64 = 5000;
    let mut server = Server::start();
    let mut client = server.client();
    let count = 1 << 20;
    let region = client.pinned(count * 4);
    client.function(0, PTX, ADD_ONE, "add_one");
    let (blocks, parameters) = (count as u32 / 128, parameters(region, count as u32));
    for _ in 0..LAUNCHES {
        client.launch(ADD_ONE, 0, blocks, 128, &parameters);
    }
    server.await_snapshot("its first kernels", |snapshot| {
        snapshot.clients.iter().any(|client| client.kernels > 0)
    });
    drop(client);
    let left = server.await_snapshot("the end of its session", |snapshot| {
        snapshot.clients.is_empty() && snapshot.departed.iter().all(|client| client.kernels > 0)
    });
    // Those that were submitted run on: at most about a thousand.
    assert!(left.devices[0].kernels_ever < LAUNCHES - 500, "{left:?}");
}

fn nothing_leaks_over_many_clients() {
    let mut server = Server::start();
    let mut usage = |clients: usize| {
        for _ in 0..clients {
            let mut client = server.client();
            compute(&mut client, 256);
        }
        let snapshot = server.await_snapshot("the end of all sessions", |snapshot| {
            snapshot.clients.is_empty() && snapshot.devices[0].granted_bytes == 0
        });
        let keeper = server.child.id();
        [keeper, snapshot.devices[0].executor_pid].map(|pid| {
            let descriptors = count_entries(format!("/proc/{pid}/fd"));
            // Threads whose session is over may still be on their way out.
            let threads = count_entries(format!("/proc/{pid}/task"));
            let maps =
                std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().count();
            (descriptors, threads, maps)
        })
    };
    let before = usage(10);
    let mut after = usage(100);
    // Connections are closed by threads of their own, which end when there is nothing left.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let is_more = |(before, after): (&(usize, usize, usize), &(usize, usize, usize))| {
        after.0 > before.0 + 1 || after.1 > before.1 + 1
    };
    while before.iter().zip(&after).any(is_more) && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(50));
        after = usage(0);
    }
    for (before, after) in before.into_iter().zip(after) {
        assert!(after.0 <= before.0 + 1, "descriptors: {before:?}, then {after:?}");
        assert!(after.1 <= before.1 + 1, "threads: {before:?}, then {after:?}");
        assert!(after.2 <= before.2 + 10, "mappings: {before:?}, then {after:?}");
    }
}

fn made_up_partitions_are_refused() {
    use link::wire::partition as sms;
    let mut server = Server::start();
    let mut client = server.client();
    let invalid = CUresult::ERROR_INVALID_VALUE.0;
    let whole: sms::SmResource =
        client.call(Opcode::ResourceGet, &sms::ResourceGet::default(), &[]);
    assert!(whole.resource == 1 && whole.multiprocessors > 8);
    let unknown = sms::ResourceGet { partition: 3, reserved: 0 };
    let (status, _) = client.try_call(Opcode::ResourceGet, &[unknown.as_bytes()]);
    assert_eq!(status, CUresult::ERROR_INVALID_CONTEXT.0);
    for resource in [0, 2, u32::MAX] {
        let split = sms::ResourceSplit { resource, least: 2, flags: 1, room: 4 };
        assert_eq!(client.try_call(Opcode::ResourceSplit, &[split.as_bytes()]).0, invalid);
    }
    // More room than a driver has groups for is cut off; more SMs than there are is the driver's to
    // refuse.
    let split = sms::ResourceSplit { resource: 1, least: 2, flags: 1, room: u32::MAX };
    let made: sms::ResourceSplitReply = client.call(Opcode::ResourceSplit, &split, &[]);
    assert!(made.groups > 0 && made.groups <= sms::MAX_GROUPS);
    let too_large = sms::ResourceSplit { least: u32::MAX, ..split };
    assert_ne!(client.try_call(Opcode::ResourceSplit, &[too_large.as_bytes()]).0, 0);
    for (count, numbers) in [(0, vec![]), (1, vec![99u32]), (u32::MAX, vec![1])] {
        let describe = sms::ResourceDescribe { count, reserved: 0 };
        let parts = [describe.as_bytes(), numbers.as_bytes()];
        assert_eq!(client.try_call(Opcode::ResourceDescribe, &parts).0, invalid, "{count}");
    }
    // The same SMs twice.
    let twice = sms::ResourceDescribe { count: 2, reserved: 0 };
    let (status, _) =
        client.try_call(Opcode::ResourceDescribe, &[twice.as_bytes(), [1u32, 1].as_bytes()]);
    assert_eq!(status, CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION.0);
    let create = sms::PartitionCreate { partition: 1, description: 7 };
    assert_eq!(client.try_call(Opcode::PartitionCreate, &[create.as_bytes()]).0, invalid);
    let take = sms::PartitionTake { partition: 1, multiprocessors: 8, ..Default::default() };
    let taken: sms::PartitionReply = client.call(Opcode::PartitionTake, &take, &[]);
    assert_eq!(taken.multiprocessors, 8);
    // No client of ours would do these: the session ends.
    for (opcode, body) in [
        (Opcode::PartitionTake, take.as_bytes().to_vec()),
        (Opcode::PartitionTake, sms::PartitionTake { partition: 0, ..take }.as_bytes().to_vec()),
        (Opcode::PartitionDrop, [u32::MAX, 0].as_bytes().to_vec()),
        (Opcode::ResourceDescribe, [3u32, 0, 1].as_bytes().to_vec()),
        (Opcode::StreamCreate, [1, 0, 0, 0, 9, 0u32].as_bytes().to_vec()),
    ] {
        let mut client = server.client();
        client.post(Opcode::PartitionTake, &[take.as_bytes()]);
        client.post(opcode, &[&body]);
        while !client.connection.is_closed() {
            std::thread::yield_now();
        }
    }
    // Its neighbours notice nothing.
    compute(&mut client, 1000);
}

fn a_terminated_client_is_told() {
    let mut server = Server::start();
    let mut client = server.client();
    compute(&mut client, 100);
    let pid = std::process::id();
    for (id, pid, code) in [(1, pid, 0), (2, 1, CUresult::ERROR_INVALID_CONTEXT.0)] {
        server.daemon.send(&ToServer::Terminate { id, pid }, &[], SOON).unwrap();
        assert!(
            matches!(server.hear(), ToDaemon::Terminated { id: got, code: said } if got == id && said == code)
        );
    }
    while client.memory.error() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(client.memory.error(), CUresult::ERROR_MPS_CLIENT_TERMINATED.0);
    let (status, _) = client.try_call(Opcode::Ping, &[]);
    assert_eq!(status, CUresult::ERROR_MPS_CLIENT_TERMINATED.0);
}

fn a_draining_server_takes_no_one_and_ends() {
    let mut server = Server::start();
    let client = server.client();
    server.daemon.send(&ToServer::Shutdown(ShutdownMode::WhenIdle), &[], SOON).unwrap();
    let refusal = server.attach(std::process::id(), RequestedLimits::default()).unwrap_err();
    assert_eq!(refusal.code, CUresult::ERROR_MPS_SERVER_NOT_READY.0);
    drop(client);
    assert!(server.child.wait().unwrap().success());
    assert!(Server::start().shut_down(ShutdownMode::Now).success());
}
