//! Products of two matrices of small integers, so that the CPU's result must be equal to the last
//! bit.

use std::process::ExitCode;

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, LaunchShape};
use demo_programs::{Outcome, Random, checksum, run};

const SIZE: usize = 128;
const TILE: u32 = 16;

fn main() -> ExitCode {
    run("matrix_product", compute)
}

fn compute(context: &Context, rounds: u32) -> Result<Outcome> {
    let module = context.load_ptx(include_str!("../../kernels/matrix_product.ptx"))?;
    let kernel = module.function("matrix_product")?;
    let tiles = SIZE as u32 / TILE;
    let shape = LaunchShape { grid: [tiles, tiles, 1], block: [TILE, TILE, 1], shared_bytes: 0 };

    let mut random = Random::new(21);
    let mut integers =
        || -> Vec<f32> { (0..SIZE * SIZE).map(|_| random.below(64) as f32 - 32.0).collect() };
    let (a, b) = (integers(), integers());
    let left = DeviceBuffer::from_host(context, &a)?;
    let right = DeviceBuffer::from_host(context, &b)?;
    let product = DeviceBuffer::<f32>::new(context, SIZE * SIZE)?;
    let size = SIZE as i32;
    for _ in 0..rounds {
        // SAFETY: three matrices of SIZE x SIZE and their size, as the kernel declares them.
        unsafe { kernel.launch(shape, None, &[&left, &right, &product, &size])? };
    }
    let result = product.read()?;
    Ok(Outcome {
        checksum: checksum(result.iter().flat_map(|value| value.to_le_bytes())),
        right: result == reference(&a, &b),
    })
}

fn reference(a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut product = vec![0.0; SIZE * SIZE];
    for (row, line) in product.chunks_exact_mut(SIZE).enumerate() {
        for k in 0..SIZE {
            let factor = a[row * SIZE + k];
            for (value, b) in line.iter_mut().zip(&b[k * SIZE..(k + 1) * SIZE]) {
                *value += factor * b;
            }
        }
    }
    product
}
