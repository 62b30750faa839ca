//! What each command of the shell prints and changes.
//!
//! Wording is that of the original's driver 580; where it prints nothing for bad input, standard
//! error says what was wrong while standard output stays as scripts expect it.

use std::fmt::Write;

use link::wire::daemon::{DeviceSnapshot, Namespaces, Peer, ServerStatus};
use link::wire::owner::Owner;
use link::wire::shares::ChangeReport;
use link::{printable, printable_prefix};
use settings::{DeviceRef, ValueError};

use super::command::{Command, ParsedLine, Pid, TableFormat, parse_line};
use super::shares::Change;
use super::{
    ANSWER_LIMIT, ConnectionId, Core, Effect, Limits, Message, Now, STATE_ANSWER_LIMIT, Server,
};

/// Of a command so much goes to the log.
const LOGGED_CHARACTERS: usize = 256;
/// And of what it prints. Servers' words are in that, and root's lines have no other limit.
const LOGGED_ANSWER_BYTES: usize = 64 << 10;

/// A front end that waits for servers' answers.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) connection: ConnectionId,
    kind: AskKind,
    /// See [`Core::by`].
    by: Option<Owner>,
    /// Requests not yet answered.
    open: Vec<(Pid, u64)>,
    pub(super) deadline: Now,
}

#[derive(Debug)]
pub(super) enum AskKind {
    Print(ParsedLine),
    Terminate { server: Pid, client: Pid, code: Option<u32> },
    State,
    Change(Change),
}

/// What a command prints.
#[derive(Debug, Default)]
struct Output {
    text: String,
    error: String,
}

impl Output {
    fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{line}"); // Writing to a String cannot fail.
    }

    fn complain(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.error, "{line}");
    }

    fn no_server(&mut self, pid: Pid) {
        self.line(format_args!("Server {pid} not found"));
        if self.error.is_empty() {
            self.complain(format_args!(
                "there is no server {pid}: get_server_list prints the servers"
            ));
        }
    }
}

/// Whom a command concerns, which is who may give it besides root and the daemon's user.
enum Concern {
    /// Nobody: it shows something.
    Nobody,
    /// A user's server or its clients; and what the original says that only root may do to
    /// another's.
    ServerOf(u32, &'static str),
    /// Servers to come.
    Defaults,
    /// All, or limits that an administrator has set.
    Everybody,
}

impl Core {
    pub(super) fn ui_line(&mut self, now: Now, connection: ConnectionId, peer: Peer, line: &str) {
        self.log(format!("Cmd:{}", printable_prefix(line, LOGGED_CHARACTERS)));
        let parsed = parse_line(line);
        let mut output = Output::default();
        if let Some(complaint) = &parsed.complaint {
            output.complain(complaint);
        }
        let name = line.split_ascii_whitespace().next().unwrap_or_default();
        if let Err(refused) = self.may_command(peer, &parsed.command, name) {
            output.complain(&refused);
            output.line(refused);
            return self.finish(connection, output);
        }
        self.log_busy(&parsed.command);
        match parsed.command {
            Command::Quit(timeout_s) => {
                if let Some(seconds) = timeout_s {
                    self.log(format!("quit command issued with timeout of {seconds}"));
                }
                self.quit(now, timeout_s.map(|s| Now::from_secs(s.into())), Some(connection));
            }
            Command::TerminateClient { server, client } if self.ready_server(server).is_some() => {
                let id = self.next_id();
                self.send(server, Message::Terminate { id, client });
                let kind = AskKind::Terminate { server, client, code: None };
                self.ask(now, connection, kind, vec![(server, id)]);
            }
            Command::GetClientList(_)
            | Command::GetDeviceClientList(_)
            | Command::Ps(_)
            | Command::DeviceQuery(..) => {
                let open = self.request_snapshots();
                self.ask(now, connection, AskKind::Print(parsed), open);
            }
            command => {
                self.execute(now, command, &mut output);
                self.finish(connection, output);
            }
        }
    }

    fn concern(&self, command: &Command) -> Concern {
        let of_server = |pid: Pid, what| match self.server(pid) {
            Some(server) => Concern::ServerOf(server.uid, what),
            // It is answered that there is none.
            None => Concern::Nobody,
        };
        match command {
            Command::StartServer(Some(uid)) => {
                Concern::ServerOf(*uid, "start server for another user")
            }
            Command::ShutdownServer(pid, _) => of_server(*pid, "shutdown another user's server"),
            Command::TerminateClient { server, .. } => {
                of_server(*server, "terminate clients on another user's server")
            }
            Command::SetDefaultPercentage(_)
            | Command::SetDefaultMemoryLimit(..)
            | Command::SetDefaultPriority(_) => Concern::Defaults,
            // The original lets a server's user raise what an administrator has set for it.
            Command::SetPercentage(..) | Command::SetMemoryLimit(..) | Command::Quit(_) => {
                Concern::Everybody
            }
            _ => Concern::Nobody,
        }
    }

    /// Refuses who may not give a command, in the original's words.
    fn may_command(&self, peer: Peer, command: &Command, name: &str) -> Result<(), String> {
        let uid = peer.uid;
        let is_own = |of: u32| uid == of && peer.namespaces == Namespaces::Shared;
        let insufficient = format!("Insufficient privileges for UID {uid}.");
        let refused = match self.concern(command) {
            Concern::Nobody => return Ok(()),
            Concern::ServerOf(of, _) if is_own(of) => return Ok(()),
            Concern::ServerOf(_, what) => format!("{insufficient} Only the root user may {what}."),
            Concern::Defaults => format!(
                "{insufficient} Control deamon settings can only be modified by the user started it or by the root user."
            ),
            Concern::Everybody => format!("Not enough privilege to execute {name} command"),
        };
        self.check_privilege(peer).map_err(|_| refused)
    }

    /// What the original's log says of servers that are starting, and of which it therefore shows
    /// nothing.
    fn log_busy(&mut self, command: &Command) {
        let wanted = match *command {
            Command::TerminateClient { server: pid, .. } => Some(pid),
            Command::GetDeviceClientList(pid) | Command::Ps(pid) => pid,
            _ => return,
        };
        let is_meant = |pid: Pid| wanted.is_none_or(|wanted| wanted == pid);
        let busy = self.servers.iter().filter(|s| is_meant(s.pid) && !s.was_ready());
        let busy: Vec<Pid> = busy.map(|server| server.pid).collect();
        busy.into_iter().for_each(|pid| self.log(format!("Server {pid} is <busy>")));
    }

    /// Whether this is somebody who may change what concerns others: root and the daemon's user,
    /// but not root of a container, which shares the number alone.
    pub(super) fn is_privileged(&self, peer: Peer) -> bool {
        let is_one_of_them = peer.uid == 0 || peer.uid == self.config.daemon_uid;
        is_one_of_them && peer.namespaces == Namespaces::Shared
    }

    /// The same, with the words for those who may not.
    pub(super) fn check_privilege(&self, peer: Peer) -> Result<(), String> {
        let daemon_uid = self.config.daemon_uid;
        if peer.uid != 0 && peer.uid != daemon_uid {
            return Err(format!("root and for user {daemon_uid}"));
        }
        match peer.namespaces {
            Namespaces::Shared => Ok(()),
            Namespaces::Own => Err(
                "the daemon's own PID and user namespace, and this is another, as of a container: use it outside"
                    .to_owned(),
            ),
        }
    }

    pub(super) fn ui_state(&mut self, now: Now, connection: ConnectionId) {
        let open = self.request_snapshots();
        self.ask_until(now + STATE_ANSWER_LIMIT, connection, AskKind::State, open);
    }

    /// Asks every server that can answer.
    fn request_snapshots(&mut self) -> Vec<(Pid, u64)> {
        let servers: Vec<Pid> = self
            .servers
            .iter()
            .filter(|server| server.status != ServerStatus::Initializing)
            .map(|server| server.pid)
            .collect();
        let asked = servers.into_iter().map(|pid| Some((pid, self.request_snapshot(pid)?)));
        asked.flatten().collect()
    }

    /// Asks a server for a snapshot that is no older than this; returns the request's id. However
    /// many ask, one request is on its way.
    pub(super) fn request_snapshot(&mut self, pid: Pid) -> Option<u64> {
        let id = self.next_id();
        let questions = &mut self.server_mut(pid)?.questions;
        if questions.open.is_some() {
            return Some(*questions.next.get_or_insert(id));
        }
        questions.open = Some(id);
        self.send(pid, Message::Snapshot(id));
        Some(id)
    }

    /// A server has answered: those who have asked meanwhile are next.
    pub(super) fn snapshot_came(&mut self, pid: Pid, id: u64) {
        let Some(server) = self.server_mut(pid) else { return };
        if server.questions.open == Some(id) {
            server.questions.open = server.questions.next.take();
            if let Some(next) = server.questions.open {
                self.send(pid, Message::Snapshot(next));
            }
        }
    }

    pub(super) fn ask(
        &mut self,
        now: Now,
        connection: ConnectionId,
        kind: AskKind,
        open: Vec<(Pid, u64)>,
    ) {
        self.ask_until(now + ANSWER_LIMIT, connection, kind, open);
    }

    fn ask_until(
        &mut self,
        deadline: Now,
        connection: ConnectionId,
        kind: AskKind,
        open: Vec<(Pid, u64)>,
    ) {
        let by = self.by.clone();
        self.asks.push(Ask { connection, kind, by, open, deadline });
        self.finish_asks(|ask| ask.open.is_empty());
    }

    /// Notes what a server has said of a change.
    pub(super) fn add_report(&mut self, server: Pid, id: u64, report: ChangeReport) {
        for ask in &mut self.asks {
            if let AskKind::Change(change) = &mut ask.kind
                && ask.open.contains(&(server, id))
            {
                return change.report.add(report);
            }
        }
    }

    pub(super) fn answered(&mut self, server: Pid, id: u64, result: Option<u32>) {
        for ask in &mut self.asks {
            if let Some(index) = ask.open.iter().position(|open| *open == (server, id)) {
                ask.open.swap_remove(index);
                if let AskKind::Terminate { code, .. } = &mut ask.kind {
                    *code = result;
                }
            }
        }
        self.finish_asks(|ask| ask.open.is_empty());
    }

    pub(super) fn server_gone(&mut self, pid: Pid) {
        for ask in &mut self.asks {
            ask.open.retain(|(server, _)| *server != pid);
        }
        self.finish_asks(|ask| ask.open.is_empty());
    }

    pub(super) fn late_answers(&mut self, now: Now) {
        self.finish_asks(|ask| ask.deadline <= now);
    }

    fn finish_asks(&mut self, done: impl Fn(&Ask) -> bool) {
        let (finished, open): (Vec<Ask>, Vec<Ask>) =
            std::mem::take(&mut self.asks).into_iter().partition(done);
        self.asks = open;
        let before = self.by.take();
        for Ask { connection, kind, by, open, .. } in finished {
            self.by = by;
            let mut output = Output::default();
            let silent: Vec<Pid> = open.iter().map(|(server, _)| *server).collect();
            for server in &silent {
                output.complain(format_args!(
                    "server {server} does not answer: what it said last is shown"
                ));
            }
            match kind {
                AskKind::State => {
                    self.effects.push(Effect::ReplyState { connection, silent });
                    continue;
                }
                AskKind::Change(change) => {
                    self.finish_change(connection, change, &silent);
                    continue;
                }
                AskKind::Terminate { server, client, code } => {
                    // Not answered or gone: not done.
                    let code = code.unwrap_or(1);
                    output.line(code);
                    match code {
                        0 => {}
                        201 => {
                            output.complain(format_args!("server {server} has no client {client}"))
                        }
                        _ => output.complain(format_args!("client {client} was not terminated")),
                    }
                }
                AskKind::Print(ParsedLine { command, complaint }) => {
                    if let Some(complaint) = complaint {
                        output.complain(complaint);
                    }
                    self.print(&command, &mut output);
                }
            }
            self.finish(connection, output);
        }
        self.by = before;
    }

    /// Replies, and logs what was printed as the original does, up to a limit.
    fn finish(&mut self, connection: ConnectionId, output: Output) {
        let mut lines = output.text.lines().chain(output.error.lines());
        let mut room = LOGGED_ANSWER_BYTES;
        for line in lines.by_ref() {
            let Some(left) = room.checked_sub(line.len()) else {
                let more = lines.count() + 1;
                self.log(format!("{more} more lines were printed than are written here"));
                break;
            };
            room = left;
            self.log(line);
        }
        let Output { text, error } = output;
        self.effects.push(Effect::Reply { connection, output: text, error, exit_status: 0 });
    }

    /// Commands that need nobody's answer.
    fn execute(&mut self, now: Now, command: Command, output: &mut Output) {
        match command {
            Command::GetServerList => {
                self.servers.iter().for_each(|server| output.line(server.pid))
            }
            Command::GetServerStatus(None) => output.line("A server PID is required"),
            Command::GetServerStatus(Some(pid)) => match self.server(pid) {
                Some(server) => output.line(status_word(server.status)),
                None => output.no_server(pid),
            },
            Command::StartServer(None) => {
                output.line("A user id (UID) is required to start a new server")
            }
            Command::StartPartitionedServer => {
                output.line("-mlopart is not supported: no server was started");
            }
            Command::StartServer(Some(uid)) => {
                if let Err(refusal) = self.start_server(uid) {
                    output.line(&refusal);
                    output
                        .complain(format_args!("no server was started for user {uid}: {refusal}"));
                }
            }
            Command::ShutdownServer(pid, kind) => match self.server(pid) {
                Some(_) => self.shutdown_server(now, pid, kind),
                None => output.no_server(pid),
            },
            Command::SetDefaultPercentage(value) => {
                if let Ok(percentage) = value {
                    self.defaults.percentage = percentage;
                } else {
                    self.log("Invalid percentage, expected between (0.0, 100.0]");
                }
                output.line(self.defaults.percentage);
            }
            Command::GetDefaultPercentage => output.line(self.defaults.percentage),
            Command::SetPercentage(pid, value) => {
                let Some(server) = self.server_mut(pid) else { return output.no_server(pid) };
                if let Ok(percentage) = value {
                    server.limits.percentage = percentage;
                    output.line(percentage);
                    self.tell_limits(pid);
                } else {
                    output.line(server.limits.percentage);
                    self.log("Invalid percentage, expected between (0.0, 100.0]");
                }
            }
            Command::GetPercentage(pid) => match self.server(pid) {
                Some(server) => output.line(server.limits.percentage),
                None => output.no_server(pid),
            },
            Command::SetDefaultMemoryLimit(device, limit) => {
                self.log_bad_device(&device);
                if let (Ok(device), Ok(limit)) = (device, limit) {
                    self.defaults.set_memory(device, limit);
                }
            }
            Command::GetDefaultMemoryLimit(device) => {
                let limits = self.defaults.clone();
                self.print_memory_limit(&limits, device, output);
            }
            Command::SetMemoryLimit(pid, device, limit) => {
                if self.server(pid).is_none() {
                    return output.no_server(pid);
                }
                self.log_bad_device(&device);
                if let (Ok(device), Ok(limit), Some(server)) = (device, limit, self.server_mut(pid))
                {
                    server.limits.set_memory(device, limit);
                    self.tell_limits(pid);
                }
            }
            Command::GetMemoryLimit(pid, device) => match self.server(pid) {
                Some(server) => {
                    let limits = server.limits.clone();
                    self.print_memory_limit(&limits, device, output);
                }
                None => output.no_server(pid),
            },
            Command::SetDefaultPriority(Ok(priority)) => {
                self.defaults.priority = priority;
                let servers: Vec<Pid> = self.servers.iter().map(|server| server.pid).collect();
                for pid in servers {
                    if let Some(server) = self.server_mut(pid) {
                        server.limits.priority = priority;
                    }
                    self.tell_limits(pid);
                }
            }
            Command::SetDefaultPriority(Err(_)) => {
                output.line("Invalid priority value - must be 0 or 1!")
            }
            Command::GetDefaultPriority => output.line(self.defaults.priority),
            Command::TerminateClient { server, .. } => {
                // As the original: the code 1 comes last.
                match self.server(server) {
                    Some(_) => output.complain(still_starting(server)),
                    None => output.no_server(server),
                }
                output.line(format_args!("Server {server} not found!"));
                output.line(1);
            }
            Command::Unknown(word) => {
                output.line(format_args!("Unknown command \"{word}\""));
                output.complain(format_args!("`{word}` is no command: --help lists them"));
            }
            // These come with fresh snapshots, or by another way.
            Command::GetClientList(_)
            | Command::GetDeviceClientList(_)
            | Command::Ps(_)
            | Command::DeviceQuery(..)
            | Command::Quit(_) => {}
        }
    }

    pub(super) fn tell_limits(&mut self, pid: Pid) {
        if let Some(server) = self.server(pid) {
            let defaults = server.limits.for_server(&server.snapshot);
            self.send(pid, Message::SetDefaults(defaults));
        }
    }

    fn log_bad_device(&mut self, device: &Result<DeviceRef, ValueError>) {
        if device.is_err() {
            self.log("Invalid device ordinal!");
        }
    }

    /// As the original: without a limit nothing is printed, and the log says so.
    fn print_memory_limit(
        &mut self,
        limits: &Limits,
        device: Result<DeviceRef, ValueError>,
        output: &mut Output,
    ) {
        self.log_bad_device(&device);
        let Ok(device) = device else { return };
        match limits.memory.get(&device) {
            Some(limit) => output.line(limit),
            None => self.log("No default pinned memory limit set for the device!"),
        }
    }

    /// Commands that show servers' snapshots.
    fn print(&self, command: &Command, output: &mut Output) {
        match *command {
            Command::GetClientList(pid) => match self.server(pid) {
                Some(server) => {
                    server.snapshot.clients.iter().rev().for_each(|client| output.line(client.pid));
                }
                None => output.no_server(pid),
            },
            Command::GetDeviceClientList(pid) => {
                for server in self.chosen(pid, output) {
                    print_device_clients(server, output);
                }
            }
            // As the original, whose list has only servers that were ready once.
            Command::Ps(None) if !self.servers.iter().any(Server::was_ready) => {
                output.line("Server not found");
            }
            Command::Ps(Some(pid)) if self.ready_server(pid).is_none() => {
                match self.server(pid) {
                    Some(_) => output.complain(still_starting(pid)),
                    None => output.no_server(pid),
                }
                output.line(format_args!("Server {pid} not found\n"));
            }
            Command::Ps(pid) => {
                print_ps_row(output, ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]);
                for server in self.chosen(pid, output) {
                    print_ps(server, output);
                }
            }
            Command::DeviceQuery(pid, format) => self.print_devices(pid, format, output),
            _ => {}
        }
    }

    fn ready_server(&self, pid: Pid) -> Option<&Server> {
        self.server(pid).filter(|server| server.was_ready())
    }

    /// One server, or all.
    fn chosen(&self, pid: Option<Pid>, output: &mut Output) -> Vec<&Server> {
        match pid {
            None => self.servers.iter().collect(),
            Some(pid) => match self.server(pid) {
                Some(server) => vec![server],
                None => {
                    output.no_server(pid);
                    Vec::new()
                }
            },
        }
    }

    fn print_devices(&self, pid: Option<Pid>, format: TableFormat, output: &mut Output) {
        let servers = self.chosen(pid, output);
        if pid.is_some() && servers.is_empty() {
            return;
        }
        output.line("Default");
        // Every server sees the daemon's devices.
        let devices = servers
            .iter()
            .map(|server| &server.snapshot.devices)
            .chain([&self.config.ready_devices])
            .find(|devices| !devices.is_empty());
        print_device_table(devices.map_or(&[], Vec::as_slice), format, output);
        if devices.is_none() {
            output.complain("no devices are known before the first server is ready: use start_server -uid USER_ID, or start the daemon with -q");
        }
        for server in servers {
            output.line("");
            output.line(format_args!("Server {}", server.pid));
            print_device_table(&server.snapshot.devices, format, output);
        }
    }
}

fn still_starting(pid: Pid) -> String {
    format!("server {pid} is still starting: get_server_status {pid} says when it is ACTIVE")
}

fn status_word(status: ServerStatus) -> &'static str {
    match status {
        ServerStatus::Initializing => "INITIALIZING",
        ServerStatus::Active => "ACTIVE",
        ServerStatus::Fault => "FAULT",
    }
}

fn print_ps_row(output: &mut Output, [pid, id, server, device, namespace, command]: [&str; 6]) {
    output.line(format_args!(
        "{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command:<15}"
    ));
}

fn print_ps(server: &Server, output: &mut Output) {
    for client in server.snapshot.clients.iter().rev() {
        for context in &client.contexts {
            let device = server.snapshot.devices.get(context.device as usize);
            let uuid = device.map_or("", |device| device.uuid.as_str());
            let command = printable(&client.command);
            print_ps_row(
                output,
                [
                    &client.pid.to_string(),
                    &context.serial.to_string(),
                    &server.pid.to_string(),
                    uuid.get(..22).unwrap_or(uuid), // Two groups are cut off, as by the original.
                    &client.pid_namespace.to_string(),
                    &command,
                ],
            );
        }
    }
}

fn print_device_clients(server: &Server, output: &mut Output) {
    for (index, device) in (0u32..).zip(&server.snapshot.devices) {
        // The original prints domain, bus and function here, in decimal.
        let address = PciAddress::parse(&device.pci_bus_id);
        output.line(format_args!(
            "[{index}] {:02}:{:02}.{}, {}",
            address.domain, address.bus, address.function, device.name
        ));
        for client in server.snapshot.clients.iter().rev() {
            for context in client.contexts.iter().filter(|context| context.device == index) {
                output.line(format_args!("{}.{}", client.pid, context.context_id));
            }
        }
    }
}

fn print_device_table(devices: &[DeviceSnapshot], format: TableFormat, output: &mut Output) {
    let mut row = |ordinal: &str, pci: &str, uuid: &str, name: &str, attributes: &str| match format
    {
        TableFormat::Text => {
            output.line(format_args!("{ordinal:<16}{pci:<15}{uuid:<42}{name:<34}{attributes}"));
        }
        TableFormat::Csv => output.line(format_args!("{ordinal},{pci},{uuid},{name},{attributes}")),
    };
    row("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes");
    for (index, device) in devices.iter().enumerate() {
        let PciAddress { domain, bus, device: slot, function } =
            PciAddress::parse(&device.pci_bus_id);
        let pci = format!("{domain:04x}:{bus:02x}.{slot:02x}.{function:02x}");
        row(&index.to_string(), &pci, &device.uuid, &device.name, "N/A");
    }
}

/// Parts of `dddd:bb:dd.f`; zeros where it cannot be read.
#[derive(Debug, Default, PartialEq)]
struct PciAddress {
    domain: u32,
    bus: u32,
    device: u32,
    function: u32,
}

impl PciAddress {
    fn parse(text: &str) -> PciAddress {
        let mut parts =
            text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        PciAddress { domain: next(), bus: next(), device: next(), function: next() }
    }
}
