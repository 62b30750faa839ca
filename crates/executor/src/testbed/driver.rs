//! A driver that does nothing at once: its table, what it was given, and how it is to behave, each
//! thread's own.

use cuda_abi::table::DriverTable;
use cuda_abi::types::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a library's variable is when it is loaded.
pub(crate) const LOADED_VALUE: u64 = 5;

/// Handles that were given out; of all tests, which need them to differ only.
static HANDLES: AtomicUsize = AtomicUsize::new(1);

/// What the nodes of all tests' graphs were made with: bytes of parameters.
static MADE_WITH_BYTES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

std::thread_local! {
    /// Chains and kernels that this thread has submitted.
    static SUBMITTED: AtomicU32 = const { AtomicU32::new(0) };
    /// Images and functions that this thread has had loaded.
    static LOADED: AtomicU32 = const { AtomicU32::new(0) };
    /// Executable graphs that this thread has had made, and ended.
    static GRAPHS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    /// Libraries that this thread has had unloaded.
    static UNLOADED: AtomicU32 = const { AtomicU32::new(0) };
    /// The variable of each of this thread's libraries, once it was asked for.
    static VARIABLES: RefCell<HashMap<usize, Box<u64>>> = RefCell::default();
    /// Whether this thread's driver finds no variable by its name.
    static HIDES: Cell<bool> = const { Cell::new(false) };
    /// Calls about mapped memory that this thread has made.
    static MAPPING: AtomicU32 = const { AtomicU32::new(0) };
    /// When work is done.
    static WORK: Cell<Work> = const { Cell::new(Work::EndsAtOnce) };
    /// What this thread's driver takes for things.
    static TAKES: Cell<Takes> = const { Cell::new(AT_ONCE) };
    /// Whether what this thread's driver is given changes memory; not where instructions are
    /// counted.
    static WRITES: Cell<bool> = const { Cell::new(false) };
    /// What is done when this thread's driver has written a completion word.
    static OBSERVER: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    /// How many conditions this thread's graphs have.
    static CONDITIONS: RefCell<HashMap<usize, u64>> = RefCell::default();
    /// Whether this thread's driver refuses the next graph that it is given.
    static REFUSES_GRAPH: Cell<bool> = const { Cell::new(false) };
    /// What the graph that this thread submits next does to memory.
    static EFFECTS: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Whether what a driver was given has ended when somebody looks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    EndsAtOnce,
    Lasts,
}

/// What a driver takes, and says that others take.
#[derive(Clone, Copy)]
pub(crate) struct Takes {
    /// From one event to the next, in milliseconds.
    pub(crate) between_events_ms: f32,
    /// To accept a launch, at least.
    pub(crate) launch: Duration,
}

const AT_ONCE: Takes = Takes { between_events_ms: 0.001, launch: Duration::ZERO };

/// How often this thread has given the driver something to do.
pub(crate) fn submitted() -> u32 {
    SUBMITTED.with(|count| count.load(Ordering::Relaxed))
}

/// From now on this thread's driver is as slow as this, and writes completion words.
pub(crate) fn take(takes: Takes) {
    TAKES.set(takes);
    WRITES.set(true);
}

/// Keeps what a node of the next graph does, as far as it has parameters: the tests' own kernels
/// have none, those of the executor do what they say. No node may get more than it was made with
/// ([`crate::submit::chain`] says why).
///
/// # Safety
/// As for the driver's function.
unsafe fn note_effect(node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS) -> CUresult {
    if !WRITES.get() {
        return CUresult::SUCCESS;
    }
    // SAFETY: the caller's promise.
    let words = unsafe { parameter_words(parameters) };
    let made_with = MADE_WITH_BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    let room_bytes = made_with.get(&node.0).copied().unwrap_or_default();
    assert!(words.len() * 8 <= room_bytes, "{} words for {room_bytes} bytes", words.len());
    if !words.is_empty() {
        EFFECTS.with_borrow_mut(|effects| effects.push(words));
    }
    CUresult::SUCCESS
}

/// The parameters of a node that is made or set.
///
/// # Safety
/// As for the driver's functions.
unsafe fn parameter_words(node: *const CUDA_KERNEL_NODE_PARAMS) -> Vec<u64> {
    // SAFETY: a node's parameters, whose `extra` is null or the array that the executor makes: a
    // buffer and its length.
    unsafe {
        let extra = (*node).extra;
        if extra.is_null() {
            return Vec::new();
        }
        let (buffer, length) = (*extra.add(1), (*extra.add(3)).cast::<usize>());
        std::slice::from_raw_parts(buffer.cast::<u64>(), *length / 8).to_vec()
    }
}

/// A node of a graph, which has room for what it is made with.
///
/// # Safety
/// As for the driver's function.
unsafe fn new_node(parameters: *const CUDA_KERNEL_NODE_PARAMS) -> CUgraphNode {
    let node = CUgraphNode(handle());
    // SAFETY: the caller's promise.
    let room_bytes = unsafe { parameter_words(parameters) }.len() * 8;
    let mut made_with = MADE_WITH_BYTES.lock().unwrap_or_else(PoisonError::into_inner);
    made_with.insert(node.0, room_bytes);
    node
}

/// This thread's driver has no memory for the next graph that it is given.
pub(crate) fn refuse_next_graph() {
    REFUSES_GRAPH.set(true);
}

/// Submits a graph: what its nodes do to memory is done.
fn launch_graph() -> CUresult {
    if REFUSES_GRAPH.take() {
        return CUresult::ERROR_OUT_OF_MEMORY;
    }
    if WRITES.get() {
        for effect in EFFECTS.take() {
            if let [address, value] = effect[..] {
                write_word(address, value);
            }
        }
    }
    note_submission()
}

/// A word of a completion file, which the test's process has mapped, as the device sees it.
fn write_word(address: u64, value: u64) -> CUresult {
    // Nodes that are to name nothing name no address.
    if WRITES.get() && address != 0 {
        let word = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: an address that the executor took from a mapping of its own, aligned, of words
        // that other threads load only.
        unsafe { word.write_volatile(value) };
        OBSERVER.with_borrow_mut(|observer| observer.iter_mut().for_each(|observe| observe()));
    }
    CUresult::SUCCESS
}

/// From now on this thread's driver writes completion words, and `observe` is called when it has
/// written one: when a client sees it.
pub(crate) fn observe_words(observe: impl FnMut() + 'static) {
    WRITES.set(true);
    OBSERVER.set(Some(Box::new(observe)));
}

/// What has become of this thread's work when it is next looked at.
pub(crate) fn set_work(work: Work) {
    WORK.set(work);
}

/// How many executable graphs this thread has had made, and ended.
pub(crate) fn graphs() -> (u32, u32) {
    GRAPHS.get()
}

/// How many images and functions this thread has had loaded.
pub(crate) fn loaded() -> u32 {
    LOADED.with(|count| count.load(Ordering::Relaxed))
}

fn note_load() {
    LOADED.with(|count| count.fetch_add(1, Ordering::Relaxed));
}

/// How many libraries this thread has had unloaded.
pub(crate) fn unloaded() -> u32 {
    UNLOADED.with(|count| count.load(Ordering::Relaxed))
}

/// From now on this thread's driver finds no variables.
pub(crate) fn hide_variables() {
    HIDES.set(true);
}

/// Where the variable of a library is: in this process, as copies and fills of this driver are done
/// here and at once.
fn variable_of(library: CUlibrary) -> CUdeviceptr {
    VARIABLES.with_borrow_mut(|all| {
        let variable = all.entry(library.0).or_insert_with(|| Box::new(LOADED_VALUE));
        (&raw mut **variable).expose_provenance() as u64
    })
}

/// A copy between a variable of a library's and memory of the executor.
///
/// # Safety
/// Both ends are exposed, and so long.
unsafe fn copy(to: usize, from: usize, size_bytes: usize) -> CUresult {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the caller's promise.
    unsafe { to.copy_from(std::ptr::with_exposed_provenance(from), size_bytes) };
    note_submission()
}

fn unload(library: CUlibrary) -> CUresult {
    VARIABLES.with_borrow_mut(|all| all.remove(&library.0));
    UNLOADED.with(|count| count.fetch_add(1, Ordering::Relaxed));
    CUresult::SUCCESS
}

/// How many calls about mapped memory this thread has made.
pub(crate) fn mapping_calls() -> u32 {
    MAPPING.with(|count| count.load(Ordering::Relaxed))
}

fn note_mapping() -> CUresult {
    MAPPING.with(|count| count.fetch_add(1, Ordering::Relaxed));
    CUresult::SUCCESS
}

fn note_submission() -> CUresult {
    let takes = TAKES.get().launch;
    if !takes.is_zero() {
        let started = Instant::now();
        while started.elapsed() < takes {
            std::hint::spin_loop();
        }
    }
    SUBMITTED.with(|count| count.fetch_add(1, Ordering::Relaxed));
    CUresult::SUCCESS
}

fn look_at_work() -> CUresult {
    match WORK.get() {
        Work::EndsAtOnce => CUresult::SUCCESS,
        Work::Lasts => CUresult::ERROR_NOT_READY,
    }
}

/// Each graph's conditions are numbered from 1, as on an H200.
fn next_condition(graph: CUgraph) -> CUgraphConditionalHandle {
    CONDITIONS.with_borrow_mut(|counts| {
        let count = counts.entry(graph.0).or_default();
        *count += 1;
        *count
    })
}

fn handle() -> usize {
    HANDLES.fetch_add(1, Ordering::Relaxed)
}

/// A driver's functions that answer at once, as far as sessions of these tests come.
pub(super) fn table() -> DriverTable {
    /// One function: what it is called with, and what it does.
    macro_rules! function {
        (|$($name:ident: $ty:ty),*| $body:expr) => {{
            unsafe extern "C" fn function($($name: $ty),*) -> CUresult {
                $(let _ = $name;)*
                // SAFETY: results are written where the driver's prototype says that there is room.
                #[allow(unused_unsafe)]
                unsafe { $body }
            }
            Some(function as unsafe extern "C" fn($($ty),*) -> CUresult)
        }};
    }
    /// Writes a result.
    macro_rules! give {
        ($to:ident, $value:expr) => {{
            $to.write($value);
            CUresult::SUCCESS
        }};
    }
    const DONE: CUresult = CUresult::SUCCESS;
    DriverTable {
        cuDeviceGet: function!(|device: *mut CUdevice, ordinal: i32| give!(device, ordinal)),
        cuDeviceGetAttribute: function!(
            |value: *mut i32, attribute: CUdevice_attribute, device: CUdevice| give!(value, 1)
        ),
        cuDevicePrimaryCtxRetain: function!(|context: *mut CUcontext, device: CUdevice| give!(
            context,
            CUcontext(handle())
        )),
        cuCtxSetCurrent: function!(|context: CUcontext| DONE),
        cuCtxGetLimit: function!(|value: *mut usize, limit: CUlimit| give!(value, 1024)),
        cuMemAddressReserve: function!(|to: *mut CUdeviceptr,
                                        size: usize,
                                        alignment: usize,
                                        at: CUdeviceptr,
                                        flags: u64| {
            give!(to, at)
        }),
        cuMemImportFromShareableHandle: function!(
            |memory: *mut CUmemGenericAllocationHandle,
             descriptor: *mut c_void,
             kind: CUmemAllocationHandleType| {
                memory.write(handle() as u64);
                note_mapping()
            }
        ),
        cuMemMap: function!(|at: CUdeviceptr,
                             size_bytes: usize,
                             offset_bytes: usize,
                             memory: CUmemGenericAllocationHandle,
                             flags: u64| note_mapping()),
        cuMemSetAccess: function!(|at: CUdeviceptr,
                                   size_bytes: usize,
                                   access: *const CUmemAccessDesc,
                                   count: usize| note_mapping()),
        cuMemUnmap: function!(|at: CUdeviceptr, size_bytes: usize| note_mapping()),
        cuMemAddressFree: function!(|at: CUdeviceptr, size_bytes: usize| DONE),
        cuMemRelease: function!(|memory: CUmemGenericAllocationHandle| note_mapping()),
        cuMemcpyAsync: function!(|to: CUdeviceptr,
                                  from: CUdeviceptr,
                                  size_bytes: usize,
                                  stream: CUstream| {
            note_submission()
        }),
        cuMemcpy2DAsync_v2: function!(|copy: *const CUDA_MEMCPY2D, stream: CUstream| {
            note_submission()
        }),
        cuMemsetD8Async: function!(|to: CUdeviceptr,
                                    value: u8,
                                    size_bytes: usize,
                                    stream: CUstream| {
            note_submission()
        }),
        cuMemcpy3DAsync_v2: function!(|copy: *const CUDA_MEMCPY3D, stream: CUstream| {
            note_submission()
        }),
        cuMemHostRegister_v2: function!(|at: *mut c_void, size_bytes: usize, flags: u32| DONE),
        cuMemHostGetDevicePointer_v2: function!(
            |to: *mut CUdeviceptr, at: *mut c_void, flags: u32| give!(to, at.addr() as u64)
        ),
        cuLibraryLoadData: function!(|library: *mut CUlibrary,
                                      code: *const c_void,
                                      jit_options: *mut CUjit_option,
                                      jit_values: *mut *mut c_void,
                                      jit_count: u32,
                                      options: *mut CUlibraryOption,
                                      values: *mut *mut c_void,
                                      count: u32| {
            note_load();
            give!(library, CUlibrary(handle()))
        }),
        cuLibraryGetKernelCount: function!(|count: *mut u32, library: CUlibrary| give!(count, 1)),
        cuLibraryEnumerateKernels: function!(
            |kernels: *mut CUkernel, count: u32, library: CUlibrary| {
                give!(kernels, CUkernel(handle()))
            }
        ),
        cuKernelGetName: function!(|name: *mut *const c_char, kernel: CUkernel| give!(
            name,
            c"f".as_ptr()
        )),
        cuLibraryGetManaged: function!(
            |at: *mut CUdeviceptr,
             size_bytes: *mut usize,
             library: CUlibrary,
             name: *const c_char| CUresult::ERROR_NOT_FOUND
        ),
        cuLibraryGetGlobal: function!(|at: *mut CUdeviceptr,
                                       size_bytes: *mut usize,
                                       library: CUlibrary,
                                       name: *const c_char| {
            if HIDES.get() {
                return CUresult::ERROR_NOT_FOUND;
            }
            at.write(variable_of(library));
            give!(size_bytes, size_of::<u64>())
        }),
        cuLibraryUnload: function!(|library: CUlibrary| unload(library)),
        cuMemcpyDtoHAsync_v2: function!(
            |to: *mut c_void, from: CUdeviceptr, size_bytes: usize, stream: CUstream| {
                copy(to.expose_provenance(), from as usize, size_bytes)
            }
        ),
        cuMemcpyHtoDAsync_v2: function!(
            |to: CUdeviceptr, from: *const c_void, size_bytes: usize, stream: CUstream| {
                copy(to as usize, from.expose_provenance(), size_bytes)
            }
        ),
        cuLibraryGetModule: function!(|module: *mut CUmodule, library: CUlibrary| give!(
            module,
            CUmodule(handle())
        )),
        cuLibraryGetKernel: function!(|kernel: *mut CUkernel,
                                       library: CUlibrary,
                                       name: *const c_char| {
            give!(kernel, CUkernel(handle()))
        }),
        cuKernelGetFunction: function!(|function: *mut CUfunction, kernel: CUkernel| {
            note_load();
            give!(function, CUfunction(handle()))
        }),
        cuOccupancyMaxActiveBlocksPerMultiprocessor: function!(
            |blocks: *mut i32, function: CUfunction, threads: i32, shared_bytes: usize| {
                give!(blocks, 1)
            }
        ),
        cuStreamCreateWithPriority: function!(
            |stream: *mut CUstream, flags: u32, priority: i32| give!(stream, CUstream(handle()))
        ),
        cuStreamQuery: function!(|stream: CUstream| look_at_work()),
        cuStreamWaitEvent: function!(|stream: CUstream, event: CUevent, flags: u32| DONE),
        cuStreamWriteValue32_v2: function!(
            |stream: CUstream, at: CUdeviceptr, value: cuuint32_t, flags: u32| note_submission()
        ),
        cuStreamWriteValue64_v2: function!(
            |stream: CUstream, at: CUdeviceptr, value: cuuint64_t, flags: u32| {
                write_word(at, value);
                note_submission()
            }
        ),
        cuEventCreate: function!(|event: *mut CUevent, flags: u32| give!(event, CUevent(handle()))),
        cuEventDestroy_v2: function!(|event: CUevent| DONE),
        cuEventRecord: function!(|event: CUevent, stream: CUstream| DONE),
        cuEventQuery: function!(|event: CUevent| look_at_work()),
        cuEventElapsedTime: function!(|milliseconds: *mut f32, from: CUevent, to: CUevent| give!(
            milliseconds,
            TAKES.get().between_events_ms
        )),
        cuLaunchKernel: function!(|function: CUfunction,
                                   grid_x: u32,
                                   grid_y: u32,
                                   grid_z: u32,
                                   block_x: u32,
                                   block_y: u32,
                                   block_z: u32,
                                   shared_bytes: u32,
                                   stream: CUstream,
                                   parameters: *mut *mut c_void,
                                   extra: *mut *mut c_void| {
            note_submission()
        }),
        cuGraphCreate: function!(|graph: *mut CUgraph, flags: u32| give!(graph, CUgraph(handle()))),
        cuGraphAddKernelNode_v2: function!(
            |node: *mut CUgraphNode,
             graph: CUgraph,
             before: *const CUgraphNode,
             count: usize,
             parameters: *const CUDA_KERNEL_NODE_PARAMS| give!(
                node,
                new_node(parameters)
            )
        ),
        cuGraphDestroy: function!(|graph: CUgraph| DONE),
        cuGraphConditionalHandleCreate: function!(
            |condition: *mut CUgraphConditionalHandle,
             graph: CUgraph,
             context: CUcontext,
             value: u32,
             flags: u32| give!(condition, next_condition(graph))
        ),
        cuGraphInstantiateWithFlags: function!(
            |executable: *mut CUgraphExec, graph: CUgraph, flags: u64| {
                let (made, ended) = GRAPHS.get();
                GRAPHS.set((made + 1, ended));
                give!(executable, CUgraphExec(handle()))
            }
        ),
        cuGraphExecDestroy: function!(|executable: CUgraphExec| {
            let (made, ended) = GRAPHS.get();
            GRAPHS.set((made, ended + 1));
            DONE
        }),
        cuGraphExecKernelNodeSetParams_v2: function!(
            |executable: CUgraphExec,
             node: CUgraphNode,
             parameters: *const CUDA_KERNEL_NODE_PARAMS| note_effect(node, parameters)
        ),
        cuGraphLaunch: function!(|executable: CUgraphExec, stream: CUstream| launch_graph()),
        ..DriverTable::default()
    }
}
