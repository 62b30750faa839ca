//! Green contexts and contexts with a number of SMs: kernels run on exactly the SMs that they were
//! given.

mod support;

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::types::{
    CUDA_KERNEL_NODE_PARAMS, CUcontext, CUdevResource, CUexecAffinityParam, CUfunction, CUkernel,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue_clusterDim, CUlaunchConfig,
    CUstream,
};
use support::{PTX, allocate, context, launch, read};

const SMS: u32 = 84;
const SM: u32 = 1;
const IGNORE_COSCHEDULING: u32 = 1;

/// `mark` stores 1 at its SM's place.
const MARK: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry mark(.param .u64 p)
{
    .reg .u32 %r<3>;
    .reg .u64 %d<4>;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, %smid;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2;
    mov.u32 %r2, 1;
    st.global.u32 [%d1], %r2;
    ret;
}
"#;

/// Each test counts SMs that no other test keeps busy.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the primary context current.
fn primary() -> usize {
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    let mut context = 0usize;
    assert_eq!(cu!(cuDevicePrimaryCtxRetain(&mut context => *mut usize, 0 => i32)), 0);
    assert_eq!(cu!(cuCtxSetCurrent(context => usize)), 0);
    context
}

fn device() -> CUdevResource {
    let mut resource = CUdevResource::default();
    assert_eq!(
        cu!(cuDeviceGetDevResource(0 => i32, &mut resource => *mut CUdevResource, SM => u32)),
        0
    );
    resource
}

fn size(resource: &CUdevResource) -> u32 {
    // SAFETY: a plain number, zero if there are no SMs.
    unsafe { resource.anonymous.sm.smCount }
}

fn split(from: &CUdevResource, least: u32, flags: u32) -> (u32, Vec<CUdevResource>, CUdevResource) {
    let (mut groups, mut count) = (vec![CUdevResource::default(); 8], 8u32);
    let mut rest = CUdevResource::default();
    let code = cu!(cuDevSmResourceSplitByCount(
        groups.as_mut_ptr() => *mut CUdevResource, &mut count => *mut u32, from => *const CUdevResource,
        &mut rest => *mut CUdevResource, flags => u32, least => u32,
    ));
    groups.truncate(if code == 0 { count as usize } else { 0 });
    (code, groups, rest)
}

/// A green context of resources, and its `CUcontext`.
fn green(resources: &mut [CUdevResource]) -> (usize, usize) {
    let (mut description, mut green, mut context) = (0usize, 0usize, 0usize);
    assert_eq!(
        cu!(cuDevResourceGenerateDesc(
            &mut description => *mut usize, resources.as_mut_ptr() => *mut CUdevResource, resources.len() as u32 => u32,
        )),
        0
    );
    assert_eq!(
        cu!(cuGreenCtxCreate(&mut green => *mut usize, description => usize, 0 => i32, 1 => u32)),
        0
    );
    assert_eq!(cu!(cuCtxFromGreenCtx(&mut context => *mut usize, green => usize)), 0);
    (green, context)
}

fn green_stream(green: usize) -> usize {
    let mut stream = 0usize;
    assert_eq!(
        cu!(cuGreenCtxStreamCreate(&mut stream => *mut usize, green => usize, 1 => u32, 0 => i32)),
        0
    );
    stream
}

/// SMs that a launch of `mark` with many blocks runs on.
fn marked(memory: u64, launch: impl FnOnce()) -> Vec<u32> {
    assert_eq!(cu!(cuMemsetD32_v2(memory => u64, 0 => u32, 256 => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    launch();
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    let marks = read(memory, 256);
    (0..256).filter(|sm| marks[*sm as usize] != 0).collect()
}

#[test]
fn splits_keep_their_sizes_and_leave_the_rest() {
    let _alone = alone();
    primary();
    let whole = device();
    assert_eq!(size(&whole), SMS);
    let (code, groups, rest) = split(&whole, 33, 0);
    assert_eq!((code, groups.len(), size(&groups[0]), size(&rest)), (0, 2, 40, 4));
    let (code, groups, rest) = split(&whole, 33, IGNORE_COSCHEDULING);
    assert_eq!((code, groups.len(), size(&groups[0]), size(&rest)), (0, 2, 34, 16));
    let (code, groups, rest) = split(&whole, SMS, 0);
    assert_eq!((code, groups.len(), size(&rest), rest.type_.0), (0, 1, 0, 0));
    assert_eq!(split(&whole, SMS + 1, 0).0, 915);
    assert_eq!(split(&CUdevResource::default(), 2, 0).0, 914, "of no type");
    let mut count = 0u32;
    assert_eq!(
        cu!(cuDevSmResourceSplitByCount(
            std::ptr::null_mut() => *mut CUdevResource, &mut count => *mut u32, &whole => *const CUdevResource,
            std::ptr::null_mut() => *mut CUdevResource, 1 => u32, 10 => u32,
        )),
        0
    );
    assert_eq!(count, 8);
    // What overlaps cannot be one description.
    let mut description = 0usize;
    let mut twice = [groups[0], groups[0]];
    assert_eq!(
        cu!(cuDevResourceGenerateDesc(&mut description => *mut usize, twice.as_mut_ptr() => *mut CUdevResource, 2 => u32)),
        915
    );
    let mut forged = CUdevResource { type_: groups[0].type_, ..CUdevResource::default() };
    assert_eq!(
        cu!(cuDevResourceGenerateDesc(&mut description => *mut usize, &mut forged => *mut CUdevResource, 1 => u32)),
        1
    );
}

#[test]
fn work_of_a_green_context_runs_on_its_sms_only() {
    let _alone = alone();
    let primary = primary();
    let mark = support::function(MARK, "mark");
    let memory = allocate(1024);
    let (_, mut groups, _) = split(&device(), 20, IGNORE_COSCHEDULING);
    let (first, first_context) = green(&mut groups[..1]);
    let (both, _) = green(&mut groups[1..3]);
    let many =
        |stream: usize| marked(memory, || assert_eq!(launch(mark, 2000, 64, stream, &[memory]), 0));
    let (stream, wide, plain) = (green_stream(first), green_stream(both), support::stream());
    let own = many(stream);
    assert_eq!(own.len(), 20);
    assert_eq!(many(wide).len(), 40);
    assert!(many(wide).iter().all(|sm| !own.contains(sm)), "groups are disjoint");
    assert_eq!(many(plain).len(), SMS as usize);
    // With the green context current: its default stream and new streams, but not old ones.
    assert_eq!(cu!(cuCtxSetCurrent(first_context => usize)), 0);
    let inside = support::stream();
    assert_eq!((many(0), many(inside)), (own.clone(), own.clone()));
    assert_eq!(many(plain).len(), SMS as usize);
    let (mut context, mut owner) = (0usize, 0usize);
    for (of, expected) in [(inside, first), (stream, first), (plain, 0)] {
        assert_eq!(
            cu!(cuStreamGetCtx_v2(of => usize, &mut context => *mut usize, &mut owner => *mut usize)),
            0
        );
        assert_eq!((context, owner), (primary, expected));
    }
    assert_eq!(cu!(cuStreamGetCtx(stream => usize, &mut context => *mut usize)), 0);
    assert_eq!(context, first_context);
    let mut resource = CUdevResource::default();
    assert_eq!(
        cu!(cuCtxGetDevResource(first_context => usize, &mut resource => *mut CUdevResource, SM => u32)),
        0
    );
    assert_eq!(size(&resource), 20);
    // A cooperative grid must fit on the SMs that there are.
    let mut pointers = [(&raw const memory).cast_mut().cast::<c_void>()];
    let mut cooperative = |stream: usize| {
        cu!(cuLaunchCooperativeKernel(
            mark => usize, 24 * 30 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32, 0 => u32,
            stream => usize, pointers.as_mut_ptr() => *mut *mut c_void,
        ))
    };
    assert_eq!((cooperative(stream), cooperative(plain)), (720, 0));
    assert_eq!(cu!(cuCtxDestroy_v2(first_context => usize)), 201);
    assert_eq!(cu!(cuCtxSetCurrent(primary => usize)), 0);
    assert_eq!(cu!(cuGreenCtxDestroy(first => usize)), 0);
    assert_eq!(cu!(cuGreenCtxDestroy(first => usize)), 1);
    assert_eq!(cu!(cuCtxSetCurrent(first_context => usize)), 709);
    assert_eq!(many(plain).len(), SMS as usize);
}

#[test]
fn nodes_of_kernels_obey_the_context_in_the_node() {
    let _alone = alone();
    primary();
    let memory = allocate(1024);
    let text = CString::new(MARK).expect("no NUL");
    let (mut library, mut kernel) = (0usize, 0usize);
    let none = std::ptr::null_mut::<c_void>();
    assert_eq!(
        cu!(cuLibraryLoadData(
            &mut library => *mut usize, text.as_ptr() => *const c_char, none => *mut c_void, none => *mut c_void, 0 => u32,
            none => *mut c_void, none => *mut c_void, 0 => u32,
        )),
        0
    );
    assert_eq!(
        cu!(cuLibraryGetKernel(&mut kernel => *mut usize, library => usize, c"mark".as_ptr() => *const c_char)),
        0
    );
    let function = support::function(MARK, "mark");
    let (_, mut groups, _) = split(&device(), 10, IGNORE_COSCHEDULING);
    let (green, context) = green(&mut groups[..1]);
    let plain = support::stream();
    let mut pointers = [(&raw const memory).cast_mut().cast::<c_void>()];
    let base = CUDA_KERNEL_NODE_PARAMS {
        gridDimX: 2000,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 64,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: pointers.as_mut_ptr(),
        ctx: CUcontext(context),
        ..CUDA_KERNEL_NODE_PARAMS::default()
    };
    let run = |params: &CUDA_KERNEL_NODE_PARAMS| {
        let (mut graph, mut node, mut executable) = (0usize, 0usize, 0usize);
        assert_eq!(cu!(cuGraphCreate(&mut graph => *mut usize, 0 => u32)), 0);
        assert_eq!(
            cu!(cuGraphAddKernelNode_v2(&mut node => *mut usize, graph => usize, none => *mut c_void, 0 => usize, params => *const CUDA_KERNEL_NODE_PARAMS)),
            0
        );
        assert_eq!(
            cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
            0
        );
        let count = marked(memory, || {
            assert_eq!(cu!(cuGraphLaunch(executable => usize, plain => usize)), 0);
        });
        (executable, node, count.len())
    };
    let with_kernel = CUDA_KERNEL_NODE_PARAMS { kern: CUkernel(kernel), ..base };
    let (executable, node, count) = run(&with_kernel);
    assert_eq!(count, 10);
    let elsewhere = CUDA_KERNEL_NODE_PARAMS { ctx: CUcontext(primary()), ..with_kernel };
    assert_eq!(
        cu!(cuGraphExecKernelNodeSetParams_v2(executable => usize, node => usize, &elsewhere => *const CUDA_KERNEL_NODE_PARAMS)),
        1,
        "a node stays in its context"
    );
    assert_eq!(
        cu!(cuGraphExecKernelNodeSetParams_v2(executable => usize, node => usize, &with_kernel => *const CUDA_KERNEL_NODE_PARAMS)),
        0
    );
    let with_function = CUDA_KERNEL_NODE_PARAMS { func: CUfunction(function), ..base };
    assert_eq!(run(&with_function).2, SMS as usize, "a function knows its context");
    // Captured on a green stream, launched on another.
    let stream = green_stream(green);
    let (mut graph, mut executable) = (0usize, 0usize);
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream => usize, 2 => u32)), 0);
    assert_eq!(launch(function, 2000, 64, stream, &[memory]), 0);
    assert_eq!(cu!(cuStreamEndCapture(stream => usize, &mut graph => *mut usize)), 0);
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    let captured = marked(memory, || {
        assert_eq!(cu!(cuGraphLaunch(executable => usize, plain => usize)), 0);
    });
    assert_eq!(captured.len(), 10);
}

#[test]
fn an_event_of_a_green_context_comes_after_all_its_streams() {
    let _alone = alone();
    primary();
    let spin = support::function(PTX, "spin");
    let (_, mut groups, _) = split(&device(), 4, IGNORE_COSCHEDULING);
    let (green, _) = green(&mut groups[..1]);
    let flag = allocate(4);
    let (busy, other) = (green_stream(green), green_stream(green));
    assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(0 => usize)), 0);
    assert_eq!(launch(spin, 1, 1, busy, &[flag]), 0);
    let mut event = 0usize;
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 2 => u32)), 0);
    assert_eq!(cu!(cuGreenCtxRecordEvent(green => usize, event => usize)), 0);
    assert_eq!(cu!(cuEventQuery(event => usize)), 600);
    assert_eq!(cu!(cuGreenCtxWaitEvent(green => usize, event => usize)), 0);
    assert_eq!(cu!(cuStreamQuery(other => usize)), 600);
    assert_eq!(
        cu!(cuStreamWriteValue32_v2(support::stream() => usize, flag => u64, 1 => u32, 0 => u32)),
        0
    );
    assert_eq!(cu!(cuEventSynchronize(event => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(other => usize)), 0);
}

#[test]
fn contexts_with_a_number_of_sms_have_exactly_that_many() {
    let _alone = alone();
    context();
    let affine = |count: u32| {
        let mut context = 0usize;
        let mut param = CUexecAffinityParam::default();
        param.param.smCount.val = count;
        let code = cu!(cuCtxCreate_v3(
            &mut context => *mut usize, &mut param => *mut CUexecAffinityParam, 1 => i32, 0 => u32, 0 => i32,
        ));
        (code, context)
    };
    let used = |count: u32| {
        let (code, context) = affine(count);
        assert_eq!(code, 0);
        let mark = support::function(MARK, "mark");
        let memory = allocate(1024);
        let mut have = CUexecAffinityParam::default();
        assert_eq!(cu!(cuCtxGetExecAffinity(&mut have => *mut CUexecAffinityParam, 0 => u32)), 0);
        // SAFETY: a plain number.
        assert_eq!(unsafe { have.param.smCount.val }, count.min(SMS));
        (context, marked(memory, || assert_eq!(launch(mark, 2000, 64, 0, &[memory]), 0)))
    };
    let (first, mine) = used(17);
    let (second, yours) = used(33);
    assert_eq!((mine.len(), yours.len()), (17, 33));
    assert!(mine.iter().all(|sm| !yours.contains(sm)), "there was room for both");
    assert_eq!(used(500).1.len(), SMS as usize);
    assert_eq!(affine(0).0, 1);
    for context in [first, second] {
        assert_eq!(cu!(cuCtxDestroy_v2(context => usize)), 0);
    }
}

#[test]
fn a_green_context_of_all_sms_takes_the_clusters_that_the_device_takes() {
    let _alone = alone();
    primary();
    let function = support::function(MARK, "mark");
    let (green, _) = green(&mut [device()]);
    let fit = |stream: usize, blocks: u32| {
        let mut attribute =
            CUlaunchAttribute { id: CUlaunchAttributeID::CLUSTER_DIMENSION, ..Default::default() };
        attribute.value.clusterDim = CUlaunchAttributeValue_clusterDim { x: blocks, y: 1, z: 1 };
        let config = CUlaunchConfig {
            gridDimX: 64 * blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 128,
            blockDimY: 1,
            blockDimZ: 1,
            hStream: CUstream(stream),
            attrs: &mut attribute,
            numAttrs: 1,
            ..CUlaunchConfig::default()
        };
        let mut count = 0i32;
        assert_eq!(
            cu!(cuOccupancyMaxActiveClusters(
                &mut count => *mut i32, CUfunction(function) => CUfunction, &config => *const CUlaunchConfig,
            )),
            0
        );
        count
    };
    let (plain, green) = (support::stream(), green_stream(green));
    for blocks in [1, 2, 4, 8] {
        assert_eq!(fit(green, blocks), fit(plain, blocks), "clusters of {blocks}");
    }
}
