//! The control log: lines as the original writes them, `[2026-11-20 15:27:30.557 Control   969] text`, in local time.
//!
//! A log that cannot be written is never a reason to stop: the line is lost, and the next one is tried again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Zoned;

/// Formats one line, newline included; `source` is `Control`, `Server` or `Other`.
pub fn format_line(time: &Zoned, source: &str, pid: u32, text: &str) -> String {
    format!(
        "[{}.{:03} {source} {pid:5}] {text}\n",
        time.strftime("%Y-%m-%d %H:%M:%S"),
        time.millisecond()
    )
}

/// Whether lines are shown too: `-f` shows them, as the original does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// On standard output as well.
    Stdout,
    /// In the file only.
    None,
}

/// The daemon's log file.
#[derive(Debug)]
pub(crate) struct ControlLog {
    path: PathBuf,
    file: Option<File>,
    echo: Echo,
    pid: u32,
}

impl ControlLog {
    /// Opens the log at `path` for appending.
    ///
    /// # Errors
    /// Why it cannot be opened; [`ControlLog::without_file`] is then the way on.
    pub(crate) fn open(path: PathBuf, echo: Echo) -> io::Result<Self> {
        let file = open_for_append(&path)?;
        Ok(ControlLog { path, file: Some(file), echo, pid: std::process::id() })
    }

    /// A log with no file yet; [`ControlLog::reopen`] tries again.
    pub(crate) fn without_file(path: PathBuf, echo: Echo) -> Self {
        ControlLog { path, file: None, echo, pid: std::process::id() }
    }

    /// Opens the file again under its name, after it has been moved away or its directory has become writable.
    pub(crate) fn reopen(&mut self) {
        if let Ok(file) = open_for_append(&self.path) {
            self.file = Some(file);
        }
    }

    /// Writes one line, in the daemon's name or in that of process `pid`.
    pub(crate) fn write(&mut self, pid: Option<u32>, text: &str) {
        let line = format_line(&Zoned::now(), "Control", pid.unwrap_or(self.pid), text);
        if let Some(file) = &mut self.file {
            // One write per line: a full disk loses lines, it does not tear them.
            let _ = file.write_all(line.as_bytes());
        }
        if self.echo == Echo::Stdout {
            let _ = io::stdout().write_all(line.as_bytes());
        }
    }
}

/// Opens a log for appending; made with mode 0644.
///
/// # Errors
/// Those of `open`.
pub(crate) fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o644).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_look_like_the_originals() {
        let time = jiff::civil::date(2026, 11, 20)
            .at(15, 27, 30, 557_000_000)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .unwrap();
        assert_eq!(
            format_line(&time, "Control", 969, "Accepting connection..."),
            "[2026-11-20 15:27:30.557 Control   969] Accepting connection...\n"
        );
    }

    #[test]
    fn a_full_disk_does_not_stop_the_log() {
        let mut log = ControlLog::open("/dev/full".into(), Echo::None).unwrap();
        log.write(None, "lost");
        log.write(None, "lost too");
    }
}
