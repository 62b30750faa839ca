//! `openmps limit` and `openmps reserve`: shares that change while clients run, and what is in
//! force.

use std::process::ExitCode;

use anyhow::bail;
use control::directories::Directories;
use control::frontend::Frontend;
use link::wire::daemon::{ClientSnapshot, GroupSnapshot, ReservationSnapshot};
use link::wire::shares::{
    ChangeReport, GroupLimits, LimitChange, MemoryLimit, NewLimits, Reservation, Target, check_name,
};
use link::wire::ui::{DaemonState, UiRequest};
use serde::Serialize;
use settings::Memory;

use crate::cli::{Format, Limit, Reserve};
use crate::show::{Table, bytes, print_json};

/// `openmps limit`.
///
/// # Errors
/// No daemon; a change that it refuses.
pub(crate) fn limit(options: &Limit) -> anyhow::Result<ExitCode> {
    let mut daemon = Frontend::connect(&Directories::from_environment())?;
    let target = options.target();
    let Some(limits) = options.change() else {
        if options.device.is_some() {
            bail!("--device says of which device --memory is a limit: give both");
        }
        return show_limits(&daemon.state()?, target.as_ref(), options.format());
    };
    let Some(target) = target else {
        bail!("whose limit? give --client PID, --group NAME, --server PID or --user UID");
    };
    let change = LimitChange { target, limits };
    let report = daemon.change_shares(&UiRequest::Limit(change))?;
    print_report(report.map_err(anyhow::Error::msg)?, options.format())
}

impl Limit {
    fn target(&self) -> Option<Target> {
        let client = self.client.map(Target::Client);
        let group = self.group.clone().map(Target::Group);
        let server = self.server.map(Target::Server);
        client.or(group).or(server).or(self.user.map(Target::User))
    }

    fn change(&self) -> Option<NewLimits> {
        let percentage = self.sm_percent.map(|percentage| percentage.percent());
        let memory = self.memory.map(|size| memory_limit(self.device, size));
        let limits = NewLimits { percentage, memory, weight: self.weight };
        (limits != NewLimits::default()).then_some(limits)
    }
}

pub(crate) fn memory_limit(device: Option<u32>, size: Memory) -> MemoryLimit {
    MemoryLimit { device, limit_bytes: size.limit_bytes() }
}

fn print_report(report: ChangeReport, format: Format) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => print_json(&report)?,
        Format::Table => {
            let ChangeReport { clients, waiting, .. } = &report;
            println!("in force for {} running client(s)", clients.len());
            for pid in waiting {
                println!("client {pid}: in force as soon as kernels that run now have ended");
            }
        }
    }
    for message in &report.refused {
        eprintln!("openmps: {message}");
    }
    Ok(if report.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Serialize)]
struct Limits<'a> {
    clients: Vec<&'a ClientSnapshot>,
    groups: Vec<&'a GroupLimits>,
    /// Groups that have clients, on each device of each server.
    members: Vec<Members<'a>>,
}

/// A group on one device of one server.
#[derive(Debug, Serialize)]
struct Members<'a> {
    server_pid: u32,
    device: u32,
    #[serde(flatten)]
    group: &'a GroupSnapshot,
}

fn members<'a>(state: &'a DaemonState, target: Option<&Target>) -> Vec<Members<'a>> {
    let is_meant = |group: &GroupSnapshot| match target {
        None => true,
        Some(Target::Group(name)) => {
            let fits = |prefix| group.name.starts_with(prefix);
            group.name == *name || name.strip_suffix('*').is_some_and(fits)
        }
        Some(_) => false,
    };
    let mut members = Vec::new();
    for server in &state.servers {
        for (device, held) in (0..).zip(&server.snapshot.devices) {
            let groups = held.groups.iter().filter(|group| is_meant(group));
            let server_pid = server.pid;
            members.extend(groups.map(|group| Members { server_pid, device, group }));
        }
    }
    members
}

fn show_limits(
    state: &DaemonState,
    target: Option<&Target>,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let of_server = |server: &link::wire::ui::ServerState| match target {
        Some(Target::Server(pid)) => server.pid == *pid,
        _ => true,
    };
    let is_meant = |client: &&ClientSnapshot| match target {
        Some(Target::Client(pid)) => client.pid == *pid,
        Some(Target::Group(name)) => client.group.as_ref() == Some(name),
        Some(Target::User(uid)) => client.uid == *uid,
        Some(Target::Server(_)) | None => true,
    };
    let servers = state.servers.iter().filter(|server| of_server(server));
    let clients: Vec<&ClientSnapshot> =
        servers.flat_map(|server| &server.snapshot.clients).filter(is_meant).collect();
    let groups: Vec<&GroupLimits> = match target {
        None => state.groups.iter().collect(),
        Some(Target::Group(name)) => {
            state.groups.iter().filter(|group| group.name == *name).collect()
        }
        Some(_) => Vec::new(),
    };
    match target {
        Some(Target::Client(pid)) if clients.is_empty() => {
            bail!("there is no client {pid}: `openmps ps` lists the clients")
        }
        Some(Target::Server(pid)) if !state.servers.iter().any(|server| server.pid == *pid) => {
            bail!("there is no server {pid}: `openmps status` shows the servers")
        }
        Some(Target::Group(name)) if clients.is_empty() && groups.is_empty() => {
            bail!("group {name} has neither limits nor clients: `openmps limit` shows all groups")
        }
        _ => {}
    }
    let members = members(state, target);
    if format == Format::Json {
        print_json(Limits { clients, groups, members })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([
        "PID",
        "GROUP",
        "RESERVATION",
        "WEIGHT",
        "SM%",
        "DEVICE",
        "SMS",
        "MEMORY",
        "LIMIT",
    ]);
    for client in clients {
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".into());
        let cells = |device: String, sms: String, memory: String, limit: String| {
            [
                client.pid.to_string(),
                name(&client.group),
                name(&client.reservation),
                client.weight.to_string(),
                format!("{:.1}", client.active_thread_percentage),
                device,
                sms,
                memory,
                limit,
            ]
        };
        if client.devices.is_empty() {
            table.row(cells("-".into(), "-".into(), "-".into(), "-".into()));
        }
        for share in &client.devices {
            table.row(cells(
                share.device.to_string(),
                share.multiprocessors.to_string(),
                bytes(share.granted_bytes),
                share.memory_limit_bytes.map_or_else(|| "none".into(), bytes),
            ));
        }
    }
    table.print();
    if !groups.is_empty() {
        println!();
        let mut table = Table::new(["GROUP", "WEIGHT", "SM%", "DEVICE", "LIMIT"]);
        for group in groups {
            let share = group.percentage.map_or_else(|| "-".into(), |share| format!("{share:.1}"));
            let weight = group.weight.map_or_else(|| "-".into(), |weight| weight.to_string());
            let row = |device: String, limit: String| {
                [group.name.clone(), weight.clone(), share.clone(), device, limit]
            };
            if group.memory.is_empty() {
                table.row(row("-".into(), "none".into()));
            }
            for MemoryLimit { device, limit_bytes } in &group.memory {
                let device = device.map_or_else(|| "each".into(), |device| device.to_string());
                table.row(row(device, limit_bytes.map_or_else(|| "none".into(), bytes)));
            }
        }
        table.print();
    }
    if !members.is_empty() {
        println!();
        let mut table =
            Table::new(["MEMBERS OF", "SERVER", "DEVICE", "CLIENTS", "MEMORY", "LIMIT"]);
        for Members { server_pid, device, group } in members {
            table.row([
                group.name.clone(),
                server_pid.to_string(),
                device.to_string(),
                group.clients.to_string(),
                bytes(group.granted_bytes),
                group.memory_limit_bytes.map_or_else(|| "none".into(), bytes),
            ]);
        }
        table.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// `openmps reserve`.
///
/// # Errors
/// No daemon; what it refuses.
pub(crate) fn reserve(options: &Reserve) -> anyhow::Result<ExitCode> {
    let mut daemon = Frontend::connect(&Directories::from_environment())?;
    let request = match (&options.name, &options.release, options.sms) {
        (Some(name), None, Some(multiprocessors)) => {
            check_name(name)?;
            let device = options.device.unwrap_or(0);
            UiRequest::Reserve(Reservation { name: name.clone(), device, multiprocessors })
        }
        (Some(name), None, None) => {
            bail!("how many SMs? `openmps reserve {name} --sms 16`; without a name all are listed")
        }
        (None, Some(name), None) => UiRequest::Release { name: name.clone() },
        (None, None, None) => return show_reservations(&daemon.state()?, options.format()),
        _ => bail!("give either a name and --sms NUMBER, or --release NAME"),
    };
    let report = daemon.change_shares(&request)?;
    print_report(report.map_err(anyhow::Error::msg)?, options.format())
}

#[derive(Debug, Serialize)]
struct Reservations {
    reservations: Vec<Shown>,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    wanted: Reservation,
    /// What each server has made of it.
    servers: Vec<OfServer>,
}

#[derive(Debug, Serialize)]
struct OfServer {
    server_pid: u32,
    multiprocessors: u32,
    clients: u32,
}

fn show_reservations(state: &DaemonState, format: Format) -> anyhow::Result<ExitCode> {
    let shown = state.reservations.iter().map(|wanted| Shown {
        wanted: wanted.clone(),
        servers: state
            .servers
            .iter()
            .filter_map(|server| {
                let device = server.snapshot.devices.get(wanted.device as usize)?;
                let made = device.reservations.iter().find(|made| made.name == wanted.name)?;
                let ReservationSnapshot { multiprocessors, clients, .. } = made;
                let (multiprocessors, clients) = (*multiprocessors, *clients);
                Some(OfServer { server_pid: server.pid, multiprocessors, clients })
            })
            .collect(),
    });
    let reservations: Vec<Shown> = shown.collect();
    if format == Format::Json {
        print_json(Reservations { reservations })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["NAME", "DEVICE", "SMS", "CLIENTS"]);
    for Shown { wanted: Reservation { name, device, multiprocessors }, servers } in reservations {
        let made = servers.iter().map(|server| server.multiprocessors).max();
        let clients: u32 = servers.iter().map(|server| server.clients).sum();
        table.row([
            name,
            device.to_string(),
            made.unwrap_or(multiprocessors).to_string(),
            clients.to_string(),
        ]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}
