//! Streams captured into graphs: what becomes a node, how streams join, and what ends a capture.
//! Codes as measured of NVIDIA's driver 580.

mod support;

use std::ffi::c_void;
use std::sync::Mutex;

use support::{PTX, allocate, context, function, launch, read, stream};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// Captures of one test forbid things in the others.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn begin(stream: usize, mode: u32) -> u32 {
    cu!(cuStreamBeginCapture_v2(stream => usize, mode => u32))
}

fn end(stream: usize) -> (u32, usize) {
    let mut graph = 7usize;
    let code = cu!(cuStreamEndCapture(stream => usize, &mut graph => *mut usize));
    (code, graph)
}

fn status(stream: usize) -> (u32, u32) {
    let mut status = 9u32;
    (cu!(cuStreamIsCapturing(stream => usize, &mut status => *mut u32)), status)
}

fn event() -> usize {
    let mut event = 0usize;
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 2 => u32)), 0);
    event
}

fn record(event: usize, stream: usize) -> u32 {
    cu!(cuEventRecord(event => usize, stream => usize))
}

fn wait(stream: usize, event: usize) -> u32 {
    cu!(cuStreamWaitEvent(stream => usize, event => usize, 0 => u32))
}

fn count(graph: usize) -> (usize, usize) {
    let (mut nodes, mut edges) = (0usize, 0usize);
    let none = std::ptr::null_mut::<usize>();
    assert_eq!(
        cu!(cuGraphGetNodes(graph => usize, none => *mut usize, &mut nodes => *mut usize)),
        0
    );
    assert_eq!(
        cu!(cuGraphGetEdges(graph => usize, none => *mut usize, none => *mut usize, &mut edges => *mut usize)),
        0
    );
    (nodes, edges)
}

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let mut host = vec![5u32; 128];
    assert_eq!(cu!(cuMemsetD32_v2(memory => u64, 0 => u32, 128 => usize)), 0);
    let (first, second) = (stream(), stream());
    let (fork, join) = (event(), event());
    assert_eq!(begin(first, GLOBAL), 0);
    assert_eq!(status(first), (0, 1));
    let copy = cu!(cuMemcpyHtoDAsync_v2(memory => u64, host.as_ptr() => *const u32, 512 => usize, first => usize));
    assert_eq!(copy, 0);
    assert_eq!((record(fork, first), wait(second, fork)), (0, 0));
    assert_eq!(launch(add, 1, 64, first, &[memory, 1]), 0);
    assert_eq!(launch(add, 1, 64, second, &[memory + 256, 2]), 0);
    assert_eq!((record(join, second), wait(first, join)), (0, 0));
    assert_eq!(status(second), (0, 1), "joined by waiting");
    assert_eq!(launch(add, 1, 128, first, &[memory, 10]), 0);
    let (code, graph) = end(first);
    assert_eq!((code, count(graph)), (0, (4, 4)));
    assert_eq!((status(first), status(second)), ((0, 0), (0, 0)));
    assert_eq!(read(memory, 128), vec![0; 128], "nothing has run");
    let mut executable = 0usize;
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    // Pageable memory is read again at each launch.
    for value in [5u32, 50] {
        host.fill(value);
        assert_eq!(cu!(cuGraphLaunch(executable => usize, first => usize)), 0);
        assert_eq!(cu!(cuStreamSynchronize(first => usize)), 0);
        let words = read(memory, 128);
        assert_eq!((words[0], words[127]), (value + 11, value + 12));
    }
}

#[test]
fn unsafe_calls_end_captures_as_the_modes_say() {
    let _alone = alone();
    let handle = context();
    let stream = stream();
    let allocate_now = || {
        let mut address = 0u64;
        cu!(cuMemAlloc_v2(&mut address => *mut u64, 64 => usize))
    };
    let elsewhere = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(cu!(cuCtxSetCurrent(handle => usize)), 0);
                allocate_now()
            });
            other.join().expect("thread ends")
        })
    };
    for (mode, here, there) in [(GLOBAL, 900, 900), (THREAD_LOCAL, 900, 0), (RELAXED, 0, 0)] {
        for (call, expected) in [(allocate_now(), 0), (elsewhere(), 0)] {
            assert_eq!(call, expected, "outside captures");
        }
        for (expected, is_elsewhere) in [(here, false), (there, true)] {
            assert_eq!(begin(stream, mode), 0);
            let code = if is_elsewhere { elsewhere() } else { allocate_now() };
            assert_eq!(code, expected, "mode {mode}");
            let over = if expected == 0 { 0 } else { 901 };
            assert_eq!(end(stream).0, over);
        }
    }
    // The thread can say that it knows what it does.
    let mut mode = RELAXED;
    assert_eq!(begin(stream, GLOBAL), 0);
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32)), 0);
    assert_eq!((mode, allocate_now()), (GLOBAL, 0));
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&mut mode => *mut u32)), 0);
    assert_eq!((mode, end(stream).0), (RELAXED, 0));
}

#[test]
fn waiting_for_captured_work_is_refused() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let stream = stream();
    let event = event();
    let refused: [(&str, &dyn Fn() -> u32, u32); 6] = [
        ("synchronize", &|| cu!(cuStreamSynchronize(stream => usize)), 900),
        ("query", &|| cu!(cuStreamQuery(stream => usize)), 900),
        ("context", &|| cu!(cuCtxSynchronize()), 900),
        ("event query", &|| cu!(cuEventQuery(event => usize)), 907),
        ("event synchronize", &|| cu!(cuEventSynchronize(event => usize)), 907),
        ("bad launch", &|| launch(add, 0, 1, stream, &[memory, 1]), 1),
    ];
    for (name, call, code) in refused {
        for mode in [GLOBAL, RELAXED] {
            assert_eq!(begin(stream, mode), 0);
            assert_eq!(record(event, stream), 0);
            assert_eq!(call(), code, "{name}");
            assert_eq!(status(stream), (0, 2), "{name}");
            assert_eq!(launch(add, 1, 1, stream, &[memory, 1]), 901, "{name}");
            assert_eq!(end(stream), (901, 0), "{name}");
        }
    }
    assert_eq!(launch(add, 1, 1, stream, &[memory, 1]), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
}

#[test]
fn captures_do_not_mix_with_other_work() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let (first, second) = (stream(), stream());
    let (a, b) = (event(), event());
    // Two captures.
    assert_eq!((begin(first, GLOBAL), begin(second, GLOBAL)), (0, 0));
    assert_eq!(launch(add, 1, 1, second, &[memory, 1]), 0);
    assert_eq!((record(a, second), wait(first, a)), (0, 902));
    assert_eq!((end(first).0, end(second).0), (901, 901));
    // Work outside.
    assert_eq!(record(b, second), 0);
    assert_eq!(begin(first, GLOBAL), 0);
    assert_eq!((wait(first, b), end(first).0), (905, 901));
    // Work that is not joined.
    assert_eq!(begin(first, GLOBAL), 0);
    assert_eq!((record(a, first), wait(second, a)), (0, 0));
    assert_eq!(launch(add, 1, 1, second, &[memory, 1]), 0);
    assert_eq!(end(first), (904, 0));
    // Ended elsewhere.
    assert_eq!(begin(first, GLOBAL), 0);
    assert_eq!((record(a, first), wait(second, a)), (0, 0));
    assert_eq!((end(second).0, end(first).0), (903, 901));
    assert_eq!((end(first).0, begin(first, 7)), (401, 1));
}

#[test]
fn the_legacy_stream_is_out_of_bounds_beside_a_captured_blocking_stream() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let mut blocking = 0usize;
    assert_eq!(cu!(cuStreamCreate(&mut blocking => *mut usize, 0 => u32)), 0);
    assert_eq!(begin(0, GLOBAL), 900);
    assert_eq!(begin(blocking, RELAXED), 0);
    assert_eq!(status(0).0, 906);
    assert_eq!(status(blocking), (0, 1), "a question ends nothing");
    assert_eq!(launch(add, 1, 1, 0, &[memory, 1]), 906);
    assert_eq!(end(blocking).0, 901);
    let other = stream();
    assert_eq!(begin(other, GLOBAL), 0);
    assert_eq!(launch(add, 1, 1, 0, &[memory, 1]), 0, "non-blocking streams do not mind");
    assert_eq!(end(other).0, 0);
}

#[test]
fn a_capture_is_looked_at_and_steered_while_it_goes_on() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let memory = allocate(512);
    let stream = stream();
    let mut into = 0usize;
    assert_eq!(cu!(cuGraphCreate(&mut into => *mut usize, 0 => u32)), 0);
    let mut root = 0usize;
    let none = std::ptr::null::<usize>();
    assert_eq!(
        cu!(cuGraphAddEmptyNode(&mut root => *mut usize, into => usize, none => *const usize, 0 => usize)),
        0
    );
    assert_eq!(
        cu!(cuStreamBeginCaptureToGraph(stream => usize, into => usize, &root => *const usize, none => *const usize, 1 => usize, GLOBAL => u32)),
        0
    );
    assert_eq!(launch(add, 1, 1, stream, &[memory, 1]), 0);
    let info = || {
        let (mut status, mut id, mut graph, mut nodes, mut count) =
            (0u32, 0u64, 0usize, std::ptr::null::<usize>(), 0usize);
        let code = cu!(cuStreamGetCaptureInfo_v3(
            stream => usize, &mut status => *mut u32, &mut id => *mut u64, &mut graph => *mut usize,
            &mut nodes => *mut *const usize, std::ptr::null_mut() => *mut c_void, &mut count => *mut usize,
        ));
        assert_eq!((code, status, graph), (0, 1, into));
        assert_ne!(id, 0);
        // SAFETY: the driver's array of `count` nodes, valid until the next call for the stream.
        unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()
    };
    let launched = info();
    assert_eq!(launched.len(), 1);
    assert_ne!(launched[0], root);
    let update = |nodes: &[usize], flags: u32| cu!(cuStreamUpdateCaptureDependencies(stream => usize, nodes.as_ptr() => *const usize, nodes.len() => usize, flags => u32));
    assert_eq!(update(&[root], 1), 0, "instead");
    assert_eq!(info(), [root]);
    assert_eq!(update(&launched, 0), 0, "as well");
    assert_eq!((info().len(), update(&[], 5)), (2, 1));
    let (code, graph) = end(stream);
    assert_eq!((code, graph, count(graph)), (0, into, (2, 1)));
    assert_eq!(update(&[root], 1), 401);
}

#[test]
fn allocations_of_a_capture_belong_to_its_graph() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let (memory, stream) = (allocate(512), stream());
    let mut temporary = 0u64;
    assert_eq!(begin(stream, GLOBAL), 0);
    assert_eq!(cu!(cuMemAllocAsync(&mut temporary => *mut u64, 512 => usize, stream => usize)), 0);
    assert_eq!(cu!(cuMemsetD32Async(temporary => u64, 6 => u32, 128 => usize, stream => usize)), 0);
    assert_eq!(launch(add, 1, 128, stream, &[temporary, 3]), 0);
    assert_eq!(
        cu!(cuMemcpyDtoDAsync_v2(memory => u64, temporary => u64, 512 => usize, stream => usize)),
        0
    );
    assert_eq!(cu!(cuMemFreeAsync(temporary => u64, stream => usize)), 0);
    let (code, graph) = end(stream);
    assert_eq!((code, count(graph)), (0, (5, 4)));
    let mut executable = 0usize;
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    for _ in 0..3 {
        assert_eq!(cu!(cuGraphLaunch(executable => usize, stream => usize)), 0);
    }
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(read(memory, 128), vec![9; 128]);
}

#[test]
fn a_launch_of_a_graph_is_not_captured() {
    let _alone = alone();
    context();
    let add = function(PTX, "add");
    let (memory, stream) = (allocate(512), stream());
    let mut executable = 0usize;
    assert_eq!(begin(stream, GLOBAL), 0);
    assert_eq!(launch(add, 1, 128, stream, &[memory, 3]), 0);
    let (_, graph) = end(stream);
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    assert_eq!(begin(stream, GLOBAL), 0);
    assert_eq!(cu!(cuGraphLaunch(executable => usize, stream => usize)), 900);
    assert_eq!((status(stream), end(stream).0), ((0, 2), 901));
}
