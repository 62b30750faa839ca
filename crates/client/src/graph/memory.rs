//! Memory that graphs allocate.
//!
//! It is taken when its node is made and kept, address and bytes, for as long as the node or an
//! executable graph has it: an allocating node does nothing when it runs, and what counts as
//! allocated follows the order of calls. That costs the reuse of memory among a graph's nodes.

mod taking;

use crate::context::Context;
use crate::result::Result;
use cuda_abi::graph::params::allocation;
use cuda_abi::types::{CUDA_MEM_ALLOC_NODE_PARAMS, CUgraphMem_attribute, CUresult};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One allocation node's memory.
pub(crate) struct GraphMemory {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) context: Arc<Context>,
    /// Allocated and not freed yet, by the order of calls.
    live: AtomicBool,
}

impl GraphMemory {
    /// Whether it is allocated.
    pub(crate) fn is_live(&self) -> bool {
        // Acquire: pairs with the release in `set_live`.
        self.live.load(Ordering::Acquire)
    }

    /// Notes that submitted work allocates or frees it.
    pub(crate) fn set_live(&self, is_live: bool) {
        // Release: pairs with the acquire in `is_live`.
        self.live.store(is_live, Ordering::Release);
    }

    /// What the program asked for, with the address that it got.
    pub(crate) fn parameters(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        allocation(self.context.device, self.size_bytes, self.address)
    }
}

/// All memory of graphs, by address, and how much there was at most.
#[derive(Default)]
pub(crate) struct Memories(Mutex<State>);

#[derive(Default)]
struct State {
    all: BTreeMap<u64, Arc<GraphMemory>>,
    /// By device: most bytes used, most bytes held.
    most: BTreeMap<i32, (u64, u64)>,
}

impl State {
    fn usage(&self, device: i32) -> (u64, u64) {
        let of_device = self.all.values().filter(|memory| memory.context.device == device);
        of_device.fold((0, 0), |(used, held), memory| {
            let live = if memory.is_live() { memory.size_bytes } else { 0 };
            (used + live, held + memory.size_bytes)
        })
    }

    fn note(&mut self, device: i32) {
        let (used, held) = self.usage(device);
        let most = self.most.entry(device).or_default();
        *most = (most.0.max(used), most.1.max(held));
    }
}

impl Memories {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory at an address; CUDA_ERROR_INVALID_VALUE for any other address.
    pub(crate) fn at(&self, address: u64) -> Result<Arc<GraphMemory>> {
        self.lock().all.get(&address).cloned().ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Notes that memory of a device was allocated.
    pub(crate) fn note(&self, device: i32) {
        self.lock().note(device);
    }

    /// Forgets the memory of a context that is ending and frees it itself.
    pub(crate) fn forget_context(&self, context: &Context) {
        self.lock().all.retain(|_, memory| memory.context.token != context.token);
    }

    /// `cuDeviceGetGraphMemAttribute`.
    pub(crate) fn attribute(&self, device: i32, attribute: CUgraphMem_attribute) -> Result<u64> {
        let state = self.lock();
        let (used, held) = state.usage(device);
        let (most_used, most_held) = state.most.get(&device).copied().unwrap_or_default();
        match attribute {
            CUgraphMem_attribute::USED_MEM_CURRENT => Ok(used),
            CUgraphMem_attribute::USED_MEM_HIGH => Ok(most_used),
            CUgraphMem_attribute::RESERVED_MEM_CURRENT => Ok(held),
            CUgraphMem_attribute::RESERVED_MEM_HIGH => Ok(most_held),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// `cuDeviceSetGraphMemAttribute`: high-water marks can be reset, to what is used now.
    pub(crate) fn reset(&self, device: i32, attribute: CUgraphMem_attribute) -> Result {
        let mut state = self.lock();
        let (used, held) = state.usage(device);
        let most = state.most.entry(device).or_default();
        match attribute {
            CUgraphMem_attribute::USED_MEM_HIGH => most.0 = used,
            CUgraphMem_attribute::RESERVED_MEM_HIGH => most.1 = held,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}
