//! Taking memory for graphs, and giving it back.

use super::{GraphMemory, Memories, Owner};
use crate::client::Client;
use crate::context::Context;
use crate::memory::held_by_pools;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use cuda_abi::graph::reuse::{Site, ended_before, is_freed_in};
use cuda_abi::types::{CUgraph, CUresult};
use std::sync::Arc;

impl Memories {
    /// Takes memory for an allocation node.
    pub(crate) fn allocate(
        &self,
        client: &Client,
        context: &Arc<Context>,
        site: Site<'_>,
        size_bytes: u64,
    ) -> Result<Arc<GraphMemory>> {
        let graph = client.graphs.registry.graph(site.graph)?;
        let owner = Owner { graph: site.graph, context: context.token, device: context.device };
        let contents = graph.lock();
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        let candidates = state.blocks.candidates(size_bytes, &owner);
        let ended = ended_before(&contents.shape, site.after, &candidates);
        let address = match state.blocks.enter(number, size_bytes, &owner, &ended) {
            Some(address) => address,
            None => {
                drop((state, contents));
                let address = crate::memory::allocate_in(client, context, size_bytes, Kind::Graph)?;
                state = self.lock();
                state.blocks.add(number, size_bytes, owner, address..address + size_bytes);
                address
            }
        };
        let memory =
            Arc::new(GraphMemory { number, address, size_bytes, context: Arc::clone(context) });
        state.all.insert(number, Arc::clone(&memory));
        state.note(context.device);
        Ok(memory)
    }

    /// The memory at an address that a node of a graph frees, which frees it once.
    pub(crate) fn to_be_freed(
        &self,
        client: &Client,
        graph: CUgraph,
        address: u64,
    ) -> Result<Arc<GraphMemory>> {
        let graph = client.graphs.registry.graph(graph)?;
        let contents = graph.lock();
        let mut state = self.lock();
        let is_left = |number: &u64| !is_freed_in(&contents.shape, *number);
        let number = state.blocks.all_at(address).find(is_left);
        let number = number.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        state.blocks.will_end(number);
        state.all.get(&number).cloned().ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Gives back what no graph and no executable graph has and what is not allocated.
    pub(crate) fn collect(&self, client: &Client) {
        let unused: Vec<_> = {
            let mut state = self.lock();
            let is_unused = |(number, memory): &(&u64, &Arc<GraphMemory>)| {
                Arc::strong_count(memory) == 1 && !state.blocks.is_live(**number)
            };
            let numbers: Vec<u64> =
                state.all.iter().filter(is_unused).map(|(number, _)| *number).collect();
            numbers.into_iter().filter_map(|number| state.remove(number)).collect()
        };
        for (memory, block) in unused {
            let is_graphs = |area: &Area| matches!(area.kind, Kind::Graph);
            if client.memory.remove(block.address, is_graphs).is_none() {
                continue;
            }
            if let Ok((backend, id)) = memory.context.backend() {
                // A failed session has no memory left.
                let held_bytes = || held_by_pools(client, memory.context.device);
                let _ = backend.device_heap.free(&backend.session, id, block, held_bytes);
            }
        }
    }
}
