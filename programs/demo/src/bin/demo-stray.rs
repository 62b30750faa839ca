//! A program with a mistake: its kernel writes where no memory is. It is right if the driver says
//! so, and that is all that happens.

use std::process::ExitCode;

use anyhow::Result;
use cuda_driver::{Context, LaunchShape};
use demo_programs::{Outcome, run};

/// `CUDA_ERROR_ILLEGAL_ADDRESS`
const ILLEGAL_ADDRESS: u32 = 700;
/// No driver gives memory there.
const NOWHERE: u64 = 16;

fn main() -> ExitCode {
    run("stray", compute)
}

fn compute(context: &Context, _rounds: u32) -> Result<Outcome> {
    let module = context.load_ptx(include_str!("../../kernels/stray.ptx"))?;
    let kernel = module.function("stray")?;
    // SAFETY: the kernel takes one address. Nothing is there, which the device finds out.
    unsafe { kernel.launch(LaunchShape::linear(1, 1), None, &[&NOWHERE])? };
    let code = match context.synchronize() {
        Ok(()) => 0,
        Err(error) => error.code().unwrap_or(u32::MAX),
    };
    Ok(Outcome { checksum: code.into(), right: code == ILLEGAL_ADDRESS })
}
