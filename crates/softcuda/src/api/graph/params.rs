//! Node parameters in C's structures: read into [`NodeKind`]s, and written from them.

use std::sync::Arc;

use cuda_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v3, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUfunction, CUgraphNodeParams, CUgraphNodeType, CUkernel, CUresult,
};

use super::kinds::{EventWork, HostWork, MemoryOpsWork, NodeKind};
use super::memory::{FreeWork, GraphAllocation};
use crate::api::copy::check as check_copy;
use crate::api::copy_shapes::Volume;
use crate::api::driver::{Driver, driver};
use crate::api::fill;
use crate::api::kernel_work::{KernelWork, Shape};
use crate::api::module_image::Kernel;
use crate::api::objects::Context;
use crate::api::{Answer, stream_values};
use crate::device::transfer::Fill;

/// Version 2 of a kernel node's parameters, from version 1.
pub(crate) fn kernel_v1(v1: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: v1.func,
        gridDimX: v1.gridDimX,
        gridDimY: v1.gridDimY,
        gridDimZ: v1.gridDimZ,
        blockDimX: v1.blockDimX,
        blockDimY: v1.blockDimY,
        blockDimZ: v1.blockDimZ,
        sharedMemBytes: v1.sharedMemBytes,
        kernelParams: v1.kernelParams,
        extra: v1.extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

fn kernel_v3(v3: &CUDA_KERNEL_NODE_PARAMS_v3) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: v3.func,
        gridDimX: v3.gridDimX,
        gridDimY: v3.gridDimY,
        gridDimZ: v3.gridDimZ,
        blockDimX: v3.blockDimX,
        blockDimY: v3.blockDimY,
        blockDimZ: v3.blockDimZ,
        sharedMemBytes: v3.sharedMemBytes,
        kernelParams: v3.kernelParams,
        extra: v3.extra,
        kern: v3.kern,
        ctx: v3.ctx,
    }
}

/// A kernel node. A `CUfunction` runs in its own context, on all of that context's SMs, whatever `ctx` says (as measured of NVIDIA's driver);
/// a `CUkernel` in `ctx`, or in the current context. Attributes of `before`, the node's earlier parameters, stay.
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
            driver.context_by_id(function.context_id()).ok_or(CUresult::ERROR_INVALID_HANDLE)?
        }
        None if asked.ctx.is_null() => current.clone(),
        None => driver.context(asked.ctx)?,
    };
    let (params, extra) = (asked.kernelParams, asked.extra);
    // SAFETY: by the caller's promise.
    let work =
        unsafe { KernelWork::prepare(driver, &owner, handle, &shape, owner.mask, params, extra)? };
    Ok(NodeKind::Kernel(work))
}

/// A kernel node's parameters; the pointers live as long as the node keeps these parameters. The function is named twice where it belongs to a
/// library: libcudart knows kernels only.
pub(crate) fn kernel_parameters(work: &KernelWork) -> CUDA_KERNEL_NODE_PARAMS {
    // A kernel shares its settings with its functions.
    let is_of = |kernel: &Kernel| std::ptr::eq(kernel.settings(), &*work.function.settings);
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
    let v2 = kernel_parameters(work);
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: v2.func,
        gridDimX: v2.gridDimX,
        gridDimY: v2.gridDimY,
        gridDimZ: v2.gridDimZ,
        blockDimX: v2.blockDimX,
        blockDimY: v2.blockDimY,
        blockDimZ: v2.blockDimZ,
        sharedMemBytes: v2.sharedMemBytes,
        kernelParams: v2.kernelParams,
        extra: v2.extra,
    }
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
    if driver.graph_memory_at(asked.dst).is_none() {
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
    CUDA_HOST_NODE_PARAMS { fn_: Some(work.function), userData: work.user_data as *mut _ }
}

/// A node of stream memory operations.
///
/// # Safety
/// `asked.paramArray` has `asked.count` elements.
pub(crate) unsafe fn memory_ops(
    driver: &Driver,
    current: &Context,
    asked: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Answer<NodeKind> {
    let context = context_or(driver, asked.ctx, current)?;
    // SAFETY: by the caller's promise.
    let work = unsafe {
        stream_values::work(driver, context, asked.paramArray, asked.count, asked.flags)?
    };
    Ok(NodeKind::BatchMemOp(work))
}

/// Parameters of a node of stream memory operations; the array lives as long as the node keeps them.
pub(crate) fn memory_ops_parameters(work: &MemoryOpsWork) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: work.context,
        count: work.asked.len() as u32,
        paramArray: work.asked.as_ptr().cast_mut(),
        flags: work.flags,
    }
}

/// A node of any kind, from the structure that is for all kinds. What the driver fills in goes back into `asked`.
///
/// # Safety
/// The pointers of the member that the type selects are as its own function demands.
pub(crate) unsafe fn any(
    driver: &Driver,
    current: &Arc<Context>,
    asked: &mut CUgraphNodeParams,
    before: Option<&NodeKind>,
) -> Answer<NodeKind> {
    if asked.reserved0 != [0; 3] || asked.reserved2 != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the type says which member the caller filled in; all are plain data.
    unsafe {
        let members = &mut asked.anonymous;
        match asked.type_ {
            CUgraphNodeType::KERNEL => kernel(driver, current, &kernel_v3(&members.kernel), before),
            CUgraphNodeType::MEMCPY => {
                memcpy(driver, current, &members.memcpy.copyParams, members.memcpy.copyCtx)
            }
            CUgraphNodeType::MEMSET => {
                let v2 = members.memset;
                let v1 = CUDA_MEMSET_NODE_PARAMS {
                    dst: v2.dst,
                    pitch: v2.pitch,
                    value: v2.value,
                    elementSize: v2.elementSize,
                    width: v2.width,
                    height: v2.height,
                };
                memset(driver, current, &v1, v2.ctx)
            }
            CUgraphNodeType::HOST => {
                Ok(NodeKind::Host(HostWork::new(members.host.fn_, members.host.userData)?))
            }
            CUgraphNodeType::GRAPH => {
                let inner = driver.graph(members.graph.graph)?;
                match members.graph.ownership.0 {
                    0 => Ok(NodeKind::Child(inner.duplicate(driver)?)),
                    1 => Ok(NodeKind::Child(inner)),
                    _ => Err(CUresult::ERROR_INVALID_VALUE),
                }
            }
            CUgraphNodeType::EMPTY => Ok(NodeKind::Empty),
            CUgraphNodeType::WAIT_EVENT => {
                Ok(NodeKind::EventWait(EventWork::new(driver, members.eventWait.event)?))
            }
            CUgraphNodeType::EVENT_RECORD => {
                Ok(NodeKind::EventRecord(EventWork::new(driver, members.eventRecord.event)?))
            }
            CUgraphNodeType::MEM_ALLOC => {
                let v2 = &mut members.alloc;
                let allocation = GraphAllocation::new(
                    driver,
                    current.id,
                    v2.poolProps.location.id,
                    v2.poolProps.handleTypes,
                    v2.bytesize,
                )?;
                v2.dptr = allocation.memory.address;
                Ok(NodeKind::MemAlloc(allocation))
            }
            CUgraphNodeType::MEM_FREE => {
                Ok(NodeKind::MemFree(FreeWork::new(driver, members.free.dptr)?))
            }
            CUgraphNodeType::BATCH_MEM_OP => {
                let v2 = members.memOp;
                let v1 = CUDA_BATCH_MEM_OP_NODE_PARAMS {
                    ctx: v2.ctx,
                    count: v2.count,
                    paramArray: v2.paramArray,
                    flags: v2.flags,
                };
                memory_ops(driver, current, &v1)
            }
            CUgraphNodeType::EXT_SEMAS_SIGNAL
            | CUgraphNodeType::EXT_SEMAS_WAIT
            | CUgraphNodeType::CONDITIONAL => Err(CUresult::ERROR_NOT_SUPPORTED),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}
