//! The other side of the shell: what `nvidia-cuda-mps-control` does with a command, a script or a
//! user at a terminal.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use link::pieces::Assembly;
use link::socket::{Connection, SocketError};
use link::trust::{TrustError, Untrusted, check_daemon};
use link::wire::attach::Hello;
use link::wire::protocol_version;
use link::wire::shares::ChangeReport;
use link::wire::ui::{DaemonState, EndedClient, UiReply, UiRequest};

use rustix::io::Errno;

use crate::directories::Directories;

/// A daemon answers within this time; only `quit` may take longer, for it waits for clients.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Between a daemon's answer to `quit` and its end.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// A daemon's longest answer: what all of its servers say.
const LONGEST_ANSWER_BYTES: usize = 1 << 30;

/// Why a daemon could not be spoken to. The first words are the original's.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// Nobody listens.
    #[error("Cannot find MPS control daemon process (no daemon answers at {}: openmps run or openmps control -d starts one)", socket.display())]
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
    /// Somebody else's, or nobody can tell whose.
    #[error("Cannot authenticate or connect to MPS control daemon process (the daemon at {} is not used: {why})", socket.display())]
    Untrusted {
        /// Where.
        socket: PathBuf,
        /// Why.
        why: Untrusted,
    },
    /// It is of another build, as after an upgrade, and says what to do.
    #[error("Cannot send command to MPS control daemon process: {message}")]
    Refused {
        /// The daemon's words.
        message: String,
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
    socket: Connection,
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
        let socket = Connection::connect(&path, ANSWER_LIMIT).map_err(|error| match error {
            SocketError::Connect {
                source: Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR,
                ..
            } => FrontendError::NoDaemon { socket: path.clone() },
            SocketError::Connect { source, .. } => {
                FrontendError::Connect { socket: path.clone(), source: source.into() }
            }
            other => broken(other),
        })?;
        check_daemon(&socket, &path).map_err(|error| match error {
            TrustError::Untrusted(why) => FrontendError::Untrusted { socket: path.clone(), why },
            TrustError::Socket(error) => broken(error),
        })?;
        let frontend = Frontend { socket };
        frontend.send(&Hello::Ui { protocol: protocol_version() })?;
        Ok(frontend)
    }

    /// Runs one line of the shell.
    ///
    /// # Errors
    /// [`FrontendError::Broken`].
    pub fn command(&mut self, line: &str) -> Result<Answer, FrontendError> {
        let is_quit = line.split_ascii_whitespace().next() == Some("quit");
        self.send(&UiRequest::Command { line: line.to_owned() })?;
        let reply =
            self.receive(if is_quit { Patience::UntilItEnds } else { Patience::Limited })?;
        let (output, error, exit_status) = match reply {
            UiReply::Command { output, error, exit_status } => (output, error, exit_status),
            other => return Err(unexpected(other)),
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
        match self.receive(Patience::Limited)? {
            UiReply::State(state) => Ok(state),
            other => Err(unexpected(other)),
        }
    }

    /// Changes shares; the inner error is the daemon's refusal: what was wrong and what to do.
    ///
    /// # Errors
    /// [`FrontendError::Broken`].
    pub fn change_shares(
        &mut self,
        request: &UiRequest,
    ) -> Result<Result<ChangeReport, String>, FrontendError> {
        self.send(request)?;
        match self.receive(Patience::Limited)? {
            UiReply::Changed(report) => Ok(Ok(report)),
            UiReply::Refused { message } => Ok(Err(message)),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the processes of the clients that came by the group's socket of this directory; returns
    /// those that were attached or waited for that, or the daemon's refusal.
    ///
    /// # Errors
    /// [`FrontendError::Broken`].
    pub fn end_clients(
        &mut self,
        directory: &str,
    ) -> Result<Result<Vec<EndedClient>, String>, FrontendError> {
        self.send(&UiRequest::EndClients { directory: directory.to_owned() })?;
        match self.receive(Patience::Limited)? {
            UiReply::Ended { clients } => Ok(Ok(clients)),
            UiReply::Refused { message } => Ok(Err(message)),
            other => Err(unexpected(other)),
        }
    }

    fn send<T: serde::Serialize>(&self, message: &T) -> Result<(), FrontendError> {
        match self.socket.send(message, &[], ANSWER_LIMIT) {
            Err(SocketError::Closed) => Err(self.parting_words()),
            sent => sent.map_err(broken),
        }
    }

    /// What a daemon that has closed said before: why it does not talk to us. That it closed comes
    /// first, where it has not read all.
    fn parting_words(&self) -> FrontendError {
        match self.socket.receive::<UiReply>(EXIT_LIMIT) {
            Ok(received) => unexpected(received.message),
            Err(error) => broken(error),
        }
    }

    fn receive(&mut self, patience: Patience) -> Result<UiReply, FrontendError> {
        let mut assembly = Assembly::new(LONGEST_ANSWER_BYTES);
        loop {
            match self.socket.receive(ANSWER_LIMIT).map(|received| received.message) {
                Ok(UiReply::Piece(piece)) => {
                    if let Some(text) = assembly.add(piece).map_err(broken)? {
                        return serde_json::from_str(&text).map_err(broken);
                    }
                }
                Ok(message) => return Ok(message),
                Err(SocketError::TimedOut(_)) if patience == Patience::UntilItEnds => {}
                Err(SocketError::Closed) => return Err(self.parting_words()),
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// The daemon is gone when it has closed.
    fn wait_for_end(&self) -> Result<(), FrontendError> {
        match self.socket.receive::<UiReply>(EXIT_LIMIT) {
            Err(SocketError::Closed) => Ok(()),
            Ok(_) => Err(broken("the daemon answered twice")),
            Err(error) => Err(broken(error)),
        }
    }
}

/// An answer to no question of ours.
fn unexpected(reply: UiReply) -> FrontendError {
    match reply {
        UiReply::Refused { message } => {
            FrontendError::Refused { message: link::printable(&message) }
        }
        _ => broken("the daemon answered another question"),
    }
}

/// How long a front end waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// [`ANSWER_LIMIT`].
    Limited,
    /// As long as the daemon is there.
    UntilItEnds,
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
    for line in text_lines(input) {
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

/// Lines; what is no UTF-8 in one is no command either, and does not end the script. As for the
/// original's front end a line ends at a zero byte, and a vertical tab is a blank.
fn text_lines(input: impl BufRead) -> impl Iterator<Item = io::Result<String>> {
    let text = |line: Vec<u8>| {
        let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(line).trim_end_matches('\r').replace('\x0b', " ")
    };
    input.split(b'\n').map(move |line| line.map(text))
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

/// Reads lines from standard input: with a prompt and without complaint about empty lines at a
/// terminal, as a script otherwise.
///
/// # Errors
/// [`FrontendError`].
pub fn run_stdin(frontend: &mut Frontend) -> Result<Outcome, FrontendError> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return run_script(frontend, stdin.lock());
    }
    let mut outcome = Outcome { original_status: 0, complained: false };
    let mut lines = text_lines(stdin.lock());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_its_newline_or_at_a_zero_byte() {
        let input = &b"ps\r\n\n\0\nps\0 -p 7\nget_\xff\nps\x0b-p\nquit"[..];
        let lines: Vec<String> = text_lines(input).map(Result::unwrap).collect();
        assert_eq!(lines, ["ps", "", "", "ps", "get_\u{fffd}", "ps -p", "quit"]);
    }
}
