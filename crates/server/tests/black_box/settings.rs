//! What the administrator sets and reads: limits, totals, and the server's log beside that of the
//! original's driver 580.

use super::fake_client::*;
use super::promises::{self, POKE, PTX};
use super::server_log;
use cuda_abi::types::CUresult;
use link::socket::Connection;
use link::wire::attach::{ClientReply, ClientRequest, RequestedLimits};
use link::wire::daemon::{Defaults, ServerStatus, ShutdownMode, ToDaemon, ToServer};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    ("the_recorded_log_is_written_line_by_line", the_recorded_log_is_written_line_by_line),
    ("limits_are_those_of_the_attachment", limits_are_those_of_the_attachment),
    ("contexts_have_shares_of_their_own", contexts_have_shares_of_their_own),
    ("totals_of_a_device_outlive_its_clients", totals_of_a_device_outlive_its_clients),
];

fn percentage(percent: f64) -> Defaults {
    Defaults { active_thread_percentage: Some(percent), ..Default::default() }
}

fn limits_are_those_of_the_attachment() {
    let mut server = Server::start();
    server.set_defaults(Defaults {
        pinned_device_mem_limits_bytes: vec![(0, 64 << 20)],
        client_priority: Some(1),
        ..percentage(50.0)
    });
    let (connection, welcome) = server.attach(1, RequestedLimits::default()).unwrap();
    // Later limits are for later clients, also where the context comes after them.
    server.set_defaults(percentage(25.0));
    let _first = Client::open(connection, welcome);
    let _second = server.client();
    let clients = server.snapshot().clients;
    let limits: Vec<_> = clients
        .iter()
        .map(|client| {
            let memory = client.devices[0].memory_limit_bytes;
            (client.active_thread_percentage, client.priority, memory)
        })
        .collect();
    assert_eq!(limits, [(50.0, 1, Some(64 << 20)), (25.0, 0, None)]);
}

fn contexts_have_shares_of_their_own() {
    let mut server = Server::start();
    server.set_defaults(percentage(50.0));
    let open = |connection: &Connection, percentage: Option<&str>| {
        let wanted = ClientRequest::OpenContext {
            device: 0,
            active_thread_percentage: percentage.map(str::to_owned),
        };
        connection.send(&wanted, &[], SOON).unwrap();
        let reply = connection.receive::<ClientReply>(SOON).unwrap().message;
        assert!(matches!(reply, ClientReply::ContextOpened(_)), "{reply:?}");
    };
    let wishes = RequestedLimits {
        active_thread_percentage: Some("40".into()),
        device_max_connections: Some("8".into()),
        per_context_partitioning: Some("1".into()),
        ..Default::default()
    };
    let (connection, _) = server.attach(1, wishes).unwrap();
    for percentage in [Some("20"), Some("80"), None] {
        open(&connection, percentage);
    }
    let client = server.snapshot().clients.remove(0);
    let shares: Vec<f64> =
        client.contexts.iter().map(|context| context.active_thread_percentage).collect();
    // The process's own percentage bounds its contexts'.
    assert_eq!(shares, [20.0, 40.0, 40.0]);
    assert_eq!(client.wanted_connections, Some(8));
}

fn totals_of_a_device_outlive_its_clients() {
    let mut server = Server::start();
    let mut client = server.client();
    promises::compute(&mut client, 1000);
    let before = server.snapshot();
    assert!(before.devices[0].kernels_ever > 0 && before.devices[0].copied_bytes_ever > 0);
    drop(client);
    let after = server.await_snapshot("the client's end", |snapshot| {
        snapshot.clients.is_empty() && snapshot.devices[0].granted_bytes == 0
    });
    let totals = |snapshot: &link::wire::daemon::ServerSnapshot| {
        let device = &snapshot.devices[0];
        (device.kernels_ever, device.copied_bytes_ever, device.launch_counts.iter().sum::<u64>())
    };
    assert_eq!(totals(&after), totals(&before));
}

/// Recorded lines that are not ours, by their numbers, and why.
const NOT_OURS: &[(&[usize], &str)] = &[
    (&[5], "client memory is shared through files that have no name"),
    (&[7], "there is no display driver under the software GPU"),
    (&[11, 56, 69], "the process is the client before, or none at all"),
    (&[23], "the recording left lines out here"),
    (&[26, 30, 35, 36, 42, 28, 31, 32, 40], "1622 and 1623 were innocent, and go on"),
    (&[53, 57], "the device has another context at once"),
];

fn the_recorded_log_is_written_line_by_line() {
    let recorded: Vec<&str> = include_str!("server-log-580.txt").lines().collect();
    let mut seen = 0;
    let mut check = |recorded_lines: std::ops::RangeInclusive<usize>, name: &str, uuid: &str| {
        let all = server_log::text();
        let new: Vec<&str> = all.lines().skip(seen).collect();
        seen += new.len();
        let mut ours = BTreeMap::<&str, usize>::new();
        for line in &new {
            *ours.entry(line.split_once("] ").map_or(*line, |(_, text)| text)).or_default() += 1;
        }
        for number in recorded_lines {
            if NOT_OURS.iter().any(|(numbers, _)| numbers.contains(&number)) {
                continue;
            }
            let line = recorded[number - 1]
                .replace("NVIDIA H200", name)
                .replace("GPU-d123c540-3d02-b0d8-c638-e90011910307", uuid)
                .replace("/tmp/mps/control", &format!("/tmp/mps/{}", link::wire::DAEMON_SOCKET));
            match ours.get_mut(line.as_str()).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => panic!("line {number}, `{line}`, is not in\n{}", new.join("\n")),
            }
        }
    };
    let mut server = Server::start();
    let device = server.snapshot().devices.remove(0);
    let (name, uuid) = (device.name.as_str(), device.uuid.as_str());
    check(1..=10, name, uuid);

    let client = |server: &mut Server, pid| {
        let (connection, welcome) = server.attach(pid, RequestedLimits::default()).unwrap();
        Client::open(connection, welcome)
    };
    let left = |server: &mut Server, count| {
        server.await_snapshot("a client's end", |snapshot| snapshot.clients.len() == count);
    };
    drop(client(&mut server, 973));
    left(&mut server, 0);
    check(11..=22, name, uuid);

    let (runs, idle) = (client(&mut server, 1622), client(&mut server, 1623));
    let mut bad = client(&mut server, 1778);
    bad.function(0, PTX, POKE, "poke");
    bad.launch(POKE, 0, 1, 1, 0x10u64.as_bytes());
    assert!(bad.finish(0).is_err());
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Fault)));
    assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Active)));
    check(24..=42, name, uuid);
    for (gone, count) in [(runs, 2), (bad, 1)] {
        drop(gone);
        left(&mut server, count);
    }
    drop(idle);
    left(&mut server, 0);
    drop(client(&mut server, 1801));
    left(&mut server, 0);
    check(43..=68, name, uuid);

    let mut victim = client(&mut server, 1807);
    promises::compute(&mut victim, 10);
    server.daemon.send(&ToServer::Terminate { id: 1, pid: 1807 }, &[], SOON).unwrap();
    assert!(matches!(server.hear(), ToDaemon::Terminated { code: 0, .. }));
    super::takeover::wait_for("the end of the victim's session", || {
        victim.memory.error() == CUresult::ERROR_MPS_CLIENT_TERMINATED.0
    });
    drop(victim);
    left(&mut server, 0);
    check(69..=82, name, uuid);
    assert!(server.shut_down(ShutdownMode::WhenIdle).success());
    check(83..=85, name, uuid);
}
