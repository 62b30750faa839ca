//! Holds the reference against whatever `libcuda.so.1` is, a real GPU or softcuda:
//! `gpu SEED COUNT [FIRST]`.
//!
//! Needs compute capability 9.0 or newer. Prints what differs, made small, and at the end the
//! number of programs; exits with 1 when anything differed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver::{Context, DeviceBuffer, LaunchShape};
use random_ptx::{Program, Random, evaluate, generate, kernel_name, minimise, module};

const PER_MODULE: u64 = 8;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let seed = arguments.next().and_then(Result::ok).unwrap_or(0);
    let count = arguments.next().and_then(Result::ok).unwrap_or(1000);
    let first = arguments.next().and_then(Result::ok).unwrap_or(0);
    let (next, done, faults) = (AtomicU64::new(first), AtomicU64::new(0), Mutex::new(Vec::new()));
    let end = first + count;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let context = Context::new(0).expect("a device");
                deepen_stack();
                loop {
                    // Relaxed: only the numbers must differ.
                    let start = next.fetch_add(PER_MODULE, Ordering::Relaxed);
                    if start >= end || faults.lock().expect("no panic").len() >= 20 {
                        return;
                    }
                    let indices: Vec<u64> = (start..(start + PER_MODULE).min(end)).collect();
                    let programs: Vec<Program> =
                        indices.iter().map(|&i| generate(Random::of_item(seed, i))).collect();
                    for (i, problem) in problems(&context, &programs).into_iter().enumerate() {
                        done.fetch_add(1, Ordering::Relaxed);
                        let Some(problem) = problem else { continue };
                        let small = smallest(&context, &programs[i]);
                        let text =
                            format!("program {}: {problem}\nmade small: {small}", indices[i]);
                        faults.lock().expect("no panic").push(text);
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no panic");
    for fault in &faults {
        println!("{fault}\n");
    }
    println!("seed {seed}: {} programs, {} differ", done.into_inner(), faults.len());
    std::process::exit(i32::from(!faults.is_empty()));
}

/// The functions call themselves, for which the driver's default stack is too small.
fn deepen_stack() {
    const STACK_SIZE: u32 = 0;
    const STACK_BYTES: usize = 32 << 10;
    // SAFETY: the driver is loaded already, and the prototype is that of cuda.h.
    let code = unsafe {
        let library = libloading::Library::new("libcuda.so.1").expect("the driver");
        let set_limit = library
            .get::<unsafe extern "C" fn(u32, usize) -> u32>(b"cuCtxSetLimit\0")
            .expect("cuCtxSetLimit");
        set_limit(STACK_SIZE, STACK_BYTES)
    };
    assert_eq!(code, 0, "cuCtxSetLimit");
}

/// What is wrong with each program.
fn problems(context: &Context, programs: &[Program]) -> Vec<Option<String>> {
    let loaded = match context.load_ptx(&module(programs)) {
        Ok(loaded) => loaded,
        Err(error) => return vec![Some(format!("load: {error}")); programs.len()],
    };
    let run = |(index, program): (usize, &Program)| -> Result<Option<String>, String> {
        let expected = evaluate(program).map_err(|reason| format!("reference: {reason:?}"))?;
        let error = |error: cuda_driver::Error| error.to_string();
        let function = loaded.function(&kernel_name(index)).map_err(error)?;
        let input = DeviceBuffer::from_host(context, program.input()).map_err(error)?;
        let output =
            DeviceBuffer::from_host(context, &vec![0u8; program.output_bytes()]).map_err(error)?;
        let shape = LaunchShape::linear(program.blocks(), program.threads());
        // SAFETY: both buffers have the sizes that the kernel expects and live until it has run.
        unsafe { function.launch(shape, None, &[&input.address(), &output.address()]) }
            .map_err(error)?;
        context.synchronize().map_err(error)?;
        let actual = output.read().map_err(error)?;
        Ok((actual != expected).then(|| program.describe(&expected, &actual)))
    };
    programs.iter().enumerate().map(|item| run(item).unwrap_or_else(Some)).collect()
}

fn smallest(context: &Context, program: &Program) -> String {
    let fails = |trial: &Program| {
        evaluate(trial).is_ok()
            && problems(context, std::slice::from_ref(trial))[0]
                .as_ref()
                .is_some_and(|problem| problem.contains("expected"))
    };
    let small = minimise(program, fails);
    let problem = problems(context, std::slice::from_ref(&small)).remove(0).unwrap_or_default();
    format!("{problem}\n{}", module(&[small]))
}
