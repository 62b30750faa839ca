//! `control.log`: lines of the daemon's own, and of what others do to it.
//!
//! Any user can have the daemon write: by connecting, by commands, by what the own server says. So
//! each line that somebody else causes counts for that one ([`OF_ONE`]) and for all of them
//! ([`OF_ALL`]), and what is more is left out and counted. Lines of the daemon's own, and of those
//! who may command it, are always written.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Zoned;
use link::printable_prefix;
use link::wire::owner::Owner;

use super::rate::{Allowance, Rate};
use crate::directories::{CONTROL_LOG, Directories};
use crate::log::{Echo, LogFile, format_line};
use crate::trusted_path::PathError;

/// What one user causes, or who came by one group's socket: in the long run a hundred programs
/// started a second.
const OF_ONE: Rate = Rate { burst_bytes: 1 << 20, bytes_per_s: 16 << 10 };
/// What all of them cause, as a user may have many ids.
const OF_ALL: Rate = Rate { burst_bytes: 8 << 20, bytes_per_s: 64 << 10 };
/// Longer lines are cut off. The longest honest ones name a fault and its kernel.
const LONGEST_LINE_CHARACTERS: usize = 1024;

/// The daemon's log.
#[derive(Debug)]
pub(super) struct ControlLog {
    file: LogFile,
    pid: u32,
    of_each: BTreeMap<Owner, Allowance>,
    of_all: Allowance,
    /// With so many in `of_each` those are looked for that need no longer be remembered.
    tidied_at: usize,
}

impl ControlLog {
    /// A log whose file is not open yet.
    pub(super) fn new(directories: &Directories, echo: Echo) -> Self {
        ControlLog {
            file: LogFile::new(directories, CONTROL_LOG, echo),
            pid: std::process::id(),
            of_each: BTreeMap::new(),
            of_all: Allowance::new(OF_ALL),
            tidied_at: 0,
        }
    }

    /// See [`LogFile::open`].
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn open(&mut self) -> Result<(), PathError> {
        self.file.open()
    }

    /// Writes a line of the daemon's own. Words of clients and servers may be in it: they stay on
    /// this line.
    pub(super) fn write(&mut self, text: &str) {
        let line = self.line(None, text);
        self.put(&line);
    }

    /// Writes a line that `by` has caused (nobody: the daemon, or who may command it), in the
    /// daemon's name or in that of process `pid`.
    pub(super) fn write_of(&mut self, by: Option<&Owner>, pid: Option<u32>, text: &str) {
        let line = self.line(pid, text);
        let Some(by) = by else { return self.put(&line) };
        let now = Instant::now();
        let notice = self.of_each.get(by).and_then(|allowance| self.notice(by, allowance));
        let notice = notice.unwrap_or_default();
        let bytes = (notice.len() + line.len()) as u64;
        if self.of_each.len() > self.tidied_at {
            self.of_each.retain(|_, allowance| !allowance.is_whole(now));
            self.tidied_at = 2 * self.of_each.len() + 64;
        }
        let own = self.of_each.entry(by.clone()).or_insert_with(|| Allowance::new(OF_ONE));
        if !own.has(bytes, now) || !self.of_all.take(bytes, now) {
            return own.drop_line();
        }
        own.take(bytes, now);
        own.told();
        self.put(&notice);
        self.put(&line);
    }

    /// Says what was left out and could not be told of yet, at the daemon's end.
    pub(super) fn end(&mut self) {
        let untold = self.of_each.iter().filter_map(|(by, allowance)| self.notice(by, allowance));
        // Of many ids one line stands for the rest, which are as many as one user likes.
        let untold: Vec<String> = untold.take(64).collect();
        untold.iter().for_each(|notice| self.put(notice));
        self.of_each.clear();
    }

    /// The line that tells of lines left out, if some were.
    fn notice(&self, by: &Owner, allowance: &Allowance) -> Option<String> {
        let text = format!(
            "{} lines about {by} were left out: more than {} KiB at once and {} KiB a second are not written",
            allowance.dropped(),
            OF_ONE.burst_bytes >> 10,
            OF_ONE.bytes_per_s >> 10
        );
        (allowance.dropped() > 0).then(|| self.line(None, &text))
    }

    fn line(&self, pid: Option<u32>, text: &str) -> String {
        let text = printable_prefix(text, LONGEST_LINE_CHARACTERS);
        format_line(&Zoned::now(), "Control", pid.unwrap_or(self.pid), &text)
    }

    fn put(&mut self, line: &str) {
        if !line.is_empty() {
            self.file.write(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (tempfile::TempDir, Directories, ControlLog) {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(directory.path().into()));
        let mut log = ControlLog::new(&directories, Echo::None);
        log.write("before it is open");
        log.open().unwrap();
        (directory, directories, log)
    }

    #[test]
    fn a_line_is_one_line() {
        let (directory, directories, mut log) = log();
        let said = "said\n[2026-11-22 00:00:00.000 Control     1] forged \u{1b}[31mred";
        log.write_of(Some(&Owner::user(1000)), Some(7), said);
        let text = std::fs::read_to_string(directories.control_log()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("Control     7] said[2026-11-22") && !text.contains('\u{1b}'));
        // After a rotation.
        std::fs::rename(directories.control_log(), directory.path().join("old")).unwrap();
        log.open().unwrap();
        log.write("anew");
        let text = std::fs::read_to_string(directories.control_log()).unwrap();
        assert!(text.ends_with("] anew\n") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn who_floods_it_keeps_nobody_else_out() {
        let (_directory, directories, mut log) = log();
        let (flood, other) = (Owner::user(1000), Owner::user(1001));
        let long = "x".repeat(1 << 16);
        for _ in 0..10_000 {
            log.write_of(Some(&flood), None, &long);
        }
        log.write_of(Some(&other), None, "another user's");
        log.write_of(None, None, "root's");
        let text = std::fs::read_to_string(directories.control_log()).unwrap();
        assert!((text.len() as u64) < 3 * OF_ONE.burst_bytes, "{} bytes", text.len());
        assert!(text.contains("] another user's\n") && text.ends_with("] root's\n"));
        assert!(text.lines().all(|line| line.len() < 2 * LONGEST_LINE_CHARACTERS));
        log.end();
        let text = std::fs::read_to_string(directories.control_log()).unwrap();
        assert!(text.lines().last().unwrap().contains("lines about user 1000 were left out"));
    }

    #[test]
    fn many_ids_are_no_way_round_it() {
        let (_directory, directories, mut log) = log();
        let long = "x".repeat(LONGEST_LINE_CHARACTERS);
        for uid in 0..30_000 {
            log.write_of(Some(&Owner::user(100_000 + uid)), None, &long);
        }
        let bytes = std::fs::metadata(directories.control_log()).unwrap().len();
        assert!(bytes < 2 * OF_ALL.burst_bytes, "{bytes} bytes");
        log.end();
        assert!(std::fs::metadata(directories.control_log()).unwrap().len() < bytes + (64 << 10));
    }
}
