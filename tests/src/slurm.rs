//! A real Slurm for one test: the bed of `testbeds/slurm`, with a copy of the product that all
//! users can read.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Installation, executable, process, wait};

/// For all jobs of a test, on a machine that is busy.
pub const JOBS_LIMIT: Duration = Duration::from_secs(300);
/// For one of Slurm's commands.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Users that every Linux has, without files or processes of their own.
const USERS: [&str; 2] = ["daemon", "games"];
/// On systems that have not.
const OTHER_USERS: [&str; 2] = ["bin", "nobody"];

/// A user whose jobs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// In `/etc/passwd`.
    pub name: String,
    uid: u32,
    gid: u32,
}

/// Slurm, with two nodes. Dropping it ends all that it has started.
#[derive(Debug)]
pub struct Bed {
    directory: TempDir,
    /// Two users.
    pub users: [User; 2],
}

/// What Slurm says of a job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `COMPLETED`, `FAILED`, `CANCELLED`.
    pub state: String,
    /// Its script's exit status.
    pub status: String,
    /// What it wrote.
    pub output: String,
}

/// Runs a test as root: in a namespace of users where we are not, if the kernel and the system
/// allow it; else says why not, and goes on.
///
/// # Errors
/// The test's.
pub fn as_root(test: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return run();
    }
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--map-auto", "--"]).args(words);
        command
    };
    // Jobs of two users need more than one number, which /etc/subuid gives.
    let possible = process::run(&mut unshare(&["true"]), COMMAND_LIMIT);
    if let Err(why) = possible.and_then(|ended| ended.success().map(drop)) {
        eprintln!(
            "skipped: Slurm runs jobs as their users, for which this test must be root: {why:#}"
        );
        return Ok(());
    }
    let ours = env::current_exe()?;
    let ours = ours.to_str().context("this test's path is no text")?;
    let mut again = unshare(&[ours, "--exact", test, "--nocapture"]);
    let ended = process::run(&mut again, JOBS_LIMIT * 2)?;
    eprint!("{}{}", ended.stdout, ended.stderr);
    ended.success().map(drop)
}

impl Bed {
    /// Starts Slurm; nothing, where this system has no packages of it (`cargo xtask slurm` says
    /// why).
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> Result<Option<Self>> {
        let installation = Installation::find()?;
        let slurm = installation.debian("slurm");
        if !slurm.exists() {
            eprintln!("skipped: {} is missing: cargo xtask slurm says why", slurm.display());
            return Ok(None);
        }
        let directory = tempfile::Builder::new().prefix("openmps-slurm-").tempdir()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let log = directory.path().join("log");
        fs::create_dir(&log)?;
        fs::set_permissions(&log, Permissions::from_mode(0o1777))?;
        let bed = Self { directory, users: users()? };
        bed.install(&installation)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbeds/slurm/up.sh");
        let mut up = bed.command(&script);
        up.arg(bed.path()).arg(bed.path().join("openmps")).env("SLURM_ROOT", slurm);
        let plugin = bed.path().join("openmps/lib/openmps/spank_openmps.so");
        process::run(up.env("SPANK", plugin), COMMAND_LIMIT)?.success()?;
        Ok(Some(bed))
    }

    /// Copies what jobs run: the checkout may be closed to other users.
    fn install(&self, installation: &Installation) -> Result<()> {
        let (bin, lib) = (self.path().join("openmps/bin"), self.path().join("openmps/lib"));
        for directory in [&bin, &lib.join("openmps"), &lib.join("softcuda")] {
            fs::create_dir_all(directory)?;
        }
        executable::copy(&installation.openmps(), &bin.join("openmps"))?;
        for library in ["libcuda.so.1", "libsoftcuda.so", "spank_openmps.so"] {
            let from = installation.client_directory().join(library);
            executable::copy(&from, &lib.join("openmps").join(library))?;
        }
        symlink("../openmps/libsoftcuda.so", lib.join("softcuda/libcuda.so.1"))?;
        executable::copy(&installation.puppet()?, &self.path().join("puppet"))?;
        let multiprocessors = installation.program("driver-api", "multiprocessors");
        executable::copy(&multiprocessors, &self.path().join("multiprocessors"))
    }

    /// Its directory: readable by all users, `log` writable.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The driver that all hooks name.
    pub fn driver(&self) -> PathBuf {
        self.path().join("openmps/lib/openmps/libsoftcuda.so")
    }

    /// A program, with Slurm's in its path and nothing of ours in its environment.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path().join("bin").display());
        let path = match env::var("PATH") {
            Ok(rest) => format!("{path}:{rest}"),
            Err(_) => path,
        };
        command.env_clear().env("PATH", path).env("HOME", "/").current_dir(self.path().join("log"));
        command
    }

    /// One of Slurm's commands, as root or as a user; its standard output.
    ///
    /// # Errors
    /// When it fails; the message has what it said.
    pub fn slurm(&self, user: Option<&User>, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("no command")?;
        let mut command = self.command(&self.path().join("bin").join(program));
        command.args(arguments);
        if let Some(user) = user {
            command.uid(user.uid).gid(user.gid);
        }
        Ok(process::run(&mut command, COMMAND_LIMIT)?.success()?.trim().to_owned())
    }

    /// Submits a script of `sh`; returns the job's number. `BED` in it is the bed's directory.
    ///
    /// # Errors
    /// When Slurm refuses it.
    pub fn submit(&self, user: &User, options: &[&str], script: &str) -> Result<String> {
        let bed = self.path().to_str().context("the bed's path is no text")?;
        let script = script.replace("BED", bed);
        let mut words = vec!["sbatch", "--parsable", "--output=%A.out", "--wrap", &script];
        words.extend(options);
        self.slurm(Some(user), &words)
    }

    /// Waits until no job runs or waits, their epilogs included.
    ///
    /// # Errors
    /// When some do after [`JOBS_LIMIT`].
    pub fn wait_for_jobs(&self) -> Result<()> {
        let mut left = String::new();
        let done = wait::until("all jobs have ended", JOBS_LIMIT, || {
            left = self.slurm(None, &["squeue", "-h"]).unwrap_or_else(|error| format!("{error:#}"));
            left.is_empty()
        });
        done.with_context(|| format!("{left}\n{}", self.logs()))
    }

    /// What became of a job that has ended.
    ///
    /// # Errors
    /// When Slurm does not know it.
    pub fn ended(&self, job: &str) -> Result<Ended> {
        let said = self.slurm(None, &["scontrol", "-o", "show", "job", job])?;
        let field = |name: &str| {
            let mut words = said.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned()
        };
        let output = fs::read_to_string(self.path().join(format!("log/{job}.out")));
        Ok(Ended {
            state: field("JobState="),
            status: field("ExitCode="),
            output: output.unwrap_or_default(),
        })
    }

    /// Waits until a job has written this.
    ///
    /// # Errors
    /// When it does not.
    pub fn wait_for_output(&self, job: &str, text: &str) -> Result<()> {
        let path = self.path().join(format!("log/{job}.out"));
        let written = || fs::read_to_string(&path).unwrap_or_default();
        wait::until("the job has written what it should", JOBS_LIMIT, || written().contains(text))
            .with_context(|| format!("job {job}: {}\n{}", written(), self.logs()))
    }

    /// The reason for which a node is drained; empty when it is not.
    ///
    /// # Errors
    /// When Slurm does not answer.
    pub fn drained(&self, node: &str) -> Result<String> {
        let said = self.slurm(None, &["scontrol", "-o", "show", "node", node])?;
        let state = said.split_whitespace().find_map(|word| word.strip_prefix("State="));
        if !state.context("a node has a state")?.contains("DRAIN") {
            return Ok(String::new());
        }
        Ok(said.split_once("Reason=").map_or("no reason", |(_, reason)| reason).to_owned())
    }

    /// Puts a node back into service.
    ///
    /// # Errors
    /// When Slurm refuses.
    pub fn resume(&self, node: &str) -> Result<()> {
        let node = format!("NodeName={node}");
        self.slurm(None, &["scontrol", "update", &node, "State=RESUME"]).map(drop)
    }

    /// Lines of `log/hooks` that begin with this word: one for each call of a prolog, an epilog or
    /// their scontrol.
    pub fn hooks(&self, word: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.path().join("log/hooks")).unwrap_or_default();
        let lines = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|words| words.first().is_some_and(|first| first == word)).collect()
    }

    /// How often daemons were started on a node.
    pub fn daemons_started(&self, node: &str) -> usize {
        let log = self.path().join("log").join(node);
        let gpus = fs::read_dir(log).into_iter().flatten().flatten();
        let logs = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("control.log")).ok());
        logs.map(|log| log.matches("Starting control daemon").count()).sum()
    }

    /// Checks that nothing is left of any job: no process of ours, no directory, no drained node.
    ///
    /// # Errors
    /// What is left.
    pub fn nothing_is_left(&self) -> Result<()> {
        for node in ["node0", "node1"] {
            let reason = self.drained(node)?;
            ensure!(reason.is_empty(), "{node} is drained: {reason}\n{}", self.logs());
            let run = self.path().join("run").join(node);
            let mut left = names(&run);
            left.retain(|name| name != "jobs" && name != "gpus");
            left.extend(names(&run.join("jobs")));
            ensure!(left.is_empty(), "left on {node}: {left:?}\n{}", self.logs());
        }
        let ours = self.processes(|executable| {
            executable.starts_with(self.path()) && !executable.starts_with(self.path().join("bin"))
        });
        ensure!(ours.is_empty(), "processes are left: {ours:?}\n{}", self.logs());
        Ok(())
    }

    /// The ends of the logs, for a test that failed.
    pub fn logs(&self) -> String {
        const LINES: usize = 25;
        let mut shown = String::new();
        for log in ["slurmctld.log", "slurmd-node0.log", "slurmd-node1.log", "hooks"] {
            let text = fs::read_to_string(self.path().join("log").join(log)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("pmix")).collect();
            let last = &lines[lines.len().saturating_sub(LINES)..];
            shown.push_str(&format!("--- {log}\n{}\n", last.join("\n")));
        }
        shown
    }

    /// Processes of this bed, by their executables.
    fn processes(&self, wanted: impl Fn(&Path) -> bool) -> Vec<(Pid, PathBuf)> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let process = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let executable = fs::read_link(entry.path().join("exe")).ok()?;
            wanted(&executable).then_some((pid, executable))
        };
        entries.filter_map(process).collect()
    }

    /// Processes in whose environment the bed is.
    fn descendants(&self) -> Vec<Pid> {
        let mark = self.path().as_os_str().as_encoded_bytes().to_vec();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let process = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            environment.windows(mark.len()).any(|part| part == mark).then_some(pid)
        };
        entries.filter_map(process).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbeds/slurm/down.sh");
        let _ = process::run(self.command(&script).arg(self.path()), COMMAND_LIMIT);
        // Twice, for children that a process started while the list was read.
        for _ in 0..2 {
            for pid in self.descendants() {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Two users of this system.
fn users() -> Result<[User; 2]> {
    let text = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let user = |wanted: &str| {
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            match fields.as_slice() {
                [name, _, uid, gid, ..] if *name == wanted => Some(User {
                    name: (*name).to_owned(),
                    uid: uid.parse().ok()?,
                    gid: gid.parse().ok()?,
                }),
                _ => None,
            }
        })
    };
    let mut found = USERS.iter().chain(&OTHER_USERS).filter_map(|name| user(name));
    let (one, other) = (found.next(), found.next());
    Ok([one.context("no user for jobs")?, other.context("no second user for jobs")?])
}
