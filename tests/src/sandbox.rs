//! A test's own directories and environment, and the end of everything that ran in them.

use std::env;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use crate::wait::{self, PATIENCE};
use crate::{Installation, batching};

/// Which driver library a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The software GPU's driver itself, no part of OpenMPS in the process.
    Softcuda,
    /// The client library of OpenMPS: attached if this sandbox has a daemon, passed through to the
    /// software GPU if not.
    OpenMps,
}

/// Directories for one test. Dropping it kills every process that still runs with its pipe
/// directory in the environment, as all do that were made by [`Sandbox::command`] and their
/// descendants.
#[derive(Debug)]
pub struct Sandbox {
    /// What is tested.
    pub installation: Installation,
    directory: TempDir,
}

impl Sandbox {
    /// Makes the directories.
    ///
    /// # Errors
    /// When the product is not built or the directory for temporary files is not writable.
    pub fn new() -> Result<Self> {
        let installation = Installation::find()?;
        let directory = tempfile::Builder::new().prefix("openmps-test-").tempdir()?;
        let sandbox = Self { installation, directory };
        for inside in [sandbox.pipe_directory(), sandbox.log_directory()] {
            fs::create_dir(&inside)
                .with_context(|| format!("cannot create {}", inside.display()))?;
        }
        Ok(sandbox)
    }

    /// The same for tests of several users: all may enter, and reach the product.
    ///
    /// # Errors
    /// As for [`Sandbox::new`].
    pub fn of_several_users() -> Result<Self> {
        let mut sandbox = Self::new()?;
        let directory = sandbox.directory.path();
        let everybody = Permissions::from_mode(0o755);
        fs::set_permissions(directory, everybody.clone())?;
        for inside in [sandbox.pipe_directory(), sandbox.log_directory()] {
            fs::set_permissions(inside, everybody.clone())?;
        }
        sandbox.installation = sandbox.installation.published(directory)?;
        Ok(sandbox)
    }

    /// The directory that holds everything of this test.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A new directory in this sandbox that belongs to `uid`, for that user's own files.
    ///
    /// # Errors
    /// When it is there already, or this is not root.
    pub fn directory_of(&self, uid: u32, name: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        chown(&path, Some(uid), Some(uid))?;
        Ok(path)
    }

    /// [`Sandbox::command`] as another user, without further groups.
    pub fn command_as(&self, uid: u32, program: impl AsRef<Path>, runtime: Runtime) -> Command {
        let mut command = self.command(program, runtime);
        command.env("HOME", self.directory.path()).uid(uid).gid(uid);
        command
    }

    /// `CUDA_MPS_PIPE_DIRECTORY` of this test.
    pub fn pipe_directory(&self) -> PathBuf {
        self.directory.path().join("pipe")
    }

    /// `CUDA_MPS_LOG_DIRECTORY` of this test.
    pub fn log_directory(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// All log files of this test, one after the other.
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        for entry in fs::read_dir(self.log_directory()).into_iter().flatten().flatten() {
            let text = fs::read(entry.path()).unwrap_or_default();
            logs.push_str(&format!("--- {}\n", entry.file_name().display()));
            logs.push_str(&String::from_utf8_lossy(&text));
        }
        logs
    }

    /// Waits for words in a log: a server's lines come to its file by way of the daemon.
    ///
    /// # Errors
    /// When they do not come; with the end of each log.
    pub fn wait_for_log(&self, words: &str) -> Result<()> {
        wait::until(&format!("`{words}` is logged"), PATIENCE, || self.logs().contains(words))
            .with_context(|| self.last_log_lines())
    }

    /// The end of each log, for the message of a test that failed.
    pub fn last_log_lines(&self) -> String {
        const LINES: usize = 12;
        let logs = self.logs();
        let mut shown: Vec<&str> = Vec::new();
        for log in logs.split("--- ").filter(|log| !log.is_empty()) {
            let lines: Vec<&str> = log.lines().collect();
            shown.extend(lines.first());
            shown.extend(lines.iter().skip(1.max(lines.len().saturating_sub(LINES))));
        }
        shown.join("\n")
    }

    /// A command with this sandbox's directories, the software GPU as the native driver, and the
    /// libraries of `runtime`.
    pub fn command(&self, program: impl AsRef<Path>, runtime: Runtime) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env_clear();
        let kept = ["PATH", "HOME", "LANG", "TMPDIR"];
        command.envs(kept.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs(batching::of_this_run());
        let libraries = match runtime {
            Runtime::Softcuda => self.installation.softcuda_directory(),
            Runtime::OpenMps => self.installation.client_directory(),
        };
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe_directory())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log_directory())
            .env("OPENMPS_NATIVE_DRIVER", self.installation.softcuda());
        if !geteuid().is_root() {
            // Tests look into servers, and find by their environment what is to be ended; root may
            // do so anyway.
            command.env("OPENMPS_DEBUGGABLE", "1");
        }
        command
    }

    /// The processes whose environment names this sandbox's pipe directory.
    pub fn processes(&self) -> Vec<Pid> {
        let mut mark = OsString::from("CUDA_MPS_PIPE_DIRECTORY=");
        mark.push(self.pipe_directory());
        let mark = mark.into_vec();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            // What has ended meanwhile, or is another user's, cannot be read and is not ours.
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            if environment.split(|&byte| byte == 0).any(|variable| variable == mark) {
                found.extend(Pid::from_raw(pid));
            }
        }
        found
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Twice, for children that a process started while the list was read.
        for _ in 0..2 {
            for pid in self.processes() {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
