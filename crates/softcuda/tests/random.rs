//! Random programs against the slow reference of `random-ptx`.
//!
//! `OPENMPS_TEST_SEED` repeats a run; `OPENMPS_TEST_COUNT` says how many programs the long run has.
//! `cargo xtask random` sets both.

mod machine;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::{Params, TestMachine, launch, levels};
use random_ptx::{Program, Random, evaluate, generate, kernel_name, minimise, module};
use softcuda::exec::{LoadEnv, Program as Loaded, SimdLevel};

/// Programs of one module.
const PER_MODULE: u64 = 8;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The given seed, or a fresh one; printed also when the test passes.
fn seed() -> u64 {
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "OPENMPS_TEST_SEED={seed}");
    seed
}

/// How one program is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    level: SimdLevel,
    /// Warp instructions of a slice: small ones interrupt blocks everywhere.
    fuel: u64,
}

impl Way {
    fn any(random: &mut Random) -> Self {
        Self { level: random.pick(&levels()), fuel: random.pick(&[3, 50, 1000, 100_000]) }
    }
}

/// Runs the programs of one module; what is wrong with each.
fn mismatches(programs: &[Program], ways: &[Way]) -> Vec<Option<String>> {
    let text = module(programs);
    let mut problems = Vec::new();
    let mut loaded: Vec<(SimdLevel, TestMachine, Loaded)> = Vec::new();
    for (index, (program, way)) in programs.iter().zip(ways).enumerate() {
        let at = match loaded.iter().position(|entry| entry.0 == way.level) {
            Some(at) => at,
            None => {
                let env = LoadEnv { simd: way.level, ..LoadEnv::default() };
                if let Err(error) = Loaded::load(&text, &env) {
                    return vec![Some(error.to_string()); programs.len()];
                }
                let machine = TestMachine::new();
                let program = machine.load(&text, way.level);
                loaded.push((way.level, machine, program));
                loaded.len() - 1
            }
        };
        let (_, machine, module) = &loaded[at];
        problems.push(mismatch(program, index, *way, machine, module));
    }
    problems
}

/// Runs one program and compares its results.
fn mismatch(
    program: &Program,
    index: usize,
    way: Way,
    machine: &TestMachine,
    module: &Loaded,
) -> Option<String> {
    let expected = match evaluate(program) {
        Ok(expected) => expected,
        Err(reason) => return Some(format!("the reference has no result: {reason:?}")),
    };
    let kernel = match module.kernel(&kernel_name(index)) {
        Ok(kernel) => kernel,
        Err(error) => return Some(error.to_string()),
    };
    let input = machine.upload(program.input());
    let output = machine.alloc(program.output_bytes());
    let shape = ([program.blocks(), 1, 1], [program.threads(), 1, 1]);
    let launch = launch(&kernel, shape.0, shape.1, Params::new().push(input).push(output));
    if let Err(stop) = machine.run(launch, way.fuel) {
        return Some(format!("stopped: {stop:?}"));
    }
    let actual = machine.read::<u8>(output, program.output_bytes());
    (actual != expected).then(|| program.describe(&expected, &actual))
}

/// What sort of fault a text tells of.
fn sort(problem: &str) -> &str {
    let word = problem.split([' ', ':']).next().unwrap_or("");
    if word == "counter" { "thread" } else { word }
}

/// A small program with the same sort of fault.
fn smallest(program: &Program, way: Way, problem: &str) -> String {
    let fails = |trial: &Program| {
        evaluate(trial).is_ok()
            && mismatches(std::slice::from_ref(trial), &[way])[0]
                .as_ref()
                .is_some_and(|other| sort(other) == sort(problem))
    };
    let small = minimise(program, fails);
    let problem = mismatches(std::slice::from_ref(&small), &[way]).remove(0).unwrap_or_default();
    let mut text = String::new();
    let _ = writeln!(text, "{problem}\n{way:?}\n{}", module(&[small]));
    text
}

/// Runs programs on all processors; a few faults are enough.
fn run(seed: u64, count: u64) -> Vec<String> {
    let modules = count.div_ceil(PER_MODULE);
    let next = AtomicU64::new(0);
    let faults = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    // Relaxed: only the numbers must differ.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= modules || faults.lock().unwrap().len() >= 6 {
                        return;
                    }
                    let indices: Vec<u64> =
                        (number * PER_MODULE..count.min((number + 1) * PER_MODULE)).collect();
                    let programs: Vec<Program> =
                        indices.iter().map(|&i| generate(Random::of_item(seed, i))).collect();
                    let ways: Vec<Way> =
                        indices.iter().map(|&i| Way::any(&mut Random::of_item(!seed, i))).collect();
                    for (i, problem) in mismatches(&programs, &ways).into_iter().enumerate() {
                        let Some(problem) = problem else { continue };
                        let small = smallest(&programs[i], ways[i], &problem);
                        let mut faults = faults.lock().unwrap();
                        faults.push(format!(
                            "program {}: {problem}\nmade small: {small}",
                            indices[i]
                        ));
                    }
                }
            });
        }
    });
    faults.into_inner().unwrap()
}

fn check(seed: u64, count: u64) {
    let faults = run(seed, count);
    assert!(
        faults.is_empty(),
        "OPENMPS_TEST_SEED={seed}: {} of {count} programs\n{}",
        faults.len(),
        faults.join("\n\n")
    );
}

#[test]
fn a_thousand_random_programs_compute_what_the_reference_does() {
    check(seed(), 1000);
}

#[test]
#[ignore = "minutes"]
fn a_hundred_thousand_random_programs_compute_what_the_reference_does() {
    let count = number("OPENMPS_TEST_COUNT").unwrap_or(100_000);
    let seed = seed();
    check(seed, count);
    let _ = writeln!(std::io::stderr(), "{count} programs, no mismatch");
}

/// The assembler of CUDA: from `OPENMPS_PTXAS`, or where `cargo xtask toolchain` puts it.
fn ptxas() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("OPENMPS_PTXAS") {
        return Some(path.into());
    }
    let toolchain = match std::env::var_os("OPENMPS_CUDA_TOOLCHAIN") {
        Some(shared) => PathBuf::from(shared),
        None => std::env::current_exe().ok()?.ancestors().nth(3)?.join("cuda-toolchain"),
    };
    let path = toolchain.join("packages/nvidia/cu13/bin/ptxas");
    path.exists().then_some(path)
}

#[test]
fn nvidias_assembler_accepts_the_programs() {
    let Some(ptxas) = ptxas() else {
        let _ = writeln!(std::io::stderr(), "no ptxas here: `cargo xtask toolchain` installs it");
        return;
    };
    let seed = seed();
    let modules = number("OPENMPS_TEST_COUNT").map_or(3, |count| count / PER_MODULE / 50).max(3);
    for number in 0..modules {
        let programs: Vec<Program> = (number * PER_MODULE..(number + 1) * PER_MODULE)
            .map(|i| generate(Random::of_item(seed, i)))
            .collect();
        let path = std::env::temp_dir().join(format!("random-{}-{number}.ptx", std::process::id()));
        std::fs::write(&path, module(&programs)).unwrap();
        let output = Command::new(&ptxas)
            .args(["-arch=sm_90", "-O0", "-o", "/dev/null"])
            .arg(&path)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "OPENMPS_TEST_SEED={seed}: {}\n{errors}", path.display());
        std::fs::remove_file(path).unwrap();
    }
}
