//! Memory that graphs allocate: an address for the node's life, memory behind it from the
//! allocating to the freeing operation.
//!
//! Who shares addresses is [`cuda_abi::graph::reuse`]'s to say. Physical memory is a block's: once
//! taken, it is kept for the next launch until it is trimmed, as NVIDIA's driver does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::graph::params::allocation;
use cuda_abi::graph::reuse::{
    Blocks, Effect, Leftovers, MemoryUse, Site, ended_before, is_freed_in,
};
use cuda_abi::types::{CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUmemAllocationHandleType, CUresult};

use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::device::fault::Sticky;
use crate::device::memory::{AddressSpace, GRANULARITY_BYTES, Physical, round_up};
use crate::device::ops::{Op, Step, Task};

/// One allocation node's memory.
#[derive(Debug)]
pub(crate) struct GraphMemory {
    /// Different from all others'; a later one's is greater.
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) device: u32,
    context_id: u64,
    space: Arc<AddressSpace>,
    block: Arc<Backing>,
}

/// Physical memory of a block.
#[derive(Debug)]
struct Backing {
    device: u32,
    base: u64,
    size_bytes: u64,
    physical: Mutex<Option<Arc<Physical>>>,
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

/// Whose a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    graph: CUgraph,
    device: u32,
    context_id: u64,
}

/// All memory of graphs.
#[derive(Debug)]
pub(crate) struct GraphMemories(Mutex<State>);

#[derive(Debug)]
struct State {
    last_number: u64,
    /// By number.
    all: HashMap<u64, Arc<GraphMemory>>,
    blocks: Blocks<Owner>,
    /// By address.
    backings: HashMap<u64, Arc<Backing>>,
}

impl Default for GraphMemories {
    fn default() -> Self {
        Self(Mutex::new(State {
            last_number: 0,
            all: HashMap::new(),
            blocks: Blocks::new(GRANULARITY_BYTES),
            backings: HashMap::new(),
        }))
    }
}

impl GraphMemories {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that begins at an address, the live one if there is one.
    pub(crate) fn at(&self, address: u64) -> Option<Arc<GraphMemory>> {
        let state = self.lock();
        state.blocks.at(address).and_then(|number| state.all.get(&number)).cloned()
    }

    /// Whether an address lies in memory of some allocation node, whether it is live or not.
    pub(crate) fn covers(&self, address: u64) -> bool {
        let range = |it: &GraphMemory| it.address..it.address + it.size_bytes;
        self.lock().all.values().any(|memory| range(memory).contains(&address))
    }

    /// Whether it is allocated, by the order of calls.
    pub(crate) fn is_live(&self, memory: &GraphMemory) -> bool {
        self.lock().blocks.is_live(memory.number)
    }

    /// Notes that it is freed; CUDA_ERROR_INVALID_VALUE if it is not allocated.
    pub(crate) fn free(&self, memory: &GraphMemory) -> Answer {
        let was_live = self.lock().blocks.free(memory.number);
        if was_live { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// What a launch of nodes with these uses does, and the memory that is to be freed first.
    pub(crate) fn launch(
        &self,
        uses: Vec<MemoryUse>,
        leftovers: Leftovers,
    ) -> Answer<(Effect, Vec<Arc<GraphMemory>>)> {
        let state = self.lock();
        let effect = state.blocks.launch(uses, leftovers)?;
        let first = effect.freed_first.iter().filter_map(|number| state.all.get(number));
        let first = first.cloned().collect();
        Ok((effect, first))
    }

    /// Notes that a launch was submitted.
    pub(crate) fn note(&self, effect: &Effect) {
        self.lock().blocks.note(effect);
    }
}

impl GraphAllocation {
    /// Reserves addresses for an allocation of the given context; memory that other processes see
    /// is absent (801).
    pub(crate) fn new(
        driver: &Driver,
        context_id: u64,
        site: Site<'_>,
        device: i32,
        shared_as: CUmemAllocationHandleType,
        size_bytes: usize,
    ) -> Answer<Self> {
        driver.device(device).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if shared_as != CUmemAllocationHandleType::NONE {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Self::reserve(driver, context_id, site, device as u32, size_bytes as u64)
    }

    /// The same, for a captured allocation.
    pub(crate) fn reserve(
        driver: &Driver,
        context_id: u64,
        site: Site<'_>,
        device: u32,
        size_bytes: u64,
    ) -> Answer<Self> {
        let whole = round_up(size_bytes, GRANULARITY_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if size_bytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let graph = driver.graphs.graph(site.graph)?;
        let owner = Owner { graph: site.graph, device, context_id };
        let contents = graph.lock();
        let mut state = driver.graph_memory.lock();
        state.last_number += 1;
        let number = state.last_number;
        let candidates = state.blocks.candidates(whole, &owner);
        let ended = ended_before(&contents.shape, site.after, &candidates);
        let address = match state.blocks.enter(number, whole, &owner, &ended) {
            Some(address) => address,
            None => {
                let base = driver.space.reserve(whole, GRANULARITY_BYTES, 0)?;
                state.blocks.add(number, whole, owner, base..base + whole);
                let physical = Mutex::default();
                let backing = Backing { device, base, size_bytes: whole, physical };
                state.backings.insert(base, Arc::new(backing));
                base
            }
        };
        let block = state.blocks.block(number).and_then(|range| state.backings.get(&range.start));
        let memory = Arc::new(GraphMemory {
            number,
            address,
            size_bytes,
            device,
            context_id,
            space: driver.space.clone(),
            block: block.cloned().ok_or(CUresult::ERROR_UNKNOWN)?,
        });
        state.all.insert(number, memory.clone());
        Ok(GraphAllocation { memory, device: device as i32 })
    }

    /// What the program asked for, with the address that it got.
    pub(crate) fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        allocation(self.device, self.memory.size_bytes, self.memory.address)
    }
}

impl Backing {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Physical>>> {
        self.physical.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GraphMemory {
    /// The operation that maps it; takes physical memory now, so that running out of it is reported
    /// at the call.
    pub(crate) fn map_op(self: &Arc<Self>, driver: &Driver) -> Answer<Op> {
        let mut kept = self.block.lock();
        let physical = match &*kept {
            Some(physical) => physical.clone(),
            None => {
                let account = &driver.device(self.device as i32)?.account;
                Arc::new(Physical::on_device(self.device, account, self.block.size_bytes)?)
            }
        };
        *kept = Some(physical.clone());
        drop(kept);
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

impl FreeWork {
    /// The memory at an address that a node of a graph frees, which frees it once.
    pub(crate) fn in_graph(driver: &Driver, graph: CUgraph, address: u64) -> Answer<Self> {
        let graph = driver.graphs.graph(graph)?;
        let contents = graph.lock();
        let mut state = driver.graph_memory.lock();
        let is_left = |number: &u64| !is_freed_in(&contents.shape, *number);
        let number = state.blocks.all_at(address).find(is_left);
        let number = number.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        state.blocks.will_end(number);
        let memory = state.all.get(&number).cloned();
        memory.map(|memory| FreeWork { memory }).ok_or(CUresult::ERROR_INVALID_VALUE)
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
        let GraphMemory { address, size_bytes, context_id, .. } = *self.memory;
        let (space, block) = (&self.memory.space, &self.memory.block);
        let offset = address - block.base;
        let physical = self.physical.clone();
        let mapped = space.map_graph(address..address + size_bytes, physical, offset, context_id);
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
    let mut state = driver.graph_memory.lock();
    let is_unused = |memory: &&Arc<GraphMemory>| {
        Arc::strong_count(memory) == 1 && !state.blocks.is_live(memory.number)
    };
    let unused: Vec<u64> = state.all.values().filter(is_unused).map(|it| it.number).collect();
    for number in unused {
        state.all.remove(&number);
        if let Some(block) = state.blocks.leave(number) {
            state.backings.remove(&block.start);
            let _ = driver.space.unreserve(block.start, block.end - block.start);
        }
    }
}

/// Gives back physical memory of a device that is kept for later launches.
pub(crate) fn trim(driver: &Driver, device: u32) {
    let mut state = driver.graph_memory.lock();
    for base in state.blocks.trim(|owner| owner.device == device) {
        if let Some(backing) = state.backings.get(&base) {
            *backing.lock() = None;
        }
    }
}

/// Bytes of memory that launches have used, and bytes of physical memory held, on a device.
pub(crate) fn usage(driver: &Driver, device: u32) -> (u64, u64) {
    let state = driver.graph_memory.lock();
    let own = state.backings.values().filter(|backing| backing.device == device);
    let held = own.map(|backing| backing.lock().as_ref().map_or(0, |it| it.size_bytes())).sum();
    (state.blocks.usage(|owner| owner.device == device).used, held)
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
