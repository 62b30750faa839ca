//! Parameters of nodes: versions of C's structures, and the one that is for all types of nodes.

use super::Answer;
use crate::types::*;

impl From<&CUDA_KERNEL_NODE_PARAMS_v1> for CUDA_KERNEL_NODE_PARAMS {
    fn from(v1: &CUDA_KERNEL_NODE_PARAMS_v1) -> Self {
        Self {
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
}

impl From<&CUDA_KERNEL_NODE_PARAMS> for CUDA_KERNEL_NODE_PARAMS_v1 {
    /// Version 1 knows functions only.
    fn from(v2: &CUDA_KERNEL_NODE_PARAMS) -> Self {
        Self {
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
}

impl From<&CUDA_KERNEL_NODE_PARAMS_v3> for CUDA_KERNEL_NODE_PARAMS {
    fn from(v3: &CUDA_KERNEL_NODE_PARAMS_v3) -> Self {
        Self {
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
}

/// What a program asked of a node, in the structures of the functions for one type each.
pub enum Asked {
    /// `cuGraphAddKernelNode`.
    Kernel(CUDA_KERNEL_NODE_PARAMS),
    /// `cuGraphAddMemcpyNode`.
    Memcpy(CUDA_MEMCPY3D, CUcontext),
    /// `cuGraphAddMemsetNode`.
    Memset(CUDA_MEMSET_NODE_PARAMS, CUcontext),
    /// `cuGraphAddHostNode`.
    Host(CUDA_HOST_NODE_PARAMS),
    /// `cuGraphAddChildGraphNode`.
    Child(CUgraph, Ownership),
    /// `cuGraphAddEmptyNode`.
    Empty,
    /// `cuGraphAddEventWaitNode`.
    EventWait(CUevent),
    /// `cuGraphAddEventRecordNode`.
    EventRecord(CUevent),
    /// `cuGraphAddMemAllocNode`: where, and how many bytes.
    MemAlloc(CUmemPoolProps, usize),
    /// `cuGraphAddMemFreeNode`.
    MemFree(CUdeviceptr),
    /// `cuGraphAddBatchMemOpNode`.
    BatchMemOp(CUDA_BATCH_MEM_OP_NODE_PARAMS),
    /// Only there.
    Conditional(CUDA_CONDITIONAL_NODE_PARAMS),
}

/// What becomes of a graph that is embedded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The node gets a copy.
    Copied,
    /// The node gets the graph itself.
    Moved,
}

/// Reads the structure that is for all types of nodes.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown types and values, CUDA_ERROR_NOT_SUPPORTED for external
/// semaphores.
pub fn read_any(asked: &CUgraphNodeParams) -> Answer<Asked> {
    if asked.reserved0 != [0; 3] || asked.reserved2 != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let members = &asked.anonymous;
    // SAFETY: all members are plain data without invalid values; the type says which one the caller
    // filled in.
    unsafe {
        Ok(match asked.type_ {
            CUgraphNodeType::KERNEL => Asked::Kernel((&members.kernel).into()),
            CUgraphNodeType::MEMCPY => {
                Asked::Memcpy(members.memcpy.copyParams, members.memcpy.copyCtx)
            }
            CUgraphNodeType::MEMSET => {
                let CUDA_MEMSET_NODE_PARAMS_v2 {
                    dst,
                    pitch,
                    value,
                    elementSize,
                    width,
                    height,
                    ctx,
                } = members.memset;
                let v1 = CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize, width, height };
                Asked::Memset(v1, ctx)
            }
            CUgraphNodeType::HOST => {
                let CUDA_HOST_NODE_PARAMS_v2 { fn_, userData, .. } = members.host;
                Asked::Host(CUDA_HOST_NODE_PARAMS { fn_, userData })
            }
            CUgraphNodeType::GRAPH => {
                let ownership = match members.graph.ownership.0 {
                    0 => Ownership::Copied,
                    1 => Ownership::Moved,
                    _ => return Err(CUresult::ERROR_INVALID_VALUE),
                };
                Asked::Child(members.graph.graph, ownership)
            }
            CUgraphNodeType::EMPTY => Asked::Empty,
            CUgraphNodeType::WAIT_EVENT => Asked::EventWait(members.eventWait.event),
            CUgraphNodeType::EVENT_RECORD => Asked::EventRecord(members.eventRecord.event),
            CUgraphNodeType::MEM_ALLOC => {
                Asked::MemAlloc(members.alloc.poolProps, members.alloc.bytesize)
            }
            CUgraphNodeType::MEM_FREE => Asked::MemFree(members.free.dptr),
            CUgraphNodeType::BATCH_MEM_OP => {
                let CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 { ctx, count, paramArray, flags } =
                    members.memOp;
                Asked::BatchMemOp(CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx, count, paramArray, flags })
            }
            CUgraphNodeType::CONDITIONAL => Asked::Conditional(members.conditional),
            CUgraphNodeType::EXT_SEMAS_SIGNAL | CUgraphNodeType::EXT_SEMAS_WAIT => {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        })
    }
}

/// Whether a node can be given parameters by the function for all types.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for another type than the node's and types without parameters that
/// could change, CUDA_ERROR_NOT_SUPPORTED for conditional nodes.
pub fn check_change(node: CUgraphNodeType, asked: &CUgraphNodeParams) -> Answer {
    use CUgraphNodeType as T;
    match node {
        _ if asked.type_ != node => Err(CUresult::ERROR_INVALID_VALUE),
        T::MEM_ALLOC | T::MEM_FREE | T::EMPTY => Err(CUresult::ERROR_INVALID_VALUE),
        T::CONDITIONAL => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// A value that is written to memory, as an operation of a batch.
pub fn write_of(
    operation: CUstreamBatchMemOpType,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUstreamBatchMemOpParams {
    let mut asked = CUstreamBatchMemOpParams::default();
    asked.writeValue.operation = operation;
    asked.writeValue.address = address;
    asked.writeValue.anonymous.value64 = value;
    asked.writeValue.flags = flags;
    asked
}

/// A value in memory that is waited for, as an operation of a batch.
pub fn wait_of(
    operation: CUstreamBatchMemOpType,
    address: CUdeviceptr,
    value: u64,
    flags: u32,
) -> CUstreamBatchMemOpParams {
    let mut asked = CUstreamBatchMemOpParams::default();
    asked.waitValue.operation = operation;
    asked.waitValue.address = address;
    asked.waitValue.anonymous.value64 = value;
    asked.waitValue.flags = flags;
    asked
}

/// What the operations of a batch are.
pub fn operations(
    batch: &[CUstreamBatchMemOpParams],
) -> impl Iterator<Item = CUstreamBatchMemOpType> + '_ {
    // SAFETY: every member begins with the operation; all are plain numbers.
    batch.iter().map(|one| unsafe { one.operation })
}

/// What a driver tells of a new node in the structure that it was asked with.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// Nothing.
    Nothing,
    /// The address of the memory that it allocates.
    Address(CUdeviceptr),
    /// The graphs of a conditional node; the array lives as long as the node.
    Bodies(*mut CUgraph),
}

impl Told {
    /// Writes it into the structure.
    pub fn write(self, asked: &mut CUgraphNodeParams) {
        match self {
            Self::Nothing => {}
            Self::Address(address) => asked.anonymous.alloc.dptr = address,
            Self::Bodies(graphs) => asked.anonymous.conditional.phGraph_out = graphs,
        }
    }
}

/// What a memory allocation node was asked for, with the address that it got.
pub fn allocation(device: CUdevice, size_bytes: u64, address: u64) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let mut pool = CUmemPoolProps { allocType: CUmemAllocationType::PINNED, ..Default::default() };
    pool.location.type_ = CUmemLocationType::DEVICE;
    pool.location.id = device;
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: pool,
        accessDescs: core::ptr::null(),
        accessDescCount: 0,
        bytesize: size_bytes as usize,
        dptr: address,
    }
}

/// What a call that updates an executable graph returns.
///
/// # Errors
/// CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE if something did not fit.
pub fn update_outcome(info: &CUgraphExecUpdateResultInfo) -> Answer {
    match info.result {
        CUgraphExecUpdateResult::SUCCESS => Ok(()),
        _ => Err(CUresult::ERROR_GRAPH_EXEC_UPDATE_FAILURE),
    }
}
