//! Other programs, which must not hold a prolog or an epilog up for ever.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a program has written is read within this time of its end.
const PIPE_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks at a child.
const INTERVAL: Duration = Duration::from_millis(2);

/// What a program did within its time.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How it ended; absent: it was killed, because it did not.
    pub(crate) status: Option<ExitStatus>,
    /// What it wrote to standard output.
    pub(crate) stdout: String,
    /// What it wrote to standard error.
    pub(crate) stderr: String,
}

impl Ended {
    /// Standard output of a program that went well; else what it said, on one line.
    pub(crate) fn success(self) -> Result<String, String> {
        let said = self.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        match self.status {
            Some(status) if status.success() => Ok(self.stdout),
            Some(status) if said.is_empty() => Err(format!("it ended with {status}")),
            Some(_) => Err(said),
            None => Err("it did not end in time".to_owned()),
        }
    }
}

/// Runs a command, which has no input, and kills it when it does not end within `limit`.
///
/// # Errors
/// It cannot be started.
pub(crate) fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr) = (Reader::of(stdout), Reader::of(stderr));
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(INTERVAL);
    };
    // Somebody else may have inherited the pipes, and keep them open for as long as he likes.
    let until = match status {
        Some(_) => Instant::now() + PIPE_LIMIT,
        None => Instant::now(),
    };
    Ok(Ended { status, stdout: stdout.text(until), stderr: stderr.text(until) })
}

/// What comes out of a pipe, read on a thread of its own, which ends with this process if not
/// before.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Reader {
    fn of(from: Option<impl Read + Send + 'static>) -> Self {
        let (end, ended) = channel();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&bytes);
        thread::spawn(move || {
            let _end: Sender<()> = end;
            let Some(mut from) = from else { return };
            let mut piece = [0; 4096];
            // What came before an error is all that there is.
            while let Ok(length @ 1..) = from.read(&mut piece) {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&piece[..length]);
            }
        });
        Self { bytes, ended }
    }

    /// What has come by then, or all, if that is sooner.
    fn text(&self, until: Instant) -> String {
        let _ = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_or_are_ended() {
        let ended = |script: &str, limit| {
            run(Command::new("sh").args(["-c", script]), limit).unwrap().success()
        };
        let patient = Duration::from_secs(60);
        assert_eq!(ended("echo yes", patient), Ok("yes\n".to_owned()));
        assert_eq!(ended("echo no >&2; exit 3", patient), Err("no".to_owned()));
        assert!(ended("exec sleep 600", Duration::from_millis(10)).unwrap_err().contains("time"));
        // One that leaves another behind has ended all the same.
        assert_eq!(ended("echo yes; sleep 5 &", patient), Ok("yes\n".to_owned()));
        assert!(run(&mut Command::new("/nowhere/at/all"), patient).is_err());
    }
}
