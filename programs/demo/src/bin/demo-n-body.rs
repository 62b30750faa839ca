//! Gravity among all pairs of bodies, step by step, against the same in double precision on the
//! CPU.

use std::process::ExitCode;

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, LaunchShape};
use demo_programs::{Outcome, Random, checksum, run};

const BODIES: usize = 256;
const TILE: u32 = 64;
const SOFTENING: f64 = 0.25;
const STEP: f64 = 0.015625;
/// After few steps single precision stays this close.
const TOLERANCE: f64 = 1e-3;

fn main() -> ExitCode {
    run("n_body", compute)
}

fn compute(context: &Context, rounds: u32) -> Result<Outcome> {
    let module = context.load_ptx(include_str!("../../kernels/n_body.ptx"))?;
    let kernel = module.function("advance")?;
    let shape = LaunchShape::linear(BODIES as u32 / TILE, TILE);

    let mut random = Random::new(22);
    let mut coordinate = || random.below(4096) as f32 / 512.0 - 4.0;
    let bodies: Vec<[f32; 4]> = (0..BODIES)
        .map(|i| [coordinate(), coordinate(), coordinate(), 0.5 + (i % 8) as f32 / 8.0])
        .collect();
    let mut from = DeviceBuffer::from_host(context, &bodies)?;
    let mut to = DeviceBuffer::<[f32; 4]>::new(context, BODIES)?;
    let velocities = DeviceBuffer::<[f32; 4]>::new(context, BODIES)?;
    velocities.zero()?;
    let count = BODIES as i32;
    for _ in 0..rounds {
        // SAFETY: three arrays of BODIES float4 and their length, as the kernel declares them.
        unsafe { kernel.launch(shape, None, &[&from, &to, &velocities, &count])? };
        std::mem::swap(&mut from, &mut to);
    }
    let result = from.read()?;
    let expected = reference(&bodies, rounds);
    let right = result.iter().zip(&expected).all(|(body, expected)| {
        body.iter()
            .zip(expected)
            .all(|(got, expected)| (f64::from(*got) - expected).abs() < TOLERANCE)
    });
    let bytes = result.iter().flatten().flat_map(|value| value.to_le_bytes());
    Ok(Outcome { checksum: checksum(bytes), right })
}

fn reference(bodies: &[[f32; 4]], steps: u32) -> Vec<[f64; 4]> {
    let mut bodies: Vec<[f64; 4]> = bodies.iter().map(|body| body.map(f64::from)).collect();
    let mut velocities = vec![[0.0f64; 3]; bodies.len()];
    for _ in 0..steps {
        for (body, velocity) in bodies.iter().zip(&mut velocities) {
            for other in &bodies {
                let difference = [0, 1, 2].map(|axis| other[axis] - body[axis]);
                let square = difference.iter().map(|d| d * d).sum::<f64>() + SOFTENING;
                let pull = STEP * other[3] / (square * square.sqrt());
                for axis in 0..3 {
                    velocity[axis] += difference[axis] * pull;
                }
            }
        }
        for (body, velocity) in bodies.iter_mut().zip(&velocities) {
            for axis in 0..3 {
                body[axis] += velocity[axis] * STEP;
            }
        }
    }
    bodies
}
