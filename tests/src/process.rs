//! Running a program to its end, within a time limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// A process that runs, its output being collected.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    line: String,
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    line: String,
}

impl Running {
    /// Starts a command with no standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let line = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {line}"))?;
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(Self { child, stdout, stderr, line })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill a child")
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        let status = self.child.try_wait().context("cannot look after a child")?;
        Ok(status.is_some())
    }

    /// Waits for its end; kills it when that does not come within `limit`.
    ///
    /// # Errors
    /// When it had to be killed.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        let mut status = None;
        let ended = wait::until("the process ends", limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let text = |reader: &mut Option<JoinHandle<String>>| {
            reader.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (stdout, stderr) = (text(&mut self.stdout), text(&mut self.stderr));
        let Some(status) = status else {
            bail!("{} did not end within {limit:?}\n{stdout}{stderr}", self.line);
        };
        let line = std::mem::take(&mut self.line);
        Ok(Finished { pid: self.child.id(), status, stdout, stderr, line })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// Standard output of a process that exited with 0.
    ///
    /// # Errors
    /// When it did not; the message has all its output.
    pub fn success(&self) -> Result<&str> {
        if !self.status.success() {
            bail!("{}: {}\n{}{}", self.line, self.status, self.stdout, self.stderr);
        }
        Ok(&self.stdout)
    }
}

/// Starts a command and waits for its end.
///
/// # Errors
/// See [`Running::start`] and [`Running::finish`].
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    Running::start(command)?.finish(limit)
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is all that there is to show.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
