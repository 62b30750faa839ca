//! Faults: sticky, of one context only, and what is refused at the call.

mod support;

use std::ffi::{c_char, c_void};

use support::{PTX, allocate, context, function, launch, read, stream};

const INVALID_VALUE: u32 = 1;
const INVALID_CONTEXT: u32 = 201;
const INVALID_IMAGE: u32 = 200;
const INVALID_PTX: u32 = 218;
const INVALID_HANDLE: u32 = 400;
const NOT_FOUND: u32 = 500;
const ILLEGAL_ADDRESS: u32 = 700;
const CONTEXT_IS_DESTROYED: u32 = 709;
const LAUNCH_FAILED: u32 = 719;

#[test]
fn an_illegal_address_is_sticky_in_its_context_alone() {
    let healthy = context();
    let add = function(PTX, "add");
    let memory = allocate(4);
    assert_eq!(cu!(cuMemsetD32_v2(memory => u64, 1 => u32, 1 => usize)), 0);
    let failing = context();
    let poke = function(PTX, "poke");
    assert_eq!(launch(poke, 1, 1, 0, &[0x10]), 0, "reported later");
    for _ in 0..2 {
        assert_eq!(cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
        assert_eq!(launch(poke, 1, 1, 0, &[0x10]), ILLEGAL_ADDRESS);
    }
    assert_eq!(cu!(cuCtxSetCurrent(healthy => usize)), 0);
    assert_eq!(launch(add, 1, 1, 0, &[memory, 41]), 0);
    assert_eq!(read(memory, 1), [42]);
    assert_eq!(cu!(cuCtxDestroy_v2(failing => usize)), 0);
}

#[test]
fn a_misaligned_store_and_a_trap_have_their_own_codes() {
    for (name, arguments, expected) in [("poke", vec![2u64], 716), ("trap", vec![], LAUNCH_FAILED)]
    {
        let context = context();
        let function = function(PTX, name);
        let memory = allocate(64);
        let arguments: Vec<u64> = arguments.iter().map(|offset| memory + offset).collect();
        assert_eq!(launch(function, 1, 32, 0, &arguments), 0);
        assert_eq!(cu!(cuCtxSynchronize()), expected);
        assert_eq!(cu!(cuCtxDestroy_v2(context => usize)), 0);
    }
}

#[test]
fn freed_memory_faults() {
    context();
    let poke = function(PTX, "poke");
    let memory = allocate(4 << 20);
    assert_eq!(launch(poke, 1, 1, 0, &[memory]), 0);
    assert_eq!(cu!(cuMemFree_v2(memory => u64)), 0);
    assert_eq!(cu!(cuMemFree_v2(memory => u64)), INVALID_VALUE, "freed twice");
    assert_eq!(launch(poke, 1, 1, 0, &[memory]), 0);
    assert_eq!(cu!(cuCtxSynchronize()), ILLEGAL_ADDRESS);
}

#[test]
fn destroying_a_context_ends_an_endless_kernel() {
    let doomed = context();
    let spin = function(PTX, "spin");
    let flag = allocate(4);
    assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
    let stream = stream();
    assert_eq!(launch(spin, 200, 64, stream, &[flag]), 0);
    assert_eq!(cu!(cuCtxDestroy_v2(doomed => usize)), 0);
    assert_eq!(cu!(cuCtxPushCurrent_v2(doomed => usize)), CONTEXT_IS_DESTROYED);
    assert_eq!(cu!(cuStreamQuery(stream => usize)), INVALID_CONTEXT, "no context is current");
}

#[test]
fn bad_launches_are_refused_at_the_call() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(4);
    let null = std::ptr::null_mut::<c_void>();
    assert_eq!(launch(add, 0, 1, 0, &[memory, 1]), INVALID_VALUE);
    assert_eq!(launch(add, 1, 1025, 0, &[memory, 1]), INVALID_VALUE);
    assert_eq!(launch(add, 1, 1, 0x1234, &[memory, 1]), INVALID_HANDLE);
    assert_eq!(launch(0x5678, 1, 1, 0, &[memory, 1]), INVALID_HANDLE);
    let code = cu!(cuLaunchKernel(
        add => usize, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => usize,
        null => *mut c_void, null => *mut c_void,
    ));
    assert_eq!(code, INVALID_VALUE, "no parameters");
    assert_eq!(cu!(cuCtxSynchronize()), 0, "nothing of this sticks");
}

#[test]
fn bad_handles_pointers_and_images_have_their_codes() {
    let context = context();
    assert_eq!(cu!(cuEventQuery(context => usize)), INVALID_HANDLE, "a handle of another kind");
    assert_eq!(cu!(cuStreamDestroy_v2(99 => usize)), INVALID_HANDLE);
    assert_eq!(cu!(cuMemAlloc_v2(std::ptr::null_mut() => *mut u64, 4 => usize)), INVALID_VALUE);
    let mut address = 0u64;
    assert_eq!(cu!(cuMemAlloc_v2(&mut address => *mut u64, 0 => usize)), INVALID_VALUE);
    assert_eq!(cu!(cuMemAlloc_v2(&mut address => *mut u64, 1usize << 50 => usize)), 2);
    assert_eq!(cu!(cuMemFree_v2(0x1234_5000 => u64)), INVALID_VALUE);
    assert_eq!(
        cu!(cuMemcpyHtoD_v2(0x1234_5000 => u64, &mut address => *mut u64, 8 => usize)),
        INVALID_VALUE
    );
    assert_eq!(cu!(cuCtxSetCurrent(0x77 => usize)), INVALID_CONTEXT);
    let mut module = 0usize;
    let mut load = |image: &[u8]| cu!(cuModuleLoadData(&mut module => *mut usize, image.as_ptr().cast() => *const c_char));
    assert_eq!(load(b"\x01\x02\x03\x04garbage\0"), INVALID_IMAGE);
    assert_eq!(load(b".version 7.0\n.target sm_70\n.address_size 64\n foo bar\0"), INVALID_PTX);
    assert_eq!(load(format!("{PTX}\0").as_bytes()), 0);
    let mut function = 0usize;
    let code = cu!(cuModuleGetFunction(&mut function => *mut usize, module => usize, c"none".as_ptr() => *const c_char));
    assert_eq!(code, NOT_FOUND);
}

/// What PTX does not have fails the load, and the log tells where; what it has and this device
/// lacks fails the look-up of its kernel.
#[test]
fn impossible_forms_fail_the_load_and_foreign_ones_the_look_up() {
    context();
    let load = |instruction: &str| {
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() {{\n  .reg .f32 f<2>; .reg .b32 r<2>;\n  {instruction}\n  ret;\n}}\n\0"
        );
        let (mut module, mut log) = (0usize, [0u8; 256]);
        // CU_JIT_ERROR_LOG_BUFFER and its size in bytes
        let options = [5u32, 6];
        let mut values = [log.as_mut_ptr() as usize, log.len()];
        let code = cu!(cuModuleLoadDataEx(
            &mut module => *mut usize, text.as_ptr().cast() => *const c_char, 2 => u32, options.as_ptr() => *const u32,
            values.as_mut_ptr() => *mut usize,
        ));
        let mut function = 0usize;
        let found = match code {
            0 => {
                cu!(cuModuleGetFunction(&mut function => *mut usize, module => usize, c"k".as_ptr() => *const c_char))
            }
            _ => code,
        };
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        (code, found, String::from_utf8_lossy(&log[..end]).into_owned())
    };
    for (instruction, message) in [
        ("add.f32.sat.wide f0, f1, f1;", "add does not take .wide"),
        ("@!f1 mul.s32 r0, r1, r1;", "mul has no form"),
        ("frobnicate.u32 r0, r1;", "frobnicate is no instruction"),
    ] {
        let (code, _, log) = load(instruction);
        assert_eq!(code, INVALID_PTX, "{instruction}");
        assert!(log.contains("line 6, column 3") && log.contains(message), "{instruction}: {log}");
    }
    assert_eq!(load("wgmma.fence.sync.aligned;"), (0, 801, String::new()));
    assert_eq!(load("add.sat.f32 f0, f1, f1;"), (0, 0, String::new()));
}

extern "C" fn count(_stream: usize, status: u32, seen: *mut c_void) {
    // SAFETY: the test's own counters, which outlive the context's work.
    let seen = unsafe { &*seen.cast::<[std::sync::atomic::AtomicU32; 2]>() };
    let index = usize::from(status == ILLEGAL_ADDRESS);
    // SeqCst: read after the callbacks are known to be over.
    seen[index].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn callbacks_behind_a_fault_are_called_once_each_with_the_error() {
    let failing = context();
    let poke = function(PTX, "poke");
    let seen = [const { std::sync::atomic::AtomicU32::new(0) }; 2];
    let pointer = (&raw const seen).cast_mut().cast::<c_void>();
    let stream = stream();
    let flag = allocate(4);
    assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    // Everything is queued before the fault can happen.
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream => usize, flag => u64, 1 => u32, 0 => u32)), 0);
    assert_eq!(launch(poke, 64, 32, stream, &[0x10]), 0);
    for _ in 0..20 {
        let callback: extern "C" fn(usize, u32, *mut c_void) = count;
        let code = cu!(cuStreamAddCallback(
            stream => usize, callback => extern "C" fn(usize, u32, *mut c_void), pointer => *mut c_void, 0 => u32,
        ));
        assert_eq!(code, 0);
    }
    let other = support::stream();
    assert_eq!(cu!(cuStreamWriteValue32_v2(other => usize, flag => u64, 1 => u32, 0 => u32)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), ILLEGAL_ADDRESS);
    // Destroying the context waits for its callbacks.
    assert_eq!(cu!(cuCtxDestroy_v2(failing => usize)), 0);
    let seen = seen.map(|counter| counter.into_inner());
    assert_eq!(seen, [0, 20]);
}
