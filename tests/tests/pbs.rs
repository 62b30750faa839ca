//! Prologue and epilogue of Torque jobs, called as Torque calls them: with its arguments, positions
//! 1 to 10, and little environment.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use openmps_tests::executable;
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

const JOB: &str = "12.head";

/// A node with Torque's programs, which note how they are called.
struct Node {
    sandbox: Sandbox,
    user: String,
}

impl Node {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let bin = sandbox.log_directory().join("bin");
        fs::create_dir(&bin)?;
        let calls = sandbox.log_directory().join("calls");
        for program in ["pbsnodes", "logger", "nvidia-smi"] {
            let script = format!("#!/bin/sh\necho {program} \"$@\" >> {}\n", calls.display());
            executable::write(&bin.join(program), &script)?;
        }
        let user = process::run(Command::new("id").arg("-un"), PATIENCE)?;
        let user = user.success()?.trim().to_owned();
        Ok(Self { sandbox, user })
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.sandbox.log_directory().join("calls")).unwrap_or_default()
    }

    fn directory(&self) -> PathBuf {
        self.sandbox.pipe_directory().join("batch")
    }

    fn command(&self, words: &[&str]) -> Command {
        let openmps = self.sandbox.installation.openmps();
        let mut command = self.sandbox.command(openmps, Runtime::Softcuda);
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.sandbox.log_directory().join("bin").display());
        command.env("PATH", path).args(words).arg("--directory").arg(self.directory());
        command.arg("--log-directory").arg(self.sandbox.log_directory());
        command
    }

    fn script(&self, script: &str, options: &[&str], arguments: &[&str]) -> Result<Finished> {
        process::run(self.command(&["pbs", script]).args(options).args(arguments), PATIENCE)
    }

    /// Positions 1 to 7.
    fn prologue(&self, options: &[&str], account: &str) -> Result<Finished> {
        let arguments = [JOB, &self.user, "users", "test", "ncpus=1,walltime=60", "batch", account];
        self.script("prologue", options, &arguments)
    }

    /// Positions 1 to 10.
    fn epilogue(&self, options: &[&str], account: &str) -> Result<Finished> {
        let (requested, used) = ("ncpus=1,walltime=60", "cput=00:00:01,mem=0kb");
        let user = &self.user;
        let arguments =
            [JOB, user, "users", "test", "4711", requested, used, "batch", account, "0"];
        self.script("epilogue", options, &arguments)
    }

    /// What a job's shell does.
    fn shell(&self, script: &str) -> Command {
        let openmps = self.sandbox.installation.openmps();
        let ours = self.directory();
        let profile = format!(
            "eval \"$({} pbs environment --directory {})\"; {script}",
            openmps.display(),
            ours.display()
        );
        let mut command = self.sandbox.command("/bin/sh", Runtime::Softcuda);
        command.args(["-c", &profile]).env("PBS_JOBID", JOB).env_remove("CUDA_MPS_PIPE_DIRECTORY");
        command
    }

    /// Processes in whose environment the node's directory is: its daemons, their servers and
    /// clients.
    fn processes(&self) -> Vec<Pid> {
        let mark = self.directory().into_os_string().into_encoded_bytes();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let process = |entry: fs::DirEntry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            environment.windows(mark.len()).any(|part| part == mark).then_some(pid)
        };
        entries.filter_map(process).collect()
    }

    /// Jobs and daemons that the node has.
    fn left(&self) -> Vec<String> {
        let names = |directory: PathBuf| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        let of_gpus = names(self.directory()).filter(|name| name.starts_with("gpu-"));
        of_gpus.chain(names(self.directory().join("jobs"))).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn a_job_that_does_not_ask_is_left_alone() -> Result<()> {
    let node = Node::new()?;
    for account in ["", "physics", "MPS=false"] {
        node.prologue(&[], account)?.success()?;
        node.epilogue(&[], account)?.success()?;
    }
    // Even where nothing would work.
    let arguments = [JOB, &node.user, "users", "test", "ncpus=1", "batch", "physics"];
    let mut broken = node.command(&["pbs", "prologue"]);
    broken
        .args(arguments)
        .env("OPENMPS_NATIVE_DRIVER", "/nowhere")
        .env("OPENMPS_CONFIG", "/nowhere");
    process::run(&mut broken, PATIENCE)?.success()?;
    let printed = process::run(&mut node.shell("echo \"[$CUDA_MPS_PIPE_DIRECTORY]\""), PATIENCE)?;
    ensure!(printed.success()? == "[]\n", "{printed:?}");
    ensure!(
        node.left().is_empty() && node.calls().is_empty(),
        "{:?} {}",
        node.left(),
        node.calls()
    );
    Ok(())
}

#[test]
fn a_job_that_asks_for_mps_gets_it_and_nothing_stays() -> Result<()> {
    let node = Node::new()?;
    let exclusive = ["--exclusive"];
    let account = "physics,MPS=true,sm-percent=25,memory=512M";
    // Torque may call a prologue again.
    for _ in 0..2 {
        node.prologue(&exclusive, account)?.success().with_context(|| node.calls())?;
    }
    let program = node.sandbox.installation.program("driver-api", "multiprocessors");
    let ended = process::run(&mut node.shell(&program.display().to_string()), PATIENCE)?;
    ensure!(ended.success()?.starts_with("primary: 20 SMs; kernels ran on 20 "), "{ended:?}");
    // A client that outlives its job.
    let puppet = node.sandbox.installation.puppet()?;
    let mut zombie = Puppet::spawn(&mut node.shell(&format!("exec {}", puppet.display())))?;
    zombie.must("open")?;
    let free: u64 = zombie.ask("free-bytes")?.parse()?;
    ensure!((256 << 20..=512 << 20).contains(&free), "{free}");
    for _ in 0..2 {
        node.epilogue(&exclusive, account)?.success().with_context(|| node.calls())?;
    }
    ensure!(zombie.ask("work 1").is_err(), "it was killed");
    drop(zombie);
    ensure!(node.left().is_empty(), "{:?}", node.left());
    ensure!(node.processes().is_empty(), "{:?}", node.processes());
    let (before, after) =
        ("nvidia-smi -i 0 -c EXCLUSIVE_PROCESS\n", "nvidia-smi -i 0 -c DEFAULT\n");
    let calls = [before, before, after, after].concat();
    ensure!(node.calls() == calls, "{}", node.calls());
    Ok(())
}

#[test]
fn the_jobs_mistake_aborts_it_and_the_nodes_takes_the_node_out_of_service() -> Result<()> {
    let node = Node::new()?;
    let mistake = node.prologue(&[], "MPS=true,sm=0")?;
    ensure!(
        mistake.status.code() == Some(1) && mistake.stderr.contains("percentage"),
        "{mistake:?}"
    );
    ensure!(node.calls().is_empty(), "{}", node.calls());

    // GPU 5 is what the job was given, and the software GPU has one.
    let file = node.sandbox.log_directory().join("gpus");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    fs::write(&file, format!("{host}-gpu5\nother-gpu0\n"))?;
    let (user, account) = (&node.user, "MPS=true,sm=50");
    let arguments = [JOB, user, "users", "test", "4711", "n=1", "mem=0", "batch", account, "0"];
    let mut epilogue = node.command(&["pbs", "epilogue"]);
    epilogue.args(arguments).env("PBS_GPUFILE", &file);
    process::run(&mut epilogue, PATIENCE)?.success()?;
    let reason = "OpenMPS epilogue: GPU check failed: GPU 5 is missing: the driver has 1";
    let calls = format!("logger -t openmps -- {reason}\npbsnodes -o -N {reason} {host}\n");
    ensure!(node.calls() == calls, "{}", node.calls());

    let mut prologue = node.command(&["pbs", "prologue"]);
    let arguments = [JOB, user, "users", "test", "n=1", "batch", account];
    prologue.args(arguments).env("OPENMPS_NATIVE_DRIVER", "/nowhere");
    let failed = process::run(&mut prologue, PATIENCE)?;
    ensure!(failed.status.code() == Some(2), "the job is queued again: {failed:?}");
    ensure!(node.calls().contains("pbsnodes -o -N OpenMPS prologue: "), "{}", node.calls());
    Ok(())
}
