//! Containers of a test: crun in a bundle that is made as container engines make it, with the edits
//! of a container device specification.
//!
//! A container has a PID, mount, network, IPC, UTS, control group and user namespace of its own, no
//! `/dev/shm`, no device node of a GPU, a root that is mounted read-only, and nothing of the host's
//! but what the specification mounts. What a machine does not allow is said by [`Engine::find`].

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::{self, PATIENCE};
use crate::{Installation, Puppet, Sandbox, executable, process};

/// Joins a control group, shows crun a unified hierarchy alone (it refuses to run with controllers
/// in both kinds), and becomes crun.
const WRAPPER: &str = r#"
set -e
if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs"; fi
shift
if grep -q ' /sys/fs/cgroup tmpfs' /proc/mounts; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi
exec "$@"
"#;
/// What Docker's default filter denies to root of a container, of what could reach into other
/// processes.
const DENIED: [&str; 12] = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "userfaultfd",
    "io_uring_setup",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "open_by_handle_at",
    "pidfd_getfd",
];
/// What Docker lets root of a container do.
const USUAL_POWERS: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_NET_RAW",
    "CAP_SYS_CHROOT",
    "CAP_MKNOD",
    "CAP_AUDIT_WRITE",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
];
/// What else root of a user namespace can have there.
const ALL_POWERS: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RAWIO",
    "CAP_NET_ADMIN",
    "CAP_IPC_OWNER",
    "CAP_SYS_RESOURCE",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];
/// Where loaders of Debian look.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// crun under the build directory, as `cargo xtask programs` unpacks it.
const NAME: &str = "containers";

/// Runs containers, all from one directory of a root file system.
#[derive(Debug)]
pub struct Engine {
    crun: PathBuf,
    tools: PathBuf,
    directory: TempDir,
    /// A place for control groups of the unified hierarchy, where there is one that can be written.
    groups: Option<PathBuf>,
    made: Cell<u32>,
}

/// Who root of a container is outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A user of a user namespace; without root's power to choose one, this process's own user.
    Mapped(u32),
    /// Root itself: there is no user namespace, as Docker has it unless told.
    Root,
}

/// Which processes a container sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// Its own.
    Own,
    /// All of the machine; it has all powers in its user namespace, and no system call is denied.
    All,
}

/// A container that is to run.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Its root.
    pub user: User,
    /// What it sees.
    pub processes: Processes,
    /// The specification of `openmps cdi`.
    pub specification: &'a Value,
    /// One of its devices.
    pub device: &'a str,
    /// More variables.
    pub variables: &'a [(&'a str, &'a str)],
}

/// A container. Dropping it ends all that runs in it.
#[derive(Debug)]
pub struct Container<'a> {
    engine: &'a Engine,
    id: String,
    bundle: PathBuf,
    group: Option<PathBuf>,
}

impl Engine {
    /// Looks for crun, makes a root file system with the programs, and tries whether this machine
    /// lets it run anything.
    ///
    /// # Errors
    /// Why there can be no containers.
    pub fn find(installation: &Installation, programs: &[PathBuf]) -> Result<Self> {
        let tools = installation.debian(NAME);
        let crun = tools.join("usr/bin/crun");
        ensure!(crun.exists(), "there is no {}: `cargo xtask programs` fetches it", crun.display());
        let directory = tempfile::Builder::new().prefix("openmps-containers-").tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let engine = Self { crun, tools, directory, groups: groups(), made: Cell::new(0) };
        for program in programs.iter().map(PathBuf::as_path).chain([Path::new("/bin/true")]) {
            engine.install(program)?;
        }
        // The container gets the client library from outside, and the C library from its image.
        engine.install_libraries_of(&installation.client_directory().join("libcuda.so.1"))?;
        for inside in ["dev", "proc", "tmp"] {
            fs::create_dir_all(engine.root().join(inside))?;
        }
        engine.try_one()?;
        Ok(engine)
    }

    /// Whether containers can have control groups of their own.
    pub fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// Copies a program with the libraries that it is linked with.
    fn install(&self, program: &Path) -> Result<()> {
        self.install_libraries_of(program)?;
        self.copy(program, Path::new("bin"))
    }

    fn install_libraries_of(&self, file: &Path) -> Result<()> {
        let listed = process::run(Command::new("ldd").arg(file), PATIENCE)?;
        let files = listed.success()?.split_whitespace().filter(|word| word.starts_with('/'));
        for library in files.map(Path::new) {
            let name = library.file_name().context("a library without a name")?;
            let is_loader = name.to_string_lossy().starts_with("ld-linux");
            self.copy(library, Path::new(if is_loader { "lib64" } else { LIBRARIES }))?;
        }
        Ok(())
    }

    fn copy(&self, file: &Path, to: &Path) -> Result<()> {
        let directory = self.root().join(to);
        fs::create_dir_all(&directory)?;
        let target = directory.join(file.file_name().context("a file without a name")?);
        if !target.exists() {
            executable::copy(file, &target)?;
        }
        Ok(())
    }

    fn try_one(&self) -> Result<()> {
        let nothing = json!({"devices": [{"name": "none", "containerEdits": {}}]});
        let (device, variables) = ("none", &[][..]);
        let user = User::Mapped(FIRST_USER);
        let plan =
            Plan { user, processes: Processes::Own, specification: &nothing, device, variables };
        let container = self.container(&plan, "/bin/true")?;
        let finished = process::run(&mut container.run(), PATIENCE)?;
        finished.success().context("this machine does not let crun make a container")?;
        Ok(())
    }

    /// Prepares a container whose first process is `program`.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn container(&self, plan: &Plan<'_>, program: &str) -> Result<Container<'_>> {
        self.made.set(self.made.get() + 1);
        // The directory's name is nobody else's.
        let own = self.directory.path().file_name().unwrap_or_default().to_string_lossy();
        let id = format!("{own}-{}", self.made.get());
        let bundle = self.directory.path().join(&id);
        fs::create_dir(&bundle)?;
        let edits = edits(plan.specification, plan.device)?;
        for mount in &edits.mounts {
            self.make_mount_point(mount)?;
        }
        let configuration = self.configuration(plan, program, &edits);
        fs::write(bundle.join("config.json"), configuration.to_string())?;
        let group = self.groups.as_ref().map(|groups| groups.join(&id));
        if let Some(group) = &group {
            fs::create_dir(group).with_context(|| format!("cannot make {}", group.display()))?;
        }
        Ok(Container { engine: self, id, bundle, group })
    }

    /// As engines do in an image, whose root a container's user may not write.
    fn make_mount_point(&self, mount: &Value) -> Result<()> {
        let path = |name: &str| mount[name].as_str().context("a mount without a path");
        let (from, to) = (Path::new(path("source")?), path("destination")?.trim_start_matches('/'));
        let inside = self.root().join(to);
        if from.is_dir() {
            fs::create_dir_all(inside)?;
        } else if !inside.exists() {
            fs::create_dir_all(inside.parent().context("no directory")?)?;
            fs::write(inside, "")?;
        }
        Ok(())
    }

    fn configuration(&self, plan: &Plan<'_>, program: &str, edits: &Edits) -> Value {
        let mut namespaces = vec!["mount", "network", "ipc", "uts", "cgroup"];
        let mut denied = Vec::new();
        let mut powers = ALL_POWERS;
        if plan.processes == Processes::Own {
            namespaces.push("pid");
            powers = USUAL_POWERS;
            denied.push(json!({"names": DENIED, "action": "SCMP_ACT_ERRNO"}));
        }
        let mut mapping = json!([]);
        if let User::Mapped(uid) = plan.user {
            namespaces.push("user");
            let (id, size) =
                if geteuid().is_root() { (uid, 1000) } else { (geteuid().as_raw(), 1) };
            mapping = json!([{"containerID": 0, "hostID": id, "size": size}]);
        }
        let namespaces: Vec<Value> = namespaces.iter().map(|kind| json!({"type": kind})).collect();
        let mut env = vec!["PATH=/bin".to_owned()];
        env.extend(edits.env.iter().cloned());
        env.extend(plan.variables.iter().map(|(name, value)| format!("{name}={value}")));
        let mut mounts = vec![json!({"destination": "/proc", "type": "proc", "source": "proc"})];
        if plan.processes == Processes::All {
            mounts = vec![json!({"destination": "/proc", "source": "/proc", "options": ["rbind"]})];
        }
        let size = ["nosuid", "mode=755", "size=64k"];
        mounts.push(
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": size}),
        );
        mounts.extend(edits.mounts.iter().cloned());
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": false, "user": {"uid": 0, "gid": 0}, "args": [program], "env": env,
                "cwd": "/", "noNewPrivileges": true,
                "capabilities": {"bounding": powers, "effective": powers, "permitted": powers}
            },
            "root": {"path": self.root(), "readonly": true},
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces, "uidMappings": mapping, "gidMappings": mapping,
                "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": denied}
            }
        })
    }
}

/// Root of a container is this user where the machine lets us choose; others follow.
pub const FIRST_USER: u32 = 100_001;

/// A directory of the unified hierarchy in which this process can make control groups and end them.
fn groups() -> Option<PathBuf> {
    let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
    let mount = mounts.into_iter().find(|at| at.join("cgroup.controllers").exists())?;
    let tried = tempfile::Builder::new().prefix("openmps-try-").tempdir_in(&mount).ok()?.keep();
    let can_kill = tried.join("cgroup.kill").exists();
    // Not as a tree of files, which the kernel's are not.
    let _ = fs::remove_dir(&tried);
    can_kill.then_some(mount)
}

/// What a specification does to a container, as SPEC.md of the CDI has it: the edits of all
/// devices, then those of this one.
struct Edits {
    env: Vec<String>,
    /// In the words of OCI.
    mounts: Vec<Value>,
}

fn edits(specification: &Value, device: &str) -> Result<Edits> {
    let devices = specification["devices"].as_array().context("no devices")?;
    let device = devices.iter().find(|known| known["name"] == device).context("no such device")?;
    let (mut env, mut mounts) = (Vec::new(), Vec::new());
    for edits in [&specification["containerEdits"], &device["containerEdits"]] {
        let list = |name: &str| edits[name].as_array().cloned().unwrap_or_default();
        env.extend(list("env").iter().filter_map(|one| one.as_str().map(str::to_owned)));
        for mount in list("mounts") {
            mounts.push(json!({
                "source": mount["hostPath"], "destination": mount["containerPath"],
                "options": mount["options"]
            }));
        }
        ensure!(
            list("hooks").is_empty() && list("deviceNodes").is_empty(),
            "only a mount is needed"
        );
    }
    Ok(Edits { env, mounts })
}

impl Container<'_> {
    /// Its first process; standard input and output are its own.
    pub fn run(&self) -> Command {
        let mut command = self.crun();
        command.args(["run", "--bundle"]).arg(&self.bundle).arg(&self.id);
        command
    }

    /// A further process in it, once the first runs.
    pub fn exec(&self, program: &[&str]) -> Command {
        let mut command = self.crun();
        command.args(["exec", &self.id]).args(program);
        command
    }

    /// [`Self::run`] as a puppet.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn puppet(&self) -> Result<Puppet> {
        Puppet::spawn(&mut self.run())
    }

    /// Its control group as `/proc/PID/cgroup` has it outside.
    pub fn group(&self) -> Option<String> {
        self.group.as_ref().map(|_| format!("/{}", self.id))
    }

    /// Ends all of its processes at once: by its control group, or by its first process.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&self) -> Result<()> {
        match &self.group {
            Some(group) => fs::write(group.join("cgroup.kill"), "1").context("cgroup.kill"),
            None => {
                let mut kill = self.crun();
                process::run(kill.args(["kill", &self.id, "KILL"]), PATIENCE)?.success()?;
                Ok(())
            }
        }
    }

    fn crun(&self) -> Command {
        let engine = self.engine;
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command = Command::new("sh");
        } else {
            command.args(["--mount", "sh"]);
        }
        let group = self.group.as_deref().unwrap_or(Path::new(""));
        command.args(["-c", WRAPPER, "sh"]).arg(group).arg(&engine.crun);
        command.arg("--cgroup-manager=disabled").arg("--root");
        command.arg(engine.directory.path().join("state"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LD_LIBRARY_PATH", engine.tools.join(LIBRARIES));
        command
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let mut delete = self.crun();
        // Nothing is there any more if it has ended by itself.
        let _ = process::run(delete.args(["delete", "--force", &self.id]), PATIENCE);
        if let Some(group) = &self.group {
            let _ = fs::write(group.join("cgroup.kill"), "1");
            let _ = wait::until("the control group is empty", PATIENCE, || {
                fs::remove_dir(group).is_ok() || !group.exists()
            });
        }
    }
}

/// What `openmps cdi` prints in a sandbox.
///
/// # Errors
/// When it fails.
pub fn specification(sandbox: &Sandbox, variables: &[(&str, &str)]) -> Result<Value> {
    let mut command = sandbox.command(sandbox.installation.openmps(), crate::Runtime::OpenMps);
    let finished = process::run(command.arg("cdi").envs(variables.iter().copied()), PATIENCE)?;
    let Ok(specification) = serde_json::from_str(finished.success()?) else {
        bail!("not understood: {}", finished.stdout)
    };
    Ok(specification)
}
