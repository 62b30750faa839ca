//! Speed of parsing, lowering and execution on one thread, beside plain Rust loops: `cargo bench -p softcuda --bench exec_speed`.

#[path = "../tests/machine/mod.rs"]
mod machine;

use std::time::Instant;

use machine::{Params, TestMachine, launch};
use softcuda::exec::SimdLevel;
use softcuda::ptx::Module;

const PTX: &str = include_str!("../tests/kernels/basic.ptx");

fn best<R>(mut f: impl FnMut() -> R) -> (f64, R) {
    let mut best = f64::MAX;
    let mut result = None;
    for _ in 0..3 {
        let start = Instant::now();
        result = Some(f());
        best = best.min(start.elapsed().as_secs_f64());
    }
    (best, result.unwrap())
}

fn main() {
    let repeated: String = std::iter::once(PTX.to_owned())
        .chain((0..200).map(|i| {
            let body = PTX.split_once("// .globl").unwrap().1;
            format!("//{}", body.replace(".entry ", &format!(".entry k{i}_")))
        }))
        .collect();
    let (seconds, module) = best(|| Module::parse_outline(&repeated).unwrap());
    println!(
        "parse: {:.0} MB/s, {:.2} M lines/s ({} functions)",
        repeated.len() as f64 / seconds / 1e6,
        repeated.lines().count() as f64 / seconds / 1e6,
        module.functions.len()
    );
    let m = TestMachine::new();
    let (seconds, _) = best(|| {
        let program = m.load(PTX, SimdLevel::detect());
        program.kernel("matmul").unwrap();
        program.kernel("reduce").unwrap()
    });
    println!("load and prepare two kernels: {:.0} us", seconds * 1e6);
    let only = std::env::args().nth(1);
    for level in machine::levels()
        .into_iter()
        .filter(|l| only.as_ref().is_none_or(|o| *o == format!("{l:?}") || o.starts_with("--")))
    {
        println!("{level:?}");
        measure(level);
    }
}

fn measure(level: SimdLevel) {
    let m = TestMachine::new();
    let program = m.load(PTX, level);
    let report = |name: &str, seconds: f64, executed: u64| {
        println!(
            "  {name}: {:.2} ms, {:.0} M warp instructions/s",
            seconds * 1e3,
            executed as f64 / seconds / 1e6
        );
    };

    let n = 4usize << 20;
    let (a, b, c) = (m.alloc(n * 4), m.alloc(n * 4), m.alloc(n * 4));
    let kernel = program.kernel("vector_add").unwrap();
    let (seconds, executed) = best(|| {
        let params = Params::new().push(a).push(b).push(c).push(n as i32);
        m.run(launch(&kernel, [n as u32 / 256, 1, 1], [256, 1, 1], params), 100_000).unwrap()
    });
    report("vector add of 4M floats", seconds, executed);

    let n = 512usize;
    let kernel = program.kernel("matmul").unwrap();
    let (seconds, executed) = best(|| {
        let params = Params::new().push(a).push(b).push(c).push(n as i32);
        m.run(launch(&kernel, [n as u32 / 16, n as u32 / 16, 1], [16, 16, 1], params), 100_000)
            .unwrap()
    });
    report("512^3 tiled matrix product", seconds, executed);

    let n = 4usize << 20;
    let kernel = program.kernel("reduce").unwrap();
    let (seconds, executed) = best(|| {
        let params = Params::new().push(a).push(c).push(n as i32);
        m.run(launch(&kernel, [1024, 1, 1], [256, 1, 1], params), 100_000).unwrap()
    });
    report("reduction of 4M floats", seconds, executed);

    if let Ok(kernel) = program.kernel("nbody") {
        let n = 4096usize;
        let (seconds, executed) = best(|| {
            let params = Params::new().push(a).push(c).push(n as i32);
            m.run(launch(&kernel, [n as u32 / 256, 1, 1], [256, 1, 1], params), 100_000).unwrap()
        });
        report("n-body of 4096", seconds, executed);
    }
}
