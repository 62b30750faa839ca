//! Launching: what CUDA refuses at the call is refused here, from cached attributes, and the rest is posted.

use crate::client::{Client, Launches};
use crate::context::Context;
use crate::device::Device;
use crate::graph::{KernelWork, NodeKind};
use crate::library::function_of;
use crate::module::Function;
use crate::session::Result;
use crate::stream::{self, Target};
use core::ffi::c_void;
use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUdevice_attribute, CUfunction_attribute, CUresult, CUstream,
};
use link::wire::command::{Launch, LaunchAttribute, Opcode};
use std::cell::RefCell;
use std::sync::Arc;
use zerocopy::IntoBytes;

const COOPERATIVE: u32 = 2;
const CLUSTER_DIMENSION: u32 = 4;
/// Longest packed parameters.
const MAX_PARAMETER_BYTES: usize = 32 * 1024;

/// A launch's shape and place.
pub(crate) struct Configuration<'a> {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) stream: CUstream,
    pub(crate) attributes: &'a [LaunchAttribute],
}

/// The attribute that makes a launch cooperative.
pub(crate) fn cooperative() -> LaunchAttribute {
    LaunchAttribute { id: COOPERATIVE, reserved: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] }
}

thread_local! {
    /// Packed parameters, kept to spare allocations.
    static PACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Launches a kernel.
///
/// # Safety
/// `parameters` is null or points to as many pointers as the kernel has parameters, each to a value; `extra` is null or a list as the API defines it.
pub(crate) unsafe fn launch(
    client: &Client,
    handle: usize,
    configuration: &Configuration<'_>,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let target = stream::target(client, configuration.stream)?;
    let mut packed = PACKED.try_with(RefCell::take).unwrap_or_default();
    packed.clear();
    // SAFETY: the caller's promise.
    let prepared = unsafe {
        prepare(client, &target.context, handle, configuration, parameters, extra, &mut packed)
    };
    if prepared.is_err() {
        client.graphs.registry.captures.invalidate(target.captured());
    }
    let posted = prepared.and_then(|function| {
        let work = || KernelWork::captured(&function, configuration, &packed, &target);
        match target.capture(client, || Ok(NodeKind::Kernel(work())))? {
            true => Ok(Submitted::Captured),
            false => post(&target, &function, configuration, &packed).map(|()| Submitted::Posted),
        }
    });
    let _ = PACKED.try_with(|kept| kept.replace(packed));
    match (posted?, client.launches) {
        (Submitted::Captured, _) | (_, Launches::Asynchronous) => Ok(()),
        (Submitted::Posted, Launches::Blocking) => {
            target.synchronize()?;
            target.backend.session.verdict()
        }
    }
}

/// What became of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Submitted {
    Posted,
    Captured,
}

/// Finds what a launch names, checks its shape and packs its parameters.
///
/// # Safety
/// As for [`launch`].
pub(crate) unsafe fn prepare(
    client: &Client,
    context: &Arc<Context>,
    handle: usize,
    configuration: &Configuration<'_>,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    packed: &mut Vec<u8>,
) -> Result<Arc<Function>> {
    if handle == 0 {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let owner = context.owner();
    let function = function_of(client, handle, owner)?;
    if function.context.token != owner.token || function.wire_id != owner.wire_id() {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    check_shape(client, context, &function, configuration)?;
    // SAFETY: the caller's promise.
    unsafe { pack(&function, parameters, extra, packed) }?;
    Ok(function)
}

fn post(
    target: &Target,
    function: &Function,
    configuration: &Configuration<'_>,
    packed: &[u8],
) -> Result {
    let body = Launch {
        function: function.number,
        stream: target.slot,
        grid: configuration.grid,
        block: configuration.block,
        dynamic_shared_bytes: configuration.dynamic_shared_bytes,
        parameter_bytes: packed.len() as u32,
        attributes: configuration.attributes.len() as u32,
        reserved: 0,
    };
    let parts = [body.as_bytes(), configuration.attributes.as_bytes(), packed];
    target.post_parts(Opcode::Launch, &parts)?;
    if function.prints {
        // Once it is posted: whoever synchronises from here on finds the text.
        target.backend.session.output().expect();
    }
    Ok(())
}

fn check_shape(
    client: &Client,
    context: &Context,
    function: &Function,
    configuration: &Configuration<'_>,
) -> Result {
    let device = client.device(context.device)?;
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    let Configuration { grid, block, dynamic_shared_bytes, attributes, .. } = configuration;
    if grid.contains(&0) || block.contains(&0) {
        return invalid;
    }
    let limits = [
        (grid[0], CUdevice_attribute::MAX_GRID_DIM_X, i32::MAX.unsigned_abs()),
        (grid[1], CUdevice_attribute::MAX_GRID_DIM_Y, 65535),
        (grid[2], CUdevice_attribute::MAX_GRID_DIM_Z, 65535),
        (block[0], CUdevice_attribute::MAX_BLOCK_DIM_X, 1024),
        (block[1], CUdevice_attribute::MAX_BLOCK_DIM_Y, 1024),
        (block[2], CUdevice_attribute::MAX_BLOCK_DIM_Z, 64),
    ];
    if limits
        .iter()
        .any(|&(asked, attribute, otherwise)| asked > device.limit(attribute, otherwise))
    {
        return invalid;
    }
    let threads = u64::from(block[0]) * u64::from(block[1]) * u64::from(block[2]);
    if threads > device.limit(CUdevice_attribute::MAX_THREADS_PER_BLOCK, 1024).into() {
        return invalid;
    }
    let function_threads = function.count(CUfunction_attribute::MAX_THREADS_PER_BLOCK);
    if function_threads.is_some_and(|most| threads > most.into()) {
        return Err(too_many_threads(device, function, threads));
    }
    let most_shared = function.count(CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES);
    if most_shared.is_some_and(|most| *dynamic_shared_bytes > most) {
        return invalid;
    }
    for attribute in *attributes {
        match attribute.id {
            COOPERATIVE if attribute.value[0] as u32 != 0 => {
                let multiprocessors = context.multiprocessors(client)?;
                check_resident(multiprocessors, function, configuration, threads)?;
            }
            CLUSTER_DIMENSION => {
                let sizes = attribute.value.as_bytes();
                let size = |i: usize| {
                    u32::from_le_bytes([sizes[i], sizes[i + 1], sizes[i + 2], sizes[i + 3]])
                };
                let cluster = [size(0), size(4), size(8)];
                if cluster.iter().zip(grid).any(|(&c, g)| c == 0 || g % c != 0) {
                    return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// More threads than a kernel takes: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES when their registers are not there, else CUDA_ERROR_INVALID_VALUE, for
/// more than its launch bounds allow (observed on an H200).
fn too_many_threads(device: &Device, function: &Function, threads: u64) -> CUresult {
    const REGISTERS_ALLOCATED_AT_ONCE: u32 = 8;
    let registers = function.count(CUfunction_attribute::NUM_REGS).unwrap_or(0);
    let wanted = u64::from(registers.next_multiple_of(REGISTERS_ALLOCATED_AT_ONCE)) * threads;
    if wanted > device.limit(CUdevice_attribute::MAX_REGISTERS_PER_BLOCK, 65536).into() {
        CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES
    } else {
        CUresult::ERROR_INVALID_VALUE
    }
}

/// A cooperative grid must be on its SMs as a whole.
fn check_resident(
    multiprocessors: u32,
    function: &Function,
    configuration: &Configuration<'_>,
    threads: u64,
) -> Result {
    let question = link::wire::command::Occupancy {
        block_threads: u32::try_from(threads).unwrap_or(u32::MAX),
        dynamic_shared_bytes: configuration.dynamic_shared_bytes.into(),
        ..Default::default()
    };
    let per_processor = function.occupancy(question)?.blocks.max(0).unsigned_abs();
    let room = u64::from(per_processor) * u64::from(multiprocessors);
    let blocks = configuration.grid.iter().map(|&g| u64::from(g)).product::<u64>();
    if blocks > room { Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

/// Packs parameters by the kernel's layout, or takes the caller's packed buffer.
///
/// # Safety
/// As for [`launch`].
unsafe fn pack(
    function: &Function,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    packed: &mut Vec<u8>,
) -> Result {
    if !extra.is_null() {
        if !parameters.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        unsafe { take_packed(extra, packed) }?;
        // A buffer may end before the last parameter does: NCCL gives as much of its one large structure as the kernel is going to read.
        if packed.len() < function.packed_bytes() {
            packed.resize(function.packed_bytes(), 0);
        }
        return Ok(());
    }
    if function.parameters.is_empty() {
        return Ok(());
    }
    if parameters.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    packed.resize(function.packed_bytes(), 0);
    for (i, parameter) in function.parameters.iter().enumerate() {
        // SAFETY: the caller's promise: one pointer per parameter.
        let value = unsafe { parameters.add(i).read() };
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let place = &mut packed[parameter.offset as usize..][..parameter.size_bytes as usize];
        // SAFETY: the caller's promise: a value of the parameter's size; `place` is memory of our own.
        unsafe {
            core::ptr::copy_nonoverlapping(value.cast::<u8>(), place.as_mut_ptr(), place.len())
        };
    }
    Ok(())
}

/// # Safety
/// `extra` is a list as the API defines it.
unsafe fn take_packed(extra: *mut *mut c_void, packed: &mut Vec<u8>) -> Result {
    const MOST_ELEMENTS: usize = 16;
    let (mut buffer, mut size_bytes) = (core::ptr::null::<u8>(), None);
    let mut i = 0;
    while i < MOST_ELEMENTS {
        // SAFETY: the list goes on until its end mark.
        let key = unsafe { extra.add(i).read() } as usize;
        if key == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: each key but the end mark has a value.
        let value = unsafe { extra.add(i + 1).read() };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast_const().cast(),
            // SAFETY: this key's value points to a size.
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: as above.
                size_bytes = Some(unsafe { value.cast::<usize>().read() })
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        i += 2;
    }
    let size_bytes = size_bytes.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if size_bytes > MAX_PARAMETER_BYTES || (buffer.is_null() && size_bytes > 0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if size_bytes > 0 {
        // SAFETY: the caller's buffer has so many bytes.
        packed.extend_from_slice(unsafe { core::slice::from_raw_parts(buffer, size_bytes) });
    }
    Ok(())
}
