//! Slurm's prolog and epilog as slurmd calls them, on a node of one test.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use link::wire::ui::DaemonState;
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Puppet, Runtime, Sandbox, executable};

/// A node of a batch system.
pub(crate) struct Node {
    pub(crate) sandbox: Sandbox,
}

impl Node {
    pub(crate) fn new() -> Result<Self> {
        let sandbox = Sandbox::of_several_users()?;
        let calls = sandbox.directory().join("calls");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", calls.display());
        executable::write(&sandbox.directory().join("scontrol"), &script)?;
        Ok(Self { sandbox })
    }

    fn batch(&self) -> PathBuf {
        self.sandbox.directory().join("batch")
    }

    /// `CUDA_MPS_PIPE_DIRECTORY` of the daemon of GPU 0.
    pub(crate) fn pipe(&self) -> PathBuf {
        self.batch().join("gpu-0/pipe")
    }

    /// `prolog` or `epilog` of a job of this user.
    pub(crate) fn hook(&self, hook: &str, job: &str, uid: u32) -> Result<Finished> {
        let mut command =
            self.sandbox.command(self.sandbox.installation.openmps(), Runtime::Softcuda);
        command.args(["slurm", hook, "--directory"]).arg(self.batch());
        command.arg("--log-directory").arg(self.sandbox.log_directory());
        command.arg("--scontrol").arg(self.sandbox.directory().join("scontrol"));
        command.env("SLURM_JOB_ID", job).env("SLURM_JOB_UID", uid.to_string());
        command.env("SLURM_JOB_GPUS", "0").env("SLURMD_NODENAME", "node");
        command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25");
        command.env("OPENMPS_LIB_DIR", self.sandbox.installation.client_directory());
        process::run(&mut command, PATIENCE * 2)
    }

    /// The same, which must go well and not drain the node.
    pub(crate) fn must(&self, hook: &str, job: &str, uid: u32) -> Result<Finished> {
        let finished = self.hook(hook, job, uid)?;
        let drained = self.drained();
        ensure!(finished.status.success() && drained.is_empty(), "{finished:?}\n{drained}");
        Ok(finished)
    }

    fn pipe_of(&self, job: &str) -> PathBuf {
        self.batch().join(format!("jobs/slurm-{job}/pipe"))
    }

    /// The socket of a job.
    pub(crate) fn socket_of(&self, job: &str) -> PathBuf {
        self.pipe_of(job).join(link::wire::DAEMON_SOCKET)
    }

    /// A job's program.
    pub(crate) fn job_command(&self, program: &str, job: &str, uid: u32) -> Result<Command> {
        let program = self.sandbox.installation.own_program(program)?;
        let mut command = self.sandbox.command_as(uid, program, Runtime::OpenMps);
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipe_of(job));
        Ok(command)
    }

    /// A job's client.
    pub(crate) fn client(&self, job: &str, uid: u32) -> Result<Puppet> {
        let mut puppet = Puppet::spawn(&mut self.job_command("puppet", job, uid)?)?;
        puppet.must("open")?;
        Ok(puppet)
    }

    /// What the node's daemon says.
    pub(crate) fn state(&self) -> Result<DaemonState> {
        let mut command =
            self.sandbox.command(self.sandbox.installation.openmps(), Runtime::OpenMps);
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipe()).args(["status", "--json"]);
        let finished = process::run(&mut command, PATIENCE)?;
        Ok(serde_json::from_str(finished.success()?)?)
    }

    /// What Slurm's controller was asked to do.
    fn drained(&self) -> String {
        let calls = fs::read_to_string(self.sandbox.directory().join("calls"));
        let calls = calls.unwrap_or_default();
        calls.lines().filter(|line| line.contains("State=DRAIN")).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What has a pipe directory of the node's in its environment is not found by the sandbox's.
        let mark = self.batch().into_os_string().into_encoded_bytes();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let pid = pid.and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid
                && environment.windows(mark.len()).any(|part| part == mark)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
