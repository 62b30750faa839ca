//! One client of a run.
//!
//! Makes ready, warms up, writes `ready` to standard output, waits for a line on standard input so that all clients start
//! together, works for the given time, and writes one [`Outcome`] as JSON; again for each further line, until the input ends.

use crate::driver::{Driver, DriverError};
use crate::timer::CallCost;
use crate::workload::{Shape, Workload};
use crate::{calls, memory};
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
    /// The runner went away.
    #[error("the runner went away: {0}")]
    Runner(#[from] std::io::Error),
}

/// Runs the task between standard input and standard output.
pub fn run(task: &Task) -> Result<(), WorkerError> {
    let began_ns = now_ns();
    let driver = Driver::open(&task.driver)?;
    driver.launch(1, 32, 0)?;
    driver.wait()?;
    let started = CallCost {
        call: "cuInit to the end of the first kernel".into(),
        time_ns: (now_ns() - began_ns) as f64,
    };
    let work = |duration_ms| work(&driver, task.workload, duration_ms, &started);
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
    workload: Workload,
    duration_ms: u64,
    started: &CallCost,
) -> Result<Outcome, DriverError> {
    if let Some(shape) = workload.shape() {
        return launches(driver, shape, duration_ms);
    }
    let clock_mhz = calls::warm_up();
    let start_ns = now_ns();
    let calls = match workload {
        Workload::Start => vec![started.clone()],
        Workload::Memory => memory::measure(driver, duration_ms)?,
        _ => calls::measure(driver, duration_ms)?,
    };
    Ok(Outcome {
        start_ns,
        end_ns: now_ns(),
        kernels: 0,
        iterations: 0,
        iteration_p50_ns: 0,
        iteration_p99_ns: 0,
        multiprocessors: driver.multiprocessors()?,
        calls,
        clock_mhz,
    })
}

fn launches(driver: &Driver, shape: Shape, duration_ms: u64) -> Result<Outcome, DriverError> {
    /// How many launches without a wait go by between two looks at the clock.
    const LAUNCHES_PER_LOOK: u64 = 64;
    let start_ns = now_ns();
    let deadline_ns = start_ns + duration_ms * 1_000_000;
    let mut iterations = 0;
    let mut times_ns = Vec::with_capacity(1 << 16);
    loop {
        let began_ns = now_ns();
        if began_ns >= deadline_ns {
            break;
        }
        if shape.iterations_per_wait == 0 {
            for _ in 0..LAUNCHES_PER_LOOK {
                driver.launch(shape.blocks, shape.threads, shape.spin_cycles)?;
            }
            iterations += LAUNCHES_PER_LOOK;
        } else {
            for _ in 0..shape.launches {
                driver.launch(shape.blocks, shape.threads, shape.spin_cycles)?;
            }
            driver.wait()?;
            iterations += 1;
            times_ns.push(now_ns() - began_ns);
        }
    }
    driver.wait()?;
    let end_ns = now_ns();
    times_ns.sort_unstable();
    let percentile =
        |per_cent: usize| times_ns.get(times_ns.len() * per_cent / 100).copied().unwrap_or(0);
    Ok(Outcome {
        start_ns,
        end_ns,
        kernels: iterations * u64::from(shape.launches),
        iterations,
        iteration_p50_ns: percentile(50),
        iteration_p99_ns: percentile(99),
        multiprocessors: driver.multiprocessors()?,
        calls: Vec::new(),
        clock_mhz: 0.0,
    })
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
