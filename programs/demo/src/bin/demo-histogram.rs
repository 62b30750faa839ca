//! Counts of byte values in a text of random bytes, copied afresh each round from pinned memory in
//! a stream.

use std::process::ExitCode;

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, LaunchShape, PinnedBuffer};
use demo_programs::{Outcome, Random, checksum, run};

const BYTES: usize = 64 * 1024;
const BINS: usize = 256;

fn main() -> ExitCode {
    run("histogram", compute)
}

fn compute(context: &Context, rounds: u32) -> Result<Outcome> {
    let module = context.load_ptx(include_str!("../../kernels/histogram.ptx"))?;
    let kernel = module.function("histogram")?;
    let stream = context.stream()?;
    let mut text = PinnedBuffer::<u8>::new(context, BYTES)?;
    let data = DeviceBuffer::<u8>::new(context, BYTES)?;
    let bins = DeviceBuffer::<u32>::new(context, BINS)?;
    let mut counted = PinnedBuffer::<u32>::new(context, BINS)?;
    bins.zero()?;

    let mut random = Random::new(23);
    let mut expected = vec![0u32; BINS];
    let count = BYTES as i32;
    for _ in 0..rounds {
        for byte in text.iter_mut() {
            *byte = ((random.below(256) * random.below(256)) >> 8) as u8;
            expected[usize::from(*byte)] += 1;
        }
        // SAFETY: the text is written again only after the stream has been waited for.
        unsafe { data.write_async(&text, &stream)? };
        // SAFETY: BYTES bytes, their number and BINS counters, as the kernel declares them.
        unsafe {
            kernel.launch(LaunchShape::linear(8, 128), Some(&stream), &[&data, &count, &bins])?
        };
        stream.synchronize()?;
    }
    // SAFETY: the counts are read only after the stream has been waited for.
    unsafe { bins.read_async(&mut counted, &stream)? };
    stream.synchronize()?;
    Ok(Outcome {
        checksum: checksum(counted.iter().flat_map(|value| value.to_le_bytes())),
        right: *counted == *expected,
    })
}
