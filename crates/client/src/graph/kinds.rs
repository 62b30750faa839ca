//! What a node does.

use super::memory::GraphMemory;
use crate::code::configuration::Configuration;
use crate::code::function::Function;
use crate::copy::shape::{End, Extent};
use crate::memory::pattern::{Pattern, Rows};
use crate::stream::Target;
use crate::stream::event::Event;
use crate::thread::here::here;
use core::ffi::c_void;
use cuda_abi::graph::conditional::Conditional;
use cuda_abi::graph::dot::Label;
use cuda_abi::graph::model::{Kind, Role};
use cuda_abi::graph::reuse::MemoryUse;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{CUcontext, CUgraphNodeType, CUstreamBatchMemOpParams, CUstreamCaptureMode};
use link::wire::command::{LaunchAttribute, StreamWriteValue};
use std::sync::{Arc, OnceLock};

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;

/// A graph of this process.
pub(crate) type Graph = cuda_abi::graph::model::Graph<NodeKind>;

/// What a node does, checked.
#[derive(Clone)]
pub(crate) enum NodeKind {
    Kernel(KernelWork),
    Memcpy(CopyWork),
    Memset(MemsetWork),
    Host(HostWork),
    /// An embedded graph.
    Child(Arc<Graph>),
    Empty,
    EventRecord(Arc<Event>),
    EventWait(Arc<Event>),
    MemAlloc(Arc<GraphMemory>),
    MemFree(Arc<GraphMemory>),
    BatchMemOp(BatchWork),
    Conditional(Arc<Conditional<NodeKind>>),
}

/// A launch.
#[derive(Clone)]
pub(crate) struct KernelWork {
    pub(crate) function: Arc<Function>,
    /// The executor's number of the SMs that it runs on.
    pub(crate) partition: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) attributes: Vec<LaunchAttribute>,
    parameters: Arc<Parameters>,
}

/// Packed parameters, and where each is for those who ask for pointers.
struct Parameters {
    bytes: Box<[u8]>,
    /// Addresses into `bytes`, made when first asked for.
    pointers: OnceLock<Box<[usize]>>,
}

impl KernelWork {
    pub(crate) fn new(
        function: Arc<Function>,
        configuration: &Configuration<'_>,
        packed: &[u8],
    ) -> Self {
        let Configuration { grid, block, dynamic_shared_bytes, .. } = *configuration;
        let attributes = configuration.attributes.to_vec();
        let parameters = Arc::new(Parameters { bytes: packed.into(), pointers: OnceLock::new() });
        let partition = function.context.partition();
        Self { function, partition, grid, block, dynamic_shared_bytes, attributes, parameters }
    }

    /// The same in a stream whose priority the node keeps, for launches that ask for nodes' own.
    pub(crate) fn captured(
        function: &Arc<Function>,
        configuration: &Configuration<'_>,
        packed: &[u8],
        target: &Target,
    ) -> Self {
        let mut work = Self::new(Arc::clone(function), configuration, packed);
        work.partition = target.context.partition();
        let priority = target.stream.as_ref().map_or(0, |stream| stream.priority);
        if priority != 0 && work.attribute(PRIORITY).is_none() {
            let value = [u64::from(priority.cast_unsigned()), 0, 0, 0, 0, 0, 0, 0];
            work.set_attribute(LaunchAttribute { id: PRIORITY, reserved: 0, value });
        }
        work
    }

    /// The packed parameters.
    pub(crate) fn packed(&self) -> &[u8] {
        &self.parameters.bytes
    }

    /// `kernelParams`, valid as long as the node keeps these parameters.
    pub(crate) fn parameter_pointers(&self) -> *mut *mut c_void {
        let pointers = self.parameters.pointers.get_or_init(|| {
            let start = self.parameters.bytes.as_ptr();
            let places = self.function.parameters.iter().map(|parameter| parameter.offset as usize);
            places.map(|offset| start.wrapping_add(offset) as usize).collect()
        });
        pointers.as_ptr().cast_mut().cast()
    }

    /// Whether all blocks run at the same time.
    pub(crate) fn is_cooperative(&self) -> bool {
        self.attribute(COOPERATIVE).is_some_and(|attribute| attribute.value[0] as u32 != 0)
    }

    /// A launch attribute, if it was set.
    pub(crate) fn attribute(&self, id: u32) -> Option<&LaunchAttribute> {
        self.attributes.iter().find(|attribute| attribute.id == id)
    }

    /// Sets a launch attribute.
    pub(crate) fn set_attribute(&mut self, attribute: LaunchAttribute) {
        self.attributes.retain(|other| other.id != attribute.id);
        self.attributes.push(attribute);
    }
}

/// A copy. Its ends are looked up when it is made executable: what is pageable then is read and
/// written by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyWork {
    pub(crate) to: End,
    pub(crate) from: End,
    pub(crate) extent: Extent,
    /// As the program gave it; rows without gaps were joined since.
    pub(crate) asked: Extent,
    /// Whether this process reaches the ends, destination first.
    pub(crate) is_host: [bool; 2],
}

impl CopyWork {
    /// Whether it is one row of bytes.
    pub(crate) fn is_linear(&self) -> bool {
        self.asked.height == 1 && self.asked.depth == 1
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.extent.size_bytes()
    }
}

/// A fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemsetWork {
    pub(crate) rows: Rows,
    pub(crate) pattern: Pattern,
}

/// Operations on memory, in order. Waits for values are absent: see the server's
/// `policy/src/turns/holds.rs` for why.
#[derive(Clone)]
pub(crate) struct BatchWork {
    /// As the program gave them.
    pub(crate) asked: Arc<[CUstreamBatchMemOpParams]>,
    /// The same, checked, for the executor.
    pub(crate) words: Arc<[StreamWriteValue]>,
    pub(crate) context: CUcontext,
}

impl Kind for NodeKind {
    fn type_code(&self) -> CUgraphNodeType {
        match self {
            Self::Kernel(_) => CUgraphNodeType::KERNEL,
            Self::Memcpy(_) => CUgraphNodeType::MEMCPY,
            Self::Memset(_) => CUgraphNodeType::MEMSET,
            Self::Host(_) => CUgraphNodeType::HOST,
            Self::Child(_) => CUgraphNodeType::GRAPH,
            Self::Empty => CUgraphNodeType::EMPTY,
            Self::EventRecord(_) => CUgraphNodeType::EVENT_RECORD,
            Self::EventWait(_) => CUgraphNodeType::WAIT_EVENT,
            Self::MemAlloc(_) => CUgraphNodeType::MEM_ALLOC,
            Self::MemFree(_) => CUgraphNodeType::MEM_FREE,
            Self::BatchMemOp(_) => CUgraphNodeType::BATCH_MEM_OP,
            Self::Conditional(_) => CUgraphNodeType::CONDITIONAL,
        }
    }

    fn role(&self) -> Role<'_, Self> {
        match self {
            Self::Child(graph) => Role::Child(graph),
            Self::Conditional(conditional) => Role::Conditional(conditional),
            Self::MemAlloc(memory) => Role::Memory(MemoryUse::Allocates(memory.number)),
            Self::MemFree(memory) => Role::Memory(MemoryUse::Frees(memory.number)),
            _ => Role::Plain,
        }
    }

    fn child(graph: Arc<Graph>) -> Self {
        Self::Child(graph)
    }

    fn label(&self) -> Label {
        match self {
            Self::Kernel(work) => Label::Kernel {
                name: work.function.name.to_string_lossy().into_owned(),
                grid: work.grid,
                block: work.block,
                shared_bytes: work.dynamic_shared_bytes,
            },
            Self::Memcpy(work) => Label::Memcpy { size_bytes: work.size_bytes() },
            Self::Memset(MemsetWork { rows, pattern }) => Label::Memset {
                address: rows.address,
                value: pattern.value,
                elements: rows.width * rows.height,
            },
            Self::Host(HostWork { function, user_data }) => {
                Label::Host { function: *function as usize, user_data: *user_data }
            }
            Self::EventRecord(event) | Self::EventWait(event) => {
                Label::Event { type_: self.type_code(), event: event.token }
            }
            Self::MemAlloc(memory) => Label::MemAlloc { size_bytes: memory.size_bytes },
            Self::MemFree(memory) => Label::MemFree { address: memory.address },
            Self::BatchMemOp(work) => Label::BatchMemOp { count: work.asked.len() },
            Self::Conditional(conditional) => Label::Conditional {
                handle: conditional.condition.handle,
                type_: conditional.type_,
            },
            Self::Child(_) | Self::Empty => Label::Plain(self.type_code()),
        }
    }

    fn thread_mode() -> CUstreamCaptureMode {
        here(|here| here.capture_mode.get())
    }
}

impl NodeKind {
    /// The context that its work needs, if any: functions and events belong to one.
    pub(crate) fn context(&self) -> Option<usize> {
        match self {
            Self::Kernel(work) => Some(work.function.context.token),
            Self::EventRecord(event) | Self::EventWait(event) => Some(event.context_token()),
            Self::MemAlloc(memory) | Self::MemFree(memory) => Some(memory.context.token),
            Self::BatchMemOp(work) => Some(work.context.0),
            Self::Conditional(conditional) => Some(conditional.condition.context.0),
            _ => None,
        }
    }
}
