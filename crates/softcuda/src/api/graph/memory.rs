//! Memory that graphs allocate: an address for the node's life, memory behind it from the
//! allocating to the freeing operation.
//!
//! Physical memory, once taken, is kept for the next launch until it is trimmed, as NVIDIA's driver
//! does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::graph::params::allocation;
use cuda_abi::types::{CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUmemAllocationHandleType, CUresult};

use super::kinds::NodeKind;
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::device::fault::Sticky;
use crate::device::memory::{AddressSpace, GRANULARITY_BYTES, Physical, round_up};
use crate::device::ops::{Op, Step, Task};

/// One allocation node's memory. The driver finds it by its address.
#[derive(Debug)]
pub(crate) struct GraphMemory {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) device: u32,
    context_id: u64,
    space: Arc<AddressSpace>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    physical: Option<Arc<Physical>>,
    /// Allocated and not freed yet, by the order of calls.
    is_live: bool,
}

/// An allocation node: what was asked, and the memory.
#[derive(Debug, Clone)]
pub(crate) struct GraphAllocation {
    pub(crate) memory: Arc<GraphMemory>,
    device: i32,
}

/// A free node.
#[derive(Debug, Clone)]
pub(crate) struct FreeWork {
    pub(crate) memory: Arc<GraphMemory>,
}

/// High-water marks of graph memory of one device, bytes.
#[derive(Debug, Default)]
pub(crate) struct HighWater {
    pub(crate) used: AtomicU64,
    pub(crate) reserved: AtomicU64,
}

impl GraphAllocation {
    /// Reserves addresses for an allocation of the given context; memory that other processes see
    /// is absent (801).
    pub(crate) fn new(
        driver: &Driver,
        context_id: u64,
        device: i32,
        shared_as: CUmemAllocationHandleType,
        size_bytes: usize,
    ) -> Answer<Self> {
        driver.device(device).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if shared_as != CUmemAllocationHandleType::NONE {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Self::reserve(driver, context_id, device as u32, size_bytes as u64)
    }

    /// The same, for a captured allocation.
    pub(crate) fn reserve(
        driver: &Driver,
        context_id: u64,
        device: u32,
        size_bytes: u64,
    ) -> Answer<Self> {
        let whole = round_up(size_bytes, GRANULARITY_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if size_bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let address = driver.space.reserve(whole, GRANULARITY_BYTES, 0)?;
        let memory = Arc::new(GraphMemory {
            address,
            size_bytes,
            device,
            context_id,
            space: driver.space.clone(),
            state: Mutex::default(),
        });
        driver.graph_memory.insert(address as usize, memory.clone());
        Ok(GraphAllocation { memory, device: device as i32 })
    }

    /// What the program asked for, with the address that it got.
    pub(crate) fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        allocation(self.device, self.memory.size_bytes, self.memory.address)
    }
}

impl GraphMemory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is allocated, by the order of calls.
    pub(crate) fn is_live(&self) -> bool {
        self.lock().is_live
    }

    /// Notes that a submitted operation allocates or frees it.
    pub(crate) fn set_live(&self, is_live: bool) {
        self.lock().is_live = is_live;
    }

    /// The operation that maps it; takes physical memory now, so that running out of it is reported
    /// at the call.
    pub(crate) fn map_op(self: &Arc<Self>, driver: &Driver) -> Answer<Op> {
        let mut state = self.lock();
        let physical = match &state.physical {
            Some(physical) => physical.clone(),
            None => {
                let account = &driver.device(self.device as i32)?.account;
                Arc::new(Physical::on_device(self.device, account, self.size_bytes)?)
            }
        };
        state.physical = Some(physical.clone());
        drop(state);
        Ok(Op::Task(Box::new(Map { memory: self.clone(), physical })))
    }

    /// The operation that unmaps it.
    pub(crate) fn unmap_op(self: &Arc<Self>) -> Op {
        Op::Task(Box::new(Unmap(self.clone())))
    }

    /// Unmaps it now, for a synchronous free.
    pub(crate) fn unmap(&self) -> Answer {
        Ok(self.space.unmap_graph(self.address)?)
    }
}

impl Driver {
    /// The memory of an allocation node that an address lies in, whether it is allocated now or
    /// not.
    pub(crate) fn graph_memory_at(&self, address: u64) -> Option<Arc<GraphMemory>> {
        self.graph_memory.find_by(|memory| {
            (memory.address..memory.address + memory.size_bytes).contains(&address)
        })
    }
}

impl FreeWork {
    /// The memory at an address that a graph allocates; CUDA_ERROR_INVALID_VALUE for any other.
    pub(crate) fn new(driver: &Driver, address: u64) -> Answer<Self> {
        let memory = driver.graph_memory.find(address as usize);
        memory.map(|memory| FreeWork { memory }).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The same for a node of a graph, which frees memory once.
    pub(crate) fn in_graph(driver: &Driver, graph: CUgraph, address: u64) -> Answer<Self> {
        let work = Self::new(driver, address)?;
        let graph = driver.graphs.graph(graph)?;
        let contents = graph.lock();
        let is_freed = contents.shape.nodes().any(|(_, node)| {
            matches!(&node.kind, NodeKind::MemFree(other) if Arc::ptr_eq(&other.memory, &work.memory))
        });
        if is_freed { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(work) }
    }

    pub(crate) fn op(&self, _driver: &Driver) -> Op {
        self.memory.unmap_op()
    }
}

struct Map {
    memory: Arc<GraphMemory>,
    physical: Arc<Physical>,
}

impl Task for Map {
    fn step(&mut self) -> Step {
        let (memory, physical) = (&self.memory, self.physical.clone());
        let mapped =
            memory.space.map_graph(memory.address, memory.size_bytes, physical, memory.context_id);
        // Launches were refused that would fail here.
        if mapped.is_ok() { Step::Done } else { Step::Fault(Sticky::LaunchFailed) }
    }
}

struct Unmap(Arc<GraphMemory>);

impl Task for Unmap {
    fn step(&mut self) -> Step {
        // Freed already by a racing call: nothing left to do.
        let _ = self.0.unmap();
        Step::Done
    }
}

/// Gives up addresses and memory that no graph, executable graph or operation refers to and that
/// are not allocated.
pub(crate) fn collect(driver: &Driver) {
    // The table and the copy of the search itself.
    let unused = driver.graph_memory.remove_unused(|memory| !memory.is_live());
    for memory in unused {
        let whole = round_up(memory.size_bytes, GRANULARITY_BYTES).unwrap_or(0);
        memory.lock().physical = None;
        let _ = driver.space.unreserve(memory.address, whole);
    }
}

/// Gives back physical memory of a device that is kept for later launches.
pub(crate) fn trim(driver: &Driver, device: u32) {
    for memory in driver.graph_memory.all() {
        let mut state = memory.lock();
        if memory.device == device && !state.is_live {
            state.physical = None;
        }
    }
}

/// Bytes allocated now, and bytes of physical memory held, on a device.
pub(crate) fn usage(driver: &Driver, device: u32) -> (u64, u64) {
    let mut usage = (0, 0);
    for memory in driver.graph_memory.all().iter().filter(|memory| memory.device == device) {
        let state = memory.lock();
        let bytes = state.physical.as_ref().map_or(0, |physical| physical.size_bytes());
        usage.0 += if state.is_live { bytes } else { 0 };
        usage.1 += bytes;
    }
    usage
}

/// Raises the device's high-water marks to what is used now.
pub(crate) fn note_high_water(driver: &Driver, device: u32) {
    let (used, reserved) = usage(driver, device);
    if let Some(marks) = driver.devices.get(device as usize).map(|found| &found.graph_memory) {
        // Relaxed: statistics.
        marks.used.fetch_max(used, Ordering::Relaxed);
        marks.reserved.fetch_max(reserved, Ordering::Relaxed);
    }
}
