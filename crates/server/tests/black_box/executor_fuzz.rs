//! What an executor that a client has taken over tells the keeper: another process stands between
//! the two, hands on what they say, and adds words of its own, which are the corpus as it stands or
//! mutated. The executor may be ended for it; the keeper lives and answers.
//!
//! `cargo xtask fuzz executor` goes on for longer: `OPENMPS_FUZZ_SECONDS`, and `OPENMPS_TEST_SEED`
//! to repeat a run.

use super::fake_client::*;
use bench::hostile::Random;
use link::socket::{Connection, SocketError};
use link::wire::attach::{ClientReply, ClientRequest, RequestedLimits};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

pub(crate) const ALL: &[super::Test] = &[
    ("an_executors_words_are_replayed", an_executors_words_are_replayed),
    ("mutated_words_of_an_executor_end_it_at_most", mutated_words_of_an_executor_end_it_at_most),
];

/// Set, executors are started behind such a process: to [`REPLAY`], or to the seed of the
/// mutations.
const VARIABLE: &str = "OPENMPS_TEST_EXECUTOR_SAYS";
const REPLAY: &str = "corpus";
const SECONDS: u64 = 5;
/// What the keeper may grow by.
const GROWTH_BYTES: u64 = 512 << 20;
/// A message of an executor's a line, one for each kind.
const CORPUS: &str = include_str!("executor_words.jsonl");
/// Numbers at which arithmetic may stumble.
const NUMBERS: [u64; 9] = [0, 1, 2, 3, 4096, 1 << 31, 0x1000_0000_0000, i64::MAX as u64, u64::MAX];

/// Stands between the keeper and the executor that it wanted, if this process is to; `None`: it is
/// the executor.
pub(crate) fn stand_between(arguments: &[OsString]) -> Option<ExitCode> {
    let says = std::env::var(VARIABLE).ok()?;
    let number = arguments.iter().position(|word| word == "--control-fd")? + 1;
    let descriptor = arguments.get(number)?.to_str()?.parse().ok()?;
    // SAFETY: the keeper passed this descriptor for this process, in which nobody else uses it.
    let keeper = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let keeper = Connection::from_socket(keeper).ok()?;
    let (ours, theirs) = Connection::pair().ok()?;
    let mut arguments = arguments.to_vec();
    arguments[number] = "0".into();
    let executor = Command::new(std::env::current_exe().ok()?)
        .arg("executor")
        .args(arguments)
        .env_remove(VARIABLE)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .ok()?;
    let seed = says.parse().unwrap_or(0) ^ u64::from(std::process::id());
    let mut between =
        Between { keeper, executor: ours, random: Random(seed), replays: says == REPLAY, heard: 0 };
    between.carry(executor);
    Some(ExitCode::SUCCESS)
}

struct Between {
    keeper: Connection,
    executor: Connection,
    random: Random,
    replays: bool,
    heard: u64,
}

impl Between {
    /// Until one of them is gone.
    fn carry(&mut self, mut child: Child) {
        loop {
            let mut polled = [&self.keeper, &self.executor]
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            let _ = rustix::event::poll(&mut polled, None);
            let down = hand_on(&self.keeper, &self.executor);
            if down.is_err() || self.hand_up().is_err() {
                break;
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    /// What the executor says, and what is made of it.
    fn hand_up(&mut self) -> Result<(), SocketError> {
        while let Some(received) = self.executor.try_receive::<Value>()? {
            let descriptors: Vec<_> = received.descriptors.iter().map(AsFd::as_fd).collect();
            self.heard += 1;
            // It has a context first, or the server would not start.
            let is_first = self.heard == 1;
            self.keeper.send(&received.message, &descriptors, SOON)?;
            if is_first {
                continue;
            }
            if self.replays {
                if self.heard == 2 {
                    for line in CORPUS.lines() {
                        let words: Value = serde_json::from_str(line).expect("the corpus");
                        self.keeper.send(&words, &[], SOON)?;
                    }
                }
                continue;
            }
            let again = self.random.below(3);
            for _ in 0..again {
                let mut words = match self.random.below(3) {
                    0 => received.message.clone(),
                    _ => {
                        let line = CORPUS.lines().nth(self.random.below(CORPUS.lines().count()));
                        serde_json::from_str(line.unwrap_or("0")).expect("the corpus")
                    }
                };
                for _ in 0..self.random.below(4) {
                    mutate(&mut words, &mut self.random);
                }
                let descriptors = match self.random.below(2) {
                    0 => &[][..],
                    _ => &descriptors,
                };
                self.keeper.send(&words, descriptors, SOON)?;
            }
        }
        Ok(())
    }
}

fn hand_on(from: &Connection, to: &Connection) -> Result<(), SocketError> {
    while let Some(received) = from.try_receive::<Value>()? {
        let descriptors: Vec<_> = received.descriptors.iter().map(AsFd::as_fd).collect();
        to.send(&received.message, &descriptors, SOON)?;
    }
    Ok(())
}

/// Changes some leaf or member of a message.
fn mutate(words: &mut Value, random: &mut Random) {
    match words {
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            let key = fields.keys().nth(at).cloned().expect("a member");
            match random.below(16) {
                0 => drop(fields.remove(&key)),
                _ => mutate(fields.get_mut(&key).expect("a member"), random),
            }
        }
        Value::Array(all) if !all.is_empty() => {
            let at = random.below(all.len());
            match random.below(4) {
                0 => drop(all.remove(at)),
                1 => {
                    let again = all[at].clone();
                    all.extend(std::iter::repeat_n(again, 100));
                }
                _ => mutate(&mut all[at], random),
            }
        }
        Value::String(text) => *text = "\u{1b}x\n".repeat(random.below(3000)),
        leaf => *leaf = Value::from(NUMBERS[random.below(NUMBERS.len())]),
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// A client that asks for a context, whatever comes of it.
fn visit(server: &mut Server) {
    const A_WHILE: Duration = Duration::from_millis(200);
    let attached = server.attach(std::process::id(), RequestedLimits::default());
    let Ok((connection, _)) = attached else { return };
    let request = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    if connection.send(&request, &[], SOON).is_ok() {
        // An executor that is being ended answers late, or not at all.
        let _ = connection.receive::<ClientReply>(A_WHILE);
    }
}

fn keeper_lives(server: &mut Server) {
    assert!(server.child.try_wait().expect("a child").is_none(), "the keeper has ended");
    server.snapshot();
    assert!(!super::server_log::text().contains("panicked"), "something panics");
}

fn an_executors_words_are_replayed() {
    let mut server = Server::start_with(&[(VARIABLE, REPLAY)]);
    for _ in 0..3 {
        visit(&mut server);
        keeper_lives(&mut server);
    }
}

fn mutated_words_of_an_executor_end_it_at_most() {
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "fuzz executor: OPENMPS_TEST_SEED={seed}");
    let end =
        Instant::now() + Duration::from_secs(number("OPENMPS_FUZZ_SECONDS").unwrap_or(SECONDS));
    let mut server = Server::start_with(&[(VARIABLE, &seed.to_string())]);
    let before = resident_bytes(server.child.id());
    let mut visits = 0;
    while Instant::now() < end {
        visit(&mut server);
        keeper_lives(&mut server);
        visits += 1;
    }
    let grown = resident_bytes(server.child.id()).saturating_sub(before);
    assert!(grown < GROWTH_BYTES, "{grown} bytes more after {visits} visits");
    let _ = writeln!(std::io::stderr(), "fuzz executor: {visits} visits");
}
