//! `-d`: a daemon in the background, whose errors still reach who started it.
//!
//! The starter runs the executable again with a pipe as standard output. The new process makes a
//! session of its own, takes the directory, and only then answers on the pipe; what it says on
//! standard error until then is the starter's to show.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::StartError;

/// Says in the environment that a process is the background half.
pub(super) const MARK: &str = "OPENMPS_BACKGROUND_START";
/// The answer on the pipe.
const STARTED: &[u8] = b"started\n";

/// A daemon to be started in the background.
#[derive(Debug)]
pub struct BackgroundStart {
    /// The executable, which must come to [`super::run`].
    pub program: PathBuf,
    /// Shown for it by `ps`.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Added to its environment.
    pub environment: Vec<(String, OsString)>,
    /// Taken out of its environment.
    pub without: Vec<OsString>,
}

/// Starts a daemon in the background and returns once it is ready, with its warnings.
///
/// # Errors
/// [`StartError::Background`] when it failed, with what it said; [`StartError::System`] when it
/// could not be run at all.
pub fn start_in_background(start: &BackgroundStart) -> Result<String, StartError> {
    let mut command = Command::new(&start.program);
    for name in &start.without {
        command.env_remove(name);
    }
    let mut child = command
        .arg0(&start.name)
        .args(&start.arguments)
        .envs(start.environment.iter().map(|(name, value)| (name, value)))
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(StartError::system("start the daemon's process"))?;
    let mut answer = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        // Ends with the answer, or with the process.
        let mut pipe = pipe.take(STARTED.len() as u64);
        pipe.read_to_end(&mut answer)
            .map_err(StartError::system("hear from the daemon's process"))?;
    }
    let mut said = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        // A daemon that is ready has let go of it.
        let _ = pipe.read_to_string(&mut said);
    }
    if answer == STARTED {
        return Ok(said); // Not waited for: it outlives us.
    }
    let _ = child.wait();
    Err(StartError::Background { said: said.trim_end().to_owned() })
}

/// Has no server get descriptors that whoever started this process left open. For a process that is
/// a daemon and nothing else, before it does anything.
///
/// # Errors
/// [`StartError::System`].
pub fn keep_descriptors() -> Result<(), StartError> {
    link::inheritance::keep_descriptors().map_err(StartError::system("keep descriptors to itself"))
}

/// Whether this process was made by [`start_in_background`].
pub fn is_background_half() -> bool {
    std::env::var_os(MARK).is_some()
}

/// In the background half, leaves the starter's session and working directory; whether it is that.
pub(super) fn enter_background() -> bool {
    if !is_background_half() {
        return false;
    }
    // Both can only fail where there is nothing to leave.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    true
}

/// Tells the starter that all is well, and lets go of its terminal.
///
/// # Errors
/// Those of opening `/dev/null`; a starter that has gone is no error.
pub(super) fn announce() -> io::Result<()> {
    let _ = io::stdout().write_all(STARTED).and_then(|()| io::stdout().flush());
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
