//! Parameters of graph nodes in C's structures: read into [`NodeKind`]s, and written from them.

use super::memory::copy_shapes::copied_volume;
use super::stream_values::batch_node;
use crate::client::Client;
use crate::code::configuration::Configuration;
use crate::code::launch::{Arguments, prepare};
use crate::context::Context;
use crate::copy::copy_work;
use crate::copy::shape::End;
use crate::graph::kinds::{BatchWork, CopyWork, KernelWork, MemsetWork, NodeKind};
use crate::memory::fill::check_fill;
use crate::memory::pattern::{Pattern, Rows};
use crate::result::Result;
use crate::stream::event::Event;
use crate::stream::events;
use crate::thread::current;
use cuda_abi::graph::params::{Asked, Told, read_any};
use cuda_abi::graph::reuse::Site;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr,
    CUevent, CUfunction, CUgraphNodeParams, CUkernel, CUmemAllocationHandleType, CUmemPoolProps,
    CUmemorytype, CUresult, CUstream,
};
use std::sync::Arc;

/// The context that a node names; the current one if it names none.
fn context_or(client: &Client, asked: CUcontext) -> Result<Arc<Context>> {
    if asked.is_null() { current::context() } else { client.context(asked.0) }
}

/// A kernel node. A `CUfunction` runs in its own context, a `CUkernel` in `ctx`, or in the current
/// one. Attributes of `before`, the node's earlier parameters, stay.
///
/// # Safety
/// The parameters' pointers are as `cuLaunchKernel` demands.
pub(crate) unsafe fn kernel(
    client: &Client,
    asked: &CUDA_KERNEL_NODE_PARAMS,
    before: Option<&NodeKind>,
) -> Result<NodeKind> {
    let attributes = match before {
        Some(NodeKind::Kernel(work)) => work.attributes.clone(),
        _ => Vec::new(),
    };
    let configuration = Configuration {
        grid: [asked.gridDimX, asked.gridDimY, asked.gridDimZ],
        block: [asked.blockDimX, asked.blockDimY, asked.blockDimZ],
        dynamic_shared_bytes: asked.sharedMemBytes,
        stream: CUstream::LEGACY,
        attributes: &attributes,
    };
    let handle = if asked.func.is_null() { asked.kern.0 } else { asked.func.0 };
    let context = match client.functions.get(handle) {
        Some(function) => Arc::clone(&function.context),
        None => context_or(client, asked.ctx)?,
    };
    let mut packed = Vec::new();
    // SAFETY: by the caller's promise.
    let function = unsafe {
        let (parameters, extra) = (asked.kernelParams, asked.extra);
        let asked = Arguments { handle, configuration: &configuration, parameters, extra };
        prepare(client, &context, &asked, &mut packed)?
    };
    let mut work = KernelWork::new(function, &configuration, &packed);
    work.partition = context.partition();
    Ok(NodeKind::Kernel(work))
}

/// A kernel node's parameters; the pointers live as long as the node keeps these parameters. The
/// function is named twice: libcudart knows kernels of libraries only.
pub(crate) fn kernel_parameters(work: &KernelWork) -> CUDA_KERNEL_NODE_PARAMS {
    let ([x, y, z], [bx, by, bz]) = (work.grid, work.block);
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction(work.function.token),
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: work.dynamic_shared_bytes,
        kernelParams: work.parameter_pointers(),
        extra: core::ptr::null_mut(),
        kern: CUkernel(work.function.kernel.get().copied().unwrap_or(0)),
        ctx: work.function.context.handle(),
    }
}

/// A kernel node's parameters in version 1, which knows functions only.
pub(crate) fn kernel_parameters_v1(work: &KernelWork) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    (&kernel_parameters(work)).into()
}

/// A copy node.
pub(crate) fn memcpy(client: &Client, asked: &CUDA_MEMCPY3D, ctx: CUcontext) -> Result<NodeKind> {
    context_or(client, ctx)?;
    let (to, from, extent) = copied_volume(asked)?;
    if extent.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    copy_work(client, to, from, extent).map(NodeKind::Memcpy)
}

/// A copy node's parameters.
pub(crate) fn memcpy_parameters(work: &CopyWork) -> CUDA_MEMCPY3D {
    let CopyWork { to, from, asked: extent, is_host, .. } = *work;
    let mut copy = CUDA_MEMCPY3D {
        WidthInBytes: extent.width_bytes as usize,
        Height: extent.height as usize,
        Depth: extent.depth as usize,
        ..Default::default()
    };
    let kind = |is_host| if is_host { CUmemorytype::HOST } else { CUmemorytype::DEVICE };
    let rows = |end: End| match end.pitch_bytes {
        0 => extent.height,
        pitch => end.slice_bytes.checked_div(pitch).unwrap_or(0).max(extent.height),
    };
    (copy.dstMemoryType, copy.srcMemoryType) = (kind(is_host[0]), kind(is_host[1]));
    (copy.dstPitch, copy.srcPitch) = (to.pitch_bytes as usize, from.pitch_bytes as usize);
    (copy.dstHeight, copy.srcHeight) = (rows(to) as usize, rows(from) as usize);
    match is_host[0] {
        true => copy.dstHost = core::ptr::with_exposed_provenance_mut(to.address as usize),
        false => copy.dstDevice = to.address,
    }
    match is_host[1] {
        true => copy.srcHost = core::ptr::with_exposed_provenance(from.address as usize),
        false => copy.srcDevice = from.address,
    }
    copy
}

/// A fill node.
pub(crate) fn memset(
    client: &Client,
    asked: &CUDA_MEMSET_NODE_PARAMS,
    ctx: CUcontext,
) -> Result<NodeKind> {
    context_or(client, ctx)?;
    if asked.width == 0 || asked.height == 0 || !matches!(asked.elementSize, 1 | 2 | 4) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let rows = Rows {
        address: asked.dst,
        pitch_bytes: asked.pitch as u64,
        width: asked.width as u64,
        height: asked.height as u64,
    };
    let pattern = Pattern { element_bytes: asked.elementSize, value: asked.value };
    check_fill(client, rows, pattern)?;
    Ok(NodeKind::Memset(MemsetWork { rows, pattern }))
}

/// A fill node's parameters.
pub(crate) fn memset_parameters(work: &MemsetWork) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: work.rows.address,
        pitch: work.rows.pitch_bytes as usize,
        value: work.pattern.value,
        elementSize: work.pattern.element_bytes,
        width: work.rows.width as usize,
        height: work.rows.height as usize,
    }
}

/// A host node's parameters.
pub(crate) fn host_parameters(work: &HostWork) -> CUDA_HOST_NODE_PARAMS {
    CUDA_HOST_NODE_PARAMS { fn_: Some(work.function), userData: work.argument() }
}

/// A node that records an event.
pub(crate) fn event_record(client: &Client, event: CUevent) -> Result<NodeKind> {
    named_event(client, event).map(NodeKind::EventRecord)
}

/// A node that waits for an event.
pub(crate) fn event_wait(client: &Client, event: CUevent) -> Result<NodeKind> {
    named_event(client, event).map(NodeKind::EventWait)
}

fn named_event(client: &Client, event: CUevent) -> Result<Arc<Event>> {
    events::get(client, event).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// A node that allocates memory in the current context, or without one in the device's primary
/// context, and the memory's address. Memory that other processes see is absent (801).
pub(crate) fn allocation(
    client: &Client,
    site: Site<'_>,
    pool: &CUmemPoolProps,
    size_bytes: usize,
) -> Result<(NodeKind, CUdeviceptr)> {
    let current = current::top().map(|_| current::owner()).transpose()?;
    let device = client.device(pool.location.id).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    let context = match current {
        Some(context) => context,
        None => client.context(device.primary.handle().0)?,
    };
    if pool.handleTypes != CUmemAllocationHandleType::NONE || pool.location.id != context.device {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    if size_bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let memory = client.graphs.memory.allocate(client, &context, site, size_bytes as u64)?;
    let address = memory.address;
    Ok((NodeKind::MemAlloc(memory), address))
}

/// Parameters of a node of operations on memory; the array lives as long as the node keeps them.
pub(crate) fn batch_parameters(work: &BatchWork) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: work.context,
        count: work.asked.len() as u32,
        paramArray: work.asked.as_ptr().cast_mut(),
        flags: 0,
    }
}

/// A node of any kind, from the structure that is for all kinds, and what is told of it.
///
/// # Safety
/// The pointers of the member that the type selects are as its own function demands.
pub(crate) unsafe fn any(
    client: &Client,
    site: Site<'_>,
    asked: &CUgraphNodeParams,
    before: Option<&NodeKind>,
) -> Result<(NodeKind, Told)> {
    let registry = &client.graphs.registry;
    let graph = site.graph;
    let kind = match read_any(asked)? {
        // SAFETY: by the caller's promise.
        Asked::Kernel(asked) => unsafe { kernel(client, &asked, before)? },
        Asked::Memcpy(asked, context) => memcpy(client, &asked, context)?,
        Asked::Memset(asked, context) => memset(client, &asked, context)?,
        Asked::Host(asked) => NodeKind::Host(HostWork::new(asked.fn_, asked.userData)?),
        Asked::Child(graph, ownership) => NodeKind::Child(registry.child(graph, ownership)?),
        Asked::Empty => NodeKind::Empty,
        Asked::EventWait(event) => event_wait(client, event)?,
        Asked::EventRecord(event) => event_record(client, event)?,
        Asked::MemAlloc(pool, size_bytes) => {
            let (kind, address) = allocation(client, site, &pool, size_bytes)?;
            return Ok((kind, Told::Address(address)));
        }
        Asked::MemFree(address) => {
            NodeKind::MemFree(client.graphs.memory.to_be_freed(client, graph, address)?)
        }
        // SAFETY: by the caller's promise.
        Asked::BatchMemOp(asked) => unsafe { batch_node(client, &asked)? },
        Asked::Conditional(asked) => {
            client.context(asked.ctx.0)?;
            let conditional = Arc::new(registry.conditional(graph, &asked)?);
            let told = Told::Bodies(conditional.parameters().phGraph_out);
            return Ok((NodeKind::Conditional(conditional), told));
        }
    };
    Ok((kind, Told::Nothing))
}
