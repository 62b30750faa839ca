//! Where the daemon's files are: `CUDA_MPS_PIPE_DIRECTORY` and `CUDA_MPS_LOG_DIRECTORY` (NVIDIA's
//! MPS guide, 4.2.2, 4.2.3).

use settings::Setting;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Held locked by the daemon that lives in the pipe directory.
pub(crate) const LOCK: &str = "openmps-control.lock";
/// Named as the original's.
pub(crate) const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
pub(crate) const PREPARED: &str = "openmps-prepared";
pub(crate) const CONTROL_LOG: &str = "control.log";
pub(crate) const SERVER_LOG: &str = "server.log";

/// The two directories; absolute, and possibly one and the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    pipe: PathBuf,
    log: PathBuf,
}

impl Directories {
    /// As the process's environment says.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// As the given environment says; empty values count as unset.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let directory = |setting: &Setting| {
            let path = variable(setting.variable)
                .filter(|value| !value.is_empty())
                .map_or(setting.default.into(), PathBuf::from);
            // Relative paths must keep their meaning when the daemon leaves its working directory.
            std::path::absolute(&path).unwrap_or(path)
        };
        Directories {
            pipe: directory(&settings::PIPE_DIRECTORY),
            log: directory(&settings::LOG_DIRECTORY),
        }
    }

    /// The pipe directory.
    pub fn pipe(&self) -> &Path {
        &self.pipe
    }

    /// The log directory.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.pipe.join(link::wire::DAEMON_SOCKET)
    }

    /// The directory of a profile's own socket, which has the name of [`Self::socket`].
    pub fn profile(&self, name: &str) -> PathBuf {
        self.pipe.join(link::wire::shares::PROFILES_DIRECTORY).join(name)
    }

    /// Held locked by the daemon that lives in this directory.
    pub fn lock(&self) -> PathBuf {
        self.pipe.join(LOCK)
    }

    /// The file with the daemon's process id, named as the original's.
    pub fn pid_file(&self) -> PathBuf {
        self.pipe.join(PID_FILE)
    }

    /// What was set before a daemon ran: see [`crate::prepared`].
    pub fn prepared(&self) -> PathBuf {
        self.pipe.join(PREPARED)
    }

    /// The socket of NVIDIA's own daemon, which must not live in the same directory.
    pub fn native_socket(&self) -> PathBuf {
        self.pipe.join("control")
    }

    /// The daemon's log.
    pub fn control_log(&self) -> PathBuf {
        self.log.join(CONTROL_LOG)
    }

    /// The servers' log.
    pub fn server_log(&self) -> PathBuf {
        self.log.join(SERVER_LOG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_and_empty_variables_mean_the_defaults() {
        let defaults = Directories::from_variables(|_| None);
        assert_eq!(defaults.pipe(), Path::new("/tmp/nvidia-mps"));
        assert_eq!(Directories::from_variables(|_| Some(OsString::new())), defaults);
    }

    #[test]
    fn relative_directories_become_absolute() {
        let directories = Directories::from_variables(|_| Some("here".into()));
        assert!(directories.pipe().is_absolute() && directories.pipe().ends_with("here"));
    }
}
