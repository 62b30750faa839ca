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
//! | [`executable`], [`plan`], [`run`] | executable graphs: the state, what goes to the executor and what is done here, what a launch does |
//! | [`making`], [`launching`] | making and ending executable graphs; launching them |
//! | [`bodies`], [`conditions`] | graphs of conditional nodes; the values that decide about them |
//! | [`encoding`] | a node as the command that does its work |
//! | [`update`] | changes of executable graphs in place |
//! | [`memory`] | memory that graphs allocate |
//!
//! Host functions, and the half of a copy that touches memory of this process alone, are done by
//! this process in stream order: an executable graph with such nodes is cut into *segments*, each a
//! graph of the executor's. Waits for values and external semaphores are absent (801).

mod bodies;
pub(crate) mod conditions;
mod encoding;
pub(crate) mod executable;
pub(crate) mod kinds;
mod launching;
pub(crate) mod making;
pub(crate) mod memory;
mod plan;
mod run;
pub(crate) mod update;

use crate::handles::{Kind, Table};
use conditions::Homes;
use cuda_abi::graph::registry::{Naming, Registry};
use executable::Executable;
use kinds::NodeKind;
use memory::Memories;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All that a process has of graphs.
pub(crate) struct Graphs {
    pub(crate) registry: Registry<NodeKind>,
    pub(crate) executables: Table<Executable>,
    pub(crate) memory: Memories,
    pub(crate) homes: Homes,
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
            homes: Homes::default(),
        }
    }
}

/// A handle that was never given out, greater than all before.
fn fresh(kind: Kind) -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only uniqueness matters.
    kind.numbered(LAST.fetch_add(1, Ordering::Relaxed) + 1)
}
