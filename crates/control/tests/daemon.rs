//! A real daemon, real sockets and processes, and servers with no GPU behind them
//! (`examples/fake_server.rs`).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::core::Provisioning;
use control::daemon::{Options, ServerCommand, StartError, run};
use control::directories::Directories;
use control::frontend::{Answer, Frontend, FrontendError};
use control::log::Echo;
use link::socket::Connection;
use link::wire::version::Versions;
use rustix::net::{SendFlags, send};

/// What must come about comes about within this time, or the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn fake() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/fake_server")
}

/// A daemon in this process, in a directory of its own.
struct Daemon {
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<Result<u8, StartError>>>,
}

impl Daemon {
    fn start(provisioning: Provisioning) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = options(&directory, provisioning);
        let thread = std::thread::spawn(move || run(options));
        let daemon = Daemon { directory, thread: Some(thread) };
        until("the daemon answers", || Frontend::connect(&daemon.directories()).is_ok());
        // Clients of any user must reach the socket.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(daemon.directory.path(), open).unwrap();
        daemon
    }

    fn directories(&self) -> Directories {
        directories(&self.directory)
    }

    fn command(&self, line: &str) -> Answer {
        Frontend::connect(&self.directories()).unwrap().command(line).unwrap()
    }

    fn output(&self, line: &str) -> String {
        self.command(line).output
    }

    /// The program of clients where every user may run it; a checkout may lie in a directory of one
    /// user's.
    fn program_of_clients(&self) -> PathBuf {
        let program = self.directory.path().join("fake_client");
        if !program.exists() {
            // By another process: a file that a thread of this one writes cannot be run while
            // another one forks.
            assert!(Command::new("cp").arg(fake()).arg(&program).status().unwrap().success());
        }
        program
    }

    fn client(&self, uid: u32) -> Client {
        let mut command = Command::new(self.program_of_clients());
        command.arg("client").arg(self.directories().socket());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if uid != rustix::process::geteuid().as_raw() {
            command.uid(uid).gid(uid);
        }
        Client { child: command.spawn().unwrap() }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directories().control_log()).unwrap()
    }

    fn quit(mut self) -> u8 {
        let answer = self.command("quit");
        assert_eq!(answer.error, "");
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

struct Client {
    child: Child,
}

impl Client {
    /// The line that it prints when it is answered.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn leave(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

fn directories(directory: &tempfile::TempDir) -> Directories {
    // One directory for both: allowed, and what `openmps run` does for a user.
    Directories::from_variables(|_| Some(directory.path().join("mps").into()))
}

fn options(directory: &tempfile::TempDir, provisioning: Provisioning) -> Options {
    let server = ServerCommand {
        program: fake(),
        arguments: Vec::new(),
        environment: Vec::new(),
        faults: None,
    };
    let directories = directories(directory);
    Options {
        directories,
        provisioning,
        metrics: None,
        ready_devices: Vec::new(),
        echo: Echo::None,
        server,
    }
}

#[track_caller]
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_client_brings_its_server_and_leaves_no_trace() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    assert_eq!(daemon.output("get_server_list"), "");
    let mut client = daemon.client(uid());
    assert_eq!(client.answer(), "attached");
    let server = daemon.output("get_server_list").trim().to_owned();
    assert_eq!(daemon.output(&format!("get_server_status {server}")), "ACTIVE\n");
    let listed = format!("{}\n", client.child.id());
    assert_eq!(daemon.output(&format!("get_client_list {server}")), listed);
    assert!(daemon.output("ps").lines().any(|line| line.starts_with(listed.trim())));
    client.child.kill().unwrap();
    client.child.wait().unwrap();
    until("the killed client is gone", || {
        daemon.output(&format!("get_client_list {server}")).is_empty()
    });
    assert_eq!(daemon.output("get_server_list").trim(), server, "the server outlives its clients");
    let log = daemon.log();
    for line in
        ["Server is not ready, push client to pending list", "Starting new server", ": Ready"]
    {
        assert!(log.contains(line), "{line} is not in\n{log}");
    }
    let directory = daemon.directories();
    assert_eq!(daemon.quit(), 0);
    for path in [directory.socket(), directory.pid_file(), directory.lock()] {
        assert!(!path.exists(), "{} was left", path.display());
    }
}

#[test]
fn a_terminated_client_is_gone() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let mut client = daemon.client(uid());
    assert_eq!(client.answer(), "attached");
    let server = daemon.output("get_server_list").trim().to_owned();
    assert_eq!(daemon.output(&format!("terminate_client {server} 1")), "201\n");
    assert_eq!(daemon.output(&format!("terminate_client {server} {}", client.child.id())), "0\n");
    assert_eq!(daemon.output(&format!("get_client_list {server}")), "");
    client.leave();
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn another_user_gets_a_server_once_the_first_has_left() {
    if uid() != 0 {
        return eprintln!("skipped: needs root");
    }
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let mut first = daemon.client(12345);
    if first.answer() != "attached" {
        return eprintln!("skipped: other users cannot reach the test's files");
    }
    let server = daemon.output("get_server_list");
    let mut second = daemon.client(12346);
    until("the second waits", || daemon.log().contains("from user 12346: Server is not ready"));
    assert_eq!(daemon.output("get_server_list"), server);
    first.leave();
    assert_eq!(second.answer(), "attached");
    let next = daemon.output("get_server_list");
    assert_ne!(next, server);
    let status = std::fs::read_to_string(format!("/proc/{}/status", next.trim())).unwrap();
    assert!(status.contains("Uid:\t12346\t12346"), "{status}");
    second.leave();
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn a_multiuser_server_serves_all_users_as_the_daemons() {
    if uid() != 0 {
        return eprintln!("skipped: needs root");
    }
    let daemon = Daemon::start(Provisioning::Multiuser);
    let mut clients = [daemon.client(12345), daemon.client(12346)];
    if clients[0].answer() != "attached" {
        return eprintln!("skipped: other users cannot reach the test's files");
    }
    assert_eq!(clients[1].answer(), "attached");
    let servers = daemon.output("get_server_list");
    assert_eq!(servers.lines().count(), 1, "{servers}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", servers.trim())).unwrap();
    assert!(status.contains("Uid:\t0\t0"), "{status}");
    let listed = daemon.output(&format!("get_client_list {}", servers.trim()));
    assert_eq!(listed.lines().count(), 2, "{listed}");
    clients.into_iter().for_each(Client::leave);
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn logs_that_are_links_are_not_written_and_hinder_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(&directory, Provisioning::OneUserAtATime);
    let directories = options.directories.clone();
    std::fs::create_dir_all(directories.log()).unwrap();
    for log in [directories.control_log(), directories.server_log()] {
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), log).unwrap();
    }
    let thread = std::thread::spawn(move || run(options));
    until("the daemon answers", || Frontend::connect(&directories).is_ok());
    let mut frontend = Frontend::connect(&directories).unwrap();
    let answer = frontend.command("set_default_active_thread_percentage 30").unwrap();
    assert_eq!(answer.output, "30.0\n");
    frontend.command("quit").unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 0);
    assert!(!directory.path().join("elsewhere").exists());
}

#[test]
fn concurrent_users_share() {
    if uid() != 0 {
        return eprintln!("skipped: needs root");
    }
    let daemon = Daemon::start(Provisioning::Concurrent);
    let mut clients = [daemon.client(12345), daemon.client(12346)];
    if clients[0].answer() != "attached" {
        return eprintln!("skipped: other users cannot reach the test's files");
    }
    assert_eq!(clients[1].answer(), "attached");
    assert_eq!(daemon.output("get_server_list").lines().count(), 2);
    clients.into_iter().for_each(Client::leave);
    assert_eq!(daemon.quit(), 0);
}

/// Finding N10 of the security review: a user has as many ids as `/etc/subuid` gives him, and a
/// server for each of them.
#[test]
fn the_ids_of_one_user_do_not_have_a_server_each_for_ever() {
    const MOST: u32 = 64;
    if uid() != 0 {
        return eprintln!("skipped: needs root");
    }
    let daemon = Daemon::start(Provisioning::Concurrent);
    let servers = || daemon.output("get_server_list").lines().count();
    let mut held = Vec::new();
    for id in 0..=MOST {
        let mut client = daemon.client(120_000 + id);
        assert_eq!(client.answer(), "attached", "{}", daemon.log());
        match id {
            // The server that has no clients makes way.
            0 => client.leave(),
            _ => held.push(client),
        }
    }
    assert_eq!(servers(), MOST as usize);
    assert!(
        daemon.log().contains(" of user 120000 has no clients and makes way for user 120064's")
    );
    let mut refused = daemon.client(120_000);
    assert_eq!(refused.answer(), "refused 807");
    refused.leave();
    let mut root = daemon.client(0);
    assert_eq!(root.answer(), "attached");
    assert_eq!(servers(), MOST as usize + 1);
    held.pop().unwrap().leave();
    let mut next = daemon.client(120_000);
    assert_eq!(next.answer(), "attached");
    held.extend([root, next]);
    held.into_iter().for_each(Client::leave);
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn a_killed_server_is_replaced() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let mut client = daemon.client(uid());
    assert_eq!(client.answer(), "attached");
    let server: i32 = daemon.output("get_server_list").trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(server).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("the killed server is gone", || daemon.output("get_server_list").is_empty());
    client.leave();
    let mut client = daemon.client(uid());
    assert_eq!(client.answer(), "attached");
    client.leave();
    let mut daemon = daemon;
    let answer = daemon.command("quit");
    // As the original's manual: 0 if and only if all servers have ended gracefully.
    assert!(answer.exit_status == 1 && !answer.error.is_empty(), "{answer:?}");
    assert_eq!(daemon.thread.take().unwrap().join().unwrap().unwrap(), 1);
}

#[test]
fn quit_waits_for_clients() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let mut client = daemon.client(uid());
    assert_eq!(client.answer(), "attached");
    let directories = daemon.directories();
    let quit = std::thread::spawn(move || {
        Frontend::connect(&directories).unwrap().command("quit").unwrap()
    });
    until("quit is under way", || daemon.log().contains("Try shutting down server"));
    assert_eq!(daemon.client(uid()).answer(), "refused 807");
    assert!(!quit.is_finished());
    client.leave();
    assert_eq!(quit.join().unwrap().exit_status, 0);
}

#[test]
fn one_daemon_per_directory_and_what_a_dead_one_left_is_no_hindrance() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let second = run(options(&daemon.directory, Provisioning::OneUserAtATime));
    assert!(matches!(second, Err(StartError::AlreadyRunning { pid: Some(_), .. })), "{second:?}");
    assert_eq!(daemon.quit(), 0);

    let directory = tempfile::tempdir().unwrap();
    let stale = directories(&directory);
    std::fs::create_dir_all(stale.pipe()).unwrap();
    std::fs::write(stale.pid_file(), "1\n").unwrap();
    std::fs::write(stale.lock(), "").unwrap();
    drop(std::os::unix::net::UnixListener::bind(stale.socket()).unwrap());
    assert!(matches!(
        Frontend::connect(&stale),
        Err(FrontendError::NoDaemon { .. } | FrontendError::Connect { .. })
    ));
    let options = options(&directory, Provisioning::OneUserAtATime);
    let thread = std::thread::spawn(move || run(options));
    until("the daemon answers", || Frontend::connect(&stale).is_ok());
    assert_eq!(
        std::fs::read_to_string(stale.pid_file()).unwrap().trim(),
        std::process::id().to_string()
    );
    Frontend::connect(&stale).unwrap().command("quit").unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 0);
}

#[test]
fn nvidias_own_daemon_is_not_disturbed() {
    let directory = tempfile::tempdir().unwrap();
    let directories = directories(&directory);
    std::fs::create_dir_all(directories.pipe()).unwrap();
    let _native = std::os::unix::net::UnixListener::bind(directories.native_socket()).unwrap();
    std::fs::write(directories.pid_file(), "1\n").unwrap();
    let result = run(options(&directory, Provisioning::OneUserAtATime));
    assert_eq!(std::fs::read_to_string(directories.pid_file()).unwrap(), "1\n");
    assert!(matches!(result, Err(StartError::NativeDaemon { .. })), "{result:?}");
    assert!(directories.native_socket().exists() && !directories.socket().exists());
}

#[test]
fn a_library_is_heard_if_a_version_is_common_whatever_else_its_packet_has() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let socket = daemon.directories().socket();
    let answer = |hello: &str| {
        let connection = Connection::connect(&socket, PATIENCE).unwrap();
        send(&connection, hello.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        connection.receive::<serde_json::Value>(PATIENCE).unwrap().message
    };
    let rest = r#""pid":7,"pid_namespace":1,"command":"x","limits":{"of the future":[1]}"#;
    let welcome = answer(&format!(
        r#"{{"client":{{"versions":{{"oldest":1,"newest":9}},{rest},"of the future":{{}}}}}}"#
    ));
    assert_eq!(welcome["welcome"]["version"], Versions::ours().newest, "{welcome}");

    let pid = format!("the daemon is process {}", std::process::id());
    let server = Versions::ours();
    let next = server.newest + 1;
    for (hello, words) in [
        // Nothing but the versions is as it is now.
        (
            format!(
                r#"{{"client":{{"versions":{{"oldest":{next},"newest":{next},"best":1}},"pid":"x"}}}}"#
            ),
            format!(
                "speaks version {next} of the client wire, and the daemon {server}: update OpenMPS"
            ),
        ),
        (
            format!(r#"{{"debugged":{{"versions":{{"oldest":{next},"newest":4294967295}}}}}}"#),
            "restart the daemon".to_owned(),
        ),
        (
            format!(r#"{{"client":{{"versions":{{"oldest":2,"newest":1}},{rest}}}}}"#),
            format!("names no version of the client wire, and the daemon speaks {server}"),
        ),
        (
            format!(r#"{{"client":{{"protocol":7,{rest}}}}}"#),
            "update the library that the program loads".to_owned(),
        ),
    ] {
        let refused = answer(&hello);
        let message = refused["refused"]["message"].as_str().unwrap_or_default();
        assert_eq!(refused["refused"]["code"], 806, "{hello}: {refused}");
        assert!(message.contains(&words) && message.contains(&pid), "{hello}: {message}");
    }
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn ten_thousand_malformed_messages_change_nothing() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let socket = daemon.directories().socket();
    let hello = br#"{"ui":{"protocol":1}}"#;
    let long = vec![b'['; 100_000];
    let shapes: [&[u8]; 8] = [
        b"x",
        b"{",
        b"\xff\xfe\x00",
        br#"{"ui":{"protocol":2}}"#,
        br#"{"client":{"protocol":1}}"#,
        br#"{"client":{"versions":{"oldest":2,"newest":1},"pid":1,"pid_namespace":0,"command":"","limits":{}}}"#,
        br#"{"command":{"line":5}}"#,
        &long,
    ];
    for round in 0..10_000 {
        let connection = Connection::connect(&socket, PATIENCE).unwrap();
        if round % 2 == 0 {
            let _ = send(&connection, hello, SendFlags::NOSIGNAL);
        }
        let _ = send(&connection, shapes[round % shapes.len()], SendFlags::NOSIGNAL);
    }
    assert_eq!(daemon.output("get_server_list"), "");
    assert_eq!(daemon.output("get_default_active_thread_percentage"), "100.0\n");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    until("all connections are closed", || descriptors() < 200);
    assert_eq!(daemon.quit(), 0);
}

/// Numbers at which a parser may stumble.
const NUMBERS: &[&str] =
    &["-1", "1e999", "4294967296", "18446744073709551616", "1e-400", "nan", "0.0"];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Memory that the process, and with it the daemon, has in use.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Valid packets, changed at random: some are still understood, most are not.
/// `cargo xtask fuzz control` goes on for longer: `OPENMPS_FUZZ_SECONDS`, and `OPENMPS_TEST_SEED`
/// to repeat a run.
#[test]
fn mutated_messages_change_nothing() {
    const MESSAGES: u32 = 5000;
    const CORPUS: u32 = 2000;
    // Other tests share the process.
    const GROWTH_BYTES: usize = 256 << 20;
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let socket = daemon.directories().socket();
    let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh) | 1;
    let _ = writeln!(std::io::stderr(), "OPENMPS_TEST_SEED={seed}");
    let state = std::cell::Cell::new(1_u64);
    let random = |below: usize| {
        let mut next = state.get();
        next ^= next << 13;
        next ^= next >> 7;
        next ^= next << 17;
        state.set(next);
        (next % below as u64) as usize
    };
    let version = link::wire::PROTOCOL_VERSION;
    let versions = serde_json::to_string(&Versions::ours()).unwrap();
    let hellos = [
        format!(r#"{{"ui":{{"protocol":{version}}}}}"#),
        format!(
            r#"{{"client":{{"versions":{versions},"pid":7,"pid_namespace":1,"command":"x","limits":{{"active_thread_percentage":"5"}}}}}}"#
        ),
    ];
    let requests = [
        r#"{"command":{"line":"set_default_client_priority 0"}}"#,
        r#""state""#,
        r#"{"command":{"line":"ps"}}"#,
    ];
    let end = number("OPENMPS_FUZZ_SECONDS")
        .map(|seconds| std::time::Instant::now() + std::time::Duration::from_secs(seconds));
    let before = resident_bytes();
    let mut sent = 0;
    while end.map_or(sent < MESSAGES, |end| std::time::Instant::now() < end) {
        sent += 1;
        // The first ones are the same in every run.
        if sent == CORPUS {
            state.set(seed);
        }
        let mut packet = if random(2) == 0 {
            hellos[random(2)].clone().into_bytes()
        } else {
            requests[random(3)].as_bytes().to_vec()
        };
        for _ in 0..1 + random(4) {
            let at = random(packet.len());
            match random(6) {
                0 => packet[at] = random(256) as u8,
                1 => packet.truncate(at.max(1)),
                2 => packet.insert(at, b"{}[]\",:0\\"[random(9)]),
                3 => drop(packet.splice(at..at, NUMBERS[random(NUMBERS.len())].bytes())),
                4 => drop(packet.splice(at..at, [b"[{\"0"[random(4)]].repeat(1 + random(3000)))),
                _ => packet.extend_from_within(at..),
            }
        }
        let connection = Connection::connect(&socket, PATIENCE).unwrap();
        if random(2) == 0 {
            let _ = send(&connection, hellos[0].as_bytes(), SendFlags::NOSIGNAL);
        }
        let _ = send(&connection, &packet, SendFlags::NOSIGNAL);
    }
    let _ = writeln!(std::io::stderr(), "{sent} messages");
    assert_eq!(daemon.output("get_default_active_thread_percentage"), "100.0\n");
    // The server here never says that a client has left: it keeps as many records, with a process
    // each, as it may.
    let sockets = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    until("all connections are closed", || sockets() < 300);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "{grown} bytes more after {sent} messages");
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn silent_connections_hold_nobody_up() {
    let daemon = Daemon::start(Provisioning::OneUserAtATime);
    let socket = daemon.directories().socket();
    let silent: Vec<Connection> =
        (0..100).map(|_| Connection::connect(&socket, PATIENCE).unwrap()).collect();
    assert_eq!(daemon.output("get_default_client_priority"), "0\n");
    until("they are closed", || silent.iter().all(Connection::is_closed));
    assert_eq!(daemon.quit(), 0);
}

#[test]
fn metrics_are_served_and_bad_requests_cost_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics");
    let options = Options {
        metrics: Some(format!("unix:{}", socket.display()).parse().unwrap()),
        ..options(&directory, Provisioning::OneUserAtATime)
    };
    let directories = options.directories.clone();
    let thread = std::thread::spawn(move || run(options));
    until("metrics are served", || UnixStream::connect(&socket).is_ok());
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for (request, status) in [
        (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "200 OK"),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\xff\x00\r\n\r\n", "400 Bad Request"),
        (b"", "400 Bad Request"),
    ] {
        assert!(ask(request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{status}");
    }
    let answer = ask(b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.contains("\nopenmps_servers 0\n"), "{answer}");
    let asked = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let answer = ask(asked);
    assert!(answer.contains("\nopenmps_servers 0\n") && answer.ends_with("# EOF\n"), "{answer}");
    Frontend::connect(&directories).unwrap().command("quit").unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 0);
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn a_log_directory_that_cannot_be_made_is_no_hindrance() {
    let directory = tempfile::tempdir().unwrap();
    let directories = Directories::from_variables(|name| {
        Some(if name.contains("LOG") {
            "/dev/null/logs".into()
        } else {
            directory.path().join("mps").into()
        })
    });
    let options = Options {
        directories: directories.clone(),
        ..options(&directory, Provisioning::OneUserAtATime)
    };
    let thread = std::thread::spawn(move || run(options));
    until("the daemon answers", || Frontend::connect(&directories).is_ok());
    let mut frontend = Frontend::connect(&directories).unwrap();
    assert_eq!(frontend.command("get_default_client_priority").unwrap().output, "0\n");
    frontend.command("quit").unwrap();
    assert_eq!(thread.join().unwrap().unwrap(), 0);
    let _ = std::io::stderr().flush();
}
