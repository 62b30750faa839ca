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
use control::frontend::Frontend;
use control::trusted_path::regular_file;
use serde::Serialize;

use crate::cli::{Format, LogSource, Logs};
use crate::show::json_line;

/// Between two looks at a log that is followed.
const POLL: Duration = Duration::from_millis(200);

/// One log file.
struct Log {
    source: LogSource,
    path: PathBuf,
    reader: Option<Opened>,
}

struct Opened {
    lines: BufReader<File>,
    inode: u64,
    /// A line whose end has not been written yet.
    partial: String,
    /// The time of the last line that had one.
    time: String,
}

/// Prints the logs, and with `--follow` goes on until it is interrupted.
///
/// # Errors
/// A log that cannot be read; standard output.
pub(crate) fn logs(options: &Logs) -> anyhow::Result<ExitCode> {
    let directories = of_the_daemon();
    let all = [
        (LogSource::Control, directories.control_log()),
        (LogSource::Server, directories.server_log()),
    ];
    let mut logs: Vec<Log> = all
        .into_iter()
        .filter(|(source, _)| options.source.is_none_or(|wanted| wanted == *source))
        .map(|(source, path)| Log { source, path, reader: None })
        .collect();
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
    sort(&mut last);
    let skipped = last.len().saturating_sub(options.lines);
    print(last.into_iter().skip(skipped), options.format())?;
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
        sort(&mut new);
        print(new.into_iter(), options.format())?;
    }
}

/// Where the daemon says that its logs are; where none answers, what the environment says.
fn of_the_daemon() -> Directories {
    let own = Directories::from_environment();
    let state = Frontend::connect(&own).ok().and_then(|mut daemon| daemon.state().ok());
    let Some(directory) = state.and_then(|state| state.log_directory) else { return own };
    Directories::from_variables(|name| match name == settings::LOG_DIRECTORY.variable {
        true => Some(directory.clone().into()),
        false => Some(own.pipe().into()),
    })
}

/// A line of a log.
struct Line {
    /// When it was written, or the last line before it that says; lines of one moment stay in their
    /// order.
    time: String,
    text: String,
    source: LogSource,
}

/// In order of time across the logs, as long as no clock was set back.
fn sort(lines: &mut VecDeque<Line>) {
    lines.make_contiguous().sort_by(|a, b| a.time.cmp(&b.time));
}

/// A line of a log, taken apart.
#[derive(Debug, PartialEq, Serialize)]
struct Entry<'a> {
    log: LogSource,
    /// Local time, as `2026-11-20 15:27:30.557`; absent, as part and process, where a line is none
    /// of the daemon's or a server's own.
    time: Option<&'a str>,
    /// `Control`, `Server` or `Other`.
    part: Option<&'a str>,
    pid: Option<u32>,
    text: &'a str,
}

impl<'a> Entry<'a> {
    fn of(line: &'a str, log: LogSource) -> Self {
        let parsed = || {
            let (head, text) = line.strip_prefix('[')?.split_once("] ")?;
            let mut words = head.get(24..)?.split_whitespace();
            let (part, pid) = (words.next()?, words.next()?.parse().ok()?);
            Some(Self { log, time: head.get(..23), part: Some(part), pid: Some(pid), text })
        };
        parsed().unwrap_or(Self { log, time: None, part: None, pid: None, text: line })
    }
}

fn print(lines: impl Iterator<Item = Line>, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for Line { text, source, .. } in lines {
        // Logs hold words of clients: nothing of them may reach the terminal's controls.
        let plain = link::printable(&text);
        let shown = match format {
            Format::Table => plain,
            Format::Json => json_line(Entry::of(&plain, source))?,
        };
        match writeln!(out, "{shown}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            written => written?,
        }
    }
    Ok(out.flush()?)
}

impl Log {
    fn open(&mut self) -> anyhow::Result<()> {
        let file = regular_file(&self.path)?;
        let inode = file.metadata()?.ino();
        self.reader = Some(Opened {
            lines: BufReader::new(file),
            inode,
            partial: String::new(),
            time: String::new(),
        });
        Ok(())
    }

    /// Adds all whole lines up to the end.
    fn read(&mut self, lines: &mut VecDeque<Line>) -> io::Result<()> {
        let Some(opened) = &mut self.reader else { return Ok(()) };
        let mut bytes = Vec::new();
        while opened.lines.read_until(b'\n', &mut bytes)? > 0 {
            opened.partial.push_str(&String::from_utf8_lossy(&bytes));
            bytes.clear();
            if opened.partial.ends_with('\n') {
                let text = opened.partial.trim_end().to_owned();
                if let Some(time) = Entry::of(&text, self.source).time {
                    opened.time = time.to_owned();
                }
                lines.push_back(Line { time: opened.time.clone(), text, source: self.source });
                opened.partial.clear();
            }
        }
        Ok(())
    }

    /// After a rotation the name is another file's; after a truncation the end is before where we
    /// are.
    fn reopen_if_replaced(&mut self) -> anyhow::Result<()> {
        let Ok(there) = std::fs::symlink_metadata(&self.path) else { return Ok(()) };
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
        let mut log = Log { source: LogSource::Server, path: path.clone(), reader: None };
        let append = |text: &str| {
            let mut file = File::options().append(true).create(true).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let read = |log: &mut Log| {
            let mut lines = VecDeque::new();
            log.reopen_if_replaced().unwrap();
            log.read(&mut lines).unwrap();
            lines.into_iter().map(|line| line.text).collect::<Vec<_>>()
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

    #[test]
    fn lines_of_one_moment_stay_in_their_order() {
        let line =
            |time: &str, text: &str, source| Line { time: time.into(), text: text.into(), source };
        let (control, server) = (LogSource::Control, LogSource::Server);
        let mut lines = VecDeque::from([
            line("1", "b", control),
            line("1", "a", control),
            line("3", "c", control),
            line("2", "z", server),
        ]);
        sort(&mut lines);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["b", "a", "z", "c"]);
    }

    #[test]
    fn lines_are_taken_apart() {
        let line = "[2026-11-20 15:27:30.557 Control   969] Cmd:ps [x] y";
        let entry = Entry::of(line, LogSource::Control);
        assert_eq!(
            (entry.time, entry.part, entry.pid, entry.text),
            (Some("2026-11-20 15:27:30.557"), Some("Control"), Some(969), "Cmd:ps [x] y")
        );
        for other in ["softcuda: a word", "[", "[x] y", "[2026-11-20 15:27:30.557 Control é] y"] {
            assert_eq!(Entry::of(other, LogSource::Server).text, other);
        }
    }
}
