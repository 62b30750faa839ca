//! `openmps trace --client`: a tracer of a client that runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Running;
use crate::trace::Trace;
use crate::wait::{self, PATIENCE};
use crate::{Daemon, Puppet, Runtime};

/// Until all is written, on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A tracer at work.
#[derive(Debug)]
pub struct Tracer {
    running: Running,
    file: PathBuf,
}

impl Tracer {
    /// Traces a puppet that has a context, from now on; the trace goes to this file.
    ///
    /// # Errors
    /// When that does not begin.
    pub fn start(daemon: &Daemon, puppet: &Puppet, file: &Path) -> Result<Self> {
        let sandbox = daemon.sandbox();
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.args(["trace", "-o"]).arg(file);
        let running = Running::start(command.args(["--client", &puppet.pid().to_string()]))?;
        // The executor has the ring, so what comes now is in it.
        let executor = daemon.snapshot()?.devices.first().context("no device")?.executor_pid;
        wait::until("the client is traced", PATIENCE, || {
            std::fs::read_to_string(format!("/proc/{executor}/maps"))
                .is_ok_and(|maps| maps.contains("openmps-trace"))
        })?;
        Ok(Self { running, file: file.to_owned() })
    }

    /// Ends it as Ctrl-C does, and reads the trace, from which nothing may be missing.
    ///
    /// # Errors
    /// What is wrong with the trace.
    pub fn end(self) -> Result<Trace> {
        let pid = i32::try_from(self.running.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process id")?, Signal::INT)?;
        let finished = self.running.finish(LIMIT)?;
        finished.success()?;
        ensure!(!finished.stderr.contains("not complete"), "{}", finished.stderr);
        let trace = Trace::read(&self.file)?;
        ensure!(trace.other["lost_records"] == "0", "{}", trace.other);
        Ok(trace)
    }
}
