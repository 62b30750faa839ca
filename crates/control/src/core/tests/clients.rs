//! Servers that lie about who their clients are.

use super::super::clients::{Group, Membership};
use super::super::*;
use super::world::*;
use link::wire::daemon::{ClientSnapshot, DEPARTED_KEPT, Origin, ToDaemon};
use link::wire::fault::{Accused, FaultReport};
use link::wire::group_socket::SocketDomain;

const SERVER: Pid = 975;

fn served() -> World {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.ready(SERVER);
    world
}

/// What the daemon holds for true of what a server says.
fn believed(world: &mut World, snapshot: ServerSnapshot) -> ServerSnapshot {
    let message = ToDaemon::Snapshot { id: 0, snapshot };
    world.event(Event::ServerSaid { server: SERVER, message });
    world.core.server(SERVER).unwrap().snapshot.clone()
}

#[test]
fn who_a_client_is_is_no_servers_to_say() {
    let mut world = served();
    let honest = world.attached(1622);
    let liar = ClientSnapshot {
        pid: 1,
        uid: 7,
        pid_namespace: 7,
        command: "init".into(),
        group: Some("slurm-7".into()),
        kernels: 5,
        ..honest.clone()
    };
    let invented = ClientSnapshot { client_id: 4711, ..liar.clone() };
    let listed = vec![liar.clone(), invented, liar];
    let attached = ServerSnapshot { clients: listed.clone(), ..Default::default() };
    let departed = ServerSnapshot { departed: listed, ..Default::default() };
    let attached = believed(&mut world, attached).clients;
    for listed in [attached, believed(&mut world, departed).departed] {
        let [client] = listed.as_slice() else { panic!("{listed:?}") };
        assert_eq!((client.pid, client.uid, client.kernels), (1622, ROOT, 5));
        assert_eq!((client.command.as_str(), client.group.as_deref()), ("/tmp/feas", None));
        assert_eq!((client.client_id, client.pid_namespace), (honest.client_id, 4026531836));
    }
}

#[test]
fn another_servers_client_is_not_a_servers() {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    world.client(1, ALICE);
    world.ready(SERVER);
    world.client(2, BOB);
    world.ready(976);
    let clients: Vec<(u64, Pid)> =
        world.core.clients().attached().map(|(id, record)| (id, record.server)).collect();
    assert_eq!(clients, [(1, SERVER), (2, 976)]);
    let of_bob = ClientSnapshot { client_id: 2, ..Default::default() };
    let snapshot = ServerSnapshot { clients: vec![of_bob], ..Default::default() };
    assert!(believed(&mut world, snapshot).clients.is_empty());
    // Nor can it say that another's has left.
    let left = |server, client| Event::ServerSaid {
        server,
        message: ToDaemon::Left { client_ids: vec![client] },
    };
    world.event(left(SERVER, 2));
    assert_eq!(world.core.clients().attached().count(), 2);
    world.event(left(976, 2));
    assert_eq!(world.core.clients().attached().count(), 1);
    world.exited(SERVER, 0);
    assert_eq!(world.core.clients().attached().count(), 0);
}

#[test]
fn records_end_and_the_latest_departed_are_known() {
    let mut world = served();
    let first = world.attached(1000).client_id;
    let many = DEPARTED_KEPT as u32 + 10;
    for pid in 1..=many {
        let client = world.attached(2000 + pid).client_id;
        world.event(Event::ClientEnded { client });
        // Once more changes nothing.
        world.event(Event::ClientEnded { client });
    }
    let listed = |range: std::ops::RangeInclusive<u64>| {
        range.map(|client_id| ClientSnapshot { client_id, ..Default::default() }).collect()
    };
    let snapshot = ServerSnapshot {
        clients: listed(first..=first),
        departed: listed(first + 1..=first + u64::from(many)),
        ..Default::default()
    };
    let believed = believed(&mut world, snapshot);
    assert_eq!(believed.clients[0].pid, 1000);
    assert_eq!(believed.departed.len(), DEPARTED_KEPT);
    assert_eq!(believed.departed.last().unwrap().pid, 2000 + many);
}

#[test]
fn whom_a_fault_names_stays_known() {
    let mut world = served();
    let culprit = world.attached(1622).client_id;
    let accused = |client_id| Accused { client_id, pid: 1, ..Default::default() };
    let fault = |number, accused| {
        let text = r#"{"number": 0, "unix_time_ms": 0, "device": 0, "code": 719, "what": "", "blame": "culprit", "accused": []}"#;
        FaultReport { number, accused, ..serde_json::from_str(text).unwrap() }
    };
    let said = |number| ServerSnapshot {
        faults: vec![fault(number, vec![accused(culprit), accused(4711)])],
        ..Default::default()
    };
    let names = |snapshot: ServerSnapshot| -> Vec<Pid> {
        snapshot.faults[0].accused.iter().map(|accused| accused.pid).collect()
    };
    assert_eq!(names(believed(&mut world, said(1))), [1622]);
    world.event(Event::ClientEnded { client: culprit });
    for pid in 0..DEPARTED_KEPT as u32 {
        let client = world.attached(5000 + pid).client_id;
        world.event(Event::ClientEnded { client });
    }
    assert_eq!(names(believed(&mut world, said(1))), [1622]);
    assert_eq!(names(believed(&mut world, said(2))), [0; 0], "of a fault that is new");
}

#[test]
fn a_group_is_given_or_claimed() {
    let hello = |group: &str| -> ClientHello {
        let limits = format!(r#"{{"group": "{group}"}}"#);
        let text = format!(
            r#"{{"versions": {{"oldest": 1, "newest": 1}}, "pid": 1, "pid_namespace": 0, "command": "", "limits": {limits}}}"#
        );
        serde_json::from_str(&text).unwrap()
    };
    let admission =
        Admission { group: "pod".into(), devices: Vec::new(), domain: SocketDomain::User };
    let origin = Origin { bounding_group: Some("/job".into()), ..Origin::default() };
    let who = Who { origin, ..Who::default() };
    let (given, claimed) = (|name: &str| Group::Given(name.into()), Group::Claimed("x".into()));
    let (by_name, by_cgroup) = (Membership::ByName, Membership::ByControlGroup);
    assert_eq!(by_name.group(&who, Some(&admission), &hello("x")), Some(given("pod")));
    assert_eq!(by_name.group(&who, None, &hello("x")), Some(claimed));
    assert_eq!(by_cgroup.group(&who, None, &hello("x")), Some(given("/job")));
    assert_eq!(by_cgroup.group(&Who::default(), None, &hello("x")), None);
}
