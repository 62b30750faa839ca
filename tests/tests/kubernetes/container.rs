//! Processes in a "container": the environment that the kubelet was told, and nothing of the test's
//! own; the mounts that it was told, in a mount namespace of their own where the system allows that
//! to whoever runs the tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use openmps_tests::{Puppet, Sandbox};

use crate::kubelet::Pod;

/// Binds each pair of paths, in the order host, container, read-only where the file system's own
/// options let whoever runs the tests do that; then becomes the program behind `--`.
const ENTER: &str = "\
while [ \"$1\" != -- ]; do mkdir -p \"$2\" && mount --bind \"$1\" \"$2\" || exit 99; mount -o remount,bind,ro \"$2\" 2>/dev/null; shift 2; done
shift; exec \"$@\"";

/// How processes get their mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounts {
    /// In a namespace.
    Namespace,
    /// Paths of the container in its environment are replaced by the host's.
    Replaced,
}

fn mounts() -> Mounts {
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-rm", "sh", "-c", "mount -t tmpfs none /mnt"]).output();
    match probe.is_ok_and(|output| output.status.success()) {
        true => Mounts::Namespace,
        false => Mounts::Replaced,
    }
}

/// Starts a puppet as the pod's container would; `variables` are what the container changes itself,
/// an empty value takes a variable away.
pub(crate) fn puppet_in(
    pod: &Pod,
    sandbox: &Sandbox,
    variables: &[(&str, &str)],
) -> Result<Puppet> {
    let program = sandbox.installation.puppet()?;
    let mut environment = pod.given.envs.clone();
    for (name, value) in variables {
        match value.is_empty() {
            true => drop(environment.remove(*name)),
            false => drop(environment.insert((*name).to_owned(), (*value).to_owned())),
        }
    }
    let mut command = match mounts() {
        Mounts::Namespace => {
            let mut command = Command::new("unshare");
            command.args(["-rm", "sh", "-c", ENTER, "sh"]);
            for mount in &pod.given.mounts {
                command.args([&mount.host_path, &mount.container_path]);
            }
            command.arg("--").arg(program);
            command
        }
        Mounts::Replaced => {
            for value in environment.values_mut() {
                for mount in &pod.given.mounts {
                    if *value == mount.container_path {
                        value.clone_from(&mount.host_path);
                    }
                }
            }
            Command::new(program)
        }
    };
    let path = std::env::var_os("PATH").context("no PATH")?;
    Puppet::spawn(command.env_clear().env("PATH", path).envs(environment))
}

/// A path that mounts of containers can be at.
pub(crate) fn mount_point(sandbox: &Sandbox, name: &str) -> String {
    let path: &Path = &sandbox.log_directory();
    path.join("container").join(name).display().to_string()
}
