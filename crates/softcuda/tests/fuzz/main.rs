//! Mutated PTX, mutated images and mutated kernels: never a panic, a hang or unbounded memory.
//!
//! Stable in-tree targets, one `#[test]` each. `OPENMPS_FUZZ_SECONDS` says how long each goes on (a
//! few seconds if unset) and `OPENMPS_TEST_SEED` repeats a run; `cargo xtask fuzz` sets both. An
//! input that fails is written to a file, whose path is printed.

mod corpus;
#[path = "../machine/mod.rs"]
mod machine;
mod mutate;
mod watch;

/// Builders of images, shared with `cuda-abi`'s own tests.
#[allow(dead_code)]
#[path = "../../../cuda-abi/src/image/testing.rs"]
mod testing;
use cuda_abi::image::fatbin;

use std::ffi::{CString, c_char, c_void};
use std::io::Write as _;
use std::time::{Duration, Instant};

use machine::{Params, TestMachine, launch};
use mutate::Mutator;
use random_ptx::{Random, generate, kernel_name, module};
use softcuda::exec::{LoadEnv, Program};
use watch::Watch;

/// `CUDA_ERROR_UNKNOWN`: what a panic becomes at the C ABI.
const UNKNOWN: u32 = 999;
const SECONDS: u64 = 7;
/// Seed of the inputs that every run begins with, and how many there are; what follows is new each
/// time.
const CORPUS: (u64, u64) = (1, 200);

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32) -> u32;
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> u32;
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> u32;
    fn cuModuleUnload(module: usize) -> u32;
    fn cuLibraryLoadData(
        library: *mut usize,
        code: *const c_void,
        jit_options: *mut u32,
        jit_values: *mut *mut c_void,
        jit_count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
        count: u32,
    ) -> u32;
    fn cuLibraryUnload(library: usize) -> u32;
    fn cuLinkCreate_v2(
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
        state: *mut usize,
    ) -> u32;
    fn cuLinkAddData_v2(
        state: usize,
        kind: u32,
        data: *mut c_void,
        size_bytes: usize,
        name: *const c_char,
        count: u32,
        options: *mut u32,
        values: *mut *mut c_void,
    ) -> u32;
    fn cuLinkComplete(state: usize, cubin: *mut *mut c_void, size_bytes: *mut usize) -> u32;
    fn cuLinkDestroy(state: usize) -> u32;
}

/// What `cuLinkAddData` is told that it gets.
const INPUT_PTX: u32 = 1;
const INPUT_FATBIN: u32 = 2;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Feeds inputs to a target until the time is over; says how many there were.
fn fuzz(target: &str, inputs: impl Fn(&mut Mutator) -> Vec<u8>, run: impl Fn(&[u8])) {
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "fuzz {target}: OPENMPS_TEST_SEED={seed}");
    let end =
        Instant::now() + Duration::from_secs(number("OPENMPS_FUZZ_SECONDS").unwrap_or(SECONDS));
    let watch = Watch::start(target);
    let mut count = 0;
    while count < CORPUS.1 || Instant::now() < end {
        let of_run = if count < CORPUS.1 { CORPUS.0 } else { seed };
        let mut mutator = Mutator::new(Random::of_item(of_run, count));
        let input = inputs(&mut mutator);
        watch.run(count, &input, || run(&input));
        count += 1;
    }
    let _ = writeln!(std::io::stderr(), "fuzz {target}: {count} inputs");
    assert!(count > 0);
}

fn context() {
    // SAFETY: valid pointers; called once per test, tests of this file run one at a time.
    unsafe {
        assert_eq!(cuInit(0), 0);
        let mut context = 0;
        assert_eq!(cuCtxCreate_v2(&raw mut context, 0, 0), 0);
    }
}

fn expect_known(call: &str, code: u32) -> bool {
    assert_ne!(code, UNKNOWN, "{call} returned CUDA_ERROR_UNKNOWN");
    code == 0
}

/// Names of a text's entries, as far as it can be read.
fn entries(text: &[u8]) -> Vec<CString> {
    let text = String::from_utf8_lossy(text);
    let after = text.split(".entry").skip(1).take(40);
    let name = |rest: &str| {
        let name: String = rest
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '%'))
            .collect();
        CString::new(name).ok()
    };
    after.filter_map(name).collect()
}

/// As a module with all its kernels, as a library, and through the linker.
fn load_everywhere(image: &[u8], link_as: u32, text: &[u8]) {
    let mut terminated = image.to_vec();
    terminated.push(0);
    // SAFETY: the images end with NUL or have the size that their header says; handles are used as
    // the driver gave them.
    unsafe {
        let mut module = 0;
        if expect_known(
            "cuModuleLoadData",
            cuModuleLoadData(&raw mut module, terminated.as_ptr().cast()),
        ) {
            for name in entries(text) {
                let mut function = 0;
                let code = cuModuleGetFunction(&raw mut function, module, name.as_ptr());
                expect_known("cuModuleGetFunction", code);
            }
            assert_eq!(cuModuleUnload(module), 0);
        }
        let none: *mut *mut c_void = std::ptr::null_mut();
        let mut library = 0;
        let code = cuLibraryLoadData(
            &raw mut library,
            terminated.as_ptr().cast(),
            none.cast(),
            none,
            0,
            none.cast(),
            none,
            0,
        );
        if expect_known("cuLibraryLoadData", code) {
            assert_eq!(cuLibraryUnload(library), 0);
        }
    }
    link(image, link_as);
}

fn link(image: &[u8], link_as: u32) {
    let mut image = image.to_vec();
    let none: *mut *mut c_void = std::ptr::null_mut();
    // SAFETY: as for loading; the linker is told the image's size.
    unsafe {
        let mut state = 0;
        assert_eq!(cuLinkCreate_v2(0, none.cast(), none, &raw mut state), 0);
        let name = c"input";
        let code = cuLinkAddData_v2(
            state,
            link_as,
            image.as_mut_ptr().cast(),
            image.len(),
            name.as_ptr(),
            0,
            none.cast(),
            none,
        );
        if expect_known("cuLinkAddData", code) {
            let (mut cubin, mut size_bytes) = (std::ptr::null_mut(), 0);
            let code = cuLinkComplete(state, &raw mut cubin, &raw mut size_bytes);
            expect_known("cuLinkComplete", code);
        }
        assert_eq!(cuLinkDestroy(state), 0);
    }
}

#[test]
fn ptx() {
    let _alone = watch::alone();
    context();
    let corpus = corpus::texts();
    fuzz(
        "ptx",
        |mutator| {
            let text = mutator.seed(&corpus);
            mutator.ptx(text, &corpus)
        },
        |input| {
            let text: Vec<u8> = input.iter().copied().filter(|&byte| byte != 0).collect();
            load_everywhere(&text, INPUT_PTX, &text);
        },
    );
}

#[test]
fn images() {
    let _alone = watch::alone();
    context();
    let texts = corpus::texts();
    fuzz(
        "images",
        |mutator| {
            let image = corpus::image(mutator, &texts);
            mutator.binary(image)
        },
        |input| {
            // A pointer says nothing of a size: only what ends inside the buffer can be handed over
            // without one.
            let inside = fatbin::total_bytes(input).is_ok_and(|size| size <= input.len() as u64);
            if inside {
                load_everywhere(input, INPUT_FATBIN, &[]);
            } else {
                link(input, INPUT_FATBIN);
            }
            link(input, INPUT_PTX);
        },
    );
}

#[test]
fn kernels() {
    let _alone = watch::alone();
    let machine = std::cell::RefCell::new((TestMachine::new(), 0));
    fuzz(
        "kernels",
        |mutator| {
            let program = generate(mutator.random.clone());
            let text = module(&[program]).into_bytes();
            mutator.lightly(text)
        },
        |input| {
            let mut machine = machine.borrow_mut();
            machine.1 += 1;
            if machine.1 % 200 == 0 {
                // Its memory is never freed.
                machine.0 = TestMachine::new();
            }
            execute(&machine.0, &String::from_utf8_lossy(input));
        },
    );
}

/// Loads and runs a kernel; all outcomes are fine.
fn execute(machine: &TestMachine, text: &str) {
    const GLOBALS_BYTES: u64 = 1 << 16;
    const BUFFER_BYTES: usize = 64 << 10;
    let Ok(mut program) = Program::load(text, &LoadEnv::default()) else { return };
    if program.globals().iter().map(|g| g.size_bytes.min(1 << 40)).sum::<u64>() > GLOBALS_BYTES {
        return;
    }
    let sizes: Vec<u64> = program.globals().iter().map(|global| global.size_bytes).collect();
    let addresses: Vec<u64> = sizes.iter().map(|&size| machine.alloc(size as usize)).collect();
    assert!(program.bind(&addresses));
    for (index, &address) in addresses.iter().enumerate() {
        if let Some(bytes) = program.initial_bytes(index) {
            machine.write(address, &bytes);
        }
    }
    let Ok(kernel) = program.kernel(&kernel_name(0)) else { return };
    // The device refuses launches that need more.
    if kernel.static_shared_bytes > 48 << 10
        || kernel.local_bytes > 1 << 16
        || kernel.param_bytes > 16
    {
        return;
    }
    let (input, output) = (machine.alloc(BUFFER_BYTES), machine.alloc(BUFFER_BYTES));
    let mut launch = launch(&kernel, [2, 1, 1], [64, 1, 1], Params::new().push(input).push(output));
    launch.stack_bytes = 4096;
    let _ = machine.run_for(launch, 2000, 200);
}
