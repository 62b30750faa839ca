//! The logs: lines as the original writes them, `[2026-11-20 15:27:30.557 Control   969] text`, in local time.
//!
//! A log that cannot be written is never a reason to stop: the line is lost, and the next one is tried again.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use jiff::Zoned;

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

/// Whether lines are shown too: `-f` shows them, as the original does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// On standard output as well.
    Stdout,
    /// In the file only.
    None,
}

/// A file of lines that this process alone writes.
#[derive(Debug)]
pub(crate) struct LogFile {
    directory: PathBuf,
    name: &'static str,
    file: Option<File>,
}

impl LogFile {
    /// A log that is not open yet: what is written before [`LogFile::open`] is lost.
    pub(crate) fn new(directories: &Directories, name: &'static str) -> Self {
        Self { directory: directories.log().to_owned(), name, file: None }
    }

    /// Opens the file under its name; or again, after it has been moved away or its directory has become writable.
    ///
    /// # Errors
    /// Why not; lines go where they went before.
    pub(crate) fn open(&mut self) -> Result<(), PathError> {
        let directory = Directory::open(&self.directory, Trust::of_logs(), Missing::Make)?;
        self.file = Some(directory.log(self.name)?);
        Ok(())
    }

    /// Writes one line, newline included.
    pub(crate) fn write(&mut self, line: &str) {
        if let Some(file) = &mut self.file {
            // One write per line: a full disk loses lines, it does not tear them.
            let _ = file.write_all(line.as_bytes());
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
    fn a_full_disk_does_not_stop_the_log() {
        let directories = Directories::from_variables(|_| Some("/nowhere".into()));
        let mut log = LogFile::new(&directories, CONTROL_LOG);
        log.file = Some(File::options().append(true).open("/dev/full").unwrap());
        log.write("lost\n");
        log.write("lost too\n");
    }
}
