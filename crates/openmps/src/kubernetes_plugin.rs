//! `openmps kubernetes`: what a node of Kubernetes runs. The work is the crate `kubernetes`'s.

use std::process::ExitCode;
use std::time::Duration;

use control::directories::Directories;

use crate::cli::{DevicePlugin, Kubernetes, KubernetesCommand};

/// `openmps kubernetes`.
///
/// # Errors
/// The plugin's.
pub(crate) fn kubernetes(options: Kubernetes) -> anyhow::Result<ExitCode> {
    let KubernetesCommand::DevicePlugin(options) = options.command;
    kubernetes::run(options.into())?;
    Ok(ExitCode::SUCCESS)
}

impl From<DevicePlugin> for kubernetes::Options {
    fn from(options: DevicePlugin) -> Self {
        kubernetes::Options {
            config: options.config,
            directories: Directories::from_environment(),
            plugin_directory: options.plugin_directory,
            pod_resources: options.pod_resources,
            sockets: options.sockets,
            state: options.state,
            daemon_interval: Duration::from_millis(options.daemon_interval_ms),
            list_interval: Duration::from_millis(options.list_interval_ms),
        }
    }
}
