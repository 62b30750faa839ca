//! Memory that graphs allocate.
//!
//! It is taken when a node is made that finds no addresses that a node before it has freed, and
//! kept for as long as a node or an executable graph has some of it: an allocating node does
//! nothing when it runs, and what counts as allocated follows the order of calls. Who shares
//! addresses is [`cuda_abi::graph::reuse`]'s to say.

mod taking;

use crate::context::Context;
use crate::memory::allocator::Range;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use cuda_abi::graph::params::allocation;
use cuda_abi::graph::reuse::{Blocks, Effect, Leftovers, MemoryUse, Usage};
use cuda_abi::types::{CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUgraphMem_attribute, CUresult};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Allocations begin at multiples of this.
const ALIGNMENT_BYTES: u64 = 512;

/// One allocation node's memory.
pub(crate) struct GraphMemory {
    /// Different from all others'; a later one's is greater.
    pub(crate) number: u64,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) context: Arc<Context>,
}

impl GraphMemory {
    /// What the program asked for, with the address that it got.
    pub(crate) fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        allocation(self.context.device, self.size_bytes, self.address)
    }
}

/// Whose a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    graph: CUgraph,
    /// The context's handle.
    context: usize,
    device: i32,
}

/// All memory of graphs, and how much there was at most.
pub(crate) struct Memories(Mutex<State>);

struct State {
    last_number: u64,
    /// By number.
    all: HashMap<u64, Arc<GraphMemory>>,
    blocks: Blocks<Owner>,
    /// By device: the most that there was.
    most: BTreeMap<i32, Usage>,
}

impl Default for Memories {
    fn default() -> Self {
        Self(Mutex::new(State {
            last_number: 0,
            all: HashMap::new(),
            blocks: Blocks::new(ALIGNMENT_BYTES),
            most: BTreeMap::new(),
        }))
    }
}

impl State {
    fn usage(&self, device: i32) -> Usage {
        self.blocks.usage(|owner| owner.device == device)
    }

    fn note(&mut self, device: i32) {
        let Usage { used, held } = self.usage(device);
        let most = self.most.entry(device).or_default();
        *most = Usage { used: most.used.max(used), held: most.held.max(held) };
    }

    /// Takes memory out that the rest has not; returns the block that goes with it.
    fn remove(&mut self, number: u64) -> Option<(Arc<GraphMemory>, Range)> {
        let memory = self.all.remove(&number)?;
        let block = self.blocks.leave(number)?;
        Some((memory, Range { address: block.start, size_bytes: block.end - block.start }))
    }
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory at an address, the live one if there is one; CUDA_ERROR_INVALID_VALUE for any
    /// other address.
    pub(crate) fn at(&self, address: u64) -> Result<Arc<GraphMemory>> {
        let state = self.lock();
        let found = state.blocks.at(address).and_then(|number| state.all.get(&number));
        found.cloned().ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Where the allocation begins that an address of an area lies in, and its size: the area's,
    /// but for memory of graphs, which is there while it is live.
    #[inline]
    pub(crate) fn allocated(&self, area: &Area, address: u64) -> Option<(u64, u64)> {
        match area.kind {
            Kind::Graph => self.live_around(address),
            _ => Some((area.base, area.size_bytes)),
        }
    }

    #[cold]
    fn live_around(&self, address: u64) -> Option<(u64, u64)> {
        let range = self.lock().blocks.live_around(address)?;
        Some((range.start, range.end - range.start))
    }

    /// What a launch of nodes with these uses does. [`Self::note`] says that it was submitted.
    pub(crate) fn launch(&self, uses: Vec<MemoryUse>, leftovers: Leftovers) -> Result<Effect> {
        if uses.is_empty() {
            return Ok(Effect::default());
        }
        self.lock().blocks.launch(uses, leftovers)
    }

    /// Notes what a launch does to memory of a device.
    pub(crate) fn note(&self, effect: &Effect, device: i32) {
        if *effect == Effect::default() {
            return;
        }
        let mut state = self.lock();
        state.blocks.note(effect);
        state.note(device);
    }

    /// Notes that the program frees memory; CUDA_ERROR_INVALID_VALUE if it is not allocated.
    pub(crate) fn free(&self, memory: &GraphMemory) -> Result {
        let was_live = self.lock().blocks.free(memory.number);
        if was_live { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Forgets the memory of a context that is ending and frees it itself.
    pub(crate) fn forget_context(&self, context: &Context) {
        let mut state = self.lock();
        let of_context = |memory: &Arc<GraphMemory>| memory.context.token == context.token;
        let numbers: Vec<u64> =
            state.all.values().filter(|it| of_context(it)).map(|it| it.number).collect();
        numbers.into_iter().for_each(|number| _ = state.remove(number));
    }

    /// `cuDeviceGetGraphMemAttribute`.
    pub(crate) fn attribute(&self, device: i32, attribute: CUgraphMem_attribute) -> Result<u64> {
        let state = self.lock();
        let now = state.usage(device);
        let most = state.most.get(&device).copied().unwrap_or_default();
        match attribute {
            CUgraphMem_attribute::USED_MEM_CURRENT => Ok(now.used),
            CUgraphMem_attribute::USED_MEM_HIGH => Ok(most.used),
            CUgraphMem_attribute::RESERVED_MEM_CURRENT => Ok(now.held),
            CUgraphMem_attribute::RESERVED_MEM_HIGH => Ok(most.held),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// `cuDeviceSetGraphMemAttribute`: high-water marks can be reset, to what is used now.
    pub(crate) fn reset(&self, device: i32, attribute: CUgraphMem_attribute) -> Result {
        let mut state = self.lock();
        let now = state.usage(device);
        let most = state.most.entry(device).or_default();
        match attribute {
            CUgraphMem_attribute::USED_MEM_HIGH => most.used = now.used,
            CUgraphMem_attribute::RESERVED_MEM_HIGH => most.held = now.held,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// `cuDeviceGraphMemTrim`: what no graph has was given back already.
    pub(crate) fn trim(&self, device: i32) {
        self.lock().blocks.trim(|owner| owner.device == device);
    }
}
