//! What another user's process does to a daemon and to other users' programs: the attacks of
//! `tests/tests/security`.
//!
//! | arguments | does | says |
//! |---|---|---|
//! | `relay PLACE OWN` | listens in the directory PLACE as a daemon does and hands everything on to the daemon in OWN | `listening`, then `heard` for each program that speaks to it |
//! | `attach DIRECTORY COUNT` | attaches so often, until it is refused | how often |
//! | `frontends DIRECTORY COUNT` | connects so often as a front end | how many of these the daemon keeps |
//! | `wait DIRECTORY COUNT` | asks so often to be attached, and waits for no answer | how often |
//! | `stop DIRECTORY COUNT` | attaches, stops its own server, and asks so often to be attached, each time gone at once | how often |
//! | `come DIRECTORY COUNT` | the same without stopping anything | how often |
//! | `halt DIRECTORY COUNT` | has its server started again and again, and stops what gets the next process ids, as far as that is its own, and ends it, so often; until one is stopped before it has begun its program | how many were stopped before, and after |
//! | `look DIRECTORY COUNT` | asks so often for the daemon's state, each time gone at once | how often |
//! | `command DIRECTORY COUNT LENGTH` | gives so many commands of this length that nobody knows | how many were answered |
//! | `crowd DIRECTORY FIRST COUNT` | connects as often as it can as a front end, as each of so many users; run by root | how many the daemon keeps of each |
//! | `contained DIRECTORY FIRST COUNT` | the same within a user namespace, once it has been told that this has ids | `apart`, then the same |
//! | `idle ADDRESS COUNT` | connects so often by TCP and says nothing | how many stand |
//!
//! What it has is held until its input ends.

use std::io::{Write, stdin, stdout};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use link::pieces::Assembly;
use link::socket::{Connection, Listener};
use link::wire::attach::{ClientHello, Hello, HelloReply, RequestedLimits};
use link::wire::ui::{UiReply, UiRequest};
use link::wire::version::Versions;
use link::wire::{DAEMON_SOCKET, PROTOCOL_VERSION};
use openmps_tests::wait::{self, PATIENCE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::fs::Mode;
use rustix::process::{Pid, Resource, Rlimit, Signal, Uid, getrlimit, kill_process, setrlimit};
use rustix::thread::{UnshareFlags, set_thread_res_uid, unshare_unsafe};
use serde_json::Value;

/// A TCP connection that does not stand by then waits in a queue that is full.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["relay", place, own] => relay(Path::new(place), Path::new(own)),
        ["attach", directory, count] => {
            hold(attach(&Path::new(directory).join(DAEMON_SOCKET), count.parse()?)?)
        }
        ["frontends", directory, count] => {
            hold(frontends(&Path::new(directory).join(DAEMON_SOCKET), count.parse()?)?)
        }
        ["wait", directory, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            let waiting: Vec<Connection> =
                (0..count.parse()?).map_while(|_| ask(&socket)).collect();
            hold(waiting)
        }
        ["stop", directory, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            let _stopped = stop_own_server(&socket)?;
            come_and_go(&socket, count.parse()?)
        }
        ["come", directory, count] => {
            come_and_go(&Path::new(directory).join(DAEMON_SOCKET), count.parse()?)
        }
        ["halt", directory, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            let halted = halt(&socket, count.parse()?)?;
            say(format_args!("{} {}", halted.before, halted.after))?;
            std::io::copy(&mut stdin(), &mut std::io::sink())?;
            Ok(())
        }
        ["look", directory, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            hold((0..count.parse()?).map_while(|_| look(&socket)).collect())
        }
        ["command", directory, count, length] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            hold(command(&socket, count.parse()?, length.parse()?)?)
        }
        ["crowd", directory, first, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            crowd(&socket, first.parse()?, count.parse()?)
        }
        ["contained", directory, first, count] => {
            let socket = Path::new(directory).join(DAEMON_SOCKET);
            // SAFETY: it has no thread but this one.
            unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.context("no user namespace")?;
            say("apart")?;
            stdin().read_line(&mut String::new())?;
            crowd(&socket, first.parse()?, count.parse()?)
        }
        ["idle", address, count] => hold(idle(address.parse()?, count.parse()?)),
        _ => bail!("wrong arguments: {arguments:?}"),
    }
}

fn say(word: impl std::fmt::Display) -> Result<()> {
    writeln!(stdout(), "{word}")?;
    Ok(stdout().flush()?)
}

/// Says how many there are and keeps them.
fn hold<T>(held: Vec<T>) -> Result<()> {
    say(held.len())?;
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}

fn attach(socket: &Path, count: usize) -> Result<Vec<Connection>> {
    let mut attached = Vec::new();
    while attached.len() < count {
        let connection = Connection::connect(socket, PATIENCE)?;
        connection.send(&hello(), &[], PATIENCE)?;
        match connection.receive::<HelloReply>(PATIENCE)?.message {
            HelloReply::Welcome(_) => attached.push(connection),
            HelloReply::Refused(_) => break,
            HelloReply::Native => bail!("an answer to another question"),
        }
    }
    Ok(attached)
}

fn hello() -> Hello {
    Hello::Client(ClientHello {
        versions: Versions::ours(),
        pid: std::process::id(),
        pid_namespace: 0,
        command: "stranger".to_owned(),
        limits: RequestedLimits::default(),
    })
}

/// A connection that asks to be attached; none, if the daemon takes no more.
fn ask(socket: &Path) -> Option<Connection> {
    let connection = Connection::connect(socket, CONNECT_LIMIT).ok()?;
    // One that is refused at once counts.
    let _ = connection.send(&hello(), &[], CONNECT_LIMIT);
    Some(connection)
}

fn come_and_go(socket: &Path, count: usize) -> Result<()> {
    hold((0..count).map_while(|_| ask(socket).map(drop)).collect())
}

/// Stops the server of this user, as any user may; returns what it was attached by.
fn stop_own_server(socket: &Path) -> Result<Connection> {
    let connection = ask(socket).context("the daemon takes nobody")?;
    let HelloReply::Welcome(welcome) = connection.receive::<HelloReply>(PATIENCE)?.message else {
        bail!("not attached");
    };
    let server = i32::try_from(welcome.server_pid).ok().and_then(Pid::from_raw);
    kill_process(server.context("no server")?, Signal::STOP)?;
    Ok(connection)
}

/// Servers that were stopped.
#[derive(Default)]
struct Halted {
    /// Before they began their program; they stay stopped.
    before: usize,
    /// While it ran.
    after: usize,
}

/// How long a server takes to be started, at most, on a machine that is not busy.
const START_LIMIT: Duration = Duration::from_millis(250);
/// For all of them.
const HALT_LIMIT: Duration = Duration::from_secs(30);
/// Process ids that a new server may get: other processes start meanwhile.
const NEXT: std::ops::Range<u32> = 1..24;

fn halt(socket: &Path, count: usize) -> Result<Halted> {
    let mut halted = Halted::default();
    let end = Instant::now() + HALT_LIMIT;
    while Instant::now() < end && halted.before == 0 && halted.after < count {
        let latest = Command::new("true").spawn()?;
        let next = NEXT.map(|further| latest.id() + further);
        let next: Vec<Pid> = next.filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect();
        let asked = ask(socket).context("the daemon takes nobody")?;
        let deadline = Instant::now() + START_LIMIT;
        let mut stopped = None;
        while stopped.is_none() && Instant::now() < deadline {
            stopped = next.iter().copied().find(|pid| kill_process(*pid, Signal::STOP).is_ok());
        }
        latest.wait_with_output()?;
        let Some(stopped) = stopped else {
            // It was too quick, or is another number's; it ends, so that the next one is started.
            if let Ok(HelloReply::Welcome(welcome)) =
                asked.receive(START_LIMIT).map(|received| received.message)
                && let Some(server) = Pid::from_raw(welcome.server_pid.cast_signed())
            {
                let _ = kill_process(server, Signal::KILL);
            }
            continue;
        };
        thread::sleep(START_LIMIT / 5);
        // What was about to end when the signal came is gone by now, or has no command any more.
        let command = std::fs::read(format!("/proc/{}/cmdline", stopped.as_raw_pid()));
        let Some(command) = command.ok().filter(|command| !command.is_empty()) else { continue };
        if String::from_utf8_lossy(&command).contains("--control-fd") {
            halted.after += 1;
            kill_process(stopped, Signal::KILL)?;
        } else {
            halted.before += 1;
        }
    }
    Ok(halted)
}

fn look(socket: &Path) -> Option<()> {
    let connection = Connection::connect(socket, CONNECT_LIMIT).ok()?;
    let _ = connection.send(&Hello::Ui { protocol: PROTOCOL_VERSION }, &[], CONNECT_LIMIT);
    let _ = connection.send(&UiRequest::State, &[], CONNECT_LIMIT);
    Some(())
}

fn command(socket: &Path, count: usize, length: usize) -> Result<Vec<()>> {
    let connection = Connection::connect(socket, PATIENCE)?;
    connection.send(&Hello::Ui { protocol: PROTOCOL_VERSION }, &[], PATIENCE)?;
    let request = UiRequest::Command { line: "A".repeat(length) };
    let answer = || {
        connection.send(&request, &[], PATIENCE)?;
        let mut assembly = Assembly::new(usize::MAX);
        loop {
            let reply = connection.receive::<UiReply>(PATIENCE)?.message;
            let UiReply::Piece(piece) = reply else { return Ok(()) };
            if assembly.add(piece)?.is_some() {
                return Ok(());
            }
        }
    };
    (0..count).map(|_| answer()).collect()
}

fn frontends(socket: &Path, count: usize) -> Result<Vec<Connection>> {
    let mut connected = Vec::new();
    for _ in 0..count {
        let connection = Connection::connect(socket, PATIENCE)?;
        // One that was closed at once is no mistake of ours.
        if connection.send(&Hello::Ui { protocol: PROTOCOL_VERSION }, &[], PATIENCE).is_ok() {
            connected.push(connection);
        }
    }
    // Those that the daemon keeps are answered.
    let ask = UiRequest::Command { line: "get_default_client_priority".to_owned() };
    connected.retain(|connection| {
        connection.send(&ask, &[], PATIENCE).is_ok()
            && connection.receive::<UiReply>(PATIENCE).is_ok()
    });
    Ok(connected)
}

/// As many front ends as the daemon answers, of each of these users.
fn crowd(socket: &Path, first: u32, count: u32) -> Result<()> {
    let mut held = Vec::new();
    let mut counts = Vec::new();
    for uid in first..first + count {
        let of_one = thread::scope(|scope| scope.spawn(|| fill_as(socket, uid)).join());
        let of_one = of_one.map_err(|_| anyhow!("its thread has panicked"))??;
        counts.push(of_one.len().to_string());
        held.extend(of_one);
    }
    say(counts.join(" "))?;
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}

/// In a thread of its own, which becomes that user.
fn fill_as(socket: &Path, uid: u32) -> Result<Vec<Connection>> {
    let id = Uid::from_raw(uid);
    set_thread_res_uid(id, id, id).context("it cannot become another user")?;
    let ask = UiRequest::Command { line: "get_default_client_priority".to_owned() };
    let answered = || {
        let connection = Connection::connect(socket, PATIENCE).ok()?;
        connection.send(&Hello::Ui { protocol: PROTOCOL_VERSION }, &[], PATIENCE).ok()?;
        connection.send(&ask, &[], PATIENCE).ok()?;
        connection.receive::<UiReply>(PATIENCE).ok()?;
        Some(connection)
    };
    Ok(std::iter::from_fn(answered).collect())
}

fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect_timeout(&address, CONNECT_LIMIT).ok();
    (0..count).map_while(connect).collect()
}

fn relay(place: &Path, own: &Path) -> Result<()> {
    let listener =
        Listener::bind_with_mode(&place.join(DAEMON_SOCKET), Mode::from_raw_mode(0o666))?;
    let own = own.join(DAEMON_SOCKET);
    say("listening")?;
    thread::spawn(move || {
        loop {
            let mut polled = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
            let _ = poll(&mut polled, None);
            let Ok(Some(program)) = listener.try_accept() else { continue };
            let own = own.clone();
            thread::spawn(move || hand_on(program, &own));
        }
    });
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}

/// All packets with their descriptors, in either direction.
fn hand_on(program: Connection, own: &Path) -> Result<()> {
    let first = program.receive::<Value>(PATIENCE)?;
    say("heard")?;
    let daemon = Connection::connect(own, PATIENCE).context("no daemon of its own")?;
    daemon.send(&first.message, &[], PATIENCE)?;
    let ends = [Arc::new(program), Arc::new(daemon)];
    let [program, daemon] = &ends;
    for (from, to) in [(program, daemon), (daemon, program)] {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        thread::spawn(move || -> Result<()> {
            loop {
                let packet = from.receive::<Value>(PATIENCE)?;
                let descriptors: Vec<_> = packet.descriptors.iter().map(AsFd::as_fd).collect();
                to.send(&packet.message, &descriptors, PATIENCE)?;
            }
        });
    }
    wait::until("the program has left", PATIENCE * 10, || program.is_closed())
}
