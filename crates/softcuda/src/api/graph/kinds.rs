//! What a node does, free of C structures and of the graph that it is in, and the operations that this comes to in a stream.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::types::{
    CUcontext, CUevent, CUgraphNodeType, CUhostFn, CUresult, CUstreamBatchMemOpParams,
};

use super::memory::{FreeWork, GraphAllocation};
use super::model::Graph;
use crate::api::Answer;
use crate::api::copy::check as check_copy;
use crate::api::copy_shapes::Volume;
use crate::api::driver::Driver;
use crate::api::kernel_work::KernelWork;
use crate::api::objects::{Event, Recorded};
use crate::api::stream_values::MemoryOp;
use crate::device::fault::Sticky;
use crate::device::marker::Marker;
use crate::device::ops::Op;
use crate::device::transfer::{Fill, Transfer};

/// What a node does, with everything that it needs for it.
#[derive(Debug, Clone)]
pub(crate) enum NodeKind {
    Kernel(KernelWork),
    /// Its addresses are looked up when it is done.
    Memcpy(Volume),
    Memset(Fill),
    Host(HostWork),
    /// An embedded graph.
    Child(Arc<Graph>),
    Empty,
    EventRecord(EventWork),
    EventWait(EventWork),
    MemAlloc(GraphAllocation),
    MemFree(FreeWork),
    BatchMemOp(MemoryOpsWork),
}

/// A host function with its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostWork {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// The program's pointer.
    pub(crate) user_data: usize,
}

/// An event that a node records or waits for.
#[derive(Debug, Clone)]
pub(crate) struct EventWork {
    pub(crate) handle: CUevent,
    pub(crate) event: Arc<Event>,
}

/// Stream memory operations, in order.
#[derive(Clone)]
pub(crate) struct MemoryOpsWork {
    pub(crate) ops: Arc<[MemoryOp]>,
    /// As the program gave them.
    pub(crate) asked: Arc<[CUstreamBatchMemOpParams]>,
    pub(crate) flags: u32,
    pub(crate) context: CUcontext,
}

impl std::fmt::Debug for MemoryOpsWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryOpsWork").field("ops", &self.ops).finish_non_exhaustive()
    }
}

impl HostWork {
    /// CUDA_ERROR_INVALID_VALUE without a function.
    pub(crate) fn new(function: CUhostFn, user_data: *mut c_void) -> Answer<Self> {
        let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(HostWork { function, user_data: user_data as usize })
    }

    fn op(self) -> Op {
        Op::Host(Box::new(move |failed: Option<Sticky>| {
            if failed.is_none() {
                // SAFETY: the program's function with the program's argument.
                unsafe { (self.function)(self.user_data as *mut c_void) };
            }
        }))
    }
}

impl EventWork {
    /// The event of a handle.
    pub(crate) fn new(driver: &Driver, handle: CUevent) -> Answer<Self> {
        let event = driver.events.find(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(EventWork { handle, event })
    }
}

impl NodeKind {
    /// The node's type in the C API.
    pub(crate) fn type_code(&self) -> CUgraphNodeType {
        match self {
            NodeKind::Kernel(_) => CUgraphNodeType::KERNEL,
            NodeKind::Memcpy(_) => CUgraphNodeType::MEMCPY,
            NodeKind::Memset(_) => CUgraphNodeType::MEMSET,
            NodeKind::Host(_) => CUgraphNodeType::HOST,
            NodeKind::Child(_) => CUgraphNodeType::GRAPH,
            NodeKind::Empty => CUgraphNodeType::EMPTY,
            NodeKind::EventRecord(_) => CUgraphNodeType::EVENT_RECORD,
            NodeKind::EventWait(_) => CUgraphNodeType::WAIT_EVENT,
            NodeKind::MemAlloc(_) => CUgraphNodeType::MEM_ALLOC,
            NodeKind::MemFree(_) => CUgraphNodeType::MEM_FREE,
            NodeKind::BatchMemOp(_) => CUgraphNodeType::BATCH_MEM_OP,
        }
    }

    /// The priority that it was given itself, if any.
    pub(crate) fn own_priority(&self) -> Option<i32> {
        match self {
            NodeKind::Kernel(work) => work.own_priority(),
            _ => None,
        }
    }

    /// The operations of doing it once, at this priority. Embedded graphs are the executable graph's business.
    pub(crate) fn ops(&self, driver: &Driver, priority: i32) -> Answer<Vec<Op>> {
        let space = || driver.space.clone();
        Ok(match self {
            NodeKind::Kernel(work) => return work.ops(driver, priority),
            NodeKind::Memcpy(volume) => {
                let copy = check_copy(driver, volume.copy(driver)?)?.0;
                vec![Op::Task(Box::new(Transfer::copy(space(), copy)))]
            }
            NodeKind::Memset(fill) => vec![Op::Task(Box::new(Transfer::fill(space(), *fill)))],
            NodeKind::Host(work) => vec![work.op()],
            NodeKind::Child(_) | NodeKind::Empty => Vec::new(),
            NodeKind::EventRecord(work) => {
                let marker = Arc::new(Marker::default());
                work.event.set_recorded(Recorded::At(marker.clone()));
                work.event.record_ops(marker)
            }
            NodeKind::EventWait(work) => work.event.wait_op().into_iter().collect(),
            NodeKind::MemAlloc(allocation) => vec![allocation.memory.map_op(driver)?],
            NodeKind::MemFree(work) => vec![work.op(driver)],
            NodeKind::BatchMemOp(work) => work.ops.iter().filter_map(MemoryOp::op).collect(),
        })
    }
}
