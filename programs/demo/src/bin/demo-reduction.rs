//! Sums of many integers, one launch after another into the same total.

use std::process::ExitCode;

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, LaunchShape};
use demo_programs::{Outcome, Random, checksum, run};

const VALUES: usize = 128 * 1024;

fn main() -> ExitCode {
    run("reduction", compute)
}

fn compute(context: &Context, rounds: u32) -> Result<Outcome> {
    let module = context.load_ptx(include_str!("../../kernels/reduction.ptx"))?;
    let kernel = module.function("reduction")?;
    let mut random = Random::new(24);
    let values: Vec<u32> = (0..VALUES).map(|_| random.below(1 << 30)).collect();
    let sum: u64 = values.iter().map(|&value| u64::from(value)).sum();

    let data = DeviceBuffer::from_host(context, &values)?;
    let total = DeviceBuffer::<u64>::new(context, 1)?;
    total.zero()?;
    let count = VALUES as i32;
    for _ in 0..rounds {
        // SAFETY: VALUES integers, their number and one 64-bit total, as the kernel declares them.
        unsafe { kernel.launch(LaunchShape::linear(16, 256), None, &[&data, &count, &total])? };
    }
    let result = total.read()?;
    Ok(Outcome {
        checksum: checksum(result.iter().flat_map(|value| value.to_le_bytes())),
        right: result == [sum * u64::from(rounds)],
    })
}
