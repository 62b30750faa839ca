//! What the recipe of NVIDIA's MPS guide calls on a node: `id`, `nvidia-smi`, `start_server`,
//! `logger`, `pbsnodes`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use control::directories::Directories;
use control::frontend::Frontend;

use crate::batch::bounded;
use crate::batch::gpus::Gpus;

/// Each of these programs answers within seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// `CUcomputemode`, by nvidia-smi's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One: the executor.
    ExclusiveProcess,
}

/// Whether the node is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offline {
    Yes,
    No,
}

/// This node's name.
pub(super) fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The number of a user.
pub(super) fn uid_of(user: &str) -> anyhow::Result<u32> {
    let said = output(Command::new("id").args(["-u", "--", user]))
        .map_err(|why| anyhow!("there is no user {user}: {why}"))?;
    said.trim().parse().with_context(|| format!("`id -u {user}` says {said:?}"))
}

/// Says who may use GPUs.
pub(super) fn set_compute_mode(gpus: &Gpus, mode: ComputeMode) -> anyhow::Result<()> {
    let mode = match mode {
        ComputeMode::Default => "DEFAULT",
        ComputeMode::ExclusiveProcess => "EXCLUSIVE_PROCESS",
    };
    let mut command = Command::new("nvidia-smi");
    command.args(["-i", &gpus.to_string(), "-c", mode]);
    output(&mut command).map_err(|why| anyhow!("nvidia-smi -c {mode}: {why}"))?;
    Ok(())
}

/// Starts a user's server, so that the job's first program does not wait for it.
pub(super) fn start_server(directories: &Directories, uid: u32) -> anyhow::Result<()> {
    let answer = Frontend::connect(directories)?.command(&format!("start_server -uid {uid}"))?;
    if !answer.error.is_empty() {
        bail!("start_server -uid {uid}: {}", answer.error.trim());
    }
    Ok(())
}

/// Takes this node out of service, and says why in the system's log.
pub(super) fn mark_offline(pbsnodes: &Path, reason: &str) -> Offline {
    eprintln!("openmps: {reason}");
    let name = name();
    let logged = output(Command::new("logger").args(["-t", "openmps", "--", reason]));
    if let Err(why) = logged {
        eprintln!("openmps: logger: {why}");
    }
    match output(Command::new(pbsnodes).args(["-o", "-N", reason, &name])) {
        Ok(_) => Offline::Yes,
        Err(why) => {
            eprintln!("openmps: {} cannot mark {name} offline: {why}", pbsnodes.display());
            Offline::No
        }
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    bounded::run(command, LIMIT).map_err(|error| error.to_string())?.success()
}
