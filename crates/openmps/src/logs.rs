//! `openmps logs`: the last lines of the daemon's and the servers' logs, and what is added to them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use control::directories::Directories;

use crate::cli::{LogSource, Logs};

/// Between two looks at a log that is followed.
const POLL: Duration = Duration::from_millis(200);

/// One log file.
struct Log {
    path: PathBuf,
    reader: Option<Opened>,
}

struct Opened {
    lines: BufReader<File>,
    inode: u64,
    /// A line whose end has not been written yet.
    partial: String,
}

/// Prints the logs, and with `--follow` goes on until it is interrupted.
///
/// # Errors
/// A log that cannot be read; standard output.
pub(crate) fn logs(options: &Logs) -> anyhow::Result<ExitCode> {
    let directories = Directories::from_environment();
    let paths = match options.source {
        Some(LogSource::Control) => vec![directories.control_log()],
        Some(LogSource::Server) => vec![directories.server_log()],
        None => vec![directories.control_log(), directories.server_log()],
    };
    let mut logs: Vec<Log> = paths.into_iter().map(|path| Log { path, reader: None }).collect();
    let mut last = VecDeque::new();
    for log in &mut logs {
        log.open().with_context(|| {
            format!(
                "cannot read {}: is CUDA_MPS_LOG_DIRECTORY that of the daemon?",
                log.path.display()
            )
        })?;
        log.read(&mut last)?;
    }
    // Lines begin with their time: in order of time across both, as long as no clock was set back.
    last.make_contiguous().sort();
    let skipped = last.len().saturating_sub(options.lines);
    print(last.into_iter().skip(skipped))?;
    if !options.follow {
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        std::thread::sleep(POLL);
        let mut new = VecDeque::new();
        for log in &mut logs {
            log.reopen_if_replaced()?;
            log.read(&mut new)?;
        }
        new.make_contiguous().sort();
        print(new.into_iter())?;
    }
}

fn print(lines: impl Iterator<Item = String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        // Logs hold words of clients: nothing of them may reach the terminal's controls.
        let shown: String = line.chars().filter(|c| !c.is_control()).collect();
        match writeln!(out, "{shown}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            written => written?,
        }
    }
    out.flush()
}

impl Log {
    fn open(&mut self) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let inode = file.metadata()?.ino();
        self.reader = Some(Opened { lines: BufReader::new(file), inode, partial: String::new() });
        Ok(())
    }

    /// Adds all whole lines up to the end.
    fn read(&mut self, lines: &mut VecDeque<String>) -> io::Result<()> {
        let Some(opened) = &mut self.reader else { return Ok(()) };
        let mut bytes = Vec::new();
        while opened.lines.read_until(b'\n', &mut bytes)? > 0 {
            opened.partial.push_str(&String::from_utf8_lossy(&bytes));
            bytes.clear();
            if opened.partial.ends_with('\n') {
                lines.push_back(opened.partial.trim_end().to_owned());
                opened.partial.clear();
            }
        }
        Ok(())
    }

    /// After a rotation the name is another file's; after a truncation the end is before where we are.
    fn reopen_if_replaced(&mut self) -> io::Result<()> {
        let Ok(there) = std::fs::metadata(&self.path) else { return Ok(()) };
        match &mut self.reader {
            Some(opened) if opened.inode == there.ino() => {
                if opened.lines.stream_position()? > there.len() {
                    opened.lines.seek(SeekFrom::Start(0))?;
                    opened.partial.clear();
                }
                Ok(())
            }
            _ => self.open(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_read_through_truncation_and_rotation() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log { path: path.clone(), reader: None };
        let append = |text: &str| {
            let mut file = File::options().append(true).create(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let read = |log: &mut Log| {
            let mut lines = VecDeque::new();
            log.reopen_if_replaced().unwrap();
            log.read(&mut lines).unwrap();
            lines.into_iter().collect::<Vec<_>>()
        };
        append("one\ntw");
        log.open().unwrap();
        assert_eq!(read(&mut log), ["one"]);
        append("o\n");
        assert_eq!(read(&mut log), ["two"]);
        File::options().write(true).truncate(true).open(&path).unwrap();
        append("3\n");
        assert_eq!(read(&mut log), ["3"]);
        std::fs::rename(&path, directory.path().join("log.1")).unwrap();
        append("four\n");
        assert_eq!(read(&mut log), ["four"]);
    }
}
