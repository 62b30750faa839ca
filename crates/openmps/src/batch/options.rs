//! Options of all commands for batch systems.

use std::path::PathBuf;

use clap::Args;

use super::MemoryRule;
use super::admission::Rules;
use super::daemon::Sharing;
use super::place::Place;

/// Where the node's files are.
#[derive(Debug, Args)]
pub(crate) struct PlaceOptions {
    /// Directory of what is known of jobs, and of the daemons' sockets; the same for all commands
    /// of a node.
    #[arg(long, value_name = "DIRECTORY", default_value = "/run/openmps/batch")]
    directory: PathBuf,
    /// Directory of the daemons' logs, one in it for each GPU.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/log/openmps")]
    log_directory: PathBuf,
}

impl PlaceOptions {
    /// The node's files.
    pub(crate) fn place(&self) -> Place {
        Place::new(&self.directory, &self.log_directory)
    }
}

/// How GPUs are shared.
#[derive(Debug, Args)]
pub(crate) struct RuleOptions {
    /// How users who share a GPU are kept apart.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Sharing::Isolated)]
    users: Sharing,
    /// Memory of jobs that share a GPU: at most as much of it as of the multiprocessors, or what
    /// they like.
    #[arg(long, value_enum, value_name = "RULE", default_value_t = MemoryRule::Share)]
    memory: MemoryRule,
}

impl RuleOptions {
    /// The rules.
    pub(crate) fn rules(&self) -> Rules {
        Rules { sharing: self.users, memory: self.memory }
    }
}
