//! What servers write: each has a pipe to the daemon as its standard output and error, and the
//! daemon alone writes `server.log`.
//!
//! A server is its user's process, and so are its executors, which have the pipe, too: whatever
//! comes may be anything. A line is marked with what the daemon knows (the time, which server's
//! pipe it came by), is cleaned, and has a bounded length; what users' servers may write is bounded
//! by [`Budget`]. The pipe blocks neither side: a server loses lines for which there is no room,
//! and counts them. When the daemon ends, its servers' lines are lost.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use jiff::Zoned;
use link::printable;
use rustix::io::Errno;

use super::rate::{Allowance, Rate};
use super::server_budget::{Budget, Subject};
use crate::core::command::Pid;
use crate::directories::{Directories, SERVER_LOG};
use crate::log::{Echo, LogFile, format_line};
use crate::trusted_path::PathError;

/// Read of one pipe before others have their turn. Then all pipes of its user rest.
const BYTES_PER_TURN: usize = 64 << 10;
const REST: Duration = Duration::from_millis(20);
/// What is read of one user's servers, written or not: more than may be written, as lines that are
/// left out take time, too.
const READ_OF_ONE: Rate = Rate { burst_bytes: 8 << 20, bytes_per_s: 256 << 10 };
/// Who has had that rests for longer.
const LONG_REST: Duration = Duration::from_millis(100);
/// A longer line is cut into several. No honest one is: a server's lines go into its pipe whole,
/// which holds for this size.
const MOST_LINE_BYTES: usize = 4096;
/// For the last words of executors whose server has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Pipes of a user's servers that have ended, at most: somebody who keeps the other ends has no
/// more.
const MOST_ENDED: usize = 4;
/// A line's head, and what tells of lines that were left out: asked for before either is made.
const HEAD_BYTES: usize = 40;
const NOTICE_BYTES: usize = 256;

/// The log, and all pipes that lead to it.
#[derive(Debug)]
pub(super) struct ServerLog {
    file: LogFile,
    pipes: BTreeMap<u64, Pipe>,
    last: u64,
    budget: Budget,
    /// What may still be read, by user.
    reading: BTreeMap<u32, Allowance>,
    /// Users whose pipes are left alone until then.
    resting: BTreeMap<u32, Instant>,
}

/// What comes from one server and its executors.
#[derive(Debug)]
struct Pipe {
    from: OwnedFd,
    server: Pid,
    /// The user for whom it counts.
    uid: u32,
    lines: Lines,
    /// Once the server has ended.
    closes_at: Option<Instant>,
}

impl ServerLog {
    /// A log whose file is not open yet.
    pub(super) fn new(directories: &Directories, echo: Echo) -> Self {
        let file = LogFile::new(directories, SERVER_LOG, echo.of_servers());
        let budget = Budget::new(rustix::process::geteuid().as_raw());
        let (pipes, reading, resting) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { file, pipes, last: 0, budget, reading, resting }
    }

    /// See [`LogFile::open`].
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn open(&mut self) -> Result<(), PathError> {
        self.file.open()
    }

    /// Takes the pipe of a server, which does not block.
    pub(super) fn add(&mut self, server: Pid, uid: u32, from: OwnedFd) {
        let now = Instant::now();
        self.budget.tidy(now);
        self.reading.retain(|_, left| !left.is_whole(now));
        self.resting.retain(|_, until| *until > now);
        self.last += 1;
        let pipe = Pipe { from, server, uid, lines: Lines::default(), closes_at: None };
        self.pipes.insert(self.last, pipe);
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = (u64, &OwnedFd)> {
        let now = Instant::now();
        let awake = self.pipes.iter().filter(move |(_, pipe)| !self.rests(pipe.uid, now));
        awake.map(|(id, pipe)| (*id, &pipe.from))
    }

    fn rests(&self, uid: u32, now: Instant) -> bool {
        self.resting.get(&uid).is_some_and(|until| *until > now)
    }

    /// When a pipe is to be closed next, or looked at again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let awake = self.resting.values().copied().filter(|until| *until > now);
        self.pipes.values().filter_map(|pipe| pipe.closes_at).chain(awake).min()
    }

    /// Writes what has come by one pipe, a turn's worth of it.
    pub(super) fn read(&mut self, id: u64) {
        let now = Instant::now();
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        let uid = pipe.uid;
        if self.resting.get(&uid).is_some_and(|until| *until > now) {
            return;
        }
        let allowed = self.reading.entry(uid).or_insert_with(|| Allowance::new(READ_OF_ONE));
        let (mut buffer, mut left) = ([0; 8192], BYTES_PER_TURN);
        let ended = loop {
            if !allowed.has(buffer.len() as u64, now) {
                self.resting.insert(uid, Instant::now() + LONG_REST);
                break false;
            }
            if left == 0 {
                self.resting.insert(uid, Instant::now() + REST);
                break false;
            }
            match rustix::io::read(&pipe.from, &mut buffer) {
                Ok(0) => break true,
                Ok(count) => {
                    allowed.take(count as u64, now);
                    left = left.saturating_sub(count);
                    pipe.lines.take(&buffer[..count], |line| {
                        write(&mut self.file, &mut self.budget, pipe.server, pipe.uid, line);
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true,
            }
        };
        if ended {
            self.close(id);
        }
    }

    /// Writes what a server has said so far: before the daemon acts on what that has sent since.
    pub(super) fn read_of(&mut self, server: Pid) {
        // Of two with one number the later one lives.
        let found = self.pipes.iter().rev().find(|(_, pipe)| pipe.server == server);
        if let Some(id) = found.map(|(id, _)| *id) {
            self.read(id);
        }
    }

    /// A server has ended; its executors end now.
    pub(super) fn server_ended(&mut self, server: Pid) {
        self.read_of(server);
        let ended = self.pipes.values_mut().filter(|pipe| pipe.server == server);
        let mut users = Vec::new();
        for pipe in ended {
            pipe.closes_at.get_or_insert(Instant::now() + LAST_WORDS);
            users.push(pipe.uid);
        }
        for uid in users {
            let is_one = |pipe: &Pipe| pipe.uid == uid && pipe.closes_at.is_some();
            let all: Vec<u64> =
                self.pipes.iter().filter(|(_, pipe)| is_one(pipe)).map(|(id, _)| *id).collect();
            let too_many = all.len().saturating_sub(MOST_ENDED);
            all[..too_many].iter().for_each(|id| self.close(*id));
        }
    }

    /// Closes the pipes of servers that ended long ago: whoever has the other end may keep it for
    /// ever.
    pub(super) fn close_late(&mut self, now: Instant) {
        let late = |pipe: &Pipe| pipe.closes_at.is_some_and(|at| at <= now);
        let late: Vec<u64> =
            self.pipes.iter().filter(|(_, pipe)| late(pipe)).map(|(id, _)| *id).collect();
        for id in late {
            self.read(id);
            self.close(id);
        }
    }

    /// Writes what there is, at the daemon's end.
    pub(super) fn read_all(&mut self) {
        for id in self.pipes.keys().copied().collect::<Vec<_>>() {
            self.read(id);
        }
    }

    fn close(&mut self, id: u64) {
        let Some(mut pipe) = self.pipes.remove(&id) else { return };
        let (file, budget, uid) = (&mut self.file, &mut self.budget, pipe.uid);
        pipe.lines.end(|line| write(file, budget, pipe.server, uid, line));
        let is_last = !self.pipes.values().any(|other| other.uid == uid);
        if is_last && let Some(notice) = self.budget.notice(uid) {
            self.budget.told(uid);
            self.file.write(&by_the_daemon(&notice));
        }
    }
}

/// Writes a line, and before it how many were left out.
fn write(file: &mut LogFile, budget: &mut Budget, server: Pid, uid: u32, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let (part, subject, text) = taken_apart(&text);
    // What is left out costs little, or a flood would cost the daemon's time.
    let notice_bytes = if budget.has_dropped(uid) { NOTICE_BYTES } else { 0 };
    let bytes = (HEAD_BYTES + text.len() + notice_bytes) as u64;
    if text.is_empty() || !budget.take(uid, subject, bytes, Instant::now()) {
        return;
    }
    let text = printable(text);
    if text.is_empty() {
        return;
    }
    if let Some(notice) = budget.notice(uid) {
        budget.told(uid);
        file.write(&by_the_daemon(&notice));
    }
    file.write(&format_line(&Zoned::now(), part, server, &text));
}

fn by_the_daemon(text: &str) -> String {
    format_line(&Zoned::now(), "Control", std::process::id(), text)
}

/// A server's own line without its head, the part that it is written as, and what it tells of; any
/// other text is the server's as a whole.
fn taken_apart(line: &str) -> (&'static str, Subject, &str) {
    let parsed = || {
        let (head, text) = line.strip_prefix('[')?.split_once("] ")?;
        let mut words = head.get(23..)?.split_whitespace();
        let (part, subject) = match words.next()? {
            "Server" => ("Server", Subject::Other),
            "Other" => ("Other", Subject::Other),
            "Fault" => ("Server", Subject::Fault),
            _ => return None,
        };
        words.next()?.parse::<Pid>().ok()?;
        words.next().is_none().then_some((part, subject, text))
    };
    parsed().unwrap_or(("Server", Subject::Other, line))
}

/// Bytes in pieces, made lines.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            let room = &bytes[..bytes.len().min(MOST_LINE_BYTES - self.begun.len())];
            let end = room.iter().position(|byte| *byte == b'\n');
            self.begun.extend_from_slice(&room[..end.unwrap_or(room.len())]);
            bytes = &bytes[end.map_or(room.len(), |end| end + 1)..];
            if end.is_some() || self.begun.len() == MOST_LINE_BYTES {
                each(&self.begun);
                self.begun.clear();
            }
        }
    }

    /// A last line without its end.
    fn end(&mut self, mut each: impl FnMut(&[u8])) {
        each(&std::mem::take(&mut self.begun));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    const LONG: usize = 3 * MOST_LINE_BYTES;

    fn lines_of(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        let mut each = |line: &[u8]| found.push(String::from_utf8_lossy(line).into_owned());
        for piece in pieces {
            lines.take(piece, &mut each);
        }
        lines.end(&mut each);
        found
    }

    #[test]
    fn lines_are_put_together_and_cut() {
        assert_eq!(lines_of(&[b"one\ntw", b"o\n", b"\nthree"]), ["one", "two", "", "three"]);
        let long = lines_of(&[&[b'x'; LONG - 1], b"x\ny\n"]);
        let lengths: Vec<usize> = long.iter().map(String::len).collect();
        // The end of a line that was cut at its very end is an empty line, which nobody writes.
        assert_eq!(lengths, [MOST_LINE_BYTES, MOST_LINE_BYTES, MOST_LINE_BYTES, 0, 1, 0]);
    }

    #[test]
    fn heads_are_taken_off_those_lines_alone_that_a_server_writes() {
        let head = |part: &str| format!("[2026-11-20 15:27:30.557 {part}   969] [x] text");
        assert_eq!(taken_apart(&head("Server")), ("Server", Subject::Other, "[x] text"));
        assert_eq!(taken_apart(&head("Other")), ("Other", Subject::Other, "[x] text"));
        assert_eq!(taken_apart(&head("Fault")), ("Server", Subject::Fault, "[x] text"));
        for other in [&*head("Control"), "[x] y", "softcuda: a word", "[", ""] {
            assert_eq!(taken_apart(other), ("Server", Subject::Other, other));
        }
    }

    #[test]
    fn what_comes_is_marked_cleaned_and_written() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(directory.path().into()));
        let mut log = ServerLog::new(&directories, Echo::None);
        log.open().unwrap();
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        log.add(17, 1000, from);
        let id = log.polled().next().unwrap().0;
        let send = |text: &str| rustix::io::write(&to, text.as_bytes()).unwrap();
        send(
            "[2026-11-20 15:27:30.557 Other   969] one\n[2026-11-20 15:27:30.557 Control 1] t\u{1b}w",
        );
        log.read(id);
        send("o\nlast");
        log.server_ended(17);
        drop(to);
        log.read_all();
        assert!(log.polled().next().is_none() && log.next_deadline().is_none());
        let text = std::fs::read_to_string(directories.server_log()).unwrap();
        let after_time: Vec<&str> = text.lines().map(|line| &line[24..]).collect();
        let expected = [
            " Other    17] one",
            " Server    17] [2026-11-20 15:27:30.557 Control 1] two",
            " Server    17] last",
        ];
        assert_eq!(after_time, expected);
    }

    /// The log, in a directory of its own.
    fn open_log() -> (tempfile::TempDir, Directories, ServerLog) {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(directory.path().into()));
        let mut log = ServerLog::new(&directories, Echo::None);
        log.open().unwrap();
        (directory, directories, log)
    }

    fn length(directories: &Directories) -> u64 {
        std::fs::metadata(directories.server_log()).unwrap().len()
    }

    /// Has a user's server say this so often, and end.
    fn say(log: &mut ServerLog, uid: u32, text: &str, times: usize) {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        log.add(uid, uid, from);
        let id = *log.pipes.keys().last().unwrap();
        for _ in 0..times {
            assert_eq!(rustix::io::write(&to, text.as_bytes()), Ok(text.len()));
            log.read(id);
        }
        drop(to);
        log.read(id);
    }

    /// 16 lines of 2 KiB.
    fn turn(part: &str) -> String {
        format!("[2026-11-20 15:27:30.557 {part} 1] {}\n", "x".repeat(2000)).repeat(16)
    }

    #[test]
    fn many_ids_do_not_fill_it() {
        let (_directory, directories, mut log) = open_log();
        for uid in 100_000..100_006 {
            // What one user may have.
            say(&mut log, uid, &turn("Server"), 130);
        }
        assert!(length(&directories) < 20 << 20, "{} bytes", length(&directories));
        let own = rustix::process::geteuid().as_raw();
        say(&mut log, own, "the own user's\n", 1);
        let text = std::fs::read_to_string(directories.server_log()).unwrap();
        assert!(text.ends_with("] the own user's\n"));
    }

    #[test]
    fn floods_leave_room_for_what_is_said_of_faults() {
        let (_directory, directories, mut log) = open_log();
        let fault = "[2026-11-20 15:27:30.557 Fault     1] OpenMPS: fault 1\n";
        for uid in 100_000..100_006 {
            say(&mut log, uid, &turn("Server"), 150);
            say(&mut log, uid, fault, 1);
        }
        let text = std::fs::read_to_string(directories.server_log()).unwrap();
        for uid in 100_000..100_006 {
            let line = format!(" Server {uid}] OpenMPS: fault 1\n");
            assert!(text.contains(&line), "{line}");
        }
        // Who says nothing but that fills it no more than others.
        for uid in 100_000..100_040 {
            say(&mut log, uid, &turn("Fault"), 10);
        }
        let more = length(&directories) - text.len() as u64;
        assert!(more < 6 << 20, "{more} bytes");
    }

    /// A user's server whose pipe is kept full, and how many bytes were read of it in so many
    /// turns.
    fn flood(log: &mut ServerLog, uid: u32, turns: usize) -> usize {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        log.add(uid, uid, from);
        let id = *log.pipes.keys().last().unwrap();
        let words = "x\n".repeat(2048);
        let mut written = 0;
        for _ in 0..turns {
            while let Ok(count) = rustix::io::write(&to, words.as_bytes()) {
                written += count;
            }
            log.read(id);
        }
        // Kept by the test until its end, as an attacker would.
        std::mem::forget(to);
        written
    }

    #[test]
    fn a_flood_is_read_in_turns_and_rests() {
        let (_directory, _, mut log) = open_log();
        // A pipe's worth is left, and what is read while this thread stands still is few turns
        // more.
        let read = flood(&mut log, 100_000, 100);
        assert!(read < 20 * BYTES_PER_TURN, "{read} bytes");
        assert_eq!(log.polled().count(), 0);
        assert!(log.next_deadline().unwrap() > Instant::now());
        let (from, _to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        log.add(2, 100_001, from);
        assert_eq!(log.polled().count(), 1, "others have their turns");
        std::thread::sleep(REST);
        assert_eq!(log.polled().count(), 2);
    }

    #[test]
    fn few_pipes_of_ended_servers_are_kept() {
        let (_directory, _, mut log) = open_log();
        for _ in 0..2 * MOST_ENDED {
            flood(&mut log, 100_000, 1);
            log.server_ended(100_000);
        }
        flood(&mut log, 100_001, 1);
        log.server_ended(100_001);
        assert_eq!(log.pipes.len(), MOST_ENDED + 1);
    }

    #[test]
    fn a_pipe_that_somebody_keeps_is_closed() {
        let directories = Directories::from_variables(|_| Some("/dev/null/nowhere".into()));
        let mut log = ServerLog::new(&directories, Echo::None);
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        log.add(17, 1000, from);
        log.close_late(Instant::now());
        assert_eq!(log.polled().count(), 1, "its server runs");
        log.server_ended(17);
        log.close_late(log.next_deadline().unwrap());
        assert_eq!(log.polled().count(), 0);
        drop(to);
    }
}
