//! What a node does.

use super::memory::GraphMemory;
use super::model::Graph;
use crate::client::Client;
use crate::copy::{End, Extent};
use crate::events::Event;
use crate::launch::Configuration;
use crate::memory::{Pattern, Rows};
use crate::module::Function;
use crate::session::Result;
use crate::stream::Target;
use core::ffi::c_void;
use cuda_abi::types::{CUgraphNodeType, CUhostFn, CUresult};
use link::wire::command::LaunchAttribute;
use std::sync::{Arc, OnceLock};

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;

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
    WriteValue(WriteWork),
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

/// A copy. Its ends are looked up when it is made executable: what is pageable then is read and written by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyWork {
    pub(crate) to: End,
    pub(crate) from: End,
    pub(crate) extent: Extent,
    /// Whether this process reaches the ends, destination first.
    pub(crate) is_host: [bool; 2],
}

impl CopyWork {
    /// Whether it is one row of bytes.
    pub(crate) fn is_linear(&self) -> bool {
        self.extent.height == 1 && self.extent.depth == 1
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.extent.width_bytes * self.extent.height * self.extent.depth
    }
}

/// A fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemsetWork {
    pub(crate) rows: Rows,
    pub(crate) pattern: Pattern,
}

/// A host function with its argument.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostWork {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// The program's pointer.
    pub(crate) user_data: usize,
}

impl HostWork {
    /// CUDA_ERROR_INVALID_VALUE without a function.
    pub(crate) fn new(function: CUhostFn, user_data: *mut c_void) -> Result<Self> {
        let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Self { function, user_data: user_data.expose_provenance() })
    }

    /// Calls it.
    pub(crate) fn call(&self) {
        let data = core::ptr::with_exposed_provenance_mut(self.user_data);
        // SAFETY: the program's own function, with the argument that it asked for.
        unsafe { (self.function)(data) };
    }
}

/// A value written to memory: a captured `cuStreamWriteValue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteWork {
    pub(crate) address: u64,
    /// 4 or 8.
    pub(crate) value_bytes: u32,
    pub(crate) value: u64,
    pub(crate) flags: u32,
}

impl NodeKind {
    /// The node's type in the C API.
    pub(crate) fn type_code(&self) -> CUgraphNodeType {
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
            Self::WriteValue(_) => CUgraphNodeType::BATCH_MEM_OP,
        }
    }

    /// The context that its work needs, if any: functions and events belong to one.
    pub(crate) fn context(&self) -> Option<usize> {
        match self {
            Self::Kernel(work) => Some(work.function.context.token),
            Self::EventRecord(event) | Self::EventWait(event) => Some(event.context_token()),
            Self::MemAlloc(memory) | Self::MemFree(memory) => Some(memory.context.token),
            _ => None,
        }
    }

    /// CUDA_ERROR_INVALID_HANDLE if what it names has been destroyed: its number may be another's by now.
    pub(crate) fn check_alive(&self, client: &Client) -> Result {
        let is_alive = match self {
            Self::Kernel(work) => client.functions.get(work.function.token).is_some(),
            Self::EventRecord(event) | Self::EventWait(event) => {
                client.events.get(event.token).is_some()
            }
            _ => true,
        };
        if is_alive { Ok(()) } else { Err(CUresult::ERROR_INVALID_HANDLE) }
    }
}
