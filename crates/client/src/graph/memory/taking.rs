//! Taking memory for graphs, and giving it back.

use super::{GraphMemory, Memories};
use crate::client::Client;
use crate::context::Context;
use crate::graph::kinds::NodeKind;
use crate::memory::allocator::Range;
use crate::memory::held_by_pools;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use cuda_abi::types::{CUgraph, CUresult};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl Memories {
    /// Takes memory for an allocation node.
    pub(crate) fn allocate(
        &self,
        client: &Client,
        context: &Arc<Context>,
        size_bytes: u64,
    ) -> Result<Arc<GraphMemory>> {
        let address = crate::memory::allocate_in(client, context, size_bytes, Kind::Graph)?;
        let context = Arc::clone(context);
        let device = context.device;
        let live = AtomicBool::new(false);
        let memory = Arc::new(GraphMemory { address, size_bytes, context, live });
        let mut state = self.lock();
        state.all.insert(address, Arc::clone(&memory));
        state.note(device);
        Ok(memory)
    }

    /// The same for a node of a graph, which frees memory once.
    pub(crate) fn to_be_freed(
        &self,
        client: &Client,
        graph: CUgraph,
        address: u64,
    ) -> Result<Arc<GraphMemory>> {
        let memory = self.at(address)?;
        let graph = client.graphs.registry.graph(graph)?;
        let is_freed = graph.lock().shape.nodes().any(|(_, node)| {
            matches!(&node.kind, NodeKind::MemFree(other) if Arc::ptr_eq(other, &memory))
        });
        if is_freed { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(memory) }
    }

    /// Gives back what no graph and no executable graph has and what is not allocated.
    pub(crate) fn collect(&self, client: &Client) {
        let unused: Vec<_> = {
            let mut state = self.lock();
            let is_unused =
                |memory: &Arc<GraphMemory>| Arc::strong_count(memory) == 1 && !memory.is_live();
            let unused: Vec<_> =
                state.all.values().filter(|memory| is_unused(memory)).cloned().collect();
            unused.iter().for_each(|memory| {
                state.all.remove(&memory.address);
            });
            unused
        };
        for memory in unused {
            let is_graphs = |area: &Area| matches!(area.kind, Kind::Graph);
            if client.memory.remove(memory.address, is_graphs).is_none() {
                continue;
            }
            if let Ok((backend, id)) = memory.context.backend() {
                // A failed session has no memory left.
                let piece = Range { address: memory.address, size_bytes: memory.size_bytes };
                let held_bytes = || held_by_pools(client, memory.context.device);
                let _ = backend.device_heap.free(&backend.session, id, piece, held_bytes);
            }
        }
    }
}
