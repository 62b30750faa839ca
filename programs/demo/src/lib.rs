//! What the demo's programs share: one option, one line of output.
//!
//! A program computes on the device, compares with the CPU, and prints one line of JSON
//! ([`Report`]). Its kernels are in `kernels/NAME.cu`, and compiled in `kernels/NAME.ptx`:
//! `cargo xtask ptx` makes the one from the other.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use cuda_driver::Context;
use serde::Serialize;

/// The programs' command line.
#[derive(Debug, Parser)]
pub struct Options {
    /// How often to repeat the computation
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
}

/// The line that a program prints.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The program's name.
    pub program: &'static str,
    /// Its process id.
    pub pid: u32,
    /// The device's name.
    pub device: String,
    /// Kernels launched.
    pub kernels: u64,
    /// Bytes copied between host and device, both directions together.
    pub copied_bytes: u64,
    /// Device memory that all programs together use at its end; absent if the driver does not say.
    pub device_used_bytes: Option<u64>,
    /// From before `cuInit` to the last result.
    pub time_ms: f64,
    /// FNV-1a over the bytes of the result, 16 hexadecimal digits.
    pub checksum: String,
    /// Whether the result agrees with the CPU's.
    pub right: bool,
}

/// What a computation gives back.
#[derive(Debug)]
pub struct Outcome {
    /// Over the result's bytes: see [`checksum`].
    pub checksum: u64,
    /// Whether the result agrees with the CPU's.
    pub right: bool,
}

/// Runs a program's computation and prints its report. The exit status is 0 for a right result, 1
/// for a wrong one and 2 when the device could not be used.
pub fn run(
    program: &'static str,
    compute: impl FnOnce(&Context, u32) -> Result<Outcome>,
) -> ExitCode {
    let options = Options::parse();
    match measure(program, options.rounds, compute) {
        Ok(report) => {
            match serde_json::to_string(&report) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("{program}: cannot write the report: {error}"),
            }
            if report.right { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure(
    program: &'static str,
    rounds: u32,
    compute: impl FnOnce(&Context, u32) -> Result<Outcome>,
) -> Result<Report> {
    let start = Instant::now();
    let context = Context::new(0)?;
    let outcome = compute(&context, rounds)?;
    let time_ms = start.elapsed().as_secs_f64() * 1e3;
    let used = context.memory_info_bytes().map(|(free, total)| total.saturating_sub(free) as u64);
    Ok(Report {
        program,
        pid: std::process::id(),
        device: context.device_name()?,
        kernels: context.kernels(),
        copied_bytes: context.copied_bytes(),
        device_used_bytes: used.ok(),
        time_ms,
        checksum: format!("{:016x}", outcome.checksum),
        right: outcome.right,
    })
}

/// FNV-1a of bytes.
pub fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A small deterministic generator (xorshift32).
#[derive(Debug)]
pub struct Random(u32);

impl Random {
    /// `seed` is not 0.
    pub fn new(seed: u32) -> Self {
        Self(seed)
    }

    /// A number in `[0, bound)`.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 % bound
    }
}
