//! The control shell's commands, parsed from a line.
//!
//! Names, arguments and the treatment of missing ones follow the help of the original's driver 580:
//! a missing PID counts as 0, extra words are ignored. What the original passes over in silence
//! becomes a complaint here, which the front end prints on standard error.

use std::str::SplitAsciiWhitespace;

use link::printable_prefix;
use settings::{DeviceRef, Memory, Percentage, Priority, ValueError};

/// Of a word that is no command so much is repeated.
const LONGEST_WORD: usize = 64;
/// Complaints have words of the line in them.
const LONGEST_COMPLAINT: usize = 256;

/// A process id as the shell names servers and clients.
pub type Pid = u32;
/// Larger numbers are none: a system's `pid_t` has a sign.
const LARGEST_PID: Pid = i32::MAX.unsigned_abs();

/// One command of the control shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// PIDs of all servers.
    GetServerList,
    /// State of a server; `None` when no PID could be read.
    GetServerStatus(Option<Pid>),
    /// Start a server for a user; `None` when no user id could be read.
    StartServer(Option<u32>),
    /// Start a server that shows each device as several (`-mlopart`).
    StartPartitionedServer,
    /// Stop a server.
    ShutdownServer(Pid, ShutdownKind),
    /// PIDs of a server's clients.
    GetClientList(Pid),
    /// Devices and their clients, of one server or of all.
    GetDeviceClientList(Option<Pid>),
    /// Table of client processes, of one server or of all.
    Ps(Option<Pid>),
    /// Stop everything; with a timeout in seconds after which servers are killed.
    Quit(Option<u32>),
    /// Active thread percentage of servers to come.
    SetDefaultPercentage(Result<Percentage, ValueError>),
    /// Print it.
    GetDefaultPercentage,
    /// Active thread percentage of one server.
    SetPercentage(Pid, Result<Percentage, ValueError>),
    /// Print it.
    GetPercentage(Pid),
    /// Memory limit of servers to come.
    SetDefaultMemoryLimit(Result<DeviceRef, ValueError>, Result<Memory, ValueError>),
    /// Print it.
    GetDefaultMemoryLimit(Result<DeviceRef, ValueError>),
    /// Memory limit of one server.
    SetMemoryLimit(Pid, Result<DeviceRef, ValueError>, Result<Memory, ValueError>),
    /// Print it.
    GetMemoryLimit(Pid, Result<DeviceRef, ValueError>),
    /// Priority of clients to come.
    SetDefaultPriority(Result<Priority, ValueError>),
    /// Print it.
    GetDefaultPriority,
    /// End a client of a server.
    TerminateClient {
        /// The server.
        server: Pid,
        /// The client process.
        client: Pid,
    },
    /// Table of devices, of the defaults and of one server or of all.
    DeviceQuery(Option<Pid>, TableFormat),
    /// Anything else, with its first word.
    Unknown(String),
}

/// How a server is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownKind {
    /// Once its clients are gone.
    WhenIdle,
    /// At once.
    Forced,
}

/// Layout of `device_query`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableFormat {
    /// Padded columns.
    Text,
    /// Comma-separated.
    Csv,
}

/// A parsed line.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedLine {
    /// The command.
    pub command: Command,
    /// What was wrong with its arguments, if anything.
    pub complaint: Option<String>,
}

/// Parses one line of the control shell. Never fails: see [`Command::Unknown`] and
/// [`ParsedLine::complaint`].
pub fn parse_line(line: &str) -> ParsedLine {
    let mut words = Words { name: "", rest: line.split_ascii_whitespace(), complaint: None };
    words.name = words.rest.next().unwrap_or("");
    let command = match words.name {
        "get_server_list" => Command::GetServerList,
        "get_server_status" => Command::GetServerStatus(words.read_pid("server PID")),
        "start_server" => words.start_server(),
        "shutdown_server" => {
            let (forced, rest) = words.split_flag("-f");
            words.rest = rest;
            let kind = if forced { ShutdownKind::Forced } else { ShutdownKind::WhenIdle };
            Command::ShutdownServer(words.pid("server PID"), kind)
        }
        "get_client_list" => Command::GetClientList(words.pid("server PID")),
        "get_device_client_list" => Command::GetDeviceClientList(words.optional_pid()),
        "ps" => Command::Ps(words.ps_option()),
        "quit" => Command::Quit(words.timeout_option()),
        "set_default_active_thread_percentage" => Command::SetDefaultPercentage(words.value()),
        "get_default_active_thread_percentage" => Command::GetDefaultPercentage,
        "set_active_thread_percentage" => {
            Command::SetPercentage(words.pid("server PID"), words.value())
        }
        "get_active_thread_percentage" => Command::GetPercentage(words.pid("server PID")),
        "set_default_device_pinned_mem_limit" => {
            Command::SetDefaultMemoryLimit(words.value(), words.value())
        }
        "get_default_device_pinned_mem_limit" => Command::GetDefaultMemoryLimit(words.value()),
        "set_device_pinned_mem_limit" => {
            Command::SetMemoryLimit(words.pid("server PID"), words.value(), words.value())
        }
        "get_device_pinned_mem_limit" => {
            Command::GetMemoryLimit(words.pid("server PID"), words.value())
        }
        "set_default_client_priority" => Command::SetDefaultPriority(words.priority()),
        "get_default_client_priority" => Command::GetDefaultPriority,
        "terminate_client" => Command::TerminateClient {
            server: words.pid("server PID"),
            client: words.pid("client PID"),
        },
        "device_query" => {
            let (csv, rest) = words.split_flag("--csv");
            words.rest = rest;
            let format = if csv { TableFormat::Csv } else { TableFormat::Text };
            Command::DeviceQuery(words.optional_pid(), format)
        }
        unknown => Command::Unknown(printable_prefix(unknown, LONGEST_WORD)),
    };
    let complaint = words.complaint.map(|text| printable_prefix(&text, LONGEST_COMPLAINT));
    ParsedLine { command, complaint }
}

/// The words of a line, read from left to right; keeps the first complaint.
struct Words<'a> {
    name: &'a str,
    rest: SplitAsciiWhitespace<'a>,
    complaint: Option<String>,
}

impl<'a> Words<'a> {
    fn complain(&mut self, text: String) {
        self.complaint.get_or_insert(text);
    }

    /// A PID that must be there; 0, which no process has, when it is not.
    fn pid(&mut self, what: &str) -> Pid {
        self.read_pid(what).unwrap_or(0)
    }

    fn read_pid(&mut self, what: &str) -> Option<Pid> {
        let Some(word) = self.rest.next() else {
            self.complain(format!("{}: a {what} is required", self.name));
            return None;
        };
        let pid = word.parse().ok().filter(|pid| *pid <= LARGEST_PID);
        if pid.is_none() {
            self.complain(format!("{}: `{word}` is no {what}", self.name));
        }
        pid
    }

    /// A PID that may be missing; 0 counts as missing, as in the original.
    fn optional_pid(&mut self) -> Option<Pid> {
        self.rest.clone().next().map(|_| self.pid("server PID")).filter(|pid| *pid != 0)
    }

    /// A value; its absence is the error of an empty one.
    fn value<T: std::str::FromStr<Err = ValueError>>(&mut self) -> Result<T, ValueError> {
        let parsed = self.rest.next().unwrap_or("").parse();
        if let Err(error) = &parsed {
            self.complain(format!("{}: {error}", self.name));
        }
        parsed
    }

    /// A priority. Without one the original takes 0, and so do we.
    fn priority(&mut self) -> Result<Priority, ValueError> {
        if self.rest.clone().next().is_none() {
            self.complain(format!("{}: no priority is given: it is set to 0", self.name));
            return Ok(Priority::Normal);
        }
        self.value()
    }

    fn start_server(&mut self) -> Command {
        match (self.rest.next(), self.rest.next().map(str::parse)) {
            (Some("-uid"), Some(Ok(_))) if self.rest.clone().any(|word| word == "-mlopart") => {
                self.complain(format!(
                    "{}: -mlopart is not supported: a device is shared as a whole, and parts of it are set apart by openmps reserve",
                    self.name
                ));
                Command::StartPartitionedServer
            }
            (Some("-uid"), Some(Ok(uid))) => Command::StartServer(Some(uid)),
            _ => {
                self.complain(format!("{}: use {} -uid USER_ID", self.name, self.name));
                Command::StartServer(None)
            }
        }
    }

    fn ps_option(&mut self) -> Option<Pid> {
        match self.rest.next() {
            None => None,
            Some("-p") => Some(self.pid("server PID after -p")),
            Some(joined) if joined.starts_with("-p") => {
                self.rest = joined[2..].split_ascii_whitespace();
                Some(self.pid("server PID after -p"))
            }
            Some(other) => {
                self.complain(format!("ps: unknown option `{other}`: use ps [-p PID]"));
                None
            }
        }
    }

    fn timeout_option(&mut self) -> Option<u32> {
        match (self.rest.next(), self.rest.next()) {
            (None, _) => None,
            (Some("-t"), Some(seconds)) => match seconds.parse() {
                Ok(seconds) => Some(seconds),
                Err(_) => {
                    self.complain(format!("quit: `{seconds}` is no number of seconds"));
                    None
                }
            },
            (Some(other), _) => {
                self.complain(format!("quit: `{other}`: use quit [-t SECONDS]"));
                None
            }
        }
    }

    /// Whether a flag stands anywhere after the name, and the words to read on from without it.
    fn split_flag(&self, flag: &str) -> (bool, SplitAsciiWhitespace<'a>) {
        let mut rest = self.rest.clone();
        let found = rest.clone().any(|word| word == flag);
        if rest.clone().next() == Some(flag) {
            rest.next();
        }
        (found, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        let parsed = parse_line(line);
        assert_eq!(parsed.complaint, None, "{line}");
        parsed.command
    }

    #[test]
    fn blanks_and_extra_words_do_not_matter() {
        assert_eq!(command("  get_server_list  "), Command::GetServerList);
        assert_eq!(command("get_server_list extra words"), Command::GetServerList);
    }

    #[test]
    fn flags_stand_before_or_after_the_pid() {
        let forced = Command::ShutdownServer(7, ShutdownKind::Forced);
        assert_eq!(command("shutdown_server 7 -f"), forced);
        assert_eq!(command("shutdown_server -f 7"), forced);
        assert_eq!(command("device_query --csv"), Command::DeviceQuery(None, TableFormat::Csv));
        assert_eq!(
            command("device_query 7 --csv"),
            Command::DeviceQuery(Some(7), TableFormat::Csv)
        );
    }

    #[test]
    fn missing_and_bad_arguments_count_as_zero_with_a_complaint() {
        for line in ["get_client_list", "get_client_list x", "get_client_list -1"] {
            let parsed = parse_line(line);
            assert_eq!(parsed.command, Command::GetClientList(0));
            assert!(parsed.complaint.is_some(), "{line}");
        }
        assert_eq!(command("get_device_client_list 0"), Command::GetDeviceClientList(None));
        assert_eq!(parse_line("ps -p").command, Command::Ps(Some(0)));
        assert_eq!(command("ps -p975"), Command::Ps(Some(975)));
        assert_eq!(parse_line("ps -px").command, Command::Ps(Some(0)));
        let none = parse_line("set_default_client_priority");
        assert_eq!(none.command, Command::SetDefaultPriority(Ok(Priority::Normal)));
        assert!(none.complaint.is_some());
        let partitioned = parse_line("start_server -uid 0 -mlopart");
        assert_eq!(partitioned.command, Command::StartPartitionedServer);
        assert!(partitioned.complaint.unwrap().contains("-mlopart"));
        assert_eq!(parse_line("start_server -uid x").command, Command::StartServer(None));
        assert!(parse_line("quit -t soon").complaint.is_some());
        assert_eq!(command("quit -t 5"), Command::Quit(Some(5)));
    }

    #[test]
    fn unknown_commands_keep_their_first_word() {
        assert_eq!(command("foo bar"), Command::Unknown("foo".to_owned()));
        assert_eq!(command(""), Command::Unknown(String::new()));
    }
}
