//! `openmps move` and `openmps drain`: running clients go on on another GPU.

use std::process::ExitCode;

use anyhow::{bail, ensure};
use control::directories::Directories;
use control::frontend::Frontend;
use link::wire::shares::{ChangeReport, DeviceMove, Moved};
use link::wire::ui::{DaemonState, UiRequest};

use crate::cli::{Drain, Format, Move};
use crate::show::print_json;

/// `openmps move`.
///
/// # Errors
/// No daemon; a GPU that there is not; clients that there are not.
pub(crate) fn move_clients(options: &Move) -> anyhow::Result<ExitCode> {
    let mut daemon = Frontend::connect(&Directories::from_environment())?;
    let to = Some(device_of(&daemon.state()?, &options.to)?);
    let whom = match (options.pid, &options.group) {
        (Some(pid), _) => Moved::Process(pid),
        (None, Some(name)) => Moved::Group(name.clone()),
        (None, None) => bail!("who is to go? give --pid PID or --group NAME"),
    };
    let report = daemon.change_shares(&UiRequest::Move(DeviceMove { whom, to }))?;
    print_report(&report.map_err(anyhow::Error::msg)?, options.format())
}

/// `openmps drain`.
///
/// # Errors
/// No daemon; a GPU that there is not, or that is not drained.
pub(crate) fn drain(options: &Drain) -> anyhow::Result<ExitCode> {
    let mut daemon = Frontend::connect(&Directories::from_environment())?;
    let device = device_of(&daemon.state()?, &options.drained)?;
    let request = match options.undo {
        true => UiRequest::Undrain { device },
        false => UiRequest::Drain { device },
    };
    let report = daemon.change_shares(&request)?.map_err(anyhow::Error::msg)?;
    match (options.undo, options.format()) {
        (true, Format::Table) => {
            println!("programs that start use GPU {device} again");
            Ok(ExitCode::SUCCESS)
        }
        _ => print_report(&report, options.format()),
    }
}

/// The servers' number of a GPU: a number, or a UUID or its beginning.
fn device_of(state: &DaemonState, text: &str) -> anyhow::Result<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    ensure!(
        text.starts_with("GPU-"),
        "`{text}` is no GPU: give its number or its UUID, which `openmps status` shows"
    );
    let devices = state.servers.iter().flat_map(|server| (0..).zip(&server.snapshot.devices));
    let mut found: Vec<u32> =
        devices.filter(|(_, it)| it.uuid.starts_with(text)).map(|(number, _)| number).collect();
    found.sort_unstable();
    found.dedup();
    match found[..] {
        [number] => Ok(number),
        [] => bail!("there is no GPU {text}: `openmps status` shows the GPUs of servers that run"),
        _ => bail!("{text} is the beginning of several UUIDs: give more of it"),
    }
}

fn print_report(report: &ChangeReport, format: Format) -> anyhow::Result<ExitCode> {
    let ChangeReport { clients, waiting, refused } = report;
    match format {
        Format::Json => print_json(report)?,
        Format::Table => {
            println!("{} client(s) went to another GPU", clients.len());
            clients.iter().for_each(|pid| println!("client {pid}: there"));
            waiting.iter().for_each(|pid| println!("client {pid}: on its way"));
        }
    }
    refused.iter().for_each(|message| eprintln!("openmps: {message}"));
    let are_all_there = refused.is_empty() && waiting.is_empty();
    Ok(if are_all_there { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::{DeviceSnapshot, ServerSnapshot, ServerStatus};
    use link::wire::ui::ServerState;

    #[test]
    fn gpus_are_numbers_or_the_beginnings_of_uuids() {
        let device = |uuid: &str| DeviceSnapshot { uuid: uuid.into(), ..Default::default() };
        let devices = vec![device("GPU-abc1"), device("GPU-abd2")];
        let snapshot = ServerSnapshot { devices, ..Default::default() };
        let server =
            ServerState { pid: 3, uid: 5, status: ServerStatus::Active, snapshot, silent: false };
        let state = DaemonState {
            daemon_pid: 1,
            log_directory: None,
            servers: vec![server.clone(), server],
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: Vec::new(),
        };
        assert_eq!(device_of(&state, "7").unwrap(), 7);
        assert_eq!(device_of(&state, "GPU-abd").unwrap(), 1);
        for (text, said) in [("GPU-ab", "several"), ("GPU-x", "no GPU"), ("first", "no GPU")] {
            assert!(device_of(&state, text).unwrap_err().to_string().contains(said), "{text}");
        }
    }
}
