//! One client of a run.
//!
//! Makes ready, warms up, writes `ready` to standard output, waits for a line on standard input so
//! that all clients start together, works for the given time, and writes one [`Outcome`] as JSON;
//! again for each further line, until the input ends.

use crate::driver::{Driver, DriverError, Kernel};
use crate::loops::{Iterate, Loads, Mixed, Starts, Variable};
use crate::timer::CallCost;
use crate::workload::{Shape, Workload};
use crate::{calls, memory, posting};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, Write};
use thiserror::Error;

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Task {
    /// The driver library to open: a path, or a name for the loader.
    pub driver: OsString,
    /// What to do.
    pub workload: Workload,
    /// For how long.
    pub duration_ms: u64,
}

/// What a worker found. Times are of CLOCK_MONOTONIC, which all processes of a machine share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// When the work began.
    pub start_ns: u64,
    /// When its last kernel was done.
    pub end_ns: u64,
    /// Kernels launched and done.
    pub kernels: u64,
    /// Iterations done.
    pub iterations: u64,
    /// Median time of an iteration that ends in a wait; 0 for workloads that do not wait.
    pub iteration_p50_ns: u64,
    /// 99th percentile of the same.
    pub iteration_p99_ns: u64,
    /// 99.9th percentile of the same.
    pub iteration_p999_ns: u64,
    /// Bytes of the device that nobody used at the end of the work, all clients being there.
    pub free_bytes: u64,
    /// The SMs that it was told it has.
    pub multiprocessors: u32,
    /// What each call costs; empty for workloads that launch.
    pub calls: Vec<CallCost>,
    /// How fast the processor was before the calls, in MHz; 0 for workloads that launch.
    pub clock_mhz: f64,
}

/// Why a worker stopped.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The runner went away, or a process cannot be started.
    #[error("the runner went away, or a process cannot be started: {0}")]
    Process(#[from] std::io::Error),
    /// A process that was started failed.
    #[error("a client that was started ended with {0}")]
    Child(std::process::ExitStatus),
}

/// Runs the task between standard input and standard output.
pub fn run(task: &Task) -> Result<(), WorkerError> {
    let began_ns = now_ns();
    let driver = Driver::open(&task.driver)?;
    driver.launch(1, 32, Kernel::Empty)?;
    driver.wait()?;
    let all = CallCost {
        call: "cuInit to the end of the first kernel".into(),
        time_ns: (now_ns() - began_ns) as f64,
    };
    let started = [&[all], driver.steps.as_slice()].concat();
    let work = |duration_ms| work(&driver, task, duration_ms, &started);
    work(task.duration_ms / 10)?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "ready")?;
    output.flush()?;
    let mut go = String::new();
    while std::io::stdin().lock().read_line(&mut go)? != 0 {
        let outcome = work(task.duration_ms)?;
        writeln!(output, "{}", serde_json::to_string(&outcome).map_err(std::io::Error::from)?)?;
        output.flush()?;
    }
    Ok(())
}

fn work(
    driver: &Driver,
    task: &Task,
    duration_ms: u64,
    started: &[CallCost],
) -> Result<Outcome, WorkerError> {
    if let Some(shape) = task.workload.shape() {
        return Ok(launches(driver, shape, duration_ms)?);
    }
    let calls = match task.workload {
        Workload::Mixed => return iterate(driver, &mut Mixed::new(driver)?, duration_ms),
        Workload::Load => {
            return iterate(driver, &mut Loads::new(Variable::With), duration_ms);
        }
        Workload::Reload => {
            return iterate(driver, &mut Loads::new(Variable::Without), duration_ms);
        }
        Workload::Starts => return iterate(driver, &mut Starts::new(task)?, duration_ms),
        Workload::Start => {
            let start_ns = now_ns();
            let outcome = Times::default().outcome(driver, start_ns, 0, 0)?;
            return Ok(Outcome { calls: started.to_vec(), ..outcome });
        }
        Workload::Post => posting::measure,
        Workload::Memory => memory::measure,
        _ => calls::measure,
    };
    let clock_mhz = calls::warm_up();
    let start_ns = now_ns();
    let calls = calls(driver, duration_ms)?;
    Ok(Outcome { calls, clock_mhz, ..Times::default().outcome(driver, start_ns, 0, 0)? })
}

fn iterate<L: Iterate>(
    driver: &Driver,
    body: &mut L,
    duration_ms: u64,
) -> Result<Outcome, WorkerError> {
    let start_ns = now_ns();
    let deadline_ns = start_ns + duration_ms * 1_000_000;
    let mut times = Times::default();
    let mut iterations = 0;
    while now_ns() < deadline_ns {
        body.pause();
        let began_ns = now_ns();
        body.iterate(driver)?;
        times.0.push(now_ns() - began_ns);
        iterations += 1;
    }
    Ok(times.outcome(driver, start_ns, iterations * L::KERNELS, iterations)?)
}

fn launches(driver: &Driver, shape: Shape, duration_ms: u64) -> Result<Outcome, DriverError> {
    /// How many launches without a wait go by between two looks at the clock.
    const LAUNCHES_PER_LOOK: u64 = 64;
    let start_ns = now_ns();
    let deadline_ns = start_ns + duration_ms * 1_000_000;
    let mut iterations = 0;
    let mut times = Times(Vec::with_capacity(1 << 16));
    loop {
        let began_ns = now_ns();
        if began_ns >= deadline_ns {
            break;
        }
        if shape.iterations_per_wait == 0 {
            for _ in 0..LAUNCHES_PER_LOOK {
                driver.launch(shape.blocks, shape.threads, shape.kernel)?;
            }
            iterations += LAUNCHES_PER_LOOK;
        } else {
            for _ in 0..shape.launches {
                driver.launch(shape.blocks, shape.threads, shape.kernel)?;
            }
            driver.wait()?;
            iterations += 1;
            times.0.push(now_ns() - began_ns);
        }
    }
    driver.wait()?;
    times.outcome(driver, start_ns, iterations * u64::from(shape.launches), iterations)
}

/// What iterations took, in nanoseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    /// What has been found, now that all is done.
    fn outcome(
        mut self,
        driver: &Driver,
        start_ns: u64,
        kernels: u64,
        iterations: u64,
    ) -> Result<Outcome, DriverError> {
        let end_ns = now_ns();
        self.0.sort_unstable();
        let percentile =
            |per_mille: usize| self.0.get(self.0.len() * per_mille / 1000).copied().unwrap_or(0);
        Ok(Outcome {
            start_ns,
            end_ns,
            kernels,
            iterations,
            iteration_p50_ns: percentile(500),
            iteration_p99_ns: percentile(990),
            iteration_p999_ns: percentile(999),
            free_bytes: driver.free_bytes()?,
            multiprocessors: driver.multiprocessors()?,
            calls: Vec::new(),
            clock_mhz: 0.0,
        })
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
