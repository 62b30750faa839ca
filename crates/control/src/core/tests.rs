//! The original's transcripts, replayed; and who gets a server when.

mod bounds;
mod clients;
mod world;

use super::*;
use link::wire::daemon::{DeviceSnapshot, Namespaces, ServerStatus, ShutdownMode, ToDaemon};
use world::*;

#[test]
fn the_recorded_session_prints_the_same() {
    let mut world = recorded_world();
    world.replay(include_str!("transcript-580.txt"));
    // The fault: 1622 is blamed and leaves, then 1623; the server comes back.
    let says = |world: &mut World, status| {
        world.event(Event::ServerSaid { server: 975, message: ToDaemon::Status(status) });
    };
    says(&mut world, ServerStatus::Fault);
    world.replay("--- get_server_status 975\nFAULT\n");
    world.snapshot.clients.remove(0);
    world.replay("--- get_client_list 975\n1623\n--- get_server_status 975\nFAULT\n");
    world.snapshot.clients.clear();
    says(&mut world, ServerStatus::Active);
    world.replay("--- get_server_status 975\nACTIVE\n");
    // Another victim, terminated.
    let another = world.attached(1807);
    world.snapshot.clients.push(another);
    world.replay("--- terminate_client 975 1807\n0\n--- get_server_status 975\nACTIVE\n");
    world.snapshot.clients.clear();
    world.replay("--- get_client_list 975\n");
    world.log.clear();
    world.event(quit("quit"));
    world.exited(975, 0);
    let reply = |effect: &Effect| match effect {
        Effect::Reply { output, error, exit_status, .. } => {
            Some((output.clone() + error, *exit_status))
        }
        _ => None,
    };
    assert_eq!(world.effects.iter().find_map(reply), Some((String::new(), 0)));
    let recorded = [
        "Cmd:quit",
        "Try shutting down server 975, backoff is disabled",
        "Server 975 exited with status 0",
        "Exit with status 0",
    ];
    assert_eq!(world.log, recorded);
}

/// What the 535 binary prints about a server that does not get past its start.
#[test]
fn a_server_that_is_starting_is_listed_and_has_no_clients() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.replay(
        "--- get_server_list\n975\n--- get_client_list 975\n--- get_device_client_list\n\
         --- get_device_client_list 975\n--- ps\nServer not found\n--- ps -p 975\nServer 975 not found\n\n\
         --- terminate_client 975 1\nServer 975 not found!\n1\n--- get_server_status 975\nINITIALIZING\n\
         --- start_server -uid 0\n--- start_server -uid 12345\n--- get_server_list\n975\n",
    );
    for line in ["ps -p 975", "terminate_client 975 1"] {
        assert!(world.line(line).1.contains("still starting"), "{line}");
    }
}

#[test]
fn settings_made_before_the_start_are_the_daemons() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    let refused = world.core.prepare(&[
        "set_default_device_pinned_mem_limit 0 3G".into(),
        "set_default_active_thread_percentage 40".into(),
        "set_default_client_priority 1".into(),
        "quit".into(),
    ]);
    assert_eq!(refused, ["quit"]);
    world.replay(
        "--- get_default_device_pinned_mem_limit 0\n3G\n\
         --- get_default_active_thread_percentage\n40.0\n--- get_default_client_priority\n1\n",
    );
}

#[test]
fn what_the_original_passes_over_gets_an_error() {
    let mut world = recorded_world();
    for line in [
        "set_default_device_pinned_mem_limit 0 3X",
        "set_default_device_pinned_mem_limit 99 3G",
        "set_default_active_thread_percentage 0",
        "set_default_client_priority x",
        "get_server_status 1",
        "get_client_list",
        "terminate_client 975 1",
        "foo",
    ] {
        assert_ne!(world.line(line).1, "", "{line}");
    }
    world.replay("--- get_default_device_pinned_mem_limit 0\n--- get_default_client_priority\n0\n");
    for line in [
        "get_server_list",
        "ps",
        "set_active_thread_percentage 975 10",
        "terminate_client 975 1622",
    ] {
        assert_eq!(world.line(line).1, "", "{line}");
    }
}

#[test]
fn without_servers_lists_are_empty() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.replay("--- get_server_list\n--- ps\nServer not found\n--- get_device_client_list\n");
    world.replay("--- start_server\nA user id (UID) is required to start a new server\n");
}

#[test]
fn servers_of_listed_users_start_with_the_daemon() {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    assert_eq!(world.core.prewarm(" self, 1001,"), [""; 0]);
    world.event(Event::Tick);
    world.replay("--- get_server_list\n975\n976\n");
    let complaints = world.core.prewarm("alice");
    assert!(complaints[0].contains("alice"), "{complaints:?}");
    let mut world = World::new(Provisioning::Concurrent, ALICE);
    assert!(world.core.prewarm("0")[0].contains("Insufficient privileges"));
}

#[test]
fn limits_of_a_server_reach_it_and_defaults_reach_the_next() {
    let mut world = recorded_world();
    world.effects.clear();
    world.event(Event::UiLine {
        connection: UI,
        peer: Peer { pid: 1, uid: ROOT, gid: ROOT, ..Peer::default() },
        line: "set_active_thread_percentage 975 40".into(),
    });
    let told = world.effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::SetDefaults(defaults), .. } => {
            defaults.active_thread_percentage
        }
        _ => None,
    });
    assert_eq!(told, Some(40.0));
    world.line("set_default_active_thread_percentage 25");
    world.replay("--- get_active_thread_percentage 975\n40.0\n");
    world.exited(975, 0);
    world.client(2, ROOT);
    world.replay("--- get_active_thread_percentage 976\n25.0\n");
}

#[test]
fn clients_are_held_until_the_server_is_ready() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.client(2, ROOT);
    assert!(world.forwarded().is_empty());
    world.ready(975);
    assert_eq!(world.forwarded(), [(1, 975), (2, 975)]);
    world.client(3, ROOT);
    assert_eq!(world.forwarded(), [(3, 975)]);
    assert_eq!(
        world.log,
        [
            "NEW CLIENT 101 from user 0: Server is not ready, push client to pending list",
            "Starting new server 975 for user 0",
            "NEW CLIENT 102 from user 0: Server is not ready, push client to pending list",
            "NEW SERVER 975: Ready",
            "NEW CLIENT 103 from user 0: Server already exists",
        ]
    );
}

#[test]
fn another_user_waits_for_the_first_to_leave_and_order_is_kept() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.ready(975);
    world.forwarded();
    world.client(2, BOB);
    assert_eq!(world.told_to_stop(975), Some(ShutdownMode::WhenIdle));
    world.client(3, ALICE); // Behind Bob.
    assert!(world.forwarded().is_empty());
    world.exited(975, 0);
    world.client(4, BOB);
    world.ready(976);
    // Bob's turn; Alice's next client makes his server leave once he has.
    assert_eq!(world.told_to_stop(976), Some(ShutdownMode::WhenIdle));
    assert_eq!(world.forwarded(), [(2, 976)]);
    world.exited(976, 0);
    world.ready(977);
    assert_eq!(world.forwarded(), [(3, 977)]);
}

#[test]
fn a_server_outlives_its_clients_and_serves_its_user_again() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.ready(975);
    world.client(2, ALICE);
    assert_eq!(world.forwarded(), [(1, 975), (2, 975)]);
    assert_eq!(world.told_to_stop(975), None);
}

#[test]
fn a_client_that_stops_waiting_is_forgotten() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.event(Event::ConnectionClosed { connection: ConnectionId(1) });
    world.ready(975);
    assert!(world.forwarded().is_empty());
}

#[test]
fn a_multiuser_server_serves_everybody() {
    let mut world = World::new(Provisioning::Multiuser, ROOT);
    world.client(1, ALICE);
    world.client(2, BOB);
    world.ready(975);
    assert_eq!(world.forwarded(), [(1, 975), (2, 975)]);
}

#[test]
fn concurrent_users_have_servers_at_the_same_time() {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    world.client(1, ALICE);
    world.client(2, BOB);
    world.ready(976);
    world.ready(975);
    assert_eq!(world.forwarded(), [(2, 976), (1, 975)]);
}

#[test]
fn root_of_a_container_changes_nothing() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    let root = |namespaces| Peer { pid: 7, uid: ROOT, gid: ROOT, namespaces, ..Peer::default() };
    for (namespaces, allowed) in [(Namespaces::Own, false), (Namespaces::Shared, true)] {
        let limits = link::wire::shares::NewLimits { percentage: Some(50.0), ..Default::default() };
        let target = link::wire::shares::Target::Group("a".into());
        let change = link::wire::shares::LimitChange { target, limits };
        let request = shares::ShareRequest::Limit(change);
        world.event(Event::UiShares { connection: UI, peer: root(namespaces), request });
        let line = "set_default_active_thread_percentage 50".to_owned();
        world.event(Event::UiLine { connection: UI, peer: root(namespaces), line });
        assert_eq!(world.core.groups.is_empty(), !allowed);
        let (said, _) = world.line_as(ROOT, "get_default_active_thread_percentage");
        assert_eq!(said, if allowed { "50.0\n" } else { "100.0\n" });
    }
}

#[test]
fn a_users_daemon_serves_that_user_only() {
    let mut world = World::new(Provisioning::OneUserAtATime, ALICE);
    world.client(1, BOB);
    assert_eq!(world.refusals(), [(1, 805)]);
    assert_eq!(world.log, ["Insufficient privileges for UID 1001"]);
    assert_ne!(world.line_as(ALICE, "start_server -uid 1001").1, "");
}

#[test]
fn other_users_may_look_but_not_touch() {
    let mut world = recorded_world();
    assert_eq!(world.line_as(BOB, "get_server_list"), ("975\n".to_owned(), String::new()));
    for line in [
        "quit",
        "start_server -uid 0",
        "set_default_client_priority 1",
        "terminate_client 975 1622",
        "shutdown_server 975",
        "set_active_thread_percentage 975 10",
        "set_device_pinned_mem_limit 975 0 1G",
    ] {
        assert_ne!(world.line_as(BOB, line).1, "", "{line}");
    }
    world.replay("--- get_default_client_priority\n0\n--- get_server_list\n975\n");
}

/// In the words of driver 550; but a server's limits are the administrator's, whoever the server is
/// for.
#[test]
fn a_user_starts_and_stops_servers_of_his_own_alone() {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    assert_eq!(world.line_as(BOB, "start_server -uid 1001").0, "");
    world.ready(975);
    assert_eq!(world.line_as(ROOT, "start_server -uid 0").0, "");
    world.ready(976);
    let insufficient = |what: &str| format!("Insufficient privileges for UID 1001. {what}\n");
    let root_alone = |what: &str| insufficient(&format!("Only the root user may {what}."));
    let defaults =
        "Control deamon settings can only be modified by the user started it or by the root user.";
    for (line, said) in [
        ("start_server -uid 0", root_alone("start server for another user")),
        ("shutdown_server 976", root_alone("shutdown another user's server")),
        ("terminate_client 976 1", root_alone("terminate clients on another user's server")),
        ("set_default_active_thread_percentage 50", insufficient(defaults)),
        ("set_default_client_priority 1", insufficient(defaults)),
        ("set_default_device_pinned_mem_limit 0 1G", insufficient(defaults)),
        (
            "set_active_thread_percentage 975 10",
            "Not enough privilege to execute set_active_thread_percentage command\n".into(),
        ),
        ("quit", "Not enough privilege to execute quit command\n".into()),
        ("shutdown_server 1", "Server 1 not found\n".into()),
        ("terminate_client 975 1", "201\n".into()),
    ] {
        assert_eq!(world.line_as(BOB, line).0, said, "{line}");
    }
    // A number of a container's says nothing.
    let peer = Peer { pid: 7, uid: BOB, gid: BOB, namespaces: Namespaces::Own, ..Peer::default() };
    let line = "shutdown_server 975".to_owned();
    world.effects.clear();
    world.event(Event::UiLine { connection: UI, peer, line });
    assert_eq!(world.told_to_stop(975), None);
    assert_eq!(world.line_as(BOB, "shutdown_server 975").0, "");
    assert!(world.log.iter().any(|line| line.contains("shutting down server 975")));
}

#[test]
fn a_server_that_is_starting_is_busy_in_the_log() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    for line in ["get_device_client_list", "ps", "ps -p975", "terminate_client 975 1"] {
        world.log.clear();
        world.line(line);
        assert_eq!(world.log[..2], [format!("Cmd:{line}"), "Server 975 is <busy>".into()]);
    }
    // Of this one the original's says nothing.
    world.log.clear();
    world.line("get_client_list 975");
    assert_eq!(world.log, ["Cmd:get_client_list 975"]);
    world.ready(975);
    world.log.clear();
    world.line("ps");
    assert!(!world.log.iter().any(|line| line.contains("busy")), "{:?}", world.log);
}

#[test]
fn what_550_does_with_missing_and_joined_words() {
    let mut world = recorded_world();
    world.replay(
        "--- get_server_status\nA server PID is required\n--- get_server_status x\nA server PID is required\n\
         --- get_server_status 0\nServer 0 not found\n\
         --- get_server_status 2147483648\nA server PID is required\n\
         --- ps -p1\nServer 1 not found\nServer 1 not found\n\n\
         --- set_default_client_priority 1\n--- get_default_client_priority\n1\n\
         --- set_default_client_priority\n--- get_default_client_priority\n0\n",
    );
    let partitioned = world.line("start_server -uid 0 -mlopart");
    assert_eq!(partitioned.0, "-mlopart is not supported: no server was started\n");
}

#[test]
fn a_server_that_does_not_start_is_told_to_its_clients_and_tried_again_for_later_ones() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.exited(975, 1);
    assert_eq!(world.refusals(), [(1, 807)]);
    world.client(2, ROOT);
    world.ready(976);
    assert_eq!(world.forwarded(), [(2, 976)]);
}

#[test]
fn a_server_that_hangs_at_its_start_is_killed() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.now = world.core.next_deadline().unwrap();
    world.event(Event::Tick);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Kill { server: 975 })));
    world.event(Event::ServerExited { server: 975, exit: ServerExit::Signal(9) });
    assert_eq!(world.refusals(), [(1, 807)]);
}

#[test]
fn quit_waits_for_clients_and_a_timeout_forces() {
    let mut world = recorded_world();
    world.event(quit("quit"));
    assert_eq!(world.told_to_stop(975), Some(ShutdownMode::WhenIdle));
    world.client(2, ROOT);
    assert_eq!(world.refusals(), [(2, 807)]);
    assert_eq!(world.exit_status(), None);
    world.exited(975, 0);
    assert_eq!(world.exit_status(), Some(0));

    let mut world = recorded_world();
    world.event(quit("quit -t 5"));
    assert_eq!(world.core.next_deadline(), Some(Now::from_secs(5)));
    world.now = Now::from_secs(5);
    world.event(Event::Tick);
    assert_eq!(world.told_to_stop(975), Some(ShutdownMode::Now));
    world.now = world.core.next_deadline().unwrap();
    world.event(Event::Tick);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Kill { server: 975 })));
    world.event(Event::ServerExited { server: 975, exit: ServerExit::Signal(9) });
    assert_eq!(world.exit_status(), Some(1));
    assert_eq!(world.log.last().unwrap(), "Exit with status 1");
}

#[test]
fn a_server_that_does_not_answer_is_marked_in_the_state() {
    let mut world = recorded_world();
    for answers in [true, false] {
        world.event(Event::UiState { connection: UI });
        let asked = world.effects.iter().rev().find_map(|effect| match effect {
            Effect::Send { server: 975, message: Message::Snapshot(id) } => Some(*id),
            _ => None,
        });
        let (id, snapshot) = (asked.expect("the server is asked"), world.snapshot.clone());
        if answers {
            world.event(Event::ServerSaid {
                server: 975,
                message: ToDaemon::Snapshot { id, snapshot },
            });
        } else {
            world.now = world.core.next_deadline().unwrap();
            world.event(Event::Tick);
        }
        let replied = world.effects.iter().rev().find_map(|effect| match effect {
            Effect::ReplyState { silent, .. } => Some(silent.clone()),
            _ => None,
        });
        let silent = replied.expect("the front end is answered");
        assert_eq!(silent, if answers { vec![] } else { vec![975] });
        let UiReply::State(state) = world.core.state(&silent) else { panic!("no state") };
        assert_eq!(state.servers[0].silent, !answers);
        assert_eq!(state.servers[0].snapshot.clients.len(), world.snapshot.clients.len());
        world.effects.clear();
    }
}

#[test]
fn a_signal_quits_and_a_second_one_forces() {
    let mut world = recorded_world();
    world.event(Event::StopSignal);
    assert_eq!(world.told_to_stop(975), Some(ShutdownMode::WhenIdle));
    world.event(Event::StopSignal);
    assert_eq!(world.told_to_stop(975), Some(ShutdownMode::Now));
}

#[test]
fn a_server_that_does_not_answer_holds_nobody_up_for_long() {
    let mut world = recorded_world();
    world.effects.clear();
    let peer = Peer { pid: 1, uid: ROOT, gid: ROOT, ..Peer::default() };
    world.event(Event::UiLine { connection: UI, peer, line: "get_client_list 975".into() });
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Reply { .. })));
    world.now = world.core.next_deadline().unwrap();
    world.event(Event::Tick);
    let answered =
        |effect: &Effect| matches!(effect, Effect::Reply { error, .. } if !error.is_empty());
    assert!(world.effects.iter().any(answered));
}

#[test]
fn limits_by_uuid_hold_clients_until_the_devices_are_known() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.line("set_default_device_pinned_mem_limit GPU-aaaa 2G");
    world.client(1, ROOT);
    world.ready(975);
    let id = world.effects.iter().find_map(|effect| match effect {
        Effect::Send { message: Message::Snapshot(id), .. } => Some(*id),
        _ => None,
    });
    assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Forward { .. })));
    let device = DeviceSnapshot { uuid: "GPU-aaaa-bbbb".into(), ..Default::default() };
    let snapshot = ServerSnapshot { devices: vec![device], ..Default::default() };
    world.effects.clear();
    let message = ToDaemon::Snapshot { id: id.unwrap(), snapshot };
    world.event(Event::ServerSaid { server: 975, message });
    // The limit goes before the client.
    assert!(matches!(
        world.effects.make_contiguous(),
        [Effect::Send { message: Message::SetDefaults(limits), .. }, Effect::Forward { .. }]
            if limits.pinned_device_mem_limits_bytes == [(0, 2 << 30)]
    ));
}

#[test]
fn without_a_server_a_debugged_program_goes_on_at_once() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.debugged(1);
    assert_eq!(world.released(), [1]);
    assert!(world.log.iter().any(|line| line.contains("under cuda-gdb,")), "{:?}", world.log);
}

#[test]
fn a_debugged_program_waits_until_the_server_has_left_and_newcomers_get_another() {
    for provisioning in [Provisioning::OneUserAtATime, Provisioning::Concurrent] {
        let mut world = World::new(provisioning, ROOT);
        world.client(1, ALICE);
        // The server starts for a client that came first.
        world.debugged(2);
        assert_eq!(world.told_to_stop(975), None);
        world.ready(975);
        assert_eq!(world.told_to_stop(975), Some(ShutdownMode::WhenIdle));
        assert_eq!(world.forwarded(), [(1, 975)]);
        world.client(3, ALICE);
        assert_eq!((world.released(), world.forwarded()), (vec![], vec![]));
        world.exited(975, 0);
        assert_eq!(world.released(), [2]);
        world.ready(976);
        assert_eq!(world.forwarded(), [(3, 976)]);
        assert_eq!(world.told_to_stop(976), None, "nobody waits for it any more");
    }
}

/// The last thing that a server was told about staying or leaving.
fn told(world: &World, server: Pid) -> Option<&Message> {
    world.effects.iter().rev().find_map(|effect| match effect {
        Effect::Send {
            server: to,
            message: message @ (Message::Shutdown(_) | Message::Resume(_)),
        } if *to == server => Some(message),
        _ => None,
    })
}

#[test]
fn a_debugged_program_is_in_the_way_of_its_own_users_server_alone() {
    // Another user's server, and one that all users share.
    for (provisioning, owner) in [
        (Provisioning::OneUserAtATime, BOB),
        (Provisioning::Concurrent, BOB),
        (Provisioning::Multiuser, ALICE),
    ] {
        let mut world = World::new(provisioning, ROOT);
        world.client(1, owner);
        world.ready(975);
        world.debugged(2);
        assert_eq!((world.released(), told(&world, 975)), (vec![2], None), "{provisioning:?}");
    }
    // Who commands the daemon waits for others' where a device has one context alone.
    for (compute_mode, waits) in [(0, false), (3, true)] {
        let mut world = World::new(Provisioning::Concurrent, ROOT);
        world.client(1, BOB);
        world.ready(975);
        let device = DeviceSnapshot { compute_mode, ..Default::default() };
        let snapshot = ServerSnapshot { devices: vec![device], ..Default::default() };
        let message = ToDaemon::Snapshot { id: 0, snapshot };
        world.event(Event::ServerSaid { server: 975, message });
        world.debugged_of(ROOT, 2);
        assert_eq!(world.released().is_empty(), waits, "{compute_mode}");
        assert_eq!(told(&world, 975).is_some(), waits, "{compute_mode}");
    }
}

#[test]
fn a_server_stays_when_nobody_waits_for_it_to_leave_any_more() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.ready(975);
    world.debugged(2);
    assert_eq!(told(&world, 975), Some(&Message::Shutdown(ShutdownMode::WhenIdle)));
    world.client(3, ALICE);
    world.effects.clear();
    world.event(Event::ConnectionClosed { connection: ConnectionId(2) });
    let Some(&Message::Resume(id)) = told(&world, 975) else { panic!("{:?}", world.effects) };
    assert!(world.forwarded().is_empty(), "it may have stopped before it heard that");
    let resumed = |id| Event::ServerSaid { server: 975, message: ToDaemon::Resumed { id } };
    world.event(resumed(id + 1000));
    assert!(world.forwarded().is_empty());
    world.event(resumed(id));
    assert_eq!(world.forwarded(), [(3, 975)]);
    // The same for another user who waits; and an administrator's order stays one.
    world.client(4, BOB);
    world.event(Event::ConnectionClosed { connection: ConnectionId(4) });
    assert!(matches!(told(&world, 975), Some(Message::Resume(_))));
    world.client(5, BOB);
    world.line("shutdown_server 975");
    world.event(Event::ConnectionClosed { connection: ConnectionId(5) });
    assert!(!matches!(told(&world, 975), Some(Message::Resume(_))));
}

#[test]
fn a_debugged_program_that_gives_up_drives_nobody_away() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.debugged(2);
    world.event(Event::ConnectionClosed { connection: ConnectionId(2) });
    world.ready(975);
    assert_eq!(world.told_to_stop(975), None);
    world.exited(975, 0);
    assert_eq!(world.released(), Vec::<u64>::new());
}

#[test]
fn what_a_command_prints_does_not_fill_the_log() {
    let mut world = recorded_world();
    let context = world.snapshot.clients[0].contexts[0];
    world.snapshot.clients[0].contexts = vec![context; 2000];
    world.log.clear();
    let (printed, _) = world.line("ps");
    assert_eq!(printed.lines().count(), 2002);
    let logged: usize = world.log.iter().map(String::len).sum();
    assert!(logged < 2 * (64 << 10), "{logged} bytes");
    let last = world.log.last().unwrap();
    assert!(last.ends_with("more lines were printed than are written here"), "{last}");
    // A usual answer is written whole.
    world.log.clear();
    world.line("get_server_list");
    assert_eq!(world.log.last().unwrap(), "975");
}

#[test]
fn a_tracer_goes_to_the_server_that_has_its_client() {
    use Namespaces::{Own, Shared};
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    assert_eq!(world.tracer(ALICE, Shared, 102), None, "nobody has the client");
    world.client(2, ALICE);
    assert_eq!(world.tracer(ALICE, Shared, 102), None, "her server is starting");
    world.ready(975);
    world.client(3, BOB);
    world.ready(976);
    assert_eq!(world.tracer(ALICE, Shared, 102), Some(975));
    assert_eq!(world.tracer(BOB, Own, 103), Some(976));
    for (pid, server) in [(102, 975), (103, 976)] {
        assert_eq!(world.tracer(ROOT, Shared, pid), Some(server), "and no other user's");
        assert_eq!(world.tracer(ROOT, Own, pid), None, "root of a container");
    }
    assert_eq!(world.tracer(BOB, Shared, 102), None, "another user's client");
    assert_eq!(world.tracer(ROOT, Shared, 104), None, "no client at all");
    let mut world = World::new(Provisioning::Multiuser, ROOT);
    world.client(2, ALICE);
    world.ready(975);
    assert_eq!(world.tracer(ALICE, Shared, 102), Some(975), "though the server is root's");
    assert_eq!(world.tracer(ROOT, Shared, 102), Some(975));
    assert_eq!(world.tracer(BOB, Shared, 102), None, "another user's client");
}
