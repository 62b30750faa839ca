//! Runs clients together, peers in turn: one after the other where they launch, as they share a
//! device, and all up at once where calls are timed.

use crate::peer::{Peer, PeerError, Places, Running};
use crate::report::median;
use crate::timer::CallCost;
use crate::worker::Outcome;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How many clients are started one after the other where a start is timed.
const STARTS: usize = 5;

/// A worker that takes longer to end is killed.
const LONGEST_END: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where things lie.
    pub places: Places,
    /// In this order.
    pub peers: Vec<Peer>,
    /// In this order.
    pub workloads: Vec<Workload>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// What one more client does all the time, of which nothing is measured.
    pub beside: Option<Workload>,
    /// Shares of the SMs that each client gets, in percent; whatever they are, one client with all
    /// of them is measured too.
    pub sm_percentages: Vec<u32>,
    /// How often everything is measured; each time through all peers.
    pub repeats: usize,
    /// How long each run lasts.
    pub duration_ms: u64,
}

/// What one run puts on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Doing what.
    pub workload: Workload,
    /// How many clients.
    pub clients: usize,
    /// Each client's share of the SMs, in percent.
    pub sm_percent: u32,
}

impl Load {
    /// One client with all SMs, which shares are compared with.
    pub fn whole_device(workload: Workload) -> Self {
        Self { workload, clients: 1, sm_percent: ALL_SMS_PERCENT }
    }
}

const ALL_SMS_PERCENT: u32 = 100;

impl Plan {
    /// The loads of a workload, in the order of the report.
    pub fn loads(&self, workload: Workload) -> Vec<Load> {
        if self.sm_percentages.is_empty() {
            let of = |&clients| Load { workload, clients, sm_percent: ALL_SMS_PERCENT };
            return self.clients.iter().map(of).collect();
        }
        let mut loads = vec![Load::whole_device(workload)];
        for &sm_percent in &self.sm_percentages {
            for &clients in &self.clients {
                let load = Load { workload, clients, sm_percent };
                if !loads.contains(&load) {
                    loads.push(load);
                }
            }
        }
        loads
    }
}

/// One run: so many clients at one workload under one peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Under which peer.
    pub peer: Peer,
    /// Doing what.
    pub workload: Workload,
    /// How many clients.
    pub clients: usize,
    /// Each client's share of the SMs, in percent.
    pub sm_percent: u32,
    /// The SMs that a client was told it has.
    pub multiprocessors: u32,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// All clients' kernels over the time from the first's start to the last's end.
    pub kernels_per_second: f64,
    /// Median over clients of each client's median iteration; 0 where iterations do not wait.
    pub iteration_p50_ns: u64,
    /// Worst over clients of each client's 99th percentile.
    pub iteration_p99_ns: u64,
    /// Worst over clients of each client's 99.9th percentile.
    pub iteration_p999_ns: u64,
    /// Bytes of the device that nobody used at the end, all clients being there.
    pub free_bytes: u64,
    /// Median over clients of what each call costs; empty for workloads that launch.
    pub calls: Vec<CallCost>,
    /// Median over clients of how fast the processor was before the calls; 0 for workloads that
    /// launch.
    pub clock_mhz: f64,
}

/// Why a run failed.
#[derive(Debug, Error)]
pub enum RunError {
    /// The peer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A worker could not be started or spoken to.
    #[error("worker {index} of {peer} {workload}: {source}")]
    Worker {
        /// Which, from 0.
        index: usize,
        /// Under which peer.
        peer: &'static str,
        /// Doing what.
        workload: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Measures everything; `progress` is told of each run as it ends.
pub fn run(
    plan: &Plan,
    mut progress: impl FnMut(&Measurement),
) -> Result<Vec<Measurement>, RunError> {
    let mut measurements = Vec::new();
    for repeat in 0..plan.repeats {
        for &peer in &plan.peers {
            let running = Running::start(peer, &plan.places)?;
            for &workload in plan.workloads.iter().filter(|workload| !workload.can_take_turns()) {
                if workload == Workload::Start {
                    // The first client starts the peer's server, which is not what is measured.
                    drop(Crew::start(plan, &running, peer, Load::whole_device(workload))?);
                }
                for load in plan.loads(workload) {
                    let times = if workload == Workload::Start { STARTS } else { 1 };
                    for _ in 0..times {
                        let mut crew = Crew::start(plan, &running, peer, load)?;
                        let outcomes = crew.work()?;
                        let measurement = summarize(peer, load, repeat, &outcomes);
                        progress(&measurement);
                        measurements.push(measurement);
                    }
                }
            }
        }
    }
    for &workload in plan.workloads.iter().filter(|workload| workload.can_take_turns()) {
        for load in plan.loads(workload) {
            run_calls(plan, load, |measurement| {
                progress(&measurement);
                measurements.push(measurement);
            })?;
        }
    }
    Ok(measurements)
}

/// Times calls: all peers are up, and their clients take turns. What changes meanwhile, as the
/// processor's clock does, changes for all.
fn run_calls(plan: &Plan, load: Load, mut done: impl FnMut(Measurement)) -> Result<(), RunError> {
    let mut running = Vec::new();
    for &peer in &plan.peers {
        running.push((peer, Running::start(peer, &plan.places)?));
    }
    let mut crews = Vec::new();
    for (peer, running) in &running {
        crews.push(Crew::start(plan, running, *peer, load)?);
    }
    for repeat in 0..plan.repeats {
        for crew in &mut crews {
            let outcomes = crew.work()?;
            done(summarize(crew.peer, load, repeat, &outcomes));
        }
    }
    // Before their peers.
    drop(crews);
    Ok(())
}

/// A worker process; dropping it ends it.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(plan: &Plan, running: &Running, load: Load) -> io::Result<Self> {
        let (mut command, driver) = running.client(&plan.places.openmps);
        command.arg("bench-worker").arg("--driver").arg(driver);
        command.args([
            "--workload",
            load.workload.name(),
            "--duration-ms",
            &plan.duration_ms.to_string(),
        ]);
        if load.sm_percent != ALL_SMS_PERCENT {
            command.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", load.sm_percent.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes to the worker"));
        };
        Ok(Self { child, input: Some(input), output: BufReader::new(output) })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::Error::other("the worker ended early; its error is on standard error")),
            _ => Ok(line),
        }
    }

    fn go(&mut self) -> io::Result<()> {
        match &mut self.input {
            Some(input) => input.write_all(b"go\n"),
            None => Ok(()),
        }
    }

    /// Lets it end by itself, as a program does, if it will.
    fn end(&mut self) {
        drop(self.input.take());
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < LONGEST_END {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Workers that start together.
struct Crew {
    peer: Peer,
    workload: Workload,
    workers: Vec<Worker>,
    /// Who works beside them.
    neighbour: Option<Worker>,
}

impl Crew {
    /// Starts them, and waits until all are ready.
    fn start(plan: &Plan, running: &Running, peer: Peer, load: Load) -> Result<Self, RunError> {
        let mut crew = Self { peer, workload: load.workload, workers: Vec::new(), neighbour: None };
        if let Some(workload) = plan.beside {
            let load = Load::whole_device(workload);
            let worker = Worker::start(plan, running, load)
                .and_then(|mut worker| worker.line().map(|_| worker));
            crew.neighbour = Some(worker.map_err(|source| {
                let (peer, workload) = (peer.name(), workload.name());
                RunError::Worker { index: load.clients, peer, workload, source }
            })?);
        }
        for index in 0..load.clients {
            let worker = Worker::start(plan, running, load);
            crew.workers.push(worker.map_err(|source| crew.failed(index, source))?);
        }
        crew.each(|worker| worker.line().map(drop))?;
        Ok(crew)
    }

    fn failed(&self, index: usize, source: io::Error) -> RunError {
        let (peer, workload) = (self.peer.name(), self.workload.name());
        RunError::Worker { index, peer, workload, source }
    }

    fn each<T>(
        &mut self,
        mut body: impl FnMut(&mut Worker) -> io::Result<T>,
    ) -> Result<Vec<T>, RunError> {
        let mut all = Vec::new();
        for index in 0..self.workers.len() {
            let done = body(&mut self.workers[index]);
            all.push(done.map_err(|source| self.failed(index, source))?);
        }
        Ok(all)
    }

    /// Lets all work once.
    fn work(&mut self) -> Result<Vec<Outcome>, RunError> {
        let of_neighbour = self.workers.len();
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.go().map_err(|source| self.failed(of_neighbour, source))?;
        }
        self.each(Worker::go)?;
        let outcomes = self.each(|worker| Ok(serde_json::from_str(&worker.line()?)?))?;
        if let Some(neighbour) = &mut self.neighbour {
            neighbour.line().map_err(|source| self.failed(of_neighbour, source))?;
        }
        Ok(outcomes)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.workers.iter_mut().chain(&mut self.neighbour).for_each(Worker::end);
    }
}

fn summarize(peer: Peer, load: Load, repeat: usize, outcomes: &[Outcome]) -> Measurement {
    let start_ns = outcomes.iter().map(|outcome| outcome.start_ns).min().unwrap_or(0);
    let end_ns = outcomes.iter().map(|outcome| outcome.end_ns).max().unwrap_or(0);
    let kernels: u64 = outcomes.iter().map(|outcome| outcome.kernels).sum();
    let worst = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
    let mut medians: Vec<u64> = outcomes.iter().map(|outcome| outcome.iteration_p50_ns).collect();
    medians.sort_unstable();
    Measurement {
        peer,
        workload: load.workload,
        clients: load.clients,
        sm_percent: load.sm_percent,
        multiprocessors: outcomes.first().map_or(0, |outcome| outcome.multiprocessors),
        repeat,
        kernels_per_second: kernels as f64 * 1e9 / (end_ns - start_ns).max(1) as f64,
        iteration_p50_ns: medians.get(medians.len() / 2).copied().unwrap_or(0),
        iteration_p99_ns: worst(|outcome| outcome.iteration_p99_ns),
        iteration_p999_ns: worst(|outcome| outcome.iteration_p999_ns),
        free_bytes: outcomes.iter().map(|outcome| outcome.free_bytes).min().unwrap_or(0),
        calls: median_calls(outcomes),
        clock_mhz: median(outcomes.iter().map(|outcome| outcome.clock_mhz)),
    }
}

/// Every client makes the same calls in the same order.
fn median_calls(outcomes: &[Outcome]) -> Vec<CallCost> {
    let Some(first) = outcomes.first() else { return Vec::new() };
    let median_of = |index: usize| {
        median(outcomes.iter().filter_map(|outcome| Some(outcome.calls.get(index)?.time_ns)))
    };
    let calls = first.calls.iter().enumerate();
    calls.map(|(index, cost)| CallCost { time_ns: median_of(index), ..cost.clone() }).collect()
}
