//! Starts good and bad clients under a peer, hears them, and counts.

use super::belongings::{Belongings, processes};
use super::board::{Board, Count, MOST_GOOD, now_ns};
use super::kind::Kind;
use super::tally::{Leaks, SCHEMA_VERSION, Tally};
use super::{Phase, TORCH};
use crate::peer::{Peer, PeerError, Places, Running};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A good client of which nothing is heard for so long hangs; so does a bad one.
const PATIENCE: Duration = Duration::from_secs(60);
/// What is given back late is no leak.
const SETTLING: Duration = Duration::from_secs(30);
/// What does not change for so long is taken to stay.
const STEADY: Duration = Duration::from_secs(4);
/// Between two signs of life.
const TELLING: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(100);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where things lie.
    pub places: Places,
    /// Under which peer.
    pub peer: Peer,
    /// Good clients, PyTorch's not counted.
    pub good: usize,
    /// Good clients of PyTorch.
    pub torch: usize,
    /// Faults, in turn.
    pub kinds: Vec<Kind>,
    /// How many clients make faults at the same time.
    pub side_by_side: usize,
    /// How long faults are made.
    pub duration: Duration,
    /// Faults after which the run ends earlier; 0: none.
    pub most_faults: u64,
    /// Between two faults of one bad client's place.
    pub rest: Duration,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum ChaosError {
    /// The peer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A process or a file.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The good clients do not even work undisturbed.
    #[error("good client {index} was not ready before the first fault: {said}")]
    NotReady {
        /// Which.
        index: usize,
        /// What it said last.
        said: String,
    },
    /// More than the board has places for.
    #[error("{0} good clients are too many, at most {MOST_GOOD}")]
    TooMany(usize),
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> ChaosError {
    move |source| ChaosError::Io { what, source }
}

/// What threads tell the one that counts.
enum Event {
    /// A line of a good client's process.
    Said { index: usize, pid: u32, line: String },
    /// It has closed its output.
    Silent { index: usize, pid: u32 },
    /// A bad client has made its fault.
    Fault { kind: Kind, answer: Option<String> },
}

/// Makes faults for as long as planned, and adds what came of it to `tally`.
///
/// # Errors
/// See [`ChaosError`].
pub fn run(
    plan: &Plan,
    tally: &mut Tally,
    mut progress: impl FnMut(&Tally),
) -> Result<(), ChaosError> {
    let all = plan.good + plan.torch;
    if all > MOST_GOOD {
        return Err(ChaosError::TooMany(all));
    }
    tally.schema = SCHEMA_VERSION;
    tally.peer = plan.peer.name().to_owned();
    (tally.good_clients, tally.torch_clients) = (all, plan.torch);
    let running = Running::start(plan.peer, &plan.places)?;
    let scene = Scene::new(plan, &running)?;
    let (sender, events) = channel();
    let mut crew = Crew { scene: &scene, clients: Vec::new(), sender: sender.clone() };
    for index in 0..all {
        let client = crew.start(index)?;
        crew.clients.push(client);
    }
    let began = Instant::now();
    while let Some(index) = crew.clients.iter().position(|client| !client.ready) {
        let said = match events.recv_timeout(TICK) {
            Ok(Event::Said { index, line, .. }) if line == "ready" => {
                crew.clients[index].ready = true;
                continue;
            }
            Ok(Event::Said { line, .. }) => line,
            Ok(Event::Silent { .. }) => "it ended".to_owned(),
            _ if began.elapsed() > PATIENCE => "nothing".to_owned(),
            _ => continue,
        };
        return Err(ChaosError::NotReady { index, said });
    }
    let before = crew.steady_belongings(&events, tally)?;
    let (stop, turn) = (AtomicBool::new(false), AtomicU64::new(tally.fault_count()));
    let started = Instant::now();
    std::thread::scope(|threads| {
        for _ in 0..plan.side_by_side {
            let sender = sender.clone();
            threads.spawn(|| scene.make_faults(&stop, &turn, sender));
        }
        let mut told = Instant::now();
        let mut heard = Ok(());
        while heard.is_ok()
            && started.elapsed() < plan.duration
            && (plan.most_faults == 0 || tally.fault_count() < plan.most_faults)
        {
            heard = crew.hear(&events, tally);
            if told.elapsed() > TELLING {
                told = Instant::now();
                progress(tally);
            }
        }
        // Relaxed: a wish; no data travels with it. The threads end with the fault that they are making.
        stop.store(true, Ordering::Relaxed);
        heard
    })?;
    tally.seconds += started.elapsed().as_secs_f64();
    let settling = Instant::now();
    let mut leaks = crew.belongings().since(&before);
    while (leaks != Leaks::default() || crew.clients.iter().any(|client| !client.ready))
        && settling.elapsed() < SETTLING
    {
        crew.hear(&events, tally)?;
        leaks = crew.belongings().since(&before);
    }
    crew.end(&events, tally);
    for index in 0..all {
        let count = |count| scene.board.count(index, count).load(Ordering::Relaxed);
        tally.kernels += count(Count::Kernels);
        tally.words += count(Count::Words);
        tally.wrong_words += count(Count::Wrong);
    }
    let directory = running.directory().to_owned();
    drop(crew);
    drop(scene);
    drop(running);
    let ending = Instant::now();
    while !processes(&directory).is_empty() && ending.elapsed() < SETTLING {
        std::thread::sleep(TICK);
    }
    leaks.processes += processes(&directory).len() as u64;
    tally.leaks.device_bytes += leaks.device_bytes;
    tally.leaks.descriptors += leaks.descriptors;
    tally.leaks.processes += leaks.processes;
    Ok(())
}

/// Where everything happens.
struct Scene<'a> {
    plan: &'a Plan,
    running: &'a Running,
    board_file: PathBuf,
    board: Board,
    _directory: tempfile::TempDir,
}

impl<'a> Scene<'a> {
    fn new(plan: &'a Plan, running: &'a Running) -> Result<Self, ChaosError> {
        let directory = tempfile::tempdir().map_err(io_error("make a directory"))?;
        let board_file = directory.path().join("board");
        let board = Board::open(&board_file).map_err(io_error("make the board"))?;
        Ok(Self { plan, running, board_file, board, _directory: directory })
    }

    fn client(&self, role: &str) -> Command {
        let (mut command, driver) = self.running.client(&self.plan.places.openmps);
        command.arg("chaos-worker").arg("--driver").arg(driver);
        command.arg("--board").arg(&self.board_file).args(["--role", role]);
        command
    }

    fn good(&self, index: usize) -> Command {
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

    fn make_faults(&self, stop: &AtomicBool, turn: &AtomicU64, sender: Sender<Event>) {
        while !stop.load(Ordering::Relaxed) {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            let kind = self.plan.kinds[turn as usize % self.plan.kinds.len()];
            let answer = match self.make_fault(kind, turn) {
                Ok(answer) => answer,
                Err(error) => Some(format!("failed: {error}")),
            };
            if sender.send(Event::Fault { kind, answer }).is_err() {
                return;
            }
            std::thread::sleep(self.plan.rest);
        }
    }

    /// Says what the bad client was told; `None`: nothing, and it had to be killed.
    fn make_fault(&self, kind: Kind, turn: u64) -> io::Result<Option<String>> {
        let mut command = self.client("bad");
        command.args(["--kind", kind.name()]).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for line in lines {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let mut answer = None;
        let deadline = Instant::now() + PATIENCE;
        let mut killed = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) if line == "flying" => {
                    // Any moment will do, but not always the same.
                    std::thread::sleep(Duration::from_millis(5 + turn * 7 % 40));
                    self.board.announce_fault();
                    if kind != Kind::Terminated || !self.terminate(child.id()) {
                        killed = true;
                        child.kill()?;
                    }
                }
                Ok(line) => {
                    let result = line.strip_prefix("r ").map(str::to_owned);
                    answer = result.or(answer);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    return Ok(None);
                }
            }
        }
        // Its output is closed; it may still have to take leave.
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = child.wait()?;
        Ok(Some(match answer {
            _ if killed => "killed".to_owned(),
            Some(code) => code,
            None => format!("{status}"),
        }))
    }

    /// Has an operator end a client; says whether the peer has a way to.
    fn terminate(&self, pid: u32) -> bool {
        let shell = |line: &str| -> io::Result<String> {
            let mut command = match self.plan.peer {
                Peer::Openmps => {
                    let (mut command, _) = self.running.client(&self.plan.places.openmps);
                    command.arg("control");
                    command
                }
                Peer::Nvidia => self.running.client(Path::new("nvidia-cuda-mps-control")).0,
                Peer::None | Peer::Passthrough => return Err(io::ErrorKind::Unsupported.into()),
            };
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            if let Some(mut input) = child.stdin.take() {
                input.write_all(format!("{line}\n").as_bytes())?;
            }
            Ok(String::from_utf8_lossy(&child.wait_with_output()?.stdout).into_owned())
        };
        let Ok(servers) = shell("get_server_list") else { return false };
        let Some(server) = servers.split_whitespace().next() else { return false };
        shell(&format!("terminate_client {server} {pid}")).is_ok()
    }

    /// Memory of the device that is free, by a client of its own; 0 if none can be had.
    fn free_device_bytes(&self) -> u64 {
        let mut command = self.client("probe");
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

/// A good client's process.
struct Good {
    child: Child,
    input: Option<ChildStdin>,
    ready: bool,
    /// It has told of an error, or is done.
    told: bool,
    started: Instant,
}

impl Drop for Good {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Crew<'a> {
    scene: &'a Scene<'a>,
    clients: Vec<Good>,
    sender: Sender<Event>,
}

impl Crew<'_> {
    fn start(&self, index: usize) -> Result<Good, ChaosError> {
        let mut command = self.scene.good(index);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("start a good client"))?;
        let (pid, sender) = (child.id(), self.sender.clone());
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(Event::Said { index, pid, line });
                }
                let _ = sender.send(Event::Silent { index, pid });
            });
        }
        self.scene.board.count(index, Count::ProgressNs).store(now_ns(), Ordering::Relaxed);
        let input = child.stdin.take();
        Ok(Good { child, input, ready: false, told: false, started: Instant::now() })
    }

    /// Hears what there is, and sees to clients that have ended or hang.
    fn hear(&mut self, events: &Receiver<Event>, tally: &mut Tally) -> Result<(), ChaosError> {
        let mut event = events.recv_timeout(TICK).ok();
        while let Some(heard) = event {
            self.note(heard, tally)?;
            event = events.try_recv().ok();
        }
        for index in 0..self.clients.len() {
            let heard_ns = self.scene.board.count(index, Count::ProgressNs).load(Ordering::Relaxed);
            let silent = Duration::from_nanos(now_ns().saturating_sub(heard_ns));
            if silent > PATIENCE && self.clients[index].started.elapsed() > PATIENCE {
                tally.hangs += 1;
                self.clients[index] = self.start(index)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, event: Event, tally: &mut Tally) -> Result<(), ChaosError> {
        match event {
            Event::Fault { kind, answer } => {
                let kind = tally.faults.entry(kind).or_default();
                kind.count += 1;
                match answer {
                    Some(answer) => *kind.answers.entry(answer).or_default() += 1,
                    None => kind.stuck += 1,
                }
            }
            Event::Said { index, pid, line } => {
                let client = &mut self.clients[index];
                let is_current = client.child.id() == pid;
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["ready"] if is_current => client.ready = true,
                    ["p", _, gap_ns, phase] => {
                        let phase = Phase::from_name(phase).unwrap_or_default();
                        tally.survived.add(phase);
                        if phase == Phase::Busy {
                            tally.pauses_us.push(gap_ns.parse::<u64>().unwrap_or(0) / 1000);
                        }
                    }
                    ["e", code, phase, call] => {
                        if is_current {
                            client.told = true;
                        }
                        let was_ready = is_current && client.ready;
                        if was_ready {
                            tally.lost.add(Phase::from_name(phase).unwrap_or_default());
                        } else {
                            tally.refused_starts += 1;
                        }
                        let when = if was_ready { *phase } else { "starting" };
                        *tally.errors.entry(format!("{call}: {code} ({when})")).or_default() += 1;
                    }
                    _ => {}
                }
            }
            Event::Silent { index, pid } => {
                if self.clients[index].child.id() == pid {
                    if !self.clients[index].told {
                        // It ended without a word: it crashed.
                        tally.lost.add(Phase::Busy);
                        *tally.errors.entry("the process crashed".to_owned()).or_default() += 1;
                    }
                    self.clients[index] = self.start(index)?;
                }
            }
        }
        Ok(())
    }

    /// What is held once that stays as it is: a peer may still be making ready what it will need, such as an executor that stands by.
    fn steady_belongings(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
    ) -> Result<Belongings, ChaosError> {
        let (began, mut since) = (Instant::now(), Instant::now());
        let mut last = self.belongings();
        while since.elapsed() < STEADY && began.elapsed() < SETTLING {
            self.hear(events, tally)?;
            let now = self.belongings();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    fn belongings(&self) -> Belongings {
        let own: Vec<u32> = self.clients.iter().map(|client| client.child.id()).collect();
        let free_bytes = self.scene.free_device_bytes();
        Belongings::of(self.scene.running.directory(), &own, free_bytes)
    }

    /// Lets all end by themselves.
    fn end(&mut self, events: &Receiver<Event>, tally: &mut Tally) {
        let mut waited_for: Vec<u32> = Vec::new();
        for client in &mut self.clients {
            drop(client.input.take());
            client.told = true;
            waited_for.push(client.child.id());
        }
        let deadline = Instant::now() + PATIENCE;
        while !waited_for.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(Event::Silent { pid, .. }) => waited_for.retain(|&other| other != pid),
                Ok(event) => drop(self.note(event, tally)),
                Err(_) => {
                    tally.hangs += waited_for.len() as u64;
                    break;
                }
            }
        }
        for pid in waited_for.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
