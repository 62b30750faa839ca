//! A control daemon of one test, and what its servers count.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use link::wire::daemon::{ClientSnapshot, ServerSnapshot};
use link::wire::ui::{DaemonState, ServerState};
use rustix::process::{Pid, Signal, kill_process};

use crate::process;
use crate::wait::{self, PATIENCE};
use crate::{Puppet, Runtime, Sandbox};

/// A daemon in the foreground, a child of the test.
#[derive(Debug)]
pub struct Daemon {
    // Dropped in this order: the daemon first, then whatever it has started.
    child: Child,
    sandbox: Sandbox,
}

impl Daemon {
    /// Starts `openmps control -f` and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(sandbox: Sandbox) -> Result<Self> {
        Self::start_with(sandbox, &[])
    }

    /// The same, with more environment variables.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start_with(sandbox: Sandbox, environment: &[(&str, &str)]) -> Result<Self> {
        Self::start_by(sandbox, &[], environment)
    }

    /// The same where a program runs the daemon, whose command line is appended to these words.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start_by(
        sandbox: Sandbox,
        words: &[&OsStr],
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let child = spawn(&sandbox, words, environment)?;
        let daemon = Self { child, sandbox };
        daemon.wait_for_answer()?;
        Ok(daemon)
    }

    /// Ends the daemon with SIGKILL; its servers stay.
    ///
    /// # Errors
    /// When that is impossible.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts another daemon where the killed one was, with all that it left behind.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start_again(&mut self) -> Result<()> {
        self.start_again_with(&[])
    }

    /// The same, with more environment variables.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn start_again_with(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        self.child = spawn(&self.sandbox, &[], environment)?;
        self.wait_for_answer()
    }

    fn wait_for_answer(&self) -> Result<()> {
        wait::until("the daemon answers", PATIENCE, || self.state().is_ok())
            .with_context(|| self.sandbox.last_log_lines())
    }

    /// Where it runs.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Starts a puppet under this daemon.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn puppet(&self) -> Result<Puppet> {
        Puppet::start(&self.sandbox, Runtime::OpenMps)
    }

    /// Starts a puppet under this daemon, with more environment variables.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn puppet_with(&self, environment: &[(&str, &str)]) -> Result<Puppet> {
        let program = self.sandbox.installation.puppet()?;
        let mut command = self.sandbox.command(program, Runtime::OpenMps);
        Puppet::spawn(command.envs(environment.iter().copied()))
    }

    /// What `openmps status --json` prints once all servers have answered: what one said to an
    /// earlier question is no proof of anything.
    ///
    /// # Errors
    /// When the daemon does not answer, or a server.
    pub fn state(&self) -> Result<DaemonState> {
        let mut state = self.printed_state()?;
        let is_said = |state: &DaemonState| state.servers.iter().all(|server| !server.silent);
        if !is_said(&state) {
            wait::until("all servers answer", PATIENCE, || {
                self.printed_state().is_ok_and(|printed| {
                    state = printed;
                    is_said(&state)
                })
            })?;
        }
        Ok(state)
    }

    fn printed_state(&self) -> Result<DaemonState> {
        let mut command =
            self.sandbox.command(self.sandbox.installation.openmps(), Runtime::OpenMps);
        let finished = process::run(command.args(["status", "--json"]), PATIENCE)?;
        let text = finished.success()?;
        serde_json::from_str(text).with_context(|| format!("not understood: {text}"))
    }

    /// The only server.
    ///
    /// # Errors
    /// When there is none.
    pub fn server(&self) -> Result<ServerState> {
        self.state()?.servers.pop().context("no server runs")
    }

    /// What the only server says.
    ///
    /// # Errors
    /// When there is none.
    pub fn snapshot(&self) -> Result<ServerSnapshot> {
        Ok(self.server()?.snapshot)
    }

    /// The final counts of a client that has left, or fails: the proof that a process ran under
    /// OpenMPS.
    ///
    /// # Errors
    /// When the server does not know it, after a while in which it may still be taking leave.
    pub fn departed(&self, pid: u32) -> Result<ClientSnapshot> {
        let mut found = None;
        wait::until("the server lists the client among the departed", PATIENCE, || {
            let departed = self.snapshot().unwrap_or_default().departed;
            found = departed.into_iter().rev().find(|client| client.pid == pid);
            found.is_some()
        })
        .with_context(|| {
            format!("process {pid} was not attached\n{}", self.sandbox.last_log_lines())
        })?;
        found.context("a client that was found")
    }

    /// Waits until a process is no longer listed as a client.
    ///
    /// # Errors
    /// When it stays.
    pub fn wait_gone(&self, pid: u32) -> Result<()> {
        wait::until("the client is gone from the list", PATIENCE, || {
            self.snapshot()
                .is_ok_and(|snapshot| snapshot.clients.iter().all(|client| client.pid != pid))
        })
    }

    /// Runs one line of the shell through `openmps control`.
    ///
    /// # Errors
    /// When the front end cannot be run.
    pub fn shell(&self, line: &str) -> Result<String> {
        let mut child = self
            .sandbox
            .command(self.sandbox.installation.openmps(), Runtime::OpenMps)
            .arg("control")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the shell")?;
        child
            .stdin
            .take()
            .context("no standard input")?
            .write_all(format!("{line}\n").as_bytes())?;
        let output = child.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts one line of the shell as arguments of `openmps control`.
    ///
    /// # Errors
    /// When the front end cannot be run.
    pub fn start_shell(&self, line: &str) -> Result<process::Running> {
        let openmps = self.sandbox.installation.openmps();
        let mut command = self.sandbox.command(openmps, Runtime::OpenMps);
        process::Running::start(command.arg("control").args(line.split_whitespace()))
    }

    /// Waits for the daemon's own end.
    ///
    /// # Errors
    /// When it does not come within `limit`.
    pub fn wait_for_exit(&mut self, limit: Duration) -> Result<()> {
        wait::until("the daemon exits", limit, || self.child.try_wait().is_ok_and(|s| s.is_some()))
    }

    /// The control daemon's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the server and its executors with SIGKILL.
    ///
    /// # Errors
    /// When there is no server.
    pub fn kill_server(&self) -> Result<()> {
        let server = self.server()?;
        let executors = server.snapshot.devices.iter().flat_map(|device| {
            let apart = device.domains.iter().map(|domain| domain.executor_pid);
            apart.chain([device.executor_pid])
        });
        for pid in std::iter::once(server.pid).chain(executors) {
            let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                bail!("{pid} is no process id");
            };
            // An executor may have ended with its server.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// Ends the daemon as an operator does and waits for its exit.
    ///
    /// # Errors
    /// When it does not exit.
    pub fn quit(&mut self, limit: Duration) -> Result<()> {
        self.shell("quit -t 1")?;
        wait::until("the daemon exits", limit, || self.child.try_wait().is_ok_and(|s| s.is_some()))
    }
}

fn spawn(sandbox: &Sandbox, words: &[&OsStr], environment: &[(&str, &str)]) -> Result<Child> {
    let output = fs::File::create(sandbox.log_directory().join("daemon-output.txt"))?;
    let openmps = sandbox.installation.openmps();
    let mut words = words.iter().copied().chain([openmps.as_os_str()]);
    let program = words.next().context("no program")?;
    sandbox
        .command(program, Runtime::OpenMps)
        .args(words)
        .args(["control", "-f"])
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("cannot start the daemon")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The sandbox ends what the daemon has started.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
