//! The library as an attached program uses it, against a [fake server](fake): through the exported
//! functions, in one process.
//!
//! One test, since a process is attached once; it ends with the server's death.

mod fake;

use crate::exports::*;
use core::ffi::c_void;
use core::ptr::null_mut;
use cuda_abi::types::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Calls an API function that must succeed.
macro_rules! ok {
    ($call:expr) => {
        // SAFETY: the arguments are the test's own valid memory.
        assert_eq!(unsafe { $call }, CUresult::SUCCESS, stringify!($call))
    };
}

/// Calls an API function that must return this error.
macro_rules! fails {
    ($error:ident, $call:expr) => {
        // SAFETY: the arguments are null, invalid handles, or the test's own valid memory.
        assert_eq!(unsafe { $call }, CUresult::$error, stringify!($call))
    };
}

// Behind the macros that it uses.
mod functions;
mod pools;

#[test]
fn an_attached_program() {
    let directory = tempfile::tempdir().unwrap();
    // SAFETY: the other tests of this library read other variables, if any.
    unsafe { std::env::set_var("CUDA_MPS_PIPE_DIRECTORY", directory.path()) };
    fails!(ERROR_NOT_INITIALIZED, cuCtxGetCurrent(null_mut()));
    fake::serve(directory.path());
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version, 13000, "no newer than what this library exports");
    fails!(ERROR_NOT_INITIALIZED, cuDeviceGetCount(&mut version));
    fails!(ERROR_INVALID_VALUE, cuInit(1));
    ok!(cuInit(0));
    contexts();
    let mut context = CUcontext::NULL;
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(cuCtxSetCurrent(context));
    memory();
    pools::what_a_pool_holds_on_to_is_there_again();
    copies();
    streams_and_events();
    a_thread_ends_after_the_programs_thread_locals(context);
    modules_and_launches();
    functions::settings_and_questions();
    a_failed_change_leaves_the_executable_graph();
    a_graph_waits_for_no_record_of_an_earlier_event();
    host_functions();
    the_primary_context_ends_and_lives_again(context);
    the_servers_death();
}

fn contexts() {
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 1);
    let mut value = 0;
    ok!(cuDeviceGetAttribute(&mut value, CUdevice_attribute::MULTIPROCESSOR_COUNT, 0));
    assert_eq!(value, 3);
    for overridden in [
        CUdevice_attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        CUdevice_attribute::GENERIC_COMPRESSION_SUPPORTED,
    ] {
        ok!(cuDeviceGetAttribute(&mut value, overridden, 0));
        assert_eq!(value, 0, "{overridden:?}");
    }
    fails!(ERROR_INVALID_VALUE, cuDeviceGetAttribute(&mut value, CUdevice_attribute(999), 0));
    fails!(ERROR_INVALID_DEVICE, cuDeviceGet(&mut value, 1));
    let mut address = 0;
    fails!(ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut address, 16));
    let (mut one, mut two, mut current) = (CUcontext::NULL, CUcontext::NULL, CUcontext::NULL);
    ok!(cuCtxCreate_v2(&mut one, 0, 0));
    ok!(cuDeviceGetAttribute(&mut value, CUdevice_attribute::MULTIPROCESSOR_COUNT, 0));
    assert_eq!(value, 2, "the client's share, which the executor says a moment later");
    ok!(cuCtxCreate_v4(&mut two, null_mut(), 0, 0));
    ok!(cuCtxGetCurrent(&mut current));
    assert_eq!(current, two);
    ok!(cuCtxDestroy_v2(one));
    ok!(cuCtxPopCurrent_v2(&mut current));
    assert_eq!(current, two);
    fails!(ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut address, 16));
    fails!(ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(one));
    ok!(cuCtxPopCurrent_v2(null_mut()));
    fails!(ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(null_mut()));
    ok!(cuCtxDestroy_v2(two));
    fails!(ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(CUcontext(0x1234)));
}

fn memory() {
    let (mut free, mut total, mut a, mut b) = (0, 0, 0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    ok!(cuMemAlloc_v2(&mut a, 1000));
    ok!(cuMemAlloc_v2(&mut b, 3 << 20));
    assert_eq!(a % 512, 0);
    let (mut base, mut size) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut base, &mut size, a + 999));
    assert_eq!((base, size), (a, 1000));
    fails!(ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&mut base, &mut size, 0x1000));
    fails!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut base, 63 << 20));
    fails!(ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&mut base, usize::MAX));
    fails!(ERROR_INVALID_VALUE, cuMemAlloc_v2(&mut base, 0));
    ok!(cuMemFree_v2(a));
    fails!(ERROR_INVALID_VALUE, cuMemFree_v2(a));
    fails!(ERROR_INVALID_VALUE, cuMemFree_v2(b + 8));
    ok!(cuMemFree_v2(b));
    ok!(cuMemFree_v2(0));
    let (mut after, mut pool) = (0, CUmemoryPool::NULL);
    ok!(cuMemGetInfo_v2(&mut after, &mut total));
    assert_eq!(after, free, "what was freed counts as free");
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    ok!(cuMemAllocAsync(&mut a, 4096, CUstream::NULL));
    let mut used = 0_u64;
    let value: *mut u64 = &mut used;
    ok!(cuMemPoolGetAttribute(pool, CUmemPool_attribute::USED_MEM_CURRENT, value.cast()));
    assert_eq!(used, 4096);
    ok!(cuMemFreeAsync(a, CUstream::NULL));
    let mut kind = 0_u32;
    let data: *mut u32 = &mut kind;
    let local = 5_u64;
    let unknown = (&raw const local) as u64;
    fails!(
        ERROR_INVALID_VALUE,
        cuPointerGetAttribute(data.cast(), CUpointer_attribute::MEMORY_TYPE, unknown)
    );
    let (mut attribute, mut place) = (CUpointer_attribute::DEVICE_ORDINAL, data.cast::<c_void>());
    ok!(cuPointerGetAttributes(1, &mut attribute, &mut place, unknown));
    assert_eq!(kind.cast_signed(), CU_DEVICE_INVALID);
}

fn pattern(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed)).collect()
}

fn copies() {
    // Longer than the staging ring.
    let count = 5 << 20;
    let bytes = count * 4;
    let (source, mut target) = (pattern(count, 1), vec![0_u32; count]);
    let (mut a, mut b) = (0, 0);
    ok!(cuMemAlloc_v2(&mut a, bytes));
    ok!(cuMemAlloc_v2(&mut b, bytes));
    ok!(cuMemcpyHtoD_v2(a, source.as_ptr().cast(), bytes));
    ok!(cuMemcpyDtoDAsync_v2(b, a, bytes, CUstream::NULL));
    ok!(cuMemcpyDtoH_v2(target.as_mut_ptr().cast(), b, bytes));
    assert!(source == target);
    fails!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a + 4, source.as_ptr().cast(), bytes));
    fails!(ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0x1000, source.as_ptr().cast(), 4));
    fails!(ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(a, source.as_ptr() as u64, 4));
    ok!(cuMemsetD32_v2(a, 0xabcd, 1000));
    ok!(cuMemsetD8_v2_ptds(a + 4, 0xee, 3));
    fails!(ERROR_INVALID_VALUE, cuMemsetD32_v2(a + 1, 0, 1));
    ok!(cuMemcpyDtoH_v2_ptds(target.as_mut_ptr().cast(), a, 4000));
    assert_eq!(target[..3], [0xabcd, 0x00ee_eeee, 0xabcd]);
    // Pitched rows to the device, unaligned, and back from the middle.
    let plane = CUDA_MEMCPY2D {
        srcXInBytes: 3,
        srcY: 1,
        srcMemoryType: CUmemorytype::HOST,
        srcHost: source.as_ptr().cast(),
        srcPitch: 1000,
        dstXInBytes: 5,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: a,
        dstPitch: 2048,
        WidthInBytes: 700,
        Height: 3000,
        ..Default::default()
    };
    ok!(cuMemcpy2D_v2(&plane));
    let mut row = vec![0_u8; 700];
    ok!(cuMemcpyDtoH_v2(row.as_mut_ptr().cast(), a + 2048 * 2999 + 5, 700));
    // SAFETY: plain bytes of a live vector.
    let bytes_of_source =
        unsafe { core::slice::from_raw_parts(source.as_ptr().cast::<u8>(), bytes) };
    assert!(row == bytes_of_source[3000 * 1000 + 3..][..700]);
    // Pinned and registered memory.
    let mut pinned = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 1 << 20, 0));
    ok!(cuMemcpyDtoHAsync_v2(pinned, b, 1 << 20, CUstream::NULL));
    ok!(cuCtxSynchronize());
    // SAFETY: the pinned memory, whose copy is done.
    let copied = unsafe { core::slice::from_raw_parts(pinned.cast::<u32>(), 1 << 18) };
    assert!(copied == &source[..1 << 18]);
    fails!(ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(pinned, 16, 0));
    let (address, mut alias) = (target.as_mut_ptr().cast::<c_void>(), 0);
    ok!(cuMemHostRegister_v2(address, 8192, 0));
    target[7] = 77;
    ok!(cuMemHostGetDevicePointer_v2(&mut alias, address, 0));
    ok!(cuMemsetD32Async(alias, 9, 4, CUstream::NULL));
    ok!(cuCtxSynchronize());
    assert_eq!(target[..8], [9, 9, 9, 9, target[4], target[5], target[6], 77]);
    ok!(cuMemHostUnregister(address));
    assert_eq!((target[3], target[7]), (9, 77));
    fails!(ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(address));
    shared_pages_stay_where_they_are();
    ok!(cuMemFreeHost(pinned));
    ok!(cuMemFree_v2(a));
    ok!(cuMemFree_v2(b));
}

/// Who shares such pages would not see what the device writes, were they moved.
fn shared_pages_stay_where_they_are() {
    use rustix::mm::{MapFlags, ProtFlags};
    let all = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new pages at any address.
    let pages =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), 8192, all, MapFlags::SHARED) }.unwrap();
    let mut alias = 0;
    ok!(cuMemHostRegister_v2(pages, 8192, 0));
    fails!(ERROR_NOT_SUPPORTED, cuMemHostGetDevicePointer_v2(&mut alias, pages, 0));
    ok!(cuMemHostUnregister(pages));
    // SAFETY: mapped above, and used no more.
    unsafe { rustix::mm::munmap(pages, 8192) }.unwrap();
}

/// A copy that becomes one of pageable memory makes the executable graph anew; when that fails, it
/// is what it was.
fn a_failed_change_leaves_the_executable_graph() {
    let (mut pinned, mut address) = (null_mut(), 0);
    ok!(cuMemHostAlloc(&mut pinned, 4096, 0));
    ok!(cuMemAlloc_v2(&mut address, 4096));
    let (mut graph, mut node, mut executable) =
        (CUgraph::NULL, CUgraphNode::NULL, CUgraphExec::NULL);
    let copy = |from: *const c_void, size_bytes: u64| CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: from,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: address,
        WidthInBytes: size_bytes as usize,
        Height: 1,
        Depth: 1,
        ..Default::default()
    };
    let mut context = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut context));
    ok!(cuGraphCreate(&mut graph, 0));
    let first = copy(pinned, 64);
    ok!(cuGraphAddMemcpyNode(&mut node, graph, core::ptr::null(), 0, &first, context));
    ok!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    ok!(cuGraphLaunch(executable, CUstream::NULL));
    let pageable = [7_u8; 128];
    let refused = copy(pageable.as_ptr().cast(), fake::REFUSED_COPY_BYTES);
    fails!(
        ERROR_OUT_OF_MEMORY,
        cuGraphExecMemcpyNodeSetParams(executable, node, &refused, context)
    );
    ok!(cuGraphLaunch(executable, CUstream::NULL));
    let taken = copy(pageable.as_ptr().cast(), 128);
    ok!(cuGraphExecMemcpyNodeSetParams(executable, node, &taken, context));
    ok!(cuGraphLaunch(executable, CUstream::NULL));
    ok!(cuCtxSynchronize());
    ok!(cuGraphExecDestroy(executable));
    ok!(cuGraphDestroy(graph));
    ok!(cuMemFree_v2(address));
    ok!(cuMemFreeHost(pinned));
}

fn a_graph_waits_for_no_record_of_an_earlier_event() {
    let created = || {
        ok!(cuCtxSynchronize());
        let (mut free, mut total) = (0, 0);
        // A call that is answered, so that all before it is done.
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        fake::EVENTS_CREATED.load(Ordering::Relaxed)
    };
    let mut event = CUevent::NULL;
    ok!(cuEventCreate(&mut event, 2));
    ok!(cuEventRecord(event, CUstream::NULL));
    ok!(cuEventDestroy_v2(event));
    let before = created();
    ok!(cuEventCreate(&mut event, 2));
    ok!(cuEventQuery(event));
    assert_eq!(created(), before, "an event of the executor serves again");
    let (mut graph, mut node) = (CUgraph::NULL, CUgraphNode::NULL);
    ok!(cuGraphCreate(&mut graph, 0));
    ok!(cuGraphAddEventWaitNode(&mut node, graph, core::ptr::null(), 0, event));
    let mut executables = [CUgraphExec::NULL; 2];
    for executable in &mut executables {
        ok!(cuGraphInstantiateWithFlags(executable, graph, 0));
    }
    assert_eq!(created(), before + 1, "once, since the graph could wait before any record");
    for executable in executables {
        ok!(cuGraphExecDestroy(executable));
    }
    ok!(cuGraphDestroy(graph));
    ok!(cuEventDestroy_v2(event));
}

fn streams_and_events() {
    let (mut stream, mut event, mut end) = (CUstream::NULL, CUevent::NULL, CUevent::NULL);
    ok!(cuStreamCreate(&mut stream, 1));
    fails!(ERROR_INVALID_VALUE, cuStreamCreate(&mut stream, 2));
    ok!(cuEventCreate(&mut event, 0));
    ok!(cuEventCreate(&mut end, 0));
    ok!(cuEventQuery(event));
    let mut time_ms = 0.0;
    fails!(ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&mut time_ms, event, end));
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamWaitEvent(CUstream::PER_THREAD, event, 0));
    ok!(cuEventRecord_ptsz(end, CUstream::NULL));
    ok!(cuEventSynchronize(end));
    ok!(cuEventSynchronize(event));
    ok!(cuEventElapsedTime_v2(&mut time_ms, event, end));
    assert!(time_ms > 1.0);
    ok!(cuStreamSynchronize(stream));
    ok!(cuStreamQuery(stream));
    ok!(cuStreamDestroy_v2(stream));
    fails!(ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
    fails!(ERROR_INVALID_HANDLE, cuStreamDestroy_v2(CUstream(3)));
    fails!(ERROR_INVALID_HANDLE, cuEventRecord(event, stream));
    ok!(cuEventDestroy_v2(event));
    fails!(ERROR_INVALID_HANDLE, cuEventQuery(event));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut context = CUcontext::NULL;
                ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
                ok!(cuCtxSetCurrent(context));
                let (mut address, data) = (0, pattern(100_000, 3));
                let mut back = vec![0_u32; data.len()];
                for _ in 0..20 {
                    ok!(cuMemAlloc_v2(&mut address, data.len() * 4));
                    ok!(cuMemcpyHtoD_v2_ptds(address, data.as_ptr().cast(), data.len() * 4));
                    ok!(cuMemcpyDtoH_v2_ptds(back.as_mut_ptr().cast(), address, data.len() * 4));
                    assert!(data == back);
                    ok!(cuMemFree_v2(address));
                }
                ok!(cuDevicePrimaryCtxRelease_v2(0));
            });
        }
    });
}

/// Asks for the current context, and allocates, when its thread's locals end.
struct Last(Cell<Option<Sender<(CUcontext, CUresult)>>>);

impl Drop for Last {
    fn drop(&mut self) {
        let (mut current, mut address) = (CUcontext::NULL, 0);
        // SAFETY: the test's own variables.
        let allocated = unsafe {
            cuCtxGetCurrent(&mut current);
            cuMemAlloc_v2(&mut address, 64)
        };
        // SAFETY: what was allocated above, or NULL.
        unsafe { cuMemFree_v2(address) };
        self.0.take().map(|seen| seen.send((current, allocated)));
    }
}

thread_local! {
    static LAST: Last = const { Last(Cell::new(None)) };
}

fn a_thread_ends_after_the_programs_thread_locals(context: CUcontext) {
    let (sender, seen) = channel();
    let thread = std::thread::spawn(move || {
        // Older than all that the library keeps for the thread, so it ends after the library's own
        // thread-locals.
        LAST.with(|last| last.0.set(Some(sender)));
        ok!(cuCtxSetCurrent(context));
        let mut event = CUevent::NULL;
        ok!(cuEventCreate(&mut event, 0));
        ok!(cuEventRecord_ptsz(event, CUstream::NULL));
        ok!(cuEventSynchronize(event));
        ok!(cuEventDestroy_v2(event));
    });
    thread.join().unwrap();
    assert_eq!(seen.recv(), Ok((context, CUresult::SUCCESS)));
}

const PTX: &core::ffi::CStr = c"// good\n.version 7.0";

fn modules_and_launches() {
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    fails!(ERROR_NOT_FOUND, cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()));
    ok!(cuModuleGetFunction(&mut function, module, c"add".as_ptr()));
    let mut log = [1_u8; 32];
    let mut options = [CUjit_option::ERROR_LOG_BUFFER, CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values =
        [log.as_mut_ptr().cast::<c_void>(), core::ptr::without_provenance_mut(log.len())];
    let mut bad = CUmodule::NULL;
    let image = c"// bad".as_ptr().cast();
    fails!(
        ERROR_INVALID_PTX,
        cuModuleLoadDataEx(&mut bad, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
    );
    assert_eq!(&log[..10], b"on line 1\0");
    assert_eq!(values[1].addr(), 9);
    fails!(ERROR_INVALID_IMAGE, cuModuleLoadData(&mut bad, [1_u8, 2, 3, 4].as_ptr().cast()));
    let (mut address, mut count, mut value) = (0_u64, 1000_u32, 5_u32);
    ok!(cuMemAlloc_v2(&mut address, 4000));
    ok!(cuMemsetD32_v2(address, 1, 1000));
    let mut parameters: [*mut c_void; 3] =
        [(&raw mut address).cast(), (&raw mut count).cast(), (&raw mut value).cast()];
    let launch = |f, grid: u32, block: u32, shared, parameters: *mut *mut c_void| {
        // SAFETY: the parameters are the kernel's, or null, which is refused.
        unsafe {
            cuLaunchKernel(
                f,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared,
                CUstream::NULL,
                parameters,
                null_mut(),
            )
        }
    };
    let own = parameters.as_mut_ptr();
    assert_eq!(launch(function, 1, 32, 0, own), CUresult::SUCCESS);
    assert_eq!(launch(function, 0, 32, 0, own), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(function, 1, 2000, 0, own), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(function, 1, 1024, 0, own), CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_eq!(launch(function, 1, 520, 0, own), CUresult::ERROR_INVALID_VALUE, "launch bounds");
    assert_eq!(launch(function, 1, 32, 5000, own), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(function, 1, 32, 0, null_mut()), CUresult::ERROR_INVALID_VALUE);
    assert_eq!(launch(CUfunction::NULL, 1, 32, 0, own), CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(launch(CUfunction(0x5555), 1, 32, 0, own), CUresult::ERROR_INVALID_HANDLE);
    // What only the driver refuses is told by the next call that waits, once.
    let ends: [fn() -> CUresult; 3] = [
        // SAFETY: handles of no object, which stand for the current context and its legacy stream.
        || unsafe { cuCtxSynchronize() },
        // SAFETY: as above.
        || unsafe { cuStreamSynchronize(CUstream::NULL) },
        || {
            let mut word = 0_u32;
            // SAFETY: memory of this test's own; host to host.
            unsafe { cuMemcpy((&raw mut word).addr() as u64, (&raw const word).addr() as u64, 4) }
        },
    ];
    for end in ends {
        assert_eq!(launch(function, fake::REFUSED_GRID, 32, 0, own), CUresult::SUCCESS);
        assert_eq!(end(), CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        assert_eq!(end(), CUresult::SUCCESS);
    }
    // A library's kernel, launched as a function, with packed parameters.
    let (mut library, mut kernel) = (CUlibrary::NULL, CUkernel::NULL);
    ok!(cuLibraryLoadData(
        &mut library,
        PTX.as_ptr().cast(),
        null_mut(),
        null_mut(),
        0,
        null_mut(),
        null_mut(),
        0
    ));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    let mut packed = Vec::new();
    packed.extend_from_slice(&address.to_ne_bytes());
    packed.extend_from_slice(&count.to_ne_bytes());
    packed.extend_from_slice(&10_u32.to_ne_bytes());
    let mut packed_bytes = packed.len();
    let mut extra: [*mut c_void; 5] = [
        core::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_POINTER),
        packed.as_mut_ptr().cast(),
        core::ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
        (&raw mut packed_bytes).cast(),
        null_mut(),
    ];
    let config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        ..Default::default()
    };
    ok!(cuLaunchKernelEx_ptsz(&config, CUfunction(kernel.0), null_mut(), extra.as_mut_ptr()));
    let mut words = vec![0_u32; 1000];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, 4000));
    assert!(words.iter().all(|&word| word == 16));
    let cooperative = |grid| {
        let f = CUfunction(kernel.0);
        // SAFETY: the parameters are the kernel's.
        unsafe { cuLaunchCooperativeKernel(f, grid, 1, 1, 32, 1, 1, 0, CUstream::NULL, own) }
    };
    assert_eq!(cooperative(4), CUresult::SUCCESS);
    assert_eq!(cooperative(5), CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    ok!(cuLibraryUnload(library));
    assert_eq!(launch(CUfunction(kernel.0), 1, 32, 0, own), CUresult::ERROR_INVALID_HANDLE);
    ok!(cuModuleUnload(module));
    assert_eq!(launch(function, 1, 32, 0, own), CUresult::ERROR_INVALID_HANDLE);
    fails!(ERROR_INVALID_HANDLE, cuModuleGetFunction(&mut function, module, c"add".as_ptr()));
    ok!(cuMemFree_v2(address));
}

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn host_function(expected: *mut c_void) {
    assert_eq!(CALLS.fetch_add(1, Ordering::SeqCst) as usize, expected.addr());
    fails!(ERROR_NOT_PERMITTED, cuCtxSynchronize());
}

unsafe extern "C" fn stream_callback(_stream: CUstream, status: CUresult, expected: *mut c_void) {
    assert_eq!(status, CUresult::SUCCESS);
    // SAFETY: as the library calls it.
    unsafe { host_function(expected) };
}

fn host_functions() {
    let mut stream = CUstream::NULL;
    ok!(cuStreamCreate(&mut stream, 0));
    for i in 0..20 {
        let data = core::ptr::without_provenance_mut(i);
        if i % 2 == 0 {
            ok!(cuLaunchHostFunc(stream, Some(host_function), data));
        } else {
            ok!(cuStreamAddCallback(stream, Some(stream_callback), data, 0));
        }
    }
    ok!(cuStreamSynchronize(stream));
    assert_eq!(CALLS.load(Ordering::SeqCst), 20);
    ok!(cuLaunchHostFunc(stream, Some(host_function), core::ptr::without_provenance_mut(20)));
    ok!(cuCtxSynchronize());
    assert_eq!(CALLS.load(Ordering::SeqCst), 21);
    ok!(cuStreamDestroy_v2(stream));
}

fn the_primary_context_ends_and_lives_again(context: CUcontext) {
    let (mut flags, mut active, mut again, mut address) = (0, 0, CUcontext::NULL, 0);
    ok!(cuMemAlloc_v2(&mut address, 64));
    ok!(cuDevicePrimaryCtxReset_v2(0));
    ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 0);
    fails!(ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&mut address, 16));
    fails!(ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    ok!(cuDevicePrimaryCtxRetain(&mut again, 0));
    assert_eq!(again, context);
    fails!(ERROR_INVALID_VALUE, cuMemFree_v2(address));
    ok!(cuMemAlloc_v2(&mut address, 16));
    ok!(cuMemFree_v2(address));
}

/// The fake dies of this limit; from then on every call that needs it says so.
fn the_servers_death() {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 16));
    fails!(ERROR_MPS_RPC_FAILURE, cuCtxSetLimit(CUlimit::STACK_SIZE, 1));
    fails!(ERROR_MPS_RPC_FAILURE, cuMemsetD8_v2(address, 0, 16));
    fails!(ERROR_MPS_RPC_FAILURE, cuMemcpyHtoD_v2(address, (&raw const address).cast(), 8));
    fails!(ERROR_MPS_RPC_FAILURE, cuCtxSynchronize());
    fails!(ERROR_MPS_RPC_FAILURE, cuMemAlloc_v2(&mut address, 16));
    let mut context = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut context));
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert!(!context.is_null());
}
