//! The control daemon that a worker's modules run under, and the proof that they did.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::dist::Dist;

/// For what should take milliseconds, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(20);

/// A daemon in the foreground with directories of its own.
pub(super) struct Daemon {
    child: Child,
    openmps: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
    // Sockets' paths are short: not below the build directory.
    _directory: TempDir,
}

/// What a server counted for a process that has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) kernels: u64,
}

impl Daemon {
    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn start(dist: &Dist) -> Result<Self> {
        let directory = tempfile::tempdir().context("no temporary directory")?;
        let [pipe, log] = ["pipe", "log"].map(|name| directory.path().join(name));
        fs::create_dir_all(&pipe)?;
        fs::create_dir_all(&log)?;
        let output = File::create(log.join("daemon-output.txt"))?;
        let environment = vec![
            ("LD_LIBRARY_PATH", dist.client_directory()),
            ("CUDA_MPS_PIPE_DIRECTORY", pipe),
            ("CUDA_MPS_LOG_DIRECTORY", log),
            ("OPENMPS_NATIVE_DRIVER", dist.client_directory().join("libsoftcuda.so")),
        ];
        let openmps = dist.root.join("bin/openmps");
        let child = Command::new(&openmps)
            .args(["control", "-f"])
            .envs(environment.clone())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot start the daemon")?;
        let daemon = Self { child, openmps, environment, _directory: directory };
        wait_for("the daemon answers", || daemon.status().ok())?;
        Ok(daemon)
    }

    /// What makes a program its client.
    pub(super) fn environment(&self) -> &[(&'static str, PathBuf)] {
        &self.environment
    }

    /// The final count of a client that has left.
    ///
    /// # Errors
    /// When no server lists it: the process was not attached.
    pub(super) fn departed(&self, pid: u32) -> Result<Counted> {
        wait_for(&format!("process {pid} is listed as a client that has left"), || {
            let status = self.status().ok()?;
            let servers = status["servers"].as_array()?;
            let mut departed = servers
                .iter()
                .flat_map(|server| server["snapshot"]["departed"].as_array().into_iter().flatten());
            let client = departed.rfind(|client| client["pid"] == pid)?;
            Some(Counted { kernels: client["kernels"].as_u64()? })
        })
    }

    fn status(&self) -> Result<Value> {
        let output = self.command().args(["status", "--json"]).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.openmps);
        command.envs(self.environment.clone()).stderr(Stdio::null());
        command
    }

    /// Ends the server and its executors, then the daemon.
    fn quit(&mut self) -> Result<()> {
        let mut shell =
            self.command().arg("control").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        shell.stdin.take().context("no standard input")?.write_all(b"quit -t 1\n")?;
        shell.wait()?;
        wait_for("the daemon exits", || self.child.try_wait().ok().flatten())?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Err(error) = self.quit() {
            eprintln!("the daemon of the library suites did not quit: {error:#}");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("still not after {PATIENCE:?}: {what}");
        }
        sleep(INTERVAL);
    }
}
