//! Other programs, which must not hold a prolog or an epilog up for ever.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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
    let (stdout, stderr) = (thread::spawn(|| text(stdout)), thread::spawn(|| text(stderr)));
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
    // Somebody else may have inherited the pipes of a child that was killed, and keep them open.
    let collected = |reader: thread::JoinHandle<String>| match status {
        Some(_) => reader.join().unwrap_or_default(),
        None => String::new(),
    };
    Ok(Ended { status, stdout: collected(stdout), stderr: collected(stderr) })
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What came before an error is all that there is.
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
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
        assert!(run(&mut Command::new("/nowhere/at/all"), patient).is_err());
    }
}
