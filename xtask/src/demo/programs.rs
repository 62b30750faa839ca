//! The programs of the demo, and what they report.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::interrupt;

/// A program and how much of it is run.
pub(crate) struct Program {
    /// Name of the executable.
    pub(crate) executable: &'static str,
    /// As it calls itself.
    pub(crate) name: &'static str,
    /// Options of `openmps run` for it.
    pub(crate) options: &'static [&'static str],
    /// Repetitions, so that each takes about a second on the software GPU.
    pub(crate) rounds: u32,
}

/// The program with the mistake.
pub(crate) const STRAY: &str = "stray";

/// What the demo runs. The last one has a mistake, and an executor of its own to make it in.
pub(crate) const DEMO: &[Program] = &[
    Program { executable: "demo-matrix-product", name: "matrix_product", options: &[], rounds: 8 },
    Program { executable: "demo-n-body", name: "n_body", options: &[], rounds: 12 },
    Program { executable: "demo-histogram", name: "histogram", options: &[], rounds: 40 },
    Program { executable: "demo-reduction", name: "reduction", options: &[], rounds: 40 },
    Program { executable: "demo-stray", name: STRAY, options: &["--isolate"], rounds: 1 },
];

/// The line that a program prints; see `programs/demo/src/lib.rs`.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) program: String,
    pub(crate) pid: u32,
    pub(crate) device: String,
    pub(crate) kernels: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) device_used_bytes: Option<u64>,
    pub(crate) time_ms: f64,
    pub(crate) checksum: String,
    pub(crate) right: bool,
}

/// A program that has ended well.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The process that was started.
    pub(crate) pid: u32,
    /// What it said.
    pub(crate) report: Report,
}

/// A program that runs; killed when dropped.
pub(crate) struct Running {
    name: &'static str,
    child: Child,
    output: Option<JoinHandle<String>>,
}

/// No program takes nearly as long.
const LIMIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Running {
    /// Starts a program; its standard error is the demo's.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(program: &Program, command: &mut Command) -> Result<Self> {
        command.arg("--rounds").arg(program.rounds.to_string());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let output = child.stdout.take().map(|mut stdout| {
            thread::spawn(move || {
                let mut text = String::new();
                // A broken pipe leaves the text short, which then does not parse.
                let _ = stdout.read_to_string(&mut text);
                text
            })
        });
        Ok(Self { name: program.name, child, output })
    }

    /// Waits for its end and reads its report.
    ///
    /// # Errors
    /// When it fails, takes too long or the demo is interrupted.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {LIMIT:?}", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        };
        let text = self.output.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        let report = serde_json::from_str(&text)
            .with_context(|| format!("{} ended with {status} and printed {text:?}", self.name))?;
        Ok(Finished { pid: self.child.id(), report })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
