//! Graphs: work that is described once and launched many times, and the capture of streams into
//! them.
//!
//! A graph is data of this process. Made executable, it goes to the executor as one description
//! ([`link::wire::graph`]), and a launch is one posted command. The rules of shape, capture and
//! update are [`cuda_abi::graph`]'s, shared with the software GPU.
//!
//! | file | concept |
//! |---|---|
//! | [`kinds`] | what a node does |
//! | [`executable`], [`plan`], [`launching`] | executable graphs: the state, what goes to the executor and what is done here, launching that |
//! | [`bodies`], [`conditions`] | graphs of conditional nodes; the values that decide about them |
//! | [`encoding`] | a node as the command that does its work |
//! | [`update`] | changes of executable graphs in place |
//! | [`memory`] | memory that graphs allocate |
//!
//! Host functions, and the half of a copy that touches memory of this process alone, are done by
//! this process in stream order: an executable graph with such nodes is cut into *segments*, each a
//! graph of the executor's. Waits for values and external semaphores are absent (801).

mod bodies;
mod conditions;
mod encoding;
mod executable;
pub(crate) mod kinds;
mod launching;
mod memory;
mod plan;
mod update;

pub(crate) use conditions::create as create_condition;
pub(crate) use executable::{Executable, end_context, instantiate};
pub(crate) use kinds::{BatchWork, CopyWork, Graph, KernelWork, MemsetWork, NodeKind};
pub(crate) use memory::{GraphMemory, Memories};
pub(crate) use update::{set, update};

use crate::client::Client;
use crate::handles::{Kind, Table};
use crate::session::Result;
use cuda_abi::graph::registry::{Naming, Registry};
use cuda_abi::types::{CUgraphExec, CUresult};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All that a process has of graphs.
pub(crate) struct Graphs {
    pub(crate) registry: Registry<NodeKind>,
    pub(crate) executables: Table<Executable>,
    pub(crate) memory: Memories,
    homes: conditions::Homes,
}

impl Default for Graphs {
    fn default() -> Self {
        let naming = Naming {
            graph: || fresh(Kind::Graph),
            node: || fresh(Kind::GraphNode),
            object: || fresh(Kind::UserObject),
        };
        Self {
            registry: Registry::new(naming),
            executables: Table::new(Kind::Executable),
            memory: Memories::default(),
            homes: conditions::Homes::default(),
        }
    }
}

/// A handle that was never given out, greater than all before.
fn fresh(kind: Kind) -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only uniqueness matters.
    kind.numbered(LAST.fetch_add(1, Ordering::Relaxed) + 1)
}

impl Client {
    /// The executable graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn executable(&self, handle: CUgraphExec) -> Result<Arc<Executable>> {
        self.graphs.executables.get(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
