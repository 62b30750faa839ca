//! A daemon of the demo's own, in directories of its own, and its end.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tempfile::TempDir;

use super::programs::{Program, Running};
use crate::dist::Dist;
use crate::paths::Paths;

/// How long daemon and servers may take to end when they are asked to.
const QUIT_LIMIT: Duration = Duration::from_secs(10);
/// A client that has exited is counted as soon as the server has seen its socket close.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The demo's surroundings.
pub(crate) struct Session {
    dist: Dist,
    directory: TempDir,
    software_gpu: Option<PathBuf>,
}

/// What the demo's server has counted.
pub(crate) struct Counters {
    /// The server's process id.
    pub(crate) server_pid: u32,
    clients: Vec<Client>,
}

/// One client's counts: see `link::wire::daemon::ClientSnapshot`.
#[derive(Debug, Deserialize)]
pub(crate) struct Client {
    pub(crate) pid: u32,
    pub(crate) kernels: u64,
    pub(crate) copied_bytes: u64,
    /// Number of the fault whose culprit it is.
    #[serde(default)]
    pub(crate) fault: Option<u64>,
}

impl Counters {
    /// The counts of a process.
    pub(crate) fn client(&self, pid: u32) -> Option<&Client> {
        self.clients.iter().find(|client| client.pid == pid)
    }
}

/// What `openmps status --json` prints, as far as the demo needs it.
#[derive(Deserialize)]
struct State {
    daemon_pid: u32,
    servers: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    pid: u32,
    snapshot: Snapshot,
}

#[derive(Deserialize)]
struct Snapshot {
    devices: Vec<Device>,
    clients: Vec<Client>,
    departed: Vec<Client>,
}

#[derive(Deserialize)]
struct Device {
    executor_pid: u32,
}

impl Session {
    /// Makes the directories and asks OpenMPS which driver it will use.
    ///
    /// # Errors
    /// When that fails.
    pub(crate) fn new(dist: Dist) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("openmps-demo-").tempdir()?;
        for name in ["pipe", "log"] {
            fs::create_dir(directory.path().join(name))?;
        }
        let mut session = Self { dist, directory, software_gpu: None };
        session.software_gpu = session.find_software_gpu()?;
        Ok(session)
    }

    /// `openmps env` names a driver only where it is not the system's.
    fn find_software_gpu(&self) -> Result<Option<PathBuf>> {
        let output = self.openmps().arg("env").output().context("cannot run openmps")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("openmps env: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let named =
            text.lines().find_map(|line| line.strip_prefix("export OPENMPS_NATIVE_DRIVER="));
        Ok(named.map(PathBuf::from))
    }

    /// Whether a GPU does the work: then times and memory say something.
    pub(crate) fn has_gpu(&self) -> bool {
        self.software_gpu.is_none()
    }

    /// The driver, in words.
    pub(crate) fn driver(&self) -> String {
        match &self.software_gpu {
            Some(path) => format!("softcuda, the software GPU ({})", path.display()),
            None => "NVIDIA's".to_owned(),
        }
    }

    /// Starts a program on the driver itself.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_natively(&self, paths: &Paths, program: &Program) -> Result<Running> {
        let mut command = self.in_session(executable(paths, program));
        if self.software_gpu.is_some() {
            command.env("LD_LIBRARY_PATH", self.dist.softcuda_directory());
        }
        Running::start(program, &mut command)
    }

    /// Starts a program with `openmps run`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_shared(&self, paths: &Paths, program: &Program) -> Result<Running> {
        let mut command = self.openmps();
        command.arg("run").args(program.options).arg("--").arg(executable(paths, program));
        Running::start(program, &mut command)
    }

    /// What the server has counted, once all clients have left.
    ///
    /// # Errors
    /// When the daemon or the server cannot be asked, or clients stay.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        loop {
            let server = self.state()?.servers.into_iter().next().context("no server runs")?;
            if server.snapshot.clients.is_empty() {
                return Ok(Counters { server_pid: server.pid, clients: server.snapshot.departed });
            }
            if Instant::now() > deadline {
                bail!("clients that have ended are still listed: {:?}", server.snapshot.clients);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Ends the daemon and what it has started, and removes the directories.
    ///
    /// # Errors
    /// When the directories cannot be removed.
    pub(crate) fn close(self) -> Result<()> {
        if let Ok(state) = self.state() {
            let mut pids = vec![state.daemon_pid];
            for server in &state.servers {
                pids.push(server.pid);
                pids.extend(server.snapshot.devices.iter().map(|device| device.executor_pid));
            }
            // What did not obey within the limit is killed.
            if self.quit().is_err() || !all_gone(&pids) {
                pids.into_iter().for_each(kill);
            }
        }
        self.directory.close().context("cannot remove the demo's directory")
    }

    fn quit(&self) -> Result<()> {
        let mut shell = self
            .openmps()
            .arg("control")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        shell.stdin.take().context("no standard input")?.write_all(b"quit -t 1\n")?;
        shell.wait()?;
        Ok(())
    }

    fn state(&self) -> Result<State> {
        let output = self.openmps().args(["status", "--json"]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).with_context(|| {
            format!("no answer from the daemon: {}", String::from_utf8_lossy(&output.stderr).trim())
        })
    }

    fn openmps(&self) -> Command {
        self.in_session(self.dist.root.join("bin/openmps"))
    }

    fn in_session(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.directory.path().join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.directory.path().join("log"));
        if let Some(driver) = &self.software_gpu {
            // Said once, by the demo.
            command.env("OPENMPS_NATIVE_DRIVER", driver);
        }
        command
    }
}

fn executable(paths: &Paths, program: &Program) -> PathBuf {
    paths.target.join("release").join(program.executable)
}

fn all_gone(pids: &[u32]) -> bool {
    let deadline = Instant::now() + QUIT_LIMIT;
    while Instant::now() < deadline {
        if pids.iter().all(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            return true;
        }
        thread::sleep(POLL_INTERVAL);
    }
    false
}

fn kill(pid: u32) {
    if let Ok(pid @ 1..) = libc::pid_t::try_from(pid) {
        // SAFETY: kill has no preconditions; the daemon named this process as its own a moment ago.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}
