//! What one user may take of the daemon, whatever the own server does.

use super::super::*;
use super::world::*;
use link::wire::daemon::{Namespaces, ShutdownMode, ToDaemon};

const SERVER: Pid = 975;

fn served(uid: u32) -> World {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    world.client(1, uid);
    world.ready(SERVER);
    world.answers(SERVER);
    world.forwarded();
    world
}

/// Requests for a snapshot that have gone out since the last call.
fn questions(world: &mut World) -> Vec<u64> {
    let question = |effect: &Effect| match effect {
        Effect::Send { message: Message::Snapshot(id), .. } => Some(*id),
        _ => None,
    };
    let found = world.effects.iter().filter_map(question).collect();
    world.effects.retain(|effect| question(effect).is_none());
    found
}

/// Front ends that were answered since the last call.
fn answered(world: &mut World) -> Vec<u64> {
    let answer = |effect: &Effect| match effect {
        Effect::ReplyState { connection, silent } if silent.is_empty() => Some(connection.0),
        _ => None,
    };
    let found = world.effects.iter().filter_map(answer).collect();
    world.effects.retain(|effect| answer(effect).is_none());
    found
}

#[test]
fn one_question_is_on_its_way_however_many_ask() {
    let mut world = served(ALICE);
    world.effects.clear();
    for connection in 1..=3000 {
        world.event(Event::UiState { connection: ConnectionId(connection) });
    }
    assert_eq!(questions(&mut world).len(), 1);
    // What it says now may be older than the questions behind the first.
    world.answers(SERVER);
    assert_eq!(answered(&mut world), [1]);
    assert_eq!(questions(&mut world).len(), 1);
    world.event(Event::UiState { connection: ConnectionId(4000) });
    world.answers(SERVER);
    assert_eq!(answered(&mut world), (2..=3000).collect::<Vec<_>>());
    world.answers(SERVER);
    assert_eq!(answered(&mut world), [4000]);
    assert!(world.core.server(SERVER).unwrap().questions.open.is_none());
    // Of a server that stands still everybody is told so in time, and it is asked no more.
    questions(&mut world);
    for connection in 1..=3 {
        world.event(Event::UiState { connection: ConnectionId(connection) });
        world.now = world.core.next_deadline().unwrap();
        world.event(Event::Tick);
    }
    let silent = |effect: &&Effect| matches!(effect, Effect::ReplyState { silent, .. } if *silent == [SERVER]);
    assert_eq!(world.effects.iter().filter(silent).count(), 3);
    assert_eq!(questions(&mut world).len(), 1);
}

#[test]
fn clients_wait_here_for_a_server_that_reads_nothing() {
    let mut world = served(ALICE);
    world.servers_read = false;
    let all = MAX_ON_THE_WAY as u64 + 10;
    for connection in 2..2 + all {
        world.client(connection, ALICE);
    }
    assert_eq!(world.forwarded().len(), MAX_ON_THE_WAY);
    // Nor does a tracer get through; another user's server is no worse for it.
    assert_eq!(world.tracer(ALICE, Namespaces::Shared, 102), None);
    world.client(5000, BOB);
    world.ready(SERVER + 1);
    assert_eq!(world.forwarded(), [(5000, SERVER + 1)]);
    for next in 0..10 {
        world.event(Event::HandedOn { server: SERVER });
        assert_eq!(world.forwarded(), [(2 + MAX_ON_THE_WAY as u64 + next, SERVER)]);
    }
    assert!(world.core.pending.is_empty());
}

#[test]
fn who_waits_is_counted_by_user() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.ready(SERVER);
    let most = MAX_PENDING_CLIENTS as u64;
    for connection in 2..2 + most + 2 {
        world.client(connection, ALICE);
    }
    assert_eq!(world.refusals(), [(most + 2, 807), (most + 3, 807)]);
    world.effects.clear();
    world.client(5000, BOB);
    for connection in 6000..6000 + 2 * most {
        world.client(connection, ROOT);
    }
    world.debugged_of(ROOT, 9000);
    world.debugged_of(BOB, 9001);
    assert_eq!(world.refusals(), [(0, 0); 0]);
    world.debugged_of(ALICE, 9002);
    assert_eq!(world.refusals(), [(9002, 807)]);
}

#[test]
fn a_server_that_forgets_nobody_gets_no_more_clients() {
    let mut world = served(ALICE);
    let most = MAX_CLIENTS_OF_SERVER as u64;
    for connection in 2..=most + 1 {
        world.client(connection, ALICE);
    }
    assert_eq!(world.refusals(), [(most + 1, 809)]);
    assert_eq!(world.core.clients().attached().count(), MAX_CLIENTS_OF_SERVER);
    world.event(Event::ClientEnded { client: 1 });
    world.effects.clear();
    world.client(5000, ALICE);
    assert_eq!(world.forwarded(), [(5000, SERVER)]);
}

/// As many servers of users as there may be, each with a client.
fn full() -> World {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    for number in 0..MAX_SERVERS as u32 {
        world.client(1 + u64::from(number), ALICE + number);
        world.ready(SERVER + number);
    }
    assert_eq!(world.forwarded().len(), MAX_SERVERS);
    world
}

const NEWCOMER: u32 = ALICE + 5000;

#[test]
fn an_idle_server_makes_way_for_another_users() {
    let mut world = full();
    // Of these the second has been idle for longest.
    for client in [2, 1] {
        world.event(Event::ClientEnded { client });
    }
    world.client(5000, NEWCOMER);
    world.client(5001, NEWCOMER + 1);
    let told = |world: &World| -> Vec<Option<ShutdownMode>> {
        [0, 1, 2].map(|number| world.told_to_stop(SERVER + number)).to_vec()
    };
    assert_eq!(told(&world), [None, Some(ShutdownMode::Now), None]);
    // It takes nobody meanwhile; its user waits as others do.
    world.client(5002, ALICE + 1);
    world.exited(SERVER + 1, 0);
    let next = SERVER + MAX_SERVERS as u32;
    world.ready(next);
    assert_eq!(world.forwarded(), [(5000, next)]);
    assert!(world.core.servers.len() <= MAX_SERVERS);
}

#[test]
fn where_all_are_in_use_newcomers_are_refused_and_root_is_not() {
    let mut world = full();
    world.client(5000, NEWCOMER);
    assert_eq!(world.refusals(), [(5000, 807)]);
    assert!(world.log.last().unwrap().contains("all are in use"), "{:?}", world.log.last());
    let (_, error) = world.line_as(ROOT, &format!("start_server -uid {NEWCOMER}"));
    assert_eq!(error, "");
    assert!(world.core.wanted.is_empty() && world.core.servers.len() == MAX_SERVERS);
    world.effects.clear();
    world.client(5001, ROOT);
    let of_root = SERVER + MAX_SERVERS as u32;
    world.ready(of_root);
    assert_eq!(world.forwarded(), [(5001, of_root)]);
    // A user who has one is served by it.
    world.client(5002, ALICE);
    assert_eq!(world.forwarded(), [(5002, SERVER)]);
}

#[test]
fn subordinate_ids_have_the_servers_of_one_user() {
    let mut world = World::new(Provisioning::Concurrent, ROOT);
    let most = MAX_SERVERS_OF_ONE as u32;
    for number in 0..most {
        world.client_for(1 + u64::from(number), NEWCOMER + number, ALICE);
        world.ready(SERVER + number);
    }
    assert_eq!(world.forwarded().len(), MAX_SERVERS_OF_ONE);
    // One more of its, and its own, are refused; others are not.
    world.client_for(100, NEWCOMER + most, ALICE);
    world.client(101, ALICE);
    assert_eq!(world.refusals(), [(100, 807), (101, 807)]);
    assert!(world.log.last().unwrap().contains("of user 1000 and of its subordinate ids"));
    world.effects.clear();
    world.client(102, BOB);
    world.ready(SERVER + most);
    assert_eq!(world.forwarded(), [(102, SERVER + most)]);
    // What makes way for one more of its is its own, however long another's has been idle.
    for client in [u64::from(most) + 1, 3] {
        world.event(Event::ClientEnded { client });
    }
    world.client_for(103, NEWCOMER + most, ALICE);
    assert_eq!(world.told_to_stop(SERVER + 2), Some(ShutdownMode::Now));
    assert_eq!(world.told_to_stop(SERVER + most), None);
    world.exited(SERVER + 2, 0);
    world.ready(SERVER + most + 1);
    assert_eq!(world.forwarded(), [(103, SERVER + most + 1)]);
}

#[test]
fn subordinate_ids_wait_as_one_user() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ROOT);
    world.ready(SERVER);
    for connection in 0..MAX_PENDING_CLIENTS as u64 {
        world.client_for(2 + connection, NEWCOMER + connection as u32, ALICE);
    }
    assert_eq!(world.refusals(), [(0, 0); 0]);
    world.client_for(5000, NEWCOMER, ALICE);
    world.client(5001, ALICE);
    assert_eq!(world.refusals(), [(5000, 807), (5001, 807)]);
    world.client(5002, BOB);
    assert_eq!(world.refusals().len(), 2);
}

/// Servers that were killed.
fn killed(world: &World) -> Vec<Pid> {
    let kill = |effect: &Effect| match effect {
        Effect::Kill { server } => Some(*server),
        _ => None,
    };
    world.effects.iter().filter_map(kill).collect()
}

/// Time passes until the daemon has something to do.
fn wait(world: &mut World) {
    world.now = world.core.next_deadline().unwrap_or(world.now);
    world.event(Event::Tick);
}

#[test]
fn a_server_without_clients_that_does_not_leave_makes_nobody_wait_for_ever() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.ready(SERVER);
    world.answers(SERVER);
    // Its user can make it say so.
    let message = ToDaemon::Status(ServerStatus::Initializing);
    world.event(Event::ServerSaid { server: SERVER, message });
    world.client(2, BOB);
    assert_eq!(world.told_to_stop(SERVER), Some(ShutdownMode::WhenIdle));
    assert_eq!(world.core.next_deadline(), None, "whoever has clients makes others wait");
    world.event(Event::ClientEnded { client: 1 });
    // Nobody waits any more, and then somebody does.
    world.event(Event::ConnectionClosed { connection: ConnectionId(2) });
    assert_eq!(world.core.next_deadline(), None);
    world.client(3, BOB);
    wait(&mut world);
    assert_eq!(killed(&world), [SERVER]);
    assert_eq!(world.now, IDLE_END_LIMIT);
    world.event(Event::ServerExited { server: SERVER, exit: ServerExit::Signal(9) });
    world.ready(SERVER + 1);
    assert_eq!(world.forwarded().last(), Some(&(3, SERVER + 1)));
}

#[test]
fn a_server_that_leaves_in_time_is_not_killed() {
    let mut world = World::new(Provisioning::OneUserAtATime, ROOT);
    world.client(1, ALICE);
    world.ready(SERVER);
    world.answers(SERVER);
    world.event(Event::ClientEnded { client: 1 });
    world.client(2, BOB);
    assert_eq!(world.core.next_deadline(), Some(IDLE_END_LIMIT));
    world.exited(SERVER, 0);
    world.now = IDLE_END_LIMIT;
    world.event(Event::Tick);
    assert!(killed(&world).is_empty());
    // One that starts has its own time for that.
    assert_eq!(world.core.next_deadline(), Some(SERVER_START_LIMIT));
}

/// Whose doing each line is that an event has the daemon log.
fn causes(world: &mut World, event: Event) -> Vec<Option<u32>> {
    let cause = |effect| match effect {
        Effect::Log { by, .. } => Some(by.map(|by: Owner| by.uid)),
        _ => None,
    };
    world.core.handle(world.now, event).into_iter().filter_map(cause).collect()
}

#[test]
fn lines_count_for_whose_doing_they_are() {
    let mut world = served(ALICE);
    let line = |uid, namespaces| Event::UiLine {
        connection: UI,
        peer: Peer { pid: 1, uid, gid: uid, namespaces, ..Peer::default() },
        line: "what".into(),
    };
    let (own, shared) = (Namespaces::Own, Namespaces::Shared);
    assert_eq!(causes(&mut world, line(ROOT, shared)), [None; 3]);
    assert_eq!(causes(&mut world, line(ROOT, own)), [Some(ROOT); 3]);
    assert_eq!(causes(&mut world, line(BOB, shared)), [Some(BOB); 3]);
    let failed = ToDaemon::Failed { message: String::new() };
    let said = Event::ServerSaid { server: SERVER, message: failed };
    assert_eq!(causes(&mut world, said), [Some(ALICE)]);
    // What is printed when a server has answered is the asker's.
    let ps = |uid| Event::UiLine {
        connection: UI,
        peer: Peer { pid: 1, uid, gid: uid, namespaces: shared, ..Peer::default() },
        line: "ps".into(),
    };
    for (uid, by) in [(ROOT, None), (BOB, Some(BOB))] {
        assert_eq!(causes(&mut world, ps(uid)), [by]);
        let id = world.core.server(SERVER).unwrap().questions.open.unwrap();
        let message = ToDaemon::Snapshot { id, snapshot: ServerSnapshot::default() };
        let said = Event::ServerSaid { server: SERVER, message };
        assert_eq!(causes(&mut world, said), [by]);
    }
    let exited = Event::ServerExited { server: SERVER, exit: ServerExit::Status(0) };
    assert_eq!(causes(&mut world, exited), [Some(ALICE)]);
}
