//! A server and a client with no GPU behind them: for the daemon's tests.
//!
//! `fake_server [--user UID:GID] --control-fd N` is a server: it is ready at once, lists the
//! clients whose sockets it was handed until they close, and stops when told.
//! `fake_server client SOCKET` is a client: it attaches, prints what it is answered, and stays
//! until its standard input ends.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use link::socket::{Connection, SocketError};
use link::user::User;
use link::wire::attach::{ClientHello, Hello, HelloReply, RequestedLimits, Welcome};
use link::wire::daemon::{
    ClientSnapshot, ContextSnapshot, DeviceSnapshot, ServerSnapshot, ShutdownMode, ToDaemon,
    ToServer,
};
use link::wire::version::Versions;

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(user) = User::of_arguments(&words).unwrap() {
        user.become_it().unwrap();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--control-fd", number] | ["--user", _, "--control-fd", number] => {
            // SAFETY: the daemon made this descriptor for this process, which uses it here only.
            let socket = unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) };
            serve(&Connection::from_socket(socket).unwrap());
        }
        ["client", socket] => attach(Path::new(socket)),
        other => panic!("unknown arguments {other:?}"),
    }
}

fn serve(daemon: &Connection) {
    daemon.send(&ToDaemon::Ready, &[], LONG).unwrap();
    let mut clients: Vec<(ClientSnapshot, Connection)> = Vec::new();
    let mut leaving = false;
    loop {
        clients.retain(|(_, connection)| !connection.is_closed());
        if leaving && clients.is_empty() {
            return;
        }
        let received = match daemon.receive::<ToServer>(SHORT) {
            Ok(received) => received,
            Err(SocketError::TimedOut(_)) => continue,
            Err(_) => return,
        };
        match received.message {
            ToServer::Trace { .. } => {}
            ToServer::Attach { client_id, hello, peer, .. } => {
                let socket = received.descriptors.into_iter().next().unwrap();
                let connection = Connection::from_socket(socket).unwrap();
                let welcome = Welcome {
                    version: Versions::ours().newest,
                    client_id,
                    server_pid: std::process::id(),
                    driver_version: 13000,
                    devices: Vec::new(),
                };
                let _ = connection.send(&HelloReply::Welcome(welcome), &[], LONG);
                let snapshot = ClientSnapshot {
                    client_id,
                    pid: peer.pid,
                    uid: peer.uid,
                    command: hello.command,
                    contexts: vec![ContextSnapshot {
                        device: 0,
                        context_id: 1,
                        serial: 1,
                        active_thread_percentage: 100.0,
                    }],
                    ..Default::default()
                };
                clients.push((snapshot, connection));
            }
            ToServer::Change { id, .. } => {
                let report = Default::default();
                let _ = daemon.send(&ToDaemon::Changed { id, report }, &[], LONG);
            }
            ToServer::Snapshot { id } => {
                let device = DeviceSnapshot {
                    uuid: "GPU-00000000-1111-2222-3333-444444444444".into(),
                    name: "No GPU".into(),
                    ..Default::default()
                };
                let snapshot = ServerSnapshot {
                    devices: vec![device],
                    clients: clients.iter().map(|(snapshot, _)| snapshot.clone()).collect(),
                    ..Default::default()
                };
                daemon.send(&ToDaemon::Snapshot { id, snapshot }, &[], LONG).unwrap();
            }
            ToServer::Terminate { id, pid } => {
                let before = clients.len();
                clients.retain(|(snapshot, _)| snapshot.pid != pid);
                let code = if clients.len() < before { 0 } else { 201 };
                daemon.send(&ToDaemon::Terminated { id, code }, &[], LONG).unwrap();
            }
            ToServer::SetDefaults(_) => {}
            ToServer::Resume { id } => {
                leaving = false;
                daemon.send(&ToDaemon::Resumed { id }, &[], LONG).unwrap();
            }
            ToServer::Shutdown(ShutdownMode::WhenIdle) => leaving = true,
            ToServer::Shutdown(ShutdownMode::Now) => return,
        }
    }
}

fn attach(socket: &Path) {
    let daemon = Connection::connect(socket, LONG).unwrap();
    let hello = ClientHello {
        versions: Versions::ours(),
        pid: std::process::id(),
        pid_namespace: 0,
        command: "fake".into(),
        limits: RequestedLimits::default(),
    };
    daemon.send(&Hello::Client(hello), &[], LONG).unwrap();
    match daemon.receive::<HelloReply>(LONG).unwrap().message {
        HelloReply::Welcome(_) => println!("attached"),
        HelloReply::Refused(refusal) => println!("refused {}", refusal.code),
        HelloReply::Native => println!("native"),
    }
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
}
