//! Where everything happens: how good clients are started under the peer, and bad ones, one fault
//! each.

use super::board::Board;
use super::crew::Event;
use super::harness::{ChaosError, Plan, io_error};
use super::kind::Kind;
use super::{TORCH, bounded};
use crate::peer::{Peer, Running};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What came of a fault.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What the bad client was told; `None`: nothing, and it had to be killed.
    pub(super) answer: Option<String>,
    /// Bad inputs that it is made of, where there is more than the fault itself.
    pub(super) inputs: u64,
}

/// Where everything happens.
pub(super) struct Scene<'a> {
    pub(super) plan: &'a Plan,
    pub(super) running: &'a Running,
    board_file: PathBuf,
    pub(super) board: Board,
    /// Faults that are being made, by their numbers, and since when.
    underway: Mutex<BTreeMap<u64, (Kind, Instant)>>,
    _directory: tempfile::TempDir,
}

impl<'a> Scene<'a> {
    pub(super) fn new(plan: &'a Plan, running: &'a Running) -> Result<Self, ChaosError> {
        let directory = tempfile::tempdir().map_err(io_error("make a directory"))?;
        let board_file = directory.path().join("board");
        let board = Board::open(&board_file).map_err(io_error("make the board"))?;
        let underway = Mutex::default();
        Ok(Self { plan, running, board_file, board, underway, _directory: directory })
    }

    /// Faults that are being made, in words.
    pub(super) fn underway(&self) -> String {
        let underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        let words = underway
            .values()
            .map(|(kind, since)| format!("{} for {} s", kind.name(), since.elapsed().as_secs()));
        words.collect::<Vec<_>>().join(", ")
    }

    fn client(&self, role: &str) -> Command {
        let (mut command, driver) = self.running.client(&self.plan.places.openmps);
        command.arg("chaos-worker").arg("--driver").arg(driver);
        command.arg("--board").arg(&self.board_file).args(["--role", role]);
        command
    }

    pub(super) fn good(&self, index: usize) -> Command {
        if index < self.plan.good {
            let mut command = self.client("good");
            command.args(["--index", &index.to_string()]);
            return command;
        }
        let (mut command, _) = self.running.client(Path::new("python3"));
        command.args(["-c", TORCH]).arg(&self.board_file).arg(index.to_string());
        if self.plan.peer == Peer::Openmps
            && let Some(directory) = self.plan.places.client_library.parent()
        {
            command.env("LD_LIBRARY_PATH", directory);
        }
        command
    }

    pub(super) fn make_faults(&self, stop: &AtomicBool, turn: &AtomicU64, sender: Sender<Event>) {
        while !stop.load(Ordering::Relaxed) {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let kind = self.plan.kinds[turn as usize % self.plan.kinds.len()];
            let made = self.make_fault(kind, turn).unwrap_or_else(|error| Made {
                answer: Some(format!("failed: {error}")),
                inputs: 0,
            });
            if sender.send(Event::Fault { kind, made }).is_err() {
                return;
            }
            std::thread::sleep(self.plan.rest);
        }
    }

    /// Makes one fault.
    pub(super) fn make_fault(&self, kind: Kind, turn: u64) -> io::Result<Made> {
        let underway = || self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        underway().insert(turn, (kind, Instant::now()));
        let answer = self.run_bad(kind, turn);
        underway().remove(&turn);
        answer
    }

    fn run_bad(&self, kind: Kind, turn: u64) -> io::Result<Made> {
        let mut command = self.client("bad");
        command.args(["--kind", kind.name(), "--seed", &turn.to_string(), "--directory"]);
        command.arg(self.running.directory());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                // What kernels print may be anything.
                let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
                for line in lines {
                    if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                        break;
                    }
                }
            });
        }
        let (mut answer, mut inputs) = (None, 0);
        let deadline = Instant::now() + self.plan.patience;
        let mut killed = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) if line == "flying" => {
                    // Any moment will do, but not always the same.
                    std::thread::sleep(Duration::from_millis(5 + turn * 7 % 40));
                    self.board.announce_fault(kind);
                    if kind != Kind::Terminated || !self.terminate(child.id()) {
                        killed = true;
                        child.kill()?;
                    }
                }
                Ok(line) => {
                    let result = line.strip_prefix("r ").map(str::to_owned);
                    answer = result.or(answer);
                    let told = line.strip_prefix("n ").and_then(|number| number.parse().ok());
                    inputs = told.unwrap_or(inputs);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    return Ok(Made { answer: None, inputs });
                }
            }
        }
        // Its output is closed; it may still have to take leave.
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Ok(Made { answer: None, inputs });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = child.wait()?;
        let answer = match answer {
            _ if killed => "killed".to_owned(),
            Some(code) => code,
            None => format!("{status}"),
        };
        Ok(Made { answer: Some(answer), inputs })
    }

    /// Has an operator end a client; says whether the peer has a way to.
    fn terminate(&self, pid: u32) -> bool {
        let shell = |line: &str| -> io::Result<String> {
            let command = match self.plan.peer {
                Peer::Openmps => {
                    let (mut command, _) = self.running.client(&self.plan.places.openmps);
                    command.arg("control");
                    command
                }
                Peer::Nvidia => self.running.client(Path::new("nvidia-cuda-mps-control")).0,
                Peer::None | Peer::Passthrough => return Err(io::ErrorKind::Unsupported.into()),
            };
            bounded::output(command, &format!("{line}\n"), self.plan.patience)
        };
        let Ok(servers) = shell("get_server_list") else { return false };
        let Some(server) = servers.split_whitespace().next() else { return false };
        shell(&format!("terminate_client {server} {pid}")).is_ok()
    }

    /// Memory of the device that is free, by a client of its own; `None` if that cannot be had.
    pub(super) fn free_device_bytes(&self) -> Option<u64> {
        let text = bounded::output(self.client("probe"), "", self.plan.patience).ok()?;
        text.trim().parse().ok()
    }
}
