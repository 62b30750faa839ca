//! The service of the Debian package under a real systemd: booted as process 1 of a fresh Debian,
//! in name spaces of its own.
//!
//! Programs of two users run under the unit's daemon. What they computed, and that the daemon's
//! servers ran their kernels, is looked at here: see [`verify`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::fresh::{Fresh, Root, with_its_environment};
use crate::paths::Paths;

/// Makes the name spaces' mounts and becomes systemd.
const BOOT: &str = include_str!("deb_systemd/boot.sh");
/// What happens inside, as a service.
const SCRIPT: &str = include_str!("deb_systemd/script.sh");
const SERVICE: &str = include_str!("deb_systemd/openmps-check.service");
/// Longest that everything inside may take.
const LIMIT: &str = "240";
/// Until processes that were killed have left their control group.
const GROUP_LIMIT: Duration = Duration::from_secs(10);
/// Runs of the program that the script makes: two users one after the other, both at once, by a
/// group's and a profile's socket, and after a restart.
const RUNS: usize = 7;

/// Boots the fresh Debian and uses the service.
///
/// # Errors
/// What did not work inside.
pub(crate) fn check(paths: &Paths, archive: &Path, package: &Path) -> Result<Fresh> {
    let Some(own) = own_group() else {
        return Fresh::not_permitted("control groups of version 2 are not mounted");
    };
    let group = Group(own.join(format!("openmps-check-{}", std::process::id())));
    if let Err(error) = fs::create_dir(&group.0) {
        return Fresh::not_permitted(format!("cannot make {}: {error}", group.0.display()));
    }
    let root = Root::unpack(paths, archive, "booted", package)?;
    let inside = root.path.join("package");
    fs::write(inside.join("script.sh"), SCRIPT)?;
    fs::write(root.path.join("etc/systemd/system/openmps-check.service"), SERVICE)?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT, "sh", "-c", BOOT, "sh"]).arg(&root.path).arg(&group.0);
    let output = with_its_environment(&mut command)
        .stdin(Stdio::null())
        .output()
        .context("cannot start a shell")?;
    let read = |name: &str| fs::read_to_string(inside.join(name)).unwrap_or_default();
    ensure!(
        output.status.success() && read("result") == "right\n",
        "under systemd in a fresh Debian ({}), {}:\n{}{}{}",
        root.path.display(),
        output.status,
        read("said"),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let runs = verify(&inside)?;
    ensure!(runs == RUNS, "{runs} programs ran instead of {RUNS}");
    let said = format!("{}  {runs} programs were right and counted\n", read("said"));
    drop(group);
    root.remove()?;
    Ok(Fresh::Checked(said))
}

/// Every run of the program left `run-NAME`, with its process, its user and what it printed, and
/// `status-NAME`, what the daemon said then: the result must be right, and that very process must
/// have had a server of its user run its kernels. Returns the number of runs.
fn verify(inside: &Path) -> Result<usize> {
    let mut runs = 0;
    for entry in fs::read_dir(inside)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_prefix("run-") else { continue };
        let text = fs::read_to_string(&path)?;
        let mut lines = text.lines();
        let mut number = || lines.next()?.parse::<u64>().ok();
        let (pid, uid) = (number(), number());
        let (Some(pid), Some(uid)) = (pid, uid) else { bail!("run {name} printed:\n{text}") };
        ensure!(lines.any(|line| line.contains("vector_add: ok ")), "run {name} printed:\n{text}");
        let status: Value =
            serde_json::from_slice(&fs::read(inside.join(format!("status-{name}")))?)?;
        ensure!(counted(&status, pid, uid), "no server ran kernels of run {name}: {status:#}");
        runs += 1;
    }
    Ok(runs)
}

/// Whether a server that has left, of that process and user, had kernels.
fn counted(status: &Value, pid: u64, uid: u64) -> bool {
    let servers = status["servers"].as_array().into_iter().flatten();
    let of_user = servers.filter(|server| server["uid"] == uid);
    let mut departed =
        of_user.flat_map(|server| server["snapshot"]["departed"].as_array().into_iter().flatten());
    departed.any(|client| {
        client["pid"] == pid && client["uid"] == uid && client["kernels"].as_u64() > Some(0)
    })
}

/// The directory of this process's control group.
fn own_group() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut unified = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(unified.next()?.join(path))
}

/// A control group that goes with all in it.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        // Older kernels do not have that file: then what is left has ended with its name space.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let limit = Instant::now() + GROUP_LIMIT;
        while remove_groups(&self.0).is_err() && Instant::now() < limit {
            sleep(Duration::from_millis(50));
        }
    }
}

/// Groups are directories whose files cannot be removed.
fn remove_groups(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_groups(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The software GPU does without what these take away.
    #[test]
    fn no_option_of_the_unit_hides_a_gpu_or_stops_its_compiler() {
        const UNIT: &str = include_str!("../../packaging/systemd/openmps.service");
        // ProtectClock implies a list of devices, beyond which none can be opened.
        const HIDING: [&str; 6] = [
            "DeviceAllow",
            "DevicePolicy",
            "MemoryDenyWriteExecute",
            "PrivateDevices",
            "ProcSubset",
            "ProtectClock",
        ];
        let options: Vec<&str> =
            UNIT.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        assert!(options.contains(&"CapabilityBoundingSet"), "{options:?}");
        for option in HIDING {
            assert!(!options.contains(&option), "{option}");
        }
    }

    #[test]
    fn a_program_counts_where_its_users_server_ran_its_kernels() {
        let client = |kernels: u64| serde_json::json!({"pid": 7, "uid": 20001, "kernels": kernels});
        let status = |uid: u64, kernels: u64| serde_json::json!({"servers": [{"uid": uid, "snapshot": {"departed": [client(kernels)]}}]});
        assert!(counted(&status(20001, 1), 7, 20001));
        assert!(!counted(&status(20001, 0), 7, 20001));
        assert!(!counted(&status(20002, 1), 7, 20001));
        assert!(!counted(&status(20001, 1), 8, 20001));
        assert!(!counted(&serde_json::json!({"servers": []}), 7, 20001));
    }
}
