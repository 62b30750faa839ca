//! Graphs built node by node: order, parameters, updates in place, memory, embedded graphs,
//! refusals.

mod support;

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS, CUfunction, CUgraphExecUpdateResultInfo, CUgraphNode,
};
use support::{PTX, allocate, context, function, read, stream};

/// Kernel parameters: an address and a number.
struct Arguments {
    values: Vec<u64>,
    pointers: Vec<*mut c_void>,
}

impl Arguments {
    fn new(values: &[u64]) -> Self {
        let mut values = values.to_vec();
        let pointers = values.iter_mut().map(|value| (value as *mut u64).cast()).collect();
        Arguments { values, pointers }
    }

    /// A launch of `threads` threads.
    fn kernel(&mut self, function: usize, threads: u32) -> CUDA_KERNEL_NODE_PARAMS {
        assert!(!self.values.is_empty());
        CUDA_KERNEL_NODE_PARAMS {
            func: CUfunction(function),
            gridDimX: threads.div_ceil(128),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads.min(128),
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: self.pointers.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS::default()
        }
    }
}

fn graph() -> usize {
    let mut graph = 0usize;
    assert_eq!(cu!(cuGraphCreate(&mut graph => *mut usize, 0 => u32)), 0);
    graph
}

fn add_kernel(graph: usize, after: &[usize], function: usize, values: &[u64]) -> usize {
    let mut arguments = Arguments::new(values);
    let params = arguments.kernel(function, 128);
    let mut node = 0usize;
    assert_eq!(
        cu!(cuGraphAddKernelNode_v2(
            &mut node => *mut usize, graph => usize, after.as_ptr() => *const usize, after.len() => usize,
            &params => *const CUDA_KERNEL_NODE_PARAMS,
        )),
        0
    );
    node
}

fn fill(address: u64, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS { dst: address, pitch: 0, value, elementSize: 4, width: 128, height: 1 }
}

fn add_fill(graph: usize, after: &[usize], address: u64, value: u32) -> usize {
    let (mut node, params) = (0usize, fill(address, value));
    assert_eq!(
        cu!(cuGraphAddMemsetNode(
            &mut node => *mut usize, graph => usize, after.as_ptr() => *const usize, after.len() => usize,
            &params => *const CUDA_MEMSET_NODE_PARAMS, 0 => usize,
        )),
        0
    );
    node
}

fn add_empty(graph: usize, after: &[usize]) -> usize {
    let mut node = 0usize;
    assert_eq!(
        cu!(cuGraphAddEmptyNode(&mut node => *mut usize, graph => usize, after.as_ptr() => *const usize, after.len() => usize)),
        0
    );
    node
}

fn instantiate(graph: usize) -> usize {
    let mut executable = 0usize;
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    executable
}

fn launch(executable: usize, stream: usize) -> u32 {
    cu!(cuGraphLaunch(executable => usize, stream => usize))
}

fn synchronize(stream: usize) {
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
}

#[test]
fn branches_run_after_what_they_depend_on_and_launches_follow_one_another() {
    context();
    let add = function(PTX, "add");
    let (left, right) = (allocate(512), allocate(512));
    let graph = graph();
    let start = add_fill(graph, &[], left, 1);
    let other = add_fill(graph, &[start], right, 100);
    let a = add_kernel(graph, &[start], add, &[left, 10]);
    let b = add_kernel(graph, &[other], add, &[right, 20]);
    let joined = add_empty(graph, &[a, b]);
    add_kernel(graph, &[joined], add, &[left, 1000]);
    add_kernel(graph, &[joined], add, &[right, 2000]);
    let executable = instantiate(graph);
    let (first, second) = (stream(), stream());
    for _ in 0..20 {
        assert_eq!(launch(executable, first), 0);
        assert_eq!(launch(executable, second), 0);
    }
    synchronize(first);
    synchronize(second);
    assert_eq!(read(left, 128), vec![1011; 128]);
    assert_eq!(read(right, 128), vec![2120; 128]);
    // Ending the graph leaves the executable one as it is.
    assert_eq!(cu!(cuGraphDestroy(graph => usize)), 0);
    assert_eq!(cu!(cuMemsetD32_v2(left => u64, 0 => u32, 128 => usize)), 0);
    // The legacy stream and non-blocking ones do not wait for each other.
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!(launch(executable, first), 0);
    synchronize(first);
    assert_eq!(read(left, 1), [1011]);
    assert_eq!(cu!(cuGraphExecDestroy(executable => usize)), 0);
    assert_eq!(launch(executable, first), 1);
}

#[test]
fn a_stream_s_work_before_and_after_a_launch_keeps_its_place() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let graph = graph();
    // Two branches on the same words: the second lane must begin after the fill and end before the
    // copy.
    let a = add_kernel(graph, &[], add, &[memory, 1]);
    let b = add_kernel(graph, &[a], add, &[memory, 2]);
    add_empty(graph, &[]);
    add_kernel(graph, &[b], add, &[memory, 4]);
    let executable = instantiate(graph);
    let stream = stream();
    let mut words = vec![0u32; 128];
    for round in 0..50u32 {
        assert_eq!(
            cu!(cuMemsetD32Async(memory => u64, round => u32, 128 => usize, stream => usize)),
            0
        );
        assert_eq!(launch(executable, stream), 0);
        assert_eq!(
            cu!(cuMemcpyDtoHAsync_v2(words.as_mut_ptr() => *mut u32, memory => u64, 512 => usize, stream => usize)),
            0
        );
        synchronize(stream);
        assert_eq!(words, vec![round + 7; 128]);
    }
}

#[test]
fn kernel_parameters_are_read_back_and_changed_in_place() {
    let handle = context();
    let (add, poke) = (function(PTX, "add"), function(PTX, "poke"));
    let memory = allocate(512);
    let graph = graph();
    let clear = add_fill(graph, &[], memory, 0);
    let node = add_kernel(graph, &[clear], add, &[memory, 5]);
    let mut have = CUDA_KERNEL_NODE_PARAMS::default();
    assert_eq!(
        cu!(cuGraphKernelNodeGetParams_v2(node => usize, &mut have => *mut CUDA_KERNEL_NODE_PARAMS)),
        0
    );
    assert_eq!((have.func.0, have.gridDimX, have.blockDimX, have.ctx.0), (add, 1, 128, handle));
    // SAFETY: two parameters, as the kernel has.
    let second = unsafe { have.kernelParams.add(1).read().cast::<u64>().read() };
    assert_eq!(second, 5);
    let executable = instantiate(graph);
    let stream = stream();
    let mut arguments = Arguments::new(&[memory, 7]);
    let other = arguments.kernel(add, 128);
    let set = |params: &CUDA_KERNEL_NODE_PARAMS, node: usize| {
        cu!(cuGraphExecKernelNodeSetParams_v2(
            executable => usize, node => usize, params => *const CUDA_KERNEL_NODE_PARAMS,
        ))
    };
    assert_eq!(set(&other, node), 0);
    assert_eq!(launch(executable, stream), 0);
    let mut arguments = Arguments::new(&[memory + 4]);
    assert_eq!(set(&arguments.kernel(poke, 1), node), 0, "another function");
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 3), [0, 1, 0], "only the fill and the second function's word");
    // The graph itself still has the first parameters.
    let fresh = instantiate(graph);
    assert_eq!(launch(fresh, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 1), [5]);
    // A node of another kind, and one of another graph.
    assert_eq!(set(&other, clear), 1);
    assert_eq!(set(&other, add_kernel(self::graph(), &[], add, &[memory, 1])), 1);
    // Kernels can be left out and taken in again; empty nodes cannot.
    let mut enabled = 9u32;
    assert_eq!(cu!(cuGraphNodeSetEnabled(fresh => usize, node => usize, 0 => u32)), 0);
    assert_eq!(
        cu!(cuGraphNodeGetEnabled(fresh => usize, node => usize, &mut enabled => *mut u32)),
        0
    );
    assert_eq!(enabled, 0);
    assert_eq!(launch(fresh, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 1), [0]);
}

#[test]
fn an_update_pairs_nodes_by_shape_and_names_what_differs() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let original = graph();
    let clear = add_fill(original, &[], memory, 0);
    add_kernel(original, &[clear], add, &[memory, 1]);
    let executable = instantiate(original);
    let update = |graph: usize| {
        let mut info = CUgraphExecUpdateResultInfo::default();
        let code = cu!(cuGraphExecUpdate_v2(
            executable => usize, graph => usize, &mut info => *mut CUgraphExecUpdateResultInfo,
        ));
        (code, info.result.0, info.errorNode.0)
    };
    // The same shape, made in another order.
    let same = graph();
    let kernel = add_kernel(same, &[], add, &[memory, 30]);
    let clear = add_fill(same, &[], memory, 12);
    assert_eq!(
        cu!(cuGraphAddDependencies(same => usize, &clear => *const usize, &kernel => *const usize, 1 => usize)),
        0
    );
    assert_eq!(update(same), (0, 0, 0));
    let stream = stream();
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 128), vec![42; 128]);
    add_empty(same, &[]);
    assert_eq!(update(same), (910, 2, 0), "one node more");
    let reversed = graph();
    let kernel = add_kernel(reversed, &[], add, &[memory, 1]);
    let last = add_fill(reversed, &[kernel], memory, 1);
    assert_eq!(update(reversed), (910, 3, last), "another kind of sink");
    // What was refused changed nothing.
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 1), [42]);
}

#[test]
fn graphs_in_graphs_and_clones_have_nodes_of_their_own() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let inner = graph();
    let first = add_kernel(inner, &[], add, &[memory, 1]);
    add_kernel(inner, &[first], add, &[memory, 2]);
    let outer = graph();
    let clear = add_fill(outer, &[], memory, 0);
    let (mut child, mut embedded) = (0usize, 0usize);
    assert_eq!(
        cu!(cuGraphAddChildGraphNode(&mut child => *mut usize, outer => usize, &clear => *const usize, 1 => usize, inner => usize)),
        0
    );
    add_kernel(outer, &[child], add, &[memory, 10]);
    assert_eq!(cu!(cuGraphChildGraphNodeGetGraph(child => usize, &mut embedded => *mut usize)), 0);
    assert_ne!(embedded, inner);
    // Later changes of the inner graph do not reach the embedded copy.
    add_kernel(inner, &[first], add, &[memory, 500]);
    let executable = instantiate(outer);
    let stream = stream();
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 128), vec![13; 128]);
    // A node of the embedded copy can be changed in the executable graph.
    let (mut copy, mut count) = ([0usize; 4], 4usize);
    assert_eq!(
        cu!(cuGraphGetNodes(embedded => usize, copy.as_mut_ptr() => *mut usize, &mut count => *mut usize)),
        0
    );
    assert_eq!((count, copy[2], copy[3]), (2, 0, 0));
    let mut arguments = Arguments::new(&[memory, 100]);
    let params = arguments.kernel(add, 128);
    assert_eq!(
        cu!(cuGraphExecKernelNodeSetParams_v2(executable => usize, copy[0] => usize, &params => *const CUDA_KERNEL_NODE_PARAMS)),
        0
    );
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(read(memory, 1), [112]);
    let (mut clone, mut found) = (0usize, 0usize);
    assert_eq!(cu!(cuGraphClone(&mut clone => *mut usize, outer => usize)), 0);
    assert_eq!(
        cu!(cuGraphNodeFindInClone(&mut found => *mut usize, clear => usize, clone => usize)),
        0
    );
    assert_ne!(found, clear);
    assert_eq!(
        cu!(cuGraphNodeFindInClone(&mut found => *mut usize, clear => usize, outer => usize)),
        1
    );
}

#[test]
fn structures_that_cannot_be_are_refused() {
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let graph = graph();
    let a = add_kernel(graph, &[], add, &[memory, 1]);
    let b = add_empty(graph, &[a]);
    let dependency = |from: usize, to: usize| cu!(cuGraphAddDependencies(graph => usize, &from => *const usize, &to => *const usize, 1 => usize));
    assert_eq!((dependency(a, b), dependency(a, a)), (1, 1), "there already; to itself");
    assert_eq!(dependency(b, a), 0, "cycles are found when the graph is made executable");
    let mut executable = 0usize;
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        1
    );
    assert_eq!(
        cu!(cuGraphRemoveDependencies(graph => usize, &b => *const usize, &a => *const usize, 1 => usize)),
        0
    );
    assert_eq!(
        cu!(cuGraphRemoveDependencies(graph => usize, &b => *const usize, &a => *const usize, 1 => usize)),
        1
    );
    assert_eq!(cu!(cuGraphDestroyNode(a => usize)), 0);
    let mut edges = 9usize;
    let none = std::ptr::null_mut::<CUgraphNode>();
    assert_eq!(
        cu!(cuGraphGetEdges(graph => usize, none => *mut CUgraphNode, none => *mut CUgraphNode, &mut edges => *mut usize)),
        0
    );
    assert_eq!(edges, 0);
    let mut node = 0usize;
    let no_function = CUDA_KERNEL_NODE_PARAMS::default();
    assert_eq!(
        cu!(cuGraphAddKernelNode_v2(&mut node => *mut usize, graph => usize, none => *mut CUgraphNode, 0 => usize, &no_function => *const CUDA_KERNEL_NODE_PARAMS)),
        400
    );
    let mut unaligned = fill(memory + 2, 0);
    for params in [&mut unaligned, &mut CUDA_MEMSET_NODE_PARAMS { width: 0, ..fill(memory, 0) }] {
        assert_eq!(
            cu!(cuGraphAddMemsetNode(&mut node => *mut usize, graph => usize, none => *mut CUgraphNode, 0 => usize, params => *mut CUDA_MEMSET_NODE_PARAMS, 0 => usize)),
            1
        );
    }
    assert_eq!(cu!(cuGraphDestroy(graph => usize)), 0);
    assert_eq!(cu!(cuGraphDestroy(graph => usize)), 1);
}

type HostFunction = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" fn count_call(counter: *mut c_void) {
    // SAFETY: the tests pass counters that outlive the graphs.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn host_nodes_events_and_user_objects_take_their_turn() {
    context();
    let calls = AtomicU32::new(0);
    let counter = (&raw const calls).cast_mut().cast::<c_void>();
    let graph = graph();
    let (mut host, mut record, mut event) = (0usize, 0usize, 0usize);
    let params = CUDA_HOST_NODE_PARAMS { fn_: Some(count_call), userData: counter };
    let none = std::ptr::null::<usize>();
    assert_eq!(
        cu!(cuGraphAddHostNode(&mut host => *mut usize, graph => usize, none => *const usize, 0 => usize, &params => *const CUDA_HOST_NODE_PARAMS)),
        0
    );
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 0 => u32)), 0);
    assert_eq!(
        cu!(cuGraphAddEventRecordNode(&mut record => *mut usize, graph => usize, &host => *const usize, 1 => usize, event => usize)),
        0
    );
    let executable = instantiate(graph);
    let (first, second) = (stream(), stream());
    assert_eq!(launch(executable, first), 0);
    assert_eq!(cu!(cuStreamWaitEvent(second => usize, event => usize, 0 => u32)), 0);
    synchronize(second);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(cu!(cuEventSynchronize(event => usize)), 0);
    // A user object goes when the graph and its executable have gone.
    let destroyed = AtomicU32::new(0);
    let resource = (&raw const destroyed).cast_mut().cast::<c_void>();
    let mut object = 0usize;
    assert_eq!(
        cu!(cuUserObjectCreate(&mut object => *mut usize, resource => *mut c_void, count_call => HostFunction, 1 => u32, 1 => u32)),
        0
    );
    assert_eq!(
        cu!(cuGraphRetainUserObject(graph => usize, object => usize, 1 => u32, 1 => u32)),
        0
    );
    let holder = instantiate(graph);
    assert_eq!(cu!(cuGraphDestroy(graph => usize)), 0);
    assert_eq!(destroyed.load(Ordering::SeqCst), 0);
    assert_eq!(cu!(cuGraphExecDestroy(holder => usize)), 0);
    assert_eq!(destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn memory_of_a_graph_lives_from_its_node_to_its_free() {
    context();
    let graph = graph();
    let mut params = CUDA_MEM_ALLOC_NODE_PARAMS::default();
    params.poolProps.allocType.0 = 1;
    params.poolProps.location.type_.0 = 1;
    params.bytesize = 4096;
    let mut node = 0usize;
    let none = std::ptr::null::<usize>();
    assert_eq!(
        cu!(cuGraphAddMemAllocNode(&mut node => *mut usize, graph => usize, none => *const usize, 0 => usize, &mut params => *mut CUDA_MEM_ALLOC_NODE_PARAMS)),
        0
    );
    let address = params.dptr;
    add_fill(graph, &[node], address, 77);
    let mut word = 0u32;
    let mut copy = || cu!(cuMemcpyDtoH_v2(&mut word => *mut u32, address => u64, 4 => usize));
    let executable = instantiate(graph);
    let mut second = 0usize;
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut second => *mut usize, graph => usize, 0 => u64)),
        801,
        "one executable graph at a time"
    );
    assert_eq!(cu!(cuGraphClone(&mut second => *mut usize, graph => usize)), 801);
    let stream = stream();
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(copy(), 0);
    assert_eq!(launch(executable, stream), 1, "still allocated");
    assert_eq!(cu!(cuMemFreeAsync(address => u64, stream => usize)), 0);
    assert_eq!(launch(executable, stream), 0);
    synchronize(stream);
    assert_eq!(cu!(cuMemFree_v2(address => u64)), 0);
    assert_eq!(cu!(cuMemFree_v2(address => u64)), 1);
    let mut reserved = 0u64;
    assert_eq!(cu!(cuDeviceGetGraphMemAttribute(0 => i32, 2 => u32, &mut reserved => *mut u64)), 0);
    assert!(reserved >= 4096, "kept for the next launch");
    assert_eq!(cu!(cuGraphExecDestroy(executable => usize)), 0);
    assert_eq!(cu!(cuGraphDestroy(graph => usize)), 0);
    assert_eq!(word, 77);
}

#[test]
fn a_graph_is_printed_with_its_nodes_and_edges() {
    context();
    let add = function(PTX, "add");
    let graph = graph();
    let memory = allocate(512);
    let first = add_kernel(graph, &[], add, &[memory, 1]);
    add_fill(graph, &[first], memory, 1);
    let path = std::env::temp_dir().join(format!("softcuda-graph-{}.dot", std::process::id()));
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    assert_eq!(
        cu!(cuGraphDebugDotPrint(graph => usize, name.as_ptr() => *const c_char, 1 => u32)),
        0
    );
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::remove_file(&path).expect("removed");
    assert!(text.contains("add") && text.contains("MEMSET"), "{text}");
    assert!(text.contains("\"graph_0\" -> \"graph_1\""), "{text}");
}
