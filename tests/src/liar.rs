//! A user's server that says what the test wants: the real one is stopped, and the test speaks over
//! a copy of its socket. A user can do that to his own server with a debugger; the test does it as
//! root, and so whatever the server does against debuggers.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use link::socket::{Connection, SocketError};
use link::wire::attach::{HelloReply, Refusal};
use link::wire::daemon::{ServerSnapshot, ToDaemon, ToServer};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal,
};

use crate::wait::PATIENCE;

const INTERVAL: Duration = Duration::from_millis(20);

/// It. Dropping it ends the server.
#[derive(Debug)]
pub struct Liar {
    socket: Arc<Connection>,
    server: rustix::fd::OwnedFd,
    stop: Arc<AtomicBool>,
    speaks: Option<JoinHandle<()>>,
}

impl Liar {
    /// Takes the place of a server: from now on it answers each question with this snapshot.
    ///
    /// # Errors
    /// When this is not root, or the server is gone.
    pub fn in_place_of(server: u32, snapshot: ServerSnapshot) -> Result<Self> {
        let arguments = fs::read(format!("/proc/{server}/cmdline"))?;
        let words: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let at = words.iter().position(|word| *word == b"--control-fd").context("no socket")?;
        let number: i32 = std::str::from_utf8(words.get(at + 1).context("no number")?)?.parse()?;
        let pid = i32::try_from(server).ok().and_then(Pid::from_raw).context("no process")?;
        let server = pidfd_open(pid, PidfdFlags::empty())?;
        pidfd_send_signal(&server, Signal::STOP)?;
        let state = || fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
        crate::wait::until("the server stands still", PATIENCE, || {
            state().is_ok_and(|stat| stat.contains(") T "))
        })?;
        let socket = pidfd_getfd(&server, number, PidfdGetfdFlags::empty())?;
        let socket = Arc::new(Connection::from_socket(socket)?);
        let stop = Arc::new(AtomicBool::new(false));
        let speaks = {
            let (socket, stop) = (Arc::clone(&socket), Arc::clone(&stop));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match socket.receive::<ToServer>(INTERVAL) {
                        Ok(received) => {
                            answer(&socket, received.message, received.descriptors, &snapshot);
                        }
                        Err(SocketError::TimedOut(_)) => {}
                        Err(_) => return,
                    }
                }
            })
        };
        Ok(Self { socket, server, stop, speaks: Some(speaks) })
    }

    /// Says something unasked.
    ///
    /// # Errors
    /// When the daemon does not take it.
    pub fn say(&self, message: &ToDaemon) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "it has nothing to say any more");
        Ok(self.socket.send(message, &[], PATIENCE)?)
    }
}

/// What it tells a tracer, which commands a terminal.
pub const TO_TRACERS: &str = "lies\u{1b}]0;told\u{7}";

fn answer(
    socket: &Connection,
    asked: ToServer,
    descriptors: Vec<OwnedFd>,
    snapshot: &ServerSnapshot,
) {
    let said = match asked {
        ToServer::Trace { .. } => {
            let tracer = descriptors.into_iter().next().map(Connection::from_socket);
            if let Some(Ok(tracer)) = tracer {
                let refusal = Refusal { code: 0, message: TO_TRACERS.to_owned() };
                // Nor does a tracer that is gone.
                let _ = tracer.send(&HelloReply::Refused(refusal), &[], PATIENCE);
            }
            return;
        }
        ToServer::Snapshot { id } => ToDaemon::Snapshot { id, snapshot: snapshot.clone() },
        ToServer::Change { id, .. } => ToDaemon::Changed { id, report: Default::default() },
        ToServer::Terminate { id, .. } => ToDaemon::Terminated { id, code: 0 },
        _ => return,
    };
    // A daemon that is gone hears nothing.
    let _ = socket.send(&said, &[], PATIENCE);
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = pidfd_send_signal(&self.server, Signal::KILL);
        if let Some(speaks) = self.speaks.take() {
            let _ = speaks.join();
        }
    }
}
