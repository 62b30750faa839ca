//! `openmps socket`: sockets whose clients are of one group, for containers; and which are open.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use control::directories::Directories;
use control::frontend::Frontend;
use link::wire::group_socket::{GroupSocket, SocketDomain};
use link::wire::shares::{LimitChange, NewLimits, Target};
use link::wire::ui::UiRequest;
use serde::Serialize;

use crate::cli::{Format, Share, Socket};
use crate::shares::memory_limit;
use crate::show::{Table, print_json};

/// `openmps socket`.
///
/// # Errors
/// No daemon; what it refuses.
pub(crate) fn socket(options: &Socket) -> anyhow::Result<ExitCode> {
    let mut daemon = Frontend::connect(&Directories::from_environment())?;
    let request = match (&options.directory, &options.close) {
        (Some(directory), None) => {
            let socket = options.wanted(directory)?;
            socket.check()?;
            options.limit_group(&mut daemon, &socket.group)?;
            UiRequest::OpenSocket(socket)
        }
        (None, Some(directory)) => UiRequest::CloseSocket { directory: absolute(directory)? },
        (None, None) => return show(&mut daemon, options.format()),
        (Some(_), Some(_)) => bail!("give either a directory or --close DIRECTORY"),
    };
    daemon.change_shares(&request)?.map_err(anyhow::Error::msg)?;
    Ok(ExitCode::SUCCESS)
}

impl Socket {
    fn wanted(&self, directory: &Path) -> anyhow::Result<GroupSocket> {
        let group = self.group.clone().context("of which group? give --group NAME")?;
        Ok(GroupSocket {
            directory: absolute(directory)?,
            group,
            devices: self.gpu.clone(),
            domain: match self.share {
                Share::Server => SocketDomain::Server,
                Share::User => SocketDomain::User,
                Share::Group => SocketDomain::Group,
            },
            weight: self.weight,
        })
    }

    /// Before the socket is there, so that nobody comes in before the limits.
    fn limit_group(&self, daemon: &mut Frontend, group: &str) -> anyhow::Result<()> {
        let percentage = self.sm_percent.map(|percentage| percentage.percent());
        let memory = self.memory.map(|size| memory_limit(None, size));
        if percentage.is_none() && memory.is_none() {
            return Ok(());
        }
        let target = Target::Group(group.to_owned());
        let change = UiRequest::Limit(LimitChange {
            target,
            limits: NewLimits { percentage, memory, weight: None },
        });
        let report = daemon.change_shares(&change)?.map_err(anyhow::Error::msg)?;
        match report.refused.first() {
            Some(message) => bail!("{message}"),
            None => Ok(()),
        }
    }
}

fn absolute(directory: &Path) -> anyhow::Result<String> {
    let path: PathBuf = std::path::absolute(directory)?;
    path.into_os_string()
        .into_string()
        .map_err(|path| anyhow::anyhow!("{} is no text", path.display()))
}

#[derive(Debug, Serialize)]
struct Sockets {
    sockets: Vec<GroupSocket>,
}

fn show(daemon: &mut Frontend, format: Format) -> anyhow::Result<ExitCode> {
    let sockets = daemon.state()?.sockets;
    if format == Format::Json {
        print_json(Sockets { sockets })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["DIRECTORY", "GROUP", "SHARES", "WEIGHT", "GPUS"]);
    for GroupSocket { directory, group, devices, domain, weight } in sockets {
        let shares = match domain {
            SocketDomain::Server => "server",
            SocketDomain::User => "user",
            SocketDomain::Group => "group",
        };
        let gpus = if devices.is_empty() { "all".to_owned() } else { devices.join(",") };
        table.row([directory, group, shares.to_owned(), weight.unwrap_or(1).to_string(), gpus]);
    }
    table.print();
    Ok(ExitCode::SUCCESS)
}
