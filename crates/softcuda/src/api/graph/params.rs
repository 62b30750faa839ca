//! Node parameters in C's structures: read into [`NodeKind`]s, and written from them.

use std::sync::Arc;

use cuda_abi::graph::params::{Asked, Told, read_any};
use cuda_abi::graph::reuse::Site;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUfunction,
    CUgraphNodeParams, CUkernel, CUresult,
};

use super::kinds::{EventWork, MemoryOpsWork, NodeKind};
use super::memory::{FreeWork, GraphAllocation};
use crate::api::answer::Answer;
use crate::api::code::kernel_work::{KernelWork, Shape};
use crate::api::code::loading::resolve;
use crate::api::driver::{Driver, driver};
use crate::api::memory::fill;
use crate::api::memory::volume::{Volume, check as check_copy};
use crate::api::objects::{Context, Kernel};
use crate::api::stream::stream_values;
use crate::device::transfer::Fill;

/// A kernel node. A `CUfunction` runs in its own context, on all of that context's SMs, whatever
/// `ctx` says (as measured of NVIDIA's driver); a `CUkernel` in `ctx`, or in the current context.
/// Attributes of `before`, the node's earlier parameters, stay.
///
/// # Safety
/// The parameters' pointers are as `cuLaunchKernel` demands.
pub(crate) unsafe fn kernel(
    driver: &Driver,
    current: &Arc<Context>,
    asked: &CUDA_KERNEL_NODE_PARAMS,
    before: Option<&NodeKind>,
) -> Answer<NodeKind> {
    let grid = [asked.gridDimX, asked.gridDimY, asked.gridDimZ];
    let block = [asked.blockDimX, asked.blockDimY, asked.blockDimZ];
    let plain = Shape::plain(grid, block, asked.sharedMemBytes);
    let shape = match before {
        Some(NodeKind::Kernel(work)) => {
            Shape { grid, block, dynamic_shared_bytes: asked.sharedMemBytes, ..work.asked.clone() }
        }
        _ => plain,
    };
    let handle = if asked.func.is_null() { CUfunction(asked.kern.0) } else { asked.func };
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let owner = match driver.functions.find(handle.0) {
        Some(function) => {
            driver.context_by_id(function.context_id).ok_or(CUresult::ERROR_INVALID_HANDLE)?
        }
        None if asked.ctx.is_null() => current.clone(),
        None => driver.context(asked.ctx)?,
    };
    let (params, extra) = (asked.kernelParams, asked.extra);
    let function = resolve(driver, &owner, handle)?;
    // SAFETY: by the caller's promise.
    let work = unsafe { KernelWork::prepare(function, &owner, &shape, owner.mask, params, extra)? };
    Ok(NodeKind::Kernel(work))
}

/// A kernel node's parameters; the pointers live as long as the node keeps these parameters. The
/// function is named twice where it belongs to a library: libcudart knows kernels only.
pub(crate) fn kernel_parameters(work: &KernelWork) -> CUDA_KERNEL_NODE_PARAMS {
    // A kernel shares its settings with its functions.
    let is_of = |kernel: &Kernel| Arc::ptr_eq(&kernel.settings, &work.function.settings);
    let kernel = driver().ok().and_then(|driver| driver.kernels.find_by(is_of));
    let ([x, y, z], [bx, by, bz]) = (work.asked.grid, work.asked.block);
    CUDA_KERNEL_NODE_PARAMS {
        func: work.function.handle,
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: bx,
        blockDimY: by,
        blockDimZ: bz,
        sharedMemBytes: work.asked.dynamic_shared_bytes,
        kernelParams: work.parameter_pointers(),
        extra: std::ptr::null_mut(),
        kern: kernel.map_or(CUkernel::NULL, |kernel| kernel.handle),
        ctx: work.context(),
    }
}

/// A kernel node's parameters in version 1, which knows functions only.
pub(crate) fn kernel_parameters_v1(work: &KernelWork) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    (&kernel_parameters(work)).into()
}

/// The context that a node names; the current one if it names none.
fn context_or(driver: &Driver, asked: CUcontext, current: &Context) -> Answer<CUcontext> {
    if asked.is_null() {
        return Ok(current.handle);
    }
    Ok(driver.context(asked)?.handle)
}

/// A copy node.
pub(crate) fn memcpy(
    driver: &Driver,
    current: &Context,
    asked: &CUDA_MEMCPY3D,
    context: CUcontext,
) -> Answer<NodeKind> {
    let volume = Volume::from_c(asked);
    let copy = volume.copy(driver)?;
    if copy.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_copy(driver, copy)?;
    context_or(driver, context, current)?;
    Ok(NodeKind::Memcpy(volume))
}

/// A fill node.
pub(crate) fn memset(
    driver: &Driver,
    current: &Context,
    asked: &CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Answer<NodeKind> {
    if asked.width == 0 || asked.height == 0 || !matches!(asked.elementSize, 1 | 2 | 4) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let fill = Fill {
        address: asked.dst,
        row_bytes: asked.pitch as u64,
        value: asked.value,
        element_bytes: asked.elementSize.into(),
        width: asked.width as u64,
        height: asked.height as u64,
    };
    // Memory of a graph is there only while the graph runs.
    if !driver.graph_memory.covers(asked.dst) {
        fill::check(driver, &fill)?;
    }
    context_or(driver, context, current)?;
    Ok(NodeKind::Memset(fill))
}

/// A fill node's parameters.
pub(crate) fn memset_parameters(fill: &Fill) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: fill.address,
        pitch: fill.row_bytes as usize,
        value: fill.value,
        elementSize: fill.element_bytes as u32,
        width: fill.width as usize,
        height: fill.height as usize,
    }
}

/// A host node's parameters.
pub(crate) fn host_parameters(work: &HostWork) -> CUDA_HOST_NODE_PARAMS {
    CUDA_HOST_NODE_PARAMS { fn_: Some(work.function), userData: work.argument() }
}

/// A node of stream memory operations.
///
/// # Safety
/// `asked.paramArray` has `asked.count` elements.
pub(crate) unsafe fn memory_ops(
    driver: &Driver,
    asked: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Answer<NodeKind> {
    let context = driver.context(asked.ctx).map_err(|_| CUresult::ERROR_INVALID_VALUE)?.handle;
    // SAFETY: by the caller's promise.
    let work = unsafe {
        stream_values::work(driver, context, asked.paramArray, asked.count, asked.flags)?
    };
    Ok(NodeKind::BatchMemOp(work))
}

/// Parameters of a node of stream memory operations; the array lives as long as the node keeps
/// them.
pub(crate) fn memory_ops_parameters(work: &MemoryOpsWork) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: work.context,
        count: work.asked.len() as u32,
        paramArray: work.asked.as_ptr().cast_mut(),
        flags: work.flags,
    }
}

/// A node of any kind, from the structure that is for all kinds, and what the driver tells of it.
///
/// # Safety
/// The pointers of the member that the type selects are as its own function demands.
pub(crate) unsafe fn any(
    driver: &Driver,
    current: &Arc<Context>,
    site: Site<'_>,
    asked: &CUgraphNodeParams,
    before: Option<&NodeKind>,
) -> Answer<(NodeKind, Told)> {
    let graph = site.graph;
    let kind = match read_any(asked)? {
        // SAFETY: by the caller's promise.
        Asked::Kernel(asked) => unsafe { kernel(driver, current, &asked, before)? },
        Asked::Memcpy(asked, context) => memcpy(driver, current, &asked, context)?,
        Asked::Memset(asked, context) => memset(driver, current, &asked, context)?,
        Asked::Host(asked) => NodeKind::Host(HostWork::new(asked.fn_, asked.userData)?),
        Asked::Child(graph, ownership) => NodeKind::Child(driver.graphs.child(graph, ownership)?),
        Asked::Empty => NodeKind::Empty,
        Asked::EventWait(event) => NodeKind::EventWait(EventWork::new(driver, event)?),
        Asked::EventRecord(event) => NodeKind::EventRecord(EventWork::new(driver, event)?),
        Asked::MemAlloc(pool, size_bytes) => {
            let (place, shared_as) = (pool.location.id, pool.handleTypes);
            let allocation =
                GraphAllocation::new(driver, current.id, site, place, shared_as, size_bytes)?;
            let told = Told::Address(allocation.memory.address);
            return Ok((NodeKind::MemAlloc(allocation), told));
        }
        Asked::MemFree(address) => NodeKind::MemFree(FreeWork::in_graph(driver, graph, address)?),
        // SAFETY: by the caller's promise.
        Asked::BatchMemOp(asked) => unsafe { memory_ops(driver, &asked)? },
        Asked::Conditional(asked) => {
            driver.context(asked.ctx)?;
            let conditional = Arc::new(driver.graphs.conditional(graph, &asked)?);
            let told = Told::Bodies(conditional.parameters().phGraph_out);
            return Ok((NodeKind::Conditional(conditional), told));
        }
    };
    Ok((kind, Told::Nothing))
}
