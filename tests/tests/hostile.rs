//! A client that keeps to no protocol is disconnected, with a line in the log; everybody else goes
//! on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail, ensure};
use link::doorbell::Doorbell;
use link::session_memory::SessionMemory;
use link::socket::{Connection, Received};
use link::wire::DAEMON_SOCKET;
use link::wire::attach::{ClientHello, ClientReply, ClientRequest, Hello, HelloReply};
use link::wire::layout::{RING_BYTES, RING_OFFSET};
use link::wire::version::Versions;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Sandbox};

/// A client of our own making, attached and with a context, that speaks to the ring directly.
struct RawClient {
    socket: Connection,
    file: File,
    memory: SessionMemory,
}

impl RawClient {
    fn attach(daemon: &Daemon) -> Result<Self> {
        let socket = connect(daemon)?;
        let hello = Hello::Client(ClientHello {
            versions: Versions::ours(),
            pid: process::id(),
            pid_namespace: 0,
            command: "hostile".to_owned(),
            limits: Default::default(),
        });
        socket.send(&hello, &[], PATIENCE)?;
        match socket.receive::<HelloReply>(PATIENCE)?.message {
            HelloReply::Welcome(_) => {}
            HelloReply::Refused(refusal) => bail!("not attached: {}", refusal.message),
            HelloReply::Native => bail!("not attached, but sent away"),
        }
        let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
        socket.send(&wanted, &[], PATIENCE)?;
        let Received { message, descriptors } = socket.receive::<ClientReply>(PATIENCE)?;
        ensure!(matches!(message, ClientReply::ContextOpened(_)), "no context: {message:?}");
        let session = descriptors.into_iter().next().context("no session file")?;
        let memory = SessionMemory::map(std::os::fd::AsFd::as_fd(&session))?;
        Ok(Self { socket, file: File::from(session), memory })
    }

    /// Puts bytes at the start of the ring, claims that `tail` bytes were written, and rings.
    fn post(&self, bytes: &[u8], tail: u64) -> Result<()> {
        self.file.write_all_at(bytes, RING_OFFSET as u64)?;
        let shared = self.memory.shared();
        // Release: as an honest producer, pairs with the acquire in `Consumer::available`.
        shared.tail.0.store(tail, Ordering::Release);
        Doorbell::new(&shared.consumer_asleep.0).ring();
        Ok(())
    }
}

fn connect(daemon: &Daemon) -> Result<Connection> {
    let path = daemon.sandbox().pipe_directory().join(DAEMON_SOCKET);
    Ok(Connection::connect(&path, PATIENCE)?)
}

/// A header as `link::wire::command::Header` has it.
fn header(opcode: u16, call_slot: u16, size_bytes: u32, context: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(call_slot.to_le_bytes());
    bytes.extend(size_bytes.to_le_bytes());
    bytes.extend(context.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes
}

const NO_CALL: u16 = u16::MAX;
const PING: u16 = 1;
const LAUNCH: u16 = 60;
const GRAPH_LAUNCH: u16 = 82;

fn garbage() -> Vec<(&'static str, Vec<u8>, u64)> {
    let mut state = 0x2545_f491_u32;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    });
    vec![
        ("noise", noise.take(4096).collect(), 4096),
        ("a tail far ahead", Vec::new(), u64::MAX - 15),
        ("a tail past the ring", Vec::new(), 2 * RING_BYTES as u64),
        ("a crooked tail", Vec::new(), 7),
        ("an unknown opcode", header(0x7777, NO_CALL, 16, 1), 16),
        ("a command longer than what was written", header(PING, 0, 4096, 1), 16),
        ("a command of length zero", header(PING, 0, 0, 1), 16),
        ("a call slot beyond the last", header(PING, 999, 16, 1), 16),
        ("a launch without its body", header(LAUNCH, NO_CALL, 16, 1), 16),
        (
            "a graph beyond the last",
            [header(GRAPH_LAUNCH, NO_CALL, 32, 1), vec![0xff; 16]].concat(),
            32,
        ),
    ]
}

#[test]
fn garbage_in_the_ring_ends_that_client_only() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = daemon.puppet()?;
    witness.must("open")?;
    let server = daemon.server()?.pid;
    for (what, bytes, tail) in garbage() {
        let before = lines_about_us(&daemon);
        let client = RawClient::attach(&daemon)?;
        witness.tell("work 3")?;
        client.post(&bytes, tail)?;
        wait::until("the hostile client is disconnected", PATIENCE, || client.socket.is_closed())
            .with_context(|| format!("{what}\n{}", daemon.sandbox().last_log_lines()))?;
        wait::until("the log says so", PATIENCE, || lines_about_us(&daemon) > before)
            .with_context(|| what.to_owned())?;
        ensure!(witness.answer_within(PATIENCE)? == "ok", "the witness suffered from {what}");
    }
    ensure!(daemon.server()?.pid == server, "the server did not go on");
    daemon.wait_gone(process::id())?;
    witness.dismiss()
}

/// Warnings that name this process, which is the hostile client.
fn lines_about_us(daemon: &Daemon) -> usize {
    // What a server logged before it answers the daemon is in the file.
    let _ = daemon.state();
    let pid = process::id().to_string();
    daemon.sandbox().logs().lines().filter(|line| line.contains(&pid)).count()
}

#[test]
fn garbage_on_the_daemons_socket_is_no_harm() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut witness = daemon.puppet()?;
    witness.must("open")?;
    let texts =
        ["", "hello", "{}", "[[[[[[[[", "{\"client\":{}}", "{\"ui\":{\"protocol\":4294967295}}"];
    for text in texts {
        let socket = connect(&daemon)?;
        // A JSON string is no hello either, whatever is in it.
        socket.send(&text, &[], PATIENCE)?;
        wait::until("the daemon hangs up", PATIENCE, || socket.is_closed() || answered(&socket))
            .with_context(|| text.to_owned())?;
    }
    // Connections that say nothing must not keep others out.
    let silent = (0..64).map(|_| connect(&daemon)).collect::<Result<Vec<_>>>()?;
    witness.must("work 1")?;
    let mut next = daemon.puppet()?;
    next.must("open")?;
    next.must("work 1")?;
    drop(silent);
    next.dismiss()?;
    witness.dismiss()
}

/// Whether anything came back: a refusal in words is as good as hanging up.
fn answered(socket: &Connection) -> bool {
    socket.try_receive::<serde_json::Value>().is_ok_and(|received| received.is_some())
}
