//! The ways to share a device that are compared.

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thiserror::Error;

/// A way to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The native driver alone: the device is time-sliced between processes.
    None,
    /// NVIDIA's own MPS.
    Nvidia,
    /// This project.
    Openmps,
    /// This project's client library where no daemon runs: every call goes on to the native driver.
    Passthrough,
}

impl Peer {
    /// Every peer.
    pub const ALL: [Self; 4] = [Self::None, Self::Nvidia, Self::Openmps, Self::Passthrough];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nvidia => "nvidia",
            Self::Openmps => "openmps",
            Self::Passthrough => "passthrough",
        }
    }

    /// The peer of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|peer| peer.name() == name)
    }
}

/// Where things lie on this machine.
#[derive(Clone, Debug)]
pub struct Places {
    /// The `openmps` executable.
    pub openmps: PathBuf,
    /// Our client library.
    pub client_library: PathBuf,
    /// The native driver: a path, or a name for the loader.
    pub native_driver: OsString,
    /// Where daemons write their logs, which then stay; `None`: in directories of their own, which
    /// go with them.
    pub logs: Option<PathBuf>,
}

/// Why a peer is not there.
#[derive(Debug, Error)]
pub enum PeerError {
    /// A process cannot be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A daemon did not come up.
    #[error("{program} did not answer within {0} s; its logs are in {logs}", limit.as_secs())]
    Silent {
        /// Which.
        program: &'static str,
        /// How long it had.
        limit: Duration,
        /// Where it logs.
        logs: String,
    },
    /// A directory cannot be made.
    #[error("cannot make a temporary directory: {0}")]
    Directory(#[from] io::Error),
}

/// A peer that is up; dropping it stops its daemon and removes its directory.
#[derive(Debug)]
pub struct Running {
    peer: Peer,
    directory: TempDir,
    daemon: Option<Child>,
    places: Places,
}

/// Names a run's directory in the environment of all its processes. The variable of the pipe
/// directory is not in an executor's.
pub(crate) const MARK: &str = "BENCH_PEER_DIRECTORY";
const NVIDIA_CONTROL: &str = "nvidia-cuda-mps-control";

/// Whether NVIDIA's MPS can be started here.
pub fn nvidia_is_installed() -> bool {
    let found = std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths).any(|directory| is_nvidias(&directory.join(NVIDIA_CONTROL)))
    });
    found && Path::new("/dev/nvidiactl").exists()
}

/// Our own executable answers to the same name; a link to it is not NVIDIA's.
fn is_nvidias(path: &Path) -> bool {
    path.canonicalize()
        .is_ok_and(|real| real.file_name().is_some_and(|name| name == NVIDIA_CONTROL))
}

impl Running {
    /// Brings the peer's daemon up in a directory of its own.
    pub fn start(peer: Peer, places: &Places) -> Result<Self, PeerError> {
        let directory = tempfile::Builder::new().prefix("openmps-bench-").tempdir()?;
        let mut running = Self { peer, directory, daemon: None, places: places.clone() };
        match peer {
            Peer::None | Peer::Passthrough => {}
            Peer::Nvidia => {
                // In the foreground, so that it ends with us; its socket appears when it listens.
                running.spawn(NVIDIA_CONTROL, Command::new(NVIDIA_CONTROL).arg("-f"))?;
                running.wait_for_socket(NVIDIA_CONTROL, "control")?;
            }
            Peer::Openmps => {
                let mut command = Command::new(&places.openmps);
                command.args(["control", "-f"]).env("OPENMPS_NATIVE_DRIVER", &places.native_driver);
                running.spawn("openmps control", &mut command)?;
                running.wait_for_socket("openmps control", "openmps-control")?;
            }
        }
        Ok(running)
    }

    /// Its directory, which all its processes have in their environment.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A command whose environment leads to this peer, and the driver library that its program
    /// opens.
    pub fn client(&self, program: &Path) -> (Command, OsString) {
        let mut command = Command::new(program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.directory.path())
            .env(MARK, self.directory.path())
            .env("OPENMPS_NATIVE_DRIVER", &self.places.native_driver);
        let driver = match self.peer {
            Peer::None | Peer::Nvidia => self.places.native_driver.clone(),
            Peer::Openmps | Peer::Passthrough => {
                self.places.client_library.clone().into_os_string()
            }
        };
        (command, driver)
    }

    fn log_directory(&self) -> &Path {
        self.places.logs.as_deref().unwrap_or(self.directory.path())
    }

    fn spawn(&mut self, program: &str, command: &mut Command) -> Result<(), PeerError> {
        let child = command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.directory.path())
            .env(MARK, self.directory.path())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log_directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|source| PeerError::Start { program: program.to_owned(), source })?;
        self.daemon = Some(child);
        Ok(())
    }

    fn wait_for_socket(&self, program: &'static str, name: &str) -> Result<(), PeerError> {
        let limit = Duration::from_secs(20);
        let started = Instant::now();
        while !self.directory.path().join(name).exists() {
            if started.elapsed() > limit {
                let logs = self.log_directory().display().to_string();
                return Err(PeerError::Silent { program, limit, logs });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        if self.peer == Peer::Nvidia {
            // It ends its server only when told on its socket.
            let quit = Command::new("sh")
                .args(["-c", "echo quit | nvidia-cuda-mps-control"])
                .env("CUDA_MPS_PIPE_DIRECTORY", self.directory.path())
                .stdout(Stdio::null())
                .spawn();
            // It does not return while the server hangs.
            if let Ok(mut quit) = quit {
                await_end(&mut quit);
            }
        } else if let Some(pid) = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        await_end(&mut daemon);
    }
}

/// Waits for the end of a process that is about to end, and kills it if it is not.
fn await_end(child: &mut Child) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}
