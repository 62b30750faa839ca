//! The logs: lines as the original writes them, `[2026-11-20 15:27:30.557 Control   969] text`, in
//! local time.
//!
//! A log that cannot be written is never a reason to stop: the line is lost, and the next one is
//! tried again.

use std::fs::File;
use std::io::{Write, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;

use jiff::Zoned;
use rustix::net::{SendFlags, send};

use crate::directories::Directories;
use crate::trusted_path::{Directory, Missing, PathError, Trust};

/// Formats one line, newline included; `source` is `Control`, `Server` or `Other`.
pub fn format_line(time: &Zoned, source: &str, pid: u32, text: &str) -> String {
    format!(
        "[{}.{:03} {source} {pid:5}] {text}\n",
        time.strftime("%Y-%m-%d %H:%M:%S"),
        time.millisecond()
    )
}

/// A moment in local time, for people: to the second.
pub fn time_text(unix_time_ms: u64) -> String {
    let ms = i64::try_from(unix_time_ms).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Variable by which systemd tells a process that its standard output is the journal: device and
/// inode of that socket.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

/// Whether lines are shown too: `-f` shows them, as the original does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// The daemon's lines on standard output as well.
    Stdout,
    /// Lines of daemon and servers in systemd's journal, which is standard output.
    Journal,
    /// In the file only.
    None,
}

impl Echo {
    /// Of a daemon in the foreground.
    pub fn of_foreground() -> Self {
        let found = rustix::fs::fstat(stdout()).ok();
        let found = found.map(|found| format!("{}:{}", found.st_dev, found.st_ino));
        let is_journal = found.is_some() && std::env::var(JOURNAL_VARIABLE).ok() == found;
        if is_journal { Self::Journal } else { Self::Stdout }
    }

    /// Of the servers' lines: a terminal has those of the daemon alone.
    pub(crate) fn of_servers(self) -> Self {
        if self == Self::Journal { Self::Journal } else { Self::None }
    }

    fn show(self, line: &str) {
        // What cannot be shown is in the file. The journal is not waited for.
        match self {
            Self::Stdout => drop(stdout().write_all(line.as_bytes())),
            Self::Journal => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = send(stdout().as_fd(), line.as_bytes(), flags);
            }
            Self::None => {}
        }
    }
}

/// A log that has become so long goes on as another file: what it was until then has `.1` behind
/// its name, and takes the place of the one before. A week's lines of a busy machine fit, and both
/// logs together take 256 MiB at most.
const MOST_BYTES: u64 = 64 << 20;

/// A file of lines that this process alone writes.
#[derive(Debug)]
pub(crate) struct LogFile {
    directory: PathBuf,
    name: &'static str,
    file: Option<File>,
    size_bytes: u64,
    most_bytes: u64,
    echo: Echo,
}

impl LogFile {
    /// A log that is not open yet: what is written before [`LogFile::open`] is lost.
    pub(crate) fn new(directories: &Directories, name: &'static str, echo: Echo) -> Self {
        let directory = directories.log().to_owned();
        Self { directory, name, file: None, size_bytes: 0, most_bytes: MOST_BYTES, echo }
    }

    /// Opens the file under its name; or again, after it has been moved away or its directory has
    /// become writable.
    ///
    /// # Errors
    /// Why not; lines go where they went before.
    pub(crate) fn open(&mut self) -> Result<(), PathError> {
        let directory = Directory::open(&self.directory, Trust::of_logs(), Missing::Make)?;
        let file = directory.log(self.name)?;
        self.size_bytes = file.metadata().map_or(0, |status| status.len());
        self.file = Some(file);
        Ok(())
    }

    /// Writes one line, newline included.
    pub(crate) fn write(&mut self, line: &str) {
        let line_bytes = line.len() as u64;
        if self.size_bytes > 0 && self.size_bytes + line_bytes > self.most_bytes {
            self.turn_over();
        }
        self.size_bytes += line_bytes;
        if let Some(file) = &mut self.file {
            // One write per line: a full disk loses lines, it does not tear them.
            let _ = file.write_all(line.as_bytes());
        }
        self.echo.show(line);
    }

    /// Goes on as an empty file. Where that cannot be done, it is tried again when as much has been
    /// written again.
    fn turn_over(&mut self) {
        self.size_bytes = 0;
        let directory = Directory::open(&self.directory, Trust::of_logs(), Missing::Report);
        let old = format!("{}.1", self.name);
        if directory.and_then(|directory| directory.rename(self.name, &old)).is_ok() {
            let _ = self.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directories::CONTROL_LOG;

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
    fn a_log_is_bounded_and_its_last_lines_stay() {
        let place = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(place.path().into()));
        let mut log = LogFile::new(&directories, CONTROL_LOG, Echo::None);
        log.most_bytes = 100;
        log.open().unwrap();
        for number in 0..100 {
            log.write(&format!("line {number:4}\n"));
        }
        let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
        let (old, new) = (read("control.log.1"), read(CONTROL_LOG));
        assert!(old.len() <= 100 && new.len() <= 100, "{old}{new}");
        let lines: Vec<String> = (82..100).map(|number| format!("line {number:4}\n")).collect();
        assert!(old.len() >= 90 && (old + &new).ends_with(&lines[8..].concat()), "{new}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
        // A log that was long at the start is bounded, too; and a line that is longer than all is
        // written.
        log.open().unwrap();
        log.write(&"x".repeat(300));
        assert_eq!(read(CONTROL_LOG).len(), 300);
    }

    #[test]
    fn a_full_disk_does_not_stop_the_log() {
        let directories = Directories::from_variables(|_| Some("/nowhere".into()));
        let mut log = LogFile::new(&directories, CONTROL_LOG, Echo::None);
        log.file = Some(File::options().append(true).open("/dev/full").unwrap());
        log.write("lost\n");
        log.write("lost too\n");
    }
}
