//! A CUDA process that does what the test tells it, line by line: the program is `src/bin/puppet`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait::PATIENCE;

/// How often a puppet makes a call whose instructions it counts.
pub const COUNTED_ROUNDS: usize = 16;

/// The process.
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Puppet {
    /// Starts a puppet in a sandbox.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(sandbox: &crate::Sandbox, runtime: crate::Runtime) -> Result<Self> {
        Self::spawn(&mut sandbox.command(sandbox.installation.puppet()?, runtime))
    }

    /// Starts a command that is a puppet.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a puppet")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a puppet without standard output")?;
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, answers })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order without waiting for the answer.
    ///
    /// # Errors
    /// When the puppet is gone.
    pub fn tell(&mut self, order: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the puppet was dismissed")?;
        writeln!(stdin, "{order}").with_context(|| format!("the puppet does not take {order:?}"))
    }

    /// Waits for the answer to the earliest order that has none yet.
    ///
    /// # Errors
    /// When none comes within `limit`: the call hangs, or the process is gone.
    pub fn answer_within(&mut self, limit: Duration) -> Result<String> {
        match self.answers.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                bail!("puppet {} gave no answer within {limit:?}", self.pid())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("puppet {} is gone: {:?}", self.pid(), self.child.wait())
            }
        }
    }

    /// Gives an order and waits for its answer.
    ///
    /// # Errors
    /// See [`Puppet::tell`] and [`Puppet::answer_within`].
    pub fn ask(&mut self, order: &str) -> Result<String> {
        self.tell(order)?;
        self.answer_within(PATIENCE).with_context(|| format!("order {order:?}"))
    }

    /// Gives an order that must be answered with `ok`.
    ///
    /// # Errors
    /// When it is answered otherwise.
    pub fn must(&mut self, order: &str) -> Result<()> {
        self.expect(order, "ok")
    }

    /// Gives an order that must be answered so.
    ///
    /// # Errors
    /// When it is answered otherwise.
    pub fn expect(&mut self, order: &str, expected: &str) -> Result<()> {
        let answer = self.ask(order)?;
        if answer != expected {
            bail!(
                "puppet {}: {order:?} was answered {answer:?}, expected {expected:?}",
                self.pid()
            );
        }
        Ok(())
    }

    /// Instructions of the client library that a call takes: its name is one that the order
    /// `counted` knows.
    ///
    /// # Errors
    /// When they cannot be counted.
    pub fn count(&mut self, call: &str) -> Result<u64> {
        let answer = self.ask(&format!("counted {call}"))?;
        answer.parse().with_context(|| format!("{call:?} is not counted: {answer}"))
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("cannot kill a puppet")?;
        self.child.wait().context("cannot wait for a puppet")?;
        Ok(())
    }

    /// Lets it end by itself, with all of a program's exit handlers, and checks that it exits with
    /// 0.
    ///
    /// # Errors
    /// When it exits otherwise or not at all.
    pub fn dismiss(mut self) -> Result<()> {
        drop(self.stdin.take());
        let mut status = None;
        crate::wait::until("the puppet exits", PATIENCE, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })?;
        match status {
            Some(status) if status.success() => Ok(()),
            other => bail!("puppet {} ended with {other:?}", self.pid()),
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
