//! `openmps ps` and `openmps status`: what runs, for people and for programs.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control::directories::Directories;
use control::frontend::Frontend;
use link::wire::daemon::{ClientSnapshot, DomainSnapshot, ServerStatus};
use link::wire::fault::FaultReport;
use link::wire::ui::{DaemonState, ServerState};
use serde::Serialize;

use crate::cli::{Format, View};
use crate::natives::{Native, natives};

/// Version of the meaning of what `--json` prints.
const SCHEMA: u32 = 1;

/// What `--json` prints, beside the command's own fields.
#[derive(Debug, Serialize)]
struct Document<T> {
    schema: u32,
    #[serde(flatten)]
    content: T,
}

/// Faults older than this are shown by `openmps ps --faults` alone.
const FAULTS_SHOWN_FOR: Duration = Duration::from_secs(600);

/// Which faults are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Faults {
    Recent,
    All,
}

#[derive(Debug, Serialize)]
struct Clients<'a> {
    clients: Vec<Client<'a>>,
    /// The latest of each server.
    faults: Vec<&'a FaultReport>,
}

#[derive(Debug, Serialize)]
struct Client<'a> {
    server_pid: u32,
    #[serde(flatten)]
    client: &'a ClientSnapshot,
}

/// `openmps ps`.
///
/// # Errors
/// No daemon.
pub(crate) fn ps(options: &View) -> anyhow::Result<ExitCode> {
    if options.native {
        return show_natives(options.format());
    }
    let state = daemon_state()?;
    let clients: Vec<Client<'_>> = state
        .servers
        .iter()
        .flat_map(|server| {
            server.snapshot.clients.iter().map(|client| Client { server_pid: server.pid, client })
        })
        .collect();
    let which = options.which_faults();
    match options.format() {
        Format::Json => {
            let faults = own_faults(&state, Faults::All);
            print_json(Clients { clients, faults })?;
        }
        Format::Table if which == Faults::All => {
            own_faults(&state, which).iter().for_each(|fault| println!("{}", fault_line(fault)));
        }
        Format::Table => {
            let mut table = Table::new([
                "PID", "USER", "SERVER", "GROUP", "DEVICES", "DOMAIN", "KERNELS", "COPIED",
                "MEMORY", "COMMAND",
            ]);
            for Client { server_pid, client } in clients {
                let mut devices: Vec<String> =
                    client.contexts.iter().map(|context| context.device.to_string()).collect();
                devices.dedup();
                table.row([
                    client.pid.to_string(),
                    client.uid.to_string(),
                    server_pid.to_string(),
                    client.group.clone().unwrap_or_else(|| "-".into()),
                    devices.join(","),
                    client.domain.clone().unwrap_or_else(|| "-".to_owned()),
                    client.kernels.to_string(),
                    bytes(client.copied_bytes),
                    bytes(client.granted_bytes),
                    link::printable(&client.command),
                ]);
            }
            table.print();
            own_faults(&state, which).iter().for_each(|fault| println!("{}", fault_line(fault)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Natives {
    processes: Vec<Native>,
}

fn show_natives(format: Format) -> anyhow::Result<ExitCode> {
    let processes = natives(&Directories::from_environment())?;
    if format == Format::Json {
        print_json(Natives { processes })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["PID", "USER", "COMMAND"]);
    for Native { pid, uid, command } in processes {
        table.row([pid.to_string(), uid.to_string(), command]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}

/// `openmps status`.
///
/// # Errors
/// No daemon.
pub(crate) fn status(format: Format) -> anyhow::Result<ExitCode> {
    let state = daemon_state()?;
    match format {
        Format::Json => print_json(&state)?,
        Format::Table => {
            println!("daemon {}, {} server(s)", state.daemon_pid, state.servers.len());
            state.servers.iter().for_each(print_server);
            for device in &state.drained {
                println!("device {device}: drained, programs that start do not use it");
            }
            own_faults(&state, Faults::Recent)
                .iter()
                .for_each(|fault| println!("{}", fault_line(fault)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_server(server: &ServerState) {
    let ServerState { pid, uid, status, snapshot, .. } = server;
    let status = match status {
        ServerStatus::Initializing => "INITIALIZING",
        ServerStatus::Active => "ACTIVE",
        ServerStatus::Fault => "FAULT",
    };
    println!(
        "\nserver {pid} of user {uid}: {status}, {} client(s), {} since it started",
        snapshot.clients.len(),
        snapshot.clients_ever
    );
    let mut table = Table::new(["DEVICE", "NAME", "UUID", "PCI", "EXECUTOR", "MEMORY", "KERNELS"]);
    for (index, device) in snapshot.devices.iter().enumerate() {
        table.row([
            index.to_string(),
            device.name.clone(),
            device.uuid.clone(),
            device.pci_bus_id.clone(),
            device.executor_pid.to_string(),
            bytes(device.granted_bytes),
            device.kernels_ever.to_string(),
        ]);
    }
    table.print();
    for (index, device) in snapshot.devices.iter().enumerate() {
        if device.second_executor_pid != 0 {
            println!(
                "device {index}: executor {} of its second context",
                device.second_executor_pid
            );
        }
        for DomainSnapshot { name, executor_pid, clients } in &device.domains {
            println!("device {index}: executor {executor_pid} of {name}, {clients} client(s)");
        }
    }
}

/// A fault, with its time before it.
pub(crate) fn fault_line(fault: &FaultReport) -> String {
    format!("{} {fault}", control::log::time_text(fault.unix_time_ms))
}

/// What concerns this process's user: all faults for root, otherwise those of the own server, and
/// those that name a client of the own.
pub(crate) fn own_faults(state: &DaemonState, which: Faults) -> Vec<&FaultReport> {
    let own = rustix::process::geteuid().as_raw();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let faults = state.servers.iter().flat_map(|server| {
        let is_own = move |fault: &&FaultReport| {
            own == 0 || server.uid == own || fault.accused.iter().any(|one| one.uid == own)
        };
        server.snapshot.faults.iter().filter(is_own)
    });
    faults.filter(|fault| is_shown(fault, which, now)).collect()
}

fn is_shown(fault: &FaultReport, which: Faults, now: Duration) -> bool {
    let age = now.saturating_sub(Duration::from_millis(fault.unix_time_ms));
    which == Faults::All || age <= FAULTS_SHOWN_FOR
}

fn daemon_state() -> anyhow::Result<DaemonState> {
    let state = Frontend::connect(&Directories::from_environment())?.state()?;
    silences(&state).iter().for_each(|silence| eprintln!("{silence}"));
    Ok(state)
}

/// What is to be said of the servers that do not answer, a line each.
pub(crate) fn silences(state: &DaemonState) -> Vec<String> {
    let silent = state.servers.iter().filter(|server| server.silent);
    silent
        .map(|server| format!("server {} does not answer: what it said last is shown", server.pid))
        .collect()
}

/// Prints a document with its schema version.
///
/// # Errors
/// Standard output.
pub(crate) fn print_json<T: Serialize>(content: T) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(&Document { schema: SCHEMA, content })?);
    Ok(())
}

/// A document on one line.
///
/// # Errors
/// None that happens: all keys are texts.
pub(crate) fn json_line<T: Serialize>(content: T) -> anyhow::Result<String> {
    Ok(serde_json::to_string(&Document { schema: SCHEMA, content })?)
}

/// A number of bytes with at most four digits and a binary unit.
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Columns as wide as their widest cell; the last one is not padded.
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Self {
        Table { rows: vec![heading.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(crate) fn print(&self) {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            println!("{}", cells.join("  ").trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_faults_are_shown_where_all_are_asked_for() {
        let fault = FaultReport { unix_time_ms: 5_000_000, ..Default::default() };
        for (seconds, shown) in [(4000, true), (5600, true), (5601, false)] {
            let now = Duration::from_secs(seconds);
            assert_eq!(is_shown(&fault, Faults::Recent, now), shown, "{seconds}");
            assert!(is_shown(&fault, Faults::All, now));
        }
        let line = fault_line(&fault);
        assert!(line.starts_with("1970-01-0") && line.contains(" fault 0 on device 0"), "{line}");
    }
}
