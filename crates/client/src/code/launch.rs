//! Launching: what CUDA refuses at the call is refused here, from cached attributes, and the rest
//! is posted.

use crate::client::{Client, Launches};
use crate::code::configuration::Configuration;
use crate::code::function::Function;
use crate::code::libraries::{function_of, look_at_function_of};
use crate::context::Context;
use crate::context::device::Device;
use crate::graph::kinds::{KernelWork, NodeKind};
use crate::result::Result;
use crate::stream::{Target, targets};
use core::ffi::c_void;
use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUdevice_attribute, CUfunction_attribute, CUresult,
};
use link::wire::command::{Launch, LaunchAttribute, Opcode};
use std::cell::RefCell;
use std::sync::Arc;
use zerocopy::IntoBytes;

const COOPERATIVE: u32 = 2;
const CLUSTER_DIMENSION: u32 = 4;
/// Longest packed parameters.
const MAX_PARAMETER_BYTES: usize = 32 * 1024;

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
/// `parameters` is null or points to as many pointers as the kernel has parameters, each to a
/// value; `extra` is null or a list as the API defines it.
pub(crate) unsafe fn launch(
    client: &Client,
    handle: usize,
    configuration: &Configuration<'_>,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let target = targets::target(client, configuration.stream)?;
    let mut packed = PACKED.try_with(RefCell::take).unwrap_or_default();
    packed.clear();
    let asked = Arguments { handle, configuration, parameters, extra };
    // SAFETY: the caller's promise.
    let submitted = unsafe {
        match client.graphs.registry.captures.is_empty() {
            true => post(client, &target, &asked, &mut packed).map(|()| Submitted::Posted),
            false => capture_or_post(client, &target, &asked, &mut packed),
        }
    };
    let _ = PACKED.try_with(|kept| kept.replace(packed));
    match (submitted?, client.launches) {
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

/// What a launch is asked for with.
pub(crate) struct Arguments<'a> {
    /// A function, or a kernel of a library.
    pub(crate) handle: usize,
    pub(crate) configuration: &'a Configuration<'a>,
    pub(crate) parameters: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

/// Posts a launch on a stream that is not captured.
///
/// # Safety
/// As for [`launch`].
unsafe fn post(
    client: &Client,
    target: &Target,
    asked: &Arguments<'_>,
    packed: &mut Vec<u8>,
) -> Result {
    let context = &target.context;
    look_at_function_of(client, asked.handle, context.owner(), |function| {
        // SAFETY: the caller's promise.
        unsafe { check_and_pack(client, context, function, asked, packed) }?;
        post_packed(target, function, asked.configuration, packed)
    })
}

/// The same while something is captured, perhaps this stream.
///
/// # Safety
/// As for [`launch`].
unsafe fn capture_or_post(
    client: &Client,
    target: &Target,
    asked: &Arguments<'_>,
    packed: &mut Vec<u8>,
) -> Result<Submitted> {
    // SAFETY: the caller's promise.
    let prepared = unsafe { prepare(client, &target.context, asked, packed) };
    if prepared.is_err() {
        client.graphs.registry.captures.invalidate(target.captured());
    }
    let function = prepared?;
    let work = || KernelWork::captured(&function, asked.configuration, packed, target);
    match target.capture(client, || Ok(NodeKind::Kernel(work())))? {
        true => Ok(Submitted::Captured),
        false => {
            post_packed(target, &function, asked.configuration, packed).map(|()| Submitted::Posted)
        }
    }
}

/// Finds what a launch names, checks its shape and packs its parameters.
///
/// # Safety
/// As for [`launch`].
pub(crate) unsafe fn prepare(
    client: &Client,
    context: &Arc<Context>,
    asked: &Arguments<'_>,
    packed: &mut Vec<u8>,
) -> Result<Arc<Function>> {
    let function = function_of(client, asked.handle, context.owner())?;
    // SAFETY: the caller's promise.
    unsafe { check_and_pack(client, context, &function, asked, packed) }?;
    Ok(function)
}

/// # Safety
/// As for [`launch`].
unsafe fn check_and_pack(
    client: &Client,
    context: &Arc<Context>,
    function: &Function,
    asked: &Arguments<'_>,
    packed: &mut Vec<u8>,
) -> Result {
    let owner = context.owner();
    if function.context.token != owner.token || function.wire_id != owner.wire_id() {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    check_shape(client, context, function, asked.configuration)?;
    // SAFETY: the caller's promise.
    unsafe { pack(function, asked.parameters, asked.extra, packed) }
}

fn post_packed(
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
    let limits = &device.launch_limits;
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    let Configuration { grid, block, dynamic_shared_bytes, attributes, .. } = configuration;
    let is_within = |asked: &[u32; 3], most: &[u32; 3]| {
        asked.iter().zip(most).all(|(asked, most)| (1..=*most).contains(asked))
    };
    if !is_within(grid, &limits.grid) || !is_within(block, &limits.block) {
        return invalid;
    }
    let threads = u64::from(block[0]) * u64::from(block[1]) * u64::from(block[2]);
    if threads > limits.block_threads.into() {
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

/// More threads than a kernel takes: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES when their registers are
/// not there, else CUDA_ERROR_INVALID_VALUE, for more than its launch bounds allow (observed on an
/// H200).
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
        // A buffer may end before the last parameter does: NCCL gives as much of its one large
        // structure as the kernel is going to read.
        if packed.len() < function.packed_bytes {
            packed.resize(function.packed_bytes, 0);
        }
        return Ok(());
    }
    if function.parameters.is_empty() {
        return Ok(());
    }
    if parameters.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    packed.resize(function.packed_bytes, 0);
    for (i, parameter) in function.parameters.iter().enumerate() {
        // SAFETY: the caller's promise: one pointer per parameter.
        let value = unsafe { parameters.add(i).read() };
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let place = &mut packed[parameter.offset as usize..][..parameter.size_bytes as usize];
        // Most parameters are pointers and numbers: a move each.
        match place.len() {
            // SAFETY: the caller's promise: a value of the parameter's size, here and below; bytes
            // may lie anywhere.
            8 => place.copy_from_slice(unsafe { &*value.cast::<[u8; 8]>() }),
            // SAFETY: as above.
            4 => place.copy_from_slice(unsafe { &*value.cast::<[u8; 4]>() }),
            // SAFETY: as above.
            length => place.copy_from_slice(unsafe {
                core::slice::from_raw_parts(value.cast::<u8>(), length)
            }),
        }
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
