//! What servers write: each has a pipe to the daemon as its standard output and error, and the daemon alone writes `server.log`.
//!
//! A server is its user's process, and so are its executors, which have the pipe, too: whatever comes may be anything. A line is marked with what the daemon knows (the time,
//! which server's pipe it came by), is cleaned, and has a bounded length; what users' servers may write is bounded by [`Budget`]. The pipe
//! blocks neither side: a server loses lines for which there is no room, and counts them. When the daemon ends, its servers' lines are lost.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use jiff::Zoned;
use link::printable;
use rustix::io::Errno;

use super::server_budget::{Budget, Subject};
use crate::core::command::Pid;
use crate::directories::{Directories, SERVER_LOG};
use crate::log::{LogFile, format_line};
use crate::trusted_path::PathError;

/// Read of one pipe before others have their turn.
const BYTES_PER_TURN: usize = 64 << 10;
/// A longer line is cut into several. No honest one is: a server's lines go into its pipe whole, which holds for this size.
const MOST_LINE_BYTES: usize = 4096;
/// For the last words of executors whose server has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The log, and all pipes that lead to it.
#[derive(Debug)]
pub(super) struct ServerLog {
    file: LogFile,
    pipes: BTreeMap<u64, Pipe>,
    last: u64,
    budget: Budget,
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
    pub(super) fn new(directories: &Directories) -> Self {
        let file = LogFile::new(directories, SERVER_LOG);
        let budget = Budget::new(rustix::process::geteuid().as_raw());
        Self { file, pipes: BTreeMap::new(), last: 0, budget }
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
        self.budget.tidy(Instant::now());
        self.last += 1;
        let pipe = Pipe { from, server, uid, lines: Lines::default(), closes_at: None };
        self.pipes.insert(self.last, pipe);
    }

    /// What to poll.
    pub(super) fn polled(&self) -> impl Iterator<Item = (u64, &OwnedFd)> {
        self.pipes.iter().map(|(id, pipe)| (*id, &pipe.from))
    }

    /// When a pipe is to be closed next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pipes.values().filter_map(|pipe| pipe.closes_at).min()
    }

    /// Writes what has come by one pipe, a turn's worth of it.
    pub(super) fn read(&mut self, id: u64) {
        let Some(pipe) = self.pipes.get_mut(&id) else { return };
        let (mut buffer, mut left) = ([0; 8192], BYTES_PER_TURN);
        let ended = loop {
            if left == 0 {
                break false;
            }
            match rustix::io::read(&pipe.from, &mut buffer) {
                Ok(0) => break true,
                Ok(count) => {
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
        for pipe in ended {
            pipe.closes_at.get_or_insert(Instant::now() + LAST_WORDS);
        }
    }

    /// Closes the pipes of servers that ended long ago: whoever has the other end may keep it for ever.
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
    let text = printable(text);
    if text.is_empty() {
        return;
    }
    let line = format_line(&Zoned::now(), part, server, &text);
    let notice = budget.notice(uid).map(|text| by_the_daemon(&text)).unwrap_or_default();
    if !budget.take(uid, subject, (notice.len() + line.len()) as u64, Instant::now()) {
        return;
    }
    if !notice.is_empty() {
        budget.told(uid);
        file.write(&notice);
    }
    file.write(&line);
}

fn by_the_daemon(text: &str) -> String {
    format_line(&Zoned::now(), "Control", std::process::id(), text)
}

/// A server's own line without its head, the part that it is written as, and what it tells of; any other text is the server's as a whole.
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
        let mut log = ServerLog::new(&directories);
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
        let mut log = ServerLog::new(&directories);
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

    #[test]
    fn a_pipe_that_somebody_keeps_is_closed() {
        let directories = Directories::from_variables(|_| Some("/dev/null/nowhere".into()));
        let mut log = ServerLog::new(&directories);
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
