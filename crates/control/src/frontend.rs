//! The other side of the shell: what `nvidia-cuda-mps-control` does with a command, a script or a user at a terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use link::wire::attach::Hello;
use link::wire::ui::{DaemonState, UiReply, UiRequest};
use link::wire::{MAX_PACKET_BYTES, PROTOCOL_VERSION};

use crate::directories::Directories;
use crate::packet::{self, Received};

/// A daemon answers within this time; only `quit` may take longer, for it waits for clients.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Between a daemon's answer to `quit` and its end.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// Why a daemon could not be spoken to. The first words are the original's.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// Nobody listens.
    #[error("Cannot find MPS control daemon process (no daemon answers at {}: start one with -d)", socket.display())]
    NoDaemon {
        /// Where.
        socket: PathBuf,
    },
    /// Not for this user.
    #[error("Cannot authenticate or connect to MPS control daemon process ({}: {source})", socket.display())]
    Connect {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It went away, or answered nonsense.
    #[error("Cannot send command to MPS control daemon process ({reason})")]
    Broken {
        /// How.
        reason: String,
    },
    /// Standard input or output.
    #[error("cannot read commands or print answers: {0}")]
    Terminal(#[from] io::Error),
}

/// A connection to a daemon, as a front end.
#[derive(Debug)]
pub struct Frontend {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// What a command came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// For standard output.
    pub output: String,
    /// For standard error; empty when all went well.
    pub error: String,
    /// The exit status that the original's front end would have.
    pub exit_status: u8,
}

impl Frontend {
    /// Connects to the daemon of these directories.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn connect(directories: &Directories) -> Result<Self, FrontendError> {
        let path = directories.socket();
        let socket = packet::connect(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotADirectory => FrontendError::NoDaemon { socket: path.clone() },
            _ => FrontendError::Connect { socket: path.clone(), source },
        })?;
        let frontend = Frontend { socket, buffer: vec![0; MAX_PACKET_BYTES] };
        frontend.send(&Hello::Ui { protocol: PROTOCOL_VERSION })?;
        Ok(frontend)
    }

    /// Runs one line of the shell.
    ///
    /// # Errors
    /// [`FrontendError::Broken`].
    pub fn command(&mut self, line: &str) -> Result<Answer, FrontendError> {
        let is_quit = line.split_ascii_whitespace().next() == Some("quit");
        self.send(&UiRequest::Command { line: line.to_owned() })?;
        let reply = self.receive(if is_quit { None } else { Some(ANSWER_LIMIT) })?;
        let UiReply::Command { output, error, exit_status } = reply else {
            return Err(broken("the daemon answered another question"));
        };
        // Refused, it answers and stays.
        if is_quit && output.is_empty() {
            self.wait_for_end()?;
        }
        Ok(Answer { output, error, exit_status })
    }

    /// Everything that the daemon knows.
    ///
    /// # Errors
    /// [`FrontendError::Broken`].
    pub fn state(&mut self) -> Result<DaemonState, FrontendError> {
        self.send(&UiRequest::State)?;
        match self.receive(Some(ANSWER_LIMIT))? {
            UiReply::State(state) => Ok(state),
            UiReply::Command { .. } => Err(broken("the daemon answered another question")),
        }
    }

    fn send<T: serde::Serialize>(&self, message: &T) -> Result<(), FrontendError> {
        packet::encode(message)
            .and_then(|bytes| packet::send(self.socket.as_fd(), &bytes, None))
            .map_err(broken)
    }

    fn receive(&mut self, limit: Option<Duration>) -> Result<UiReply, FrontendError> {
        match packet::wait_readable(&self.socket, limit) {
            Ok(true) => {}
            Ok(false) => return Err(broken("the daemon does not answer")),
            Err(error) => return Err(broken(error)),
        }
        match packet::receive(self.socket.as_fd(), &mut self.buffer) {
            Ok(Received::Message(reply)) => Ok(reply),
            Ok(Received::Closed) => Err(broken("the daemon closed the connection")),
            Ok(Received::Garbage | Received::Nothing) => {
                Err(broken("the daemon's answer cannot be read"))
            }
            Err(error) => Err(broken(error)),
        }
    }

    /// The daemon is gone when it has closed.
    fn wait_for_end(&self) -> Result<(), FrontendError> {
        packet::wait_readable(&self.socket, Some(EXIT_LIMIT)).map_err(broken)?;
        Ok(())
    }
}

fn broken(reason: impl std::fmt::Display) -> FrontendError {
    FrontendError::Broken { reason: reason.to_string() }
}

/// What a run of the shell came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The exit status of the original.
    pub original_status: u8,
    /// Whether some command complained.
    pub complained: bool,
}

/// Runs lines from `input` until its end or `quit`, printing answers as the original does.
///
/// # Errors
/// [`FrontendError`].
pub fn run_script(frontend: &mut Frontend, input: impl BufRead) -> Result<Outcome, FrontendError> {
    let mut outcome = Outcome { original_status: 0, complained: false };
    for line in input.lines() {
        let line = line?;
        let answer = frontend.command(&line)?;
        print(&answer)?;
        outcome.note(&answer);
        if has_quit(&line, &answer) {
            break;
        }
    }
    Ok(outcome)
}

/// Runs one command given as arguments.
///
/// # Errors
/// [`FrontendError`].
pub fn run_arguments(frontend: &mut Frontend, words: &[String]) -> Result<Outcome, FrontendError> {
    let answer = frontend.command(&words.join(" "))?;
    print(&answer)?;
    let mut outcome = Outcome { original_status: 0, complained: false };
    outcome.note(&answer);
    Ok(outcome)
}

/// Reads lines from standard input: with a prompt and without complaint about empty lines at a terminal, as
/// a script otherwise.
///
/// # Errors
/// [`FrontendError`].
pub fn run_stdin(frontend: &mut Frontend) -> Result<Outcome, FrontendError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return run_script(frontend, stdin.lock());
    }
    let mut outcome = Outcome { original_status: 0, complained: false };
    let mut lines = stdin.lock().lines();
    loop {
        print!("> ");
        io::stdout().flush()?;
        let Some(line) = lines.next().transpose()? else {
            println!();
            return Ok(outcome);
        };
        if line.trim().is_empty() {
            continue;
        }
        let answer = frontend.command(&line)?;
        print(&answer)?;
        // A typing mistake at a terminal is no failure of the session.
        outcome.original_status = answer.exit_status;
        if has_quit(&line, &answer) {
            return Ok(outcome);
        }
    }
}

impl Outcome {
    fn note(&mut self, answer: &Answer) {
        self.original_status = answer.exit_status;
        self.complained |= !answer.error.is_empty();
    }
}

fn has_quit(line: &str, answer: &Answer) -> bool {
    line.split_ascii_whitespace().next() == Some("quit") && answer.output.is_empty()
}

fn print(answer: &Answer) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(answer.output.as_bytes())?;
    stdout.flush()?;
    io::stderr().lock().write_all(answer.error.as_bytes())
}
