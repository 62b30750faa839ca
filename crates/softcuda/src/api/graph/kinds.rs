//! What a node does, free of C structures and of the graph that it is in, and the operations that
//! this comes to in a stream.

use std::sync::Arc;

use cuda_abi::graph::conditional::Conditional;
use cuda_abi::graph::dot::Label;
use cuda_abi::graph::model::{Kind, Role};
use cuda_abi::graph::reuse::MemoryUse;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{
    CUcontext, CUevent, CUgraphNodeType, CUresult, CUstreamBatchMemOpParams, CUstreamCaptureMode,
};

use super::Graph;
use super::memory::{FreeWork, GraphAllocation};
use crate::api::answer::Answer;
use crate::api::code::kernel_work::KernelWork;
use crate::api::driver::Driver;
use crate::api::memory::volume::{Volume, check as check_copy};
use crate::api::objects::{Event, Recorded};
use crate::api::stream::memory_op::MemoryOp;
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
    Conditional(Arc<Conditional<NodeKind>>),
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

/// The operation of a host function.
fn host_op(work: HostWork) -> Op {
    Op::Host(Box::new(move |failed: Option<Sticky>| {
        if failed.is_none() {
            // SAFETY: the program's function with the program's argument, at its turn.
            unsafe { work.call() };
        }
    }))
}

impl EventWork {
    /// The event of a handle.
    pub(crate) fn new(driver: &Driver, handle: CUevent) -> Answer<Self> {
        let event = driver.events.find(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(EventWork { handle, event })
    }
}

impl Kind for NodeKind {
    fn type_code(&self) -> CUgraphNodeType {
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
            NodeKind::Conditional(_) => CUgraphNodeType::CONDITIONAL,
        }
    }

    fn role(&self) -> Role<'_, Self> {
        match self {
            NodeKind::Child(graph) => Role::Child(graph),
            NodeKind::Conditional(conditional) => Role::Conditional(conditional),
            NodeKind::MemAlloc(allocation) => {
                Role::Memory(MemoryUse::Allocates(allocation.memory.number))
            }
            NodeKind::MemFree(work) => Role::Memory(MemoryUse::Frees(work.memory.number)),
            _ => Role::Plain,
        }
    }

    fn child(graph: Arc<Graph>) -> Self {
        NodeKind::Child(graph)
    }

    fn label(&self) -> Label {
        match self {
            NodeKind::Kernel(work) => Label::Kernel {
                name: work.function.name.to_string_lossy().into_owned(),
                grid: work.asked.grid,
                block: work.asked.block,
                shared_bytes: work.asked.dynamic_shared_bytes,
            },
            NodeKind::Memcpy(volume) => {
                let size_bytes = volume.extent().iter().map(|&count| count as u64).product();
                Label::Memcpy { size_bytes }
            }
            NodeKind::Memset(fill) => Label::Memset {
                address: fill.address,
                value: fill.value,
                elements: fill.width * fill.height,
            },
            NodeKind::Host(HostWork { function, user_data }) => {
                Label::Host { function: *function as usize, user_data: *user_data }
            }
            NodeKind::EventRecord(work) | NodeKind::EventWait(work) => {
                Label::Event { type_: self.type_code(), event: work.handle.0 }
            }
            NodeKind::MemAlloc(allocation) => {
                Label::MemAlloc { size_bytes: allocation.memory.size_bytes }
            }
            NodeKind::MemFree(work) => Label::MemFree { address: work.memory.address },
            NodeKind::BatchMemOp(work) => Label::BatchMemOp { count: work.ops.len() },
            NodeKind::Conditional(conditional) => Label::Conditional {
                handle: conditional.condition.handle,
                type_: conditional.type_,
            },
            NodeKind::Child(_) | NodeKind::Empty => Label::Plain(self.type_code()),
        }
    }

    fn thread_mode() -> CUstreamCaptureMode {
        super::thread_mode::current()
    }
}

impl NodeKind {
    /// The priority that it was given itself, if any.
    pub(crate) fn own_priority(&self) -> Option<i32> {
        match self {
            NodeKind::Kernel(work) => work.own_priority(),
            _ => None,
        }
    }

    /// The operations of doing it once, at this priority. Embedded graphs are the executable
    /// graph's business.
    pub(crate) fn ops(&self, driver: &Driver, priority: i32) -> Answer<Vec<Op>> {
        let space = || driver.space.clone();
        Ok(match self {
            NodeKind::Kernel(work) => return work.ops(priority),
            NodeKind::Memcpy(volume) => {
                let copy = check_copy(driver, volume.copy(driver)?)?.0;
                vec![Op::Task(Box::new(Transfer::copy(space(), copy)))]
            }
            NodeKind::Memset(fill) => vec![Op::Task(Box::new(Transfer::fill(space(), *fill)))],
            NodeKind::Host(work) => vec![host_op(*work)],
            NodeKind::Child(_) | NodeKind::Empty | NodeKind::Conditional(_) => Vec::new(),
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
