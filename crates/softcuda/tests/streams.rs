//! Streams and events: order within and between streams, waits for values, host callbacks.

mod support;

use std::ffi::c_void;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use support::{PTX, allocate, context, function, launch, read, stream};

const NOT_READY: u32 = 600;

#[test]
fn work_of_one_stream_runs_in_order() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(4096 * 4);
    let stream = stream();
    assert_eq!(cu!(cuMemsetD32Async(memory => u64, 5 => u32, 4096 => usize, stream => usize)), 0);
    for _ in 0..10 {
        assert_eq!(launch(add, 32, 128, stream, &[memory, 3]), 0);
    }
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(read(memory, 4096), vec![35; 4096]);
}

#[test]
fn a_stream_waits_for_an_event_and_for_a_value() {
    context();
    let add = function(PTX, "add");
    let (memory, flag) = (allocate(4), allocate(4));
    assert_eq!(cu!(cuMemsetD32_v2(memory => u64, 0 => u32, 1 => usize)), 0);
    assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    let (first, second) = (stream(), stream());
    let mut event = 0usize;
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 2 => u32)), 0);
    // `first` waits for the flag, `second` for `first`.
    assert_eq!(cu!(cuStreamWaitValue32_v2(first => usize, flag => u64, 7 => u32, 0 => u32)), 0);
    assert_eq!(launch(add, 1, 1, first, &[memory, 1]), 0);
    assert_eq!(cu!(cuEventRecord(event => usize, first => usize)), 0);
    assert_eq!(cu!(cuStreamWaitEvent(second => usize, event => usize, 0 => u32)), 0);
    assert_eq!(launch(add, 1, 1, second, &[memory, 10]), 0);
    assert_eq!(cu!(cuEventQuery(event => usize)), NOT_READY);
    assert_eq!(cu!(cuStreamQuery(second => usize)), NOT_READY);
    let third = stream();
    assert_eq!(cu!(cuStreamWriteValue32_v2(third => usize, flag => u64, 7 => u32, 0 => u32)), 0);
    assert_eq!(cu!(cuEventSynchronize(event => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(second => usize)), 0);
    assert_eq!(read(memory, 1), [11]);
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    context();
    let (add, spin) = (function(PTX, "add"), function(PTX, "spin"));
    let (memory, flag) = (allocate(4), allocate(4));
    for address in [memory, flag] {
        assert_eq!(cu!(cuMemsetD32_v2(address => u64, 0 => u32, 1 => usize)), 0);
    }
    // The non-blocking stream does not wait for the legacy one, whose work that is.
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    let mut blocking = 0usize;
    assert_eq!(cu!(cuStreamCreate(&mut blocking => *mut usize, 0 => u32)), 0);
    let free = stream();
    assert_eq!(launch(spin, 1, 1, blocking, &[flag]), 0);
    // On the legacy stream: waits for the spinning kernel. On a non-blocking one: does not.
    assert_eq!(launch(add, 1, 1, 0, &[memory, 1]), 0);
    assert_eq!(launch(add, 1, 1, free, &[memory, 100]), 0);
    assert_eq!(cu!(cuStreamSynchronize(free => usize)), 0);
    assert_eq!(cu!(cuStreamQuery(0 => usize)), NOT_READY);
    assert_eq!(cu!(cuStreamWriteValue32_v2(free => usize, flag => u64, 1 => u32, 0 => u32)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!(read(memory, 1), [101]);
}

extern "C" fn linger(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(50));
}

#[test]
fn a_memset_of_memory_that_the_host_reads_waits() {
    context();
    let (mut pinned, mut managed) = (0usize, 0u64);
    let bytes = 4096usize;
    assert_eq!(cu!(cuMemHostAlloc(&mut pinned => *mut usize, bytes => usize, 0 => u32)), 0);
    let attach_global = 1u32;
    assert_eq!(
        cu!(cuMemAllocManaged(&mut managed => *mut u64, bytes => usize, attach_global => u32)),
        0
    );
    for (round, address) in (1u8..).zip([pinned as u64, managed, pinned as u64, managed]) {
        // Whoever did not wait for what is queued before would read the value of before.
        let nothing = std::ptr::null_mut::<c_void>();
        assert_eq!(
            cu!(cuLaunchHostFunc(0 => usize, linger => extern "C" fn(*mut c_void), nothing => *mut c_void)),
            0
        );
        assert_eq!(cu!(cuMemsetD8_v2(address => u64, round => u8, bytes => usize)), 0);
        // SAFETY: allocated above, of this size, and the device is done with it.
        let seen = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
        assert!(seen.iter().all(|byte| *byte == round), "round {round}");
    }
    assert_eq!(cu!(cuMemFreeHost(pinned => usize)), 0);
    assert_eq!(cu!(cuMemFree_v2(managed => u64)), 0);
}

#[test]
fn a_destroyed_stream_lets_the_legacy_stream_go_on_when_its_work_ends() {
    context();
    let memory = allocate(4096);
    let (blocking, nothing) = (0u32, std::ptr::null_mut::<c_void>());
    let mut stream = 0usize;
    assert_eq!(cu!(cuStreamCreate(&mut stream => *mut usize, blocking => u32)), 0);
    assert_eq!(
        cu!(cuLaunchHostFunc(stream => usize, linger => extern "C" fn(*mut c_void), nothing => *mut c_void)),
        0
    );
    assert_eq!(cu!(cuMemsetD8Async(memory => u64, 7 => u8, 4096 => usize, 0 => usize)), 0);
    assert_eq!(cu!(cuStreamDestroy_v2(stream => usize)), 0);
    let begun = Instant::now();
    while cu!(cuStreamQuery(0 => usize)) == NOT_READY {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was never told to go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(read(memory, 4), vec![0x0707_0707; 4]);
}

extern "C" fn tell(sender: *mut c_void) {
    // SAFETY: the test's own sender, which outlives the call.
    let sender = unsafe { &*sender.cast::<mpsc::Sender<u32>>() };
    let mut count = 0i32;
    let code = cu!(cuDeviceGetCount(&mut count => *mut i32));
    sender.send(code).expect("the test waits");
}

#[test]
fn host_functions_run_in_stream_order_and_may_not_call_the_driver() {
    context();
    let (sender, receiver) = mpsc::channel::<u32>();
    let pointer = (&raw const sender).cast_mut().cast::<c_void>();
    let stream = stream();
    let code = cu!(cuLaunchHostFunc(stream => usize, tell => extern "C" fn(*mut c_void), pointer => *mut c_void));
    assert_eq!(code, 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(receiver.try_recv(), Ok(800), "it ran before the synchronisation returned");
}

#[test]
fn event_times_grow() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(1 << 20);
    let (mut start, mut end, mut elapsed_ms) = (0usize, 0usize, -1f32);
    for event in [&mut start, &mut end] {
        assert_eq!(cu!(cuEventCreate(event => *mut usize, 0 => u32)), 0);
    }
    assert_eq!(cu!(cuEventRecord(start => usize, 0 => usize)), 0);
    assert_eq!(launch(add, 1024, 256, 0, &[memory, 1]), 0);
    assert_eq!(cu!(cuEventRecord(end => usize, 0 => usize)), 0);
    assert_eq!(cu!(cuEventSynchronize(end => usize)), 0);
    assert_eq!(
        cu!(cuEventElapsedTime(&mut elapsed_ms => *mut f32, start => usize, end => usize)),
        0
    );
    assert!(elapsed_ms > 0.0);
}

#[test]
fn attributes_of_streams_are_kept_copied_and_checked() {
    context();
    let (first, second) = (stream(), stream());
    let set = |stream: usize, attribute: u32, value: u32| {
        let words = [value, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cu!(cuStreamSetAttribute(stream => usize, attribute => u32, words.as_ptr() => *const u32))
    };
    let get = |stream: usize, attribute: u32| {
        let mut words = [99u32; 16];
        let code = cu!(cuStreamGetAttribute(stream => usize, attribute => u32, words.as_mut_ptr() => *mut u32));
        (code, words[0])
    };
    const SYNCHRONIZATION: u32 = 3;
    const PRIORITY: u32 = 8;
    const COOPERATIVE: u32 = 2;
    assert_eq!((get(first, SYNCHRONIZATION), get(first, PRIORITY)), ((0, 1), (0, 0)));
    assert_eq!((set(first, SYNCHRONIZATION, 4), set(first, PRIORITY, -3i32 as u32)), (0, 0));
    assert_eq!(cu!(cuStreamCopyAttributes(second => usize, first => usize)), 0);
    assert_eq!(get(second, SYNCHRONIZATION), (0, 4));
    let mut priority = 0i32;
    assert_eq!(cu!(cuStreamGetPriority(second => usize, &mut priority => *mut i32)), 0);
    assert_eq!(priority, -3);
    assert_eq!((set(first, SYNCHRONIZATION, 9), set(first, COOPERATIVE, 1)), (1, 1));
    assert_eq!((set(first, PRIORITY, 5), get(first, COOPERATIVE).0), (1, 1));
}

#[test]
fn a_batch_copies_all_and_names_the_copy_that_fails() {
    context();
    let memory = allocate(4096);
    let stream = stream();
    let source: Vec<u32> = (0..64).collect();
    let base = source.as_ptr() as u64;
    let batch = |to: [u64; 2], from: [u64; 2]| {
        let (mut to, mut from, mut sizes) = (to, from, [128usize; 2]);
        let (mut attributes, mut place, mut failed) = ([0u32; 8], 0usize, 77usize);
        let code = cu!(cuMemcpyBatchAsync(
            to.as_mut_ptr() => *mut u64, from.as_mut_ptr() => *mut u64, sizes.as_mut_ptr() => *mut usize, 2 => usize,
            attributes.as_mut_ptr() => *mut u32, &mut place => *mut usize, 1 => usize, &mut failed => *mut usize, stream => usize,
        ));
        (code, failed)
    };
    assert_eq!(batch([memory, memory + 128], [base, base + 128]).0, 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(read(memory, 64), source);
    assert_eq!(batch([memory, 0], [base, base]), (1, 1));
}
