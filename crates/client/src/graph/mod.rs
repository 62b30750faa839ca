//! Graphs: work that is described once and launched many times, and the capture of streams into them.
//!
//! A graph is data of this process. Made executable, it goes to the executor as one description ([`link::wire::graph`]), and a launch is one
//! posted command. The rules of shape, capture and update are [`cuda_abi::graph`]'s, shared with the software GPU.
//!
//! | file | concept |
//! |---|---|
//! | [`model`] | a graph: nodes, edges, user objects |
//! | [`kinds`], [`params`] | what a node does; its parameters in C |
//! | [`executable`], [`plan`], [`launching`] | executable graphs: the state, what goes to the executor and what is done here, launching that |
//! | [`encoding`] | a node as the command that does its work |
//! | [`update`] | changes of executable graphs in place |
//! | [`memory`] | memory that graphs allocate |
//! | [`user_object`], [`dot`] | resources that graphs hold; graphs as text |
//!
//! Host functions, and the half of a copy that touches memory of this process alone, are done by this process in stream order: an executable
//! graph with such nodes is cut into *segments*, each a graph of the executor's. Conditional nodes, batches of
//! memory operations and external semaphores are absent (801).

mod dot;
mod encoding;
mod executable;
mod kinds;
mod launching;
mod memory;
mod model;
pub(crate) mod params;
mod plan;
mod update;
mod user_object;

pub(crate) use dot::print;
pub(crate) use executable::{Executable, end_context, instantiate};
pub(crate) use kinds::{HostWork, KernelWork, MemsetWork, NodeKind, WriteWork};
pub(crate) use memory::{GraphMemory, Memories};
pub(crate) use model::Graph;
pub(crate) use update::{set, update};
pub(crate) use user_object::{UserObject, release};

use crate::client::Client;
use crate::handles::{Kind, Table};
use crate::session::Result;
use cuda_abi::graph::capture::Captures;
use cuda_abi::types::{CUgraph, CUgraphExec, CUgraphNode, CUresult};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// All that a process has of graphs.
pub(crate) struct Graphs {
    pub(crate) graphs: Table<Graph>,
    pub(crate) nodes: Nodes,
    pub(crate) executables: Table<Executable>,
    pub(crate) user_objects: Table<UserObject>,
    pub(crate) captures: Captures<Graph>,
    pub(crate) memory: Memories,
}

impl Default for Graphs {
    fn default() -> Self {
        Self {
            graphs: Table::new(Kind::Graph),
            nodes: Nodes::default(),
            executables: Table::new(Kind::Executable),
            user_objects: Table::new(Kind::UserObject),
            captures: Captures::default(),
            memory: Memories::default(),
        }
    }
}

/// Handles of nodes, which grow in the order in which nodes are made, and the graphs that the nodes are in.
#[derive(Default)]
pub(crate) struct Nodes {
    last: AtomicUsize,
    graphs: RwLock<HashMap<usize, Arc<Graph>>>,
}

impl Nodes {
    /// A handle that was never given out.
    fn fresh(&self) -> usize {
        // Relaxed: only uniqueness matters.
        Kind::GraphNode.numbered(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn insert(&self, nodes: impl IntoIterator<Item = usize>, graph: &Arc<Graph>) {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        graphs.extend(nodes.into_iter().map(|node| (node, Arc::clone(graph))));
    }

    fn remove(&self, nodes: impl IntoIterator<Item = usize>) {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        for node in nodes {
            graphs.remove(&node);
        }
    }
}

impl Client {
    /// The graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph(&self, handle: CUgraph) -> Result<Arc<Graph>> {
        self.graphs.graphs.get(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The graph that a node is in, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph_of(&self, node: CUgraphNode) -> Result<Arc<Graph>> {
        let graphs = self.graphs.nodes.graphs.read().unwrap_or_else(PoisonError::into_inner);
        graphs.get(&node.0).cloned().ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The executable graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn executable(&self, handle: CUgraphExec) -> Result<Arc<Executable>> {
        self.graphs.executables.get(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
