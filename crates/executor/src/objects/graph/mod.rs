//! A session's executable graphs: made of a client's description, launched by one command.
//!
//! The client's graph is data of the client; here it becomes a graph of the driver's whose nodes
//! were checked as the commands would have been that they stand for. That graph is kept as a
//! template: what an executable graph cannot be changed to in place is made by instantiating the
//! template anew. What nodes name (functions' code, events) lives until no graph names it; ranges
//! of addresses are checked again when the client has given memory back since.
//!
//! [`node`] checks a node and makes it the driver's; [`conditional`] keeps what conditions are made
//! for; [`remaking`] brings graphs to other SMs; [`commands`] has the commands.

mod commands;
mod conditional;
mod node;
mod remaking;

use crate::session::failure::Failure;
use conditional::Homes;
use cuda_abi::types::*;
use link::wire::graph::DescriptionError;
use node::Node;
pub(crate) use node::{Code, with_kernel};
use std::collections::HashMap;
use std::ptr;

/// All executable graphs of a session.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: HashMap<u32, Graph>,
    nodes: usize,
    homes: Homes,
    /// Partitions that have changed while memory was moved out.
    stale: Vec<u32>,
    /// Counts graphs made anew.
    serial: u64,
}

impl Graphs {
    /// Whether a graph has conditions, which are values of the driver's.
    pub(crate) fn have_conditions(&self) -> bool {
        self.homes.are_any()
    }
}

#[derive(Debug)]
struct Graph {
    template: CUgraph,
    executable: CUgraphExec,
    flags: u32,
    /// What its conditions were made for, whose graph the template is.
    home: Option<u32>,
    /// Of all sections, in order.
    nodes: Vec<Node>,
    /// [`crate::memory::Memory::removals`] when the nodes' ranges were checked last.
    checked_at: u64,
    /// The number under which a thread makes it anew.
    remaking: Option<u64>,
    /// Why there is no executable graph.
    spoiled: Option<CUresult>,
}

/// What a launch of a graph does, for the counters.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    kernels: u32,
    copied_bytes: u64,
    prints: bool,
    frame_bytes: u32,
    last_function: Option<u32>,
}

impl Graph {
    /// Its executable graph was made of the template as it is.
    fn was_made(&mut self, executable: CUgraphExec) {
        (self.executable, self.spoiled) = (executable, None);
        self.nodes.iter_mut().for_each(Node::was_made);
    }

    fn load(&self) -> Load {
        let mut load = Load::default();
        for node in self.nodes.iter().filter(|node| node.is_enabled) {
            load.kernels += u32::from(node.function.is_some());
            load.copied_bytes = load.copied_bytes.saturating_add(node.copied_bytes);
            load.prints |= node.prints;
            load.frame_bytes = load.frame_bytes.max(node.frame_bytes);
            load.last_function = node.function.or(load.last_function);
        }
        load
    }
}

impl From<DescriptionError> for Failure {
    fn from(error: DescriptionError) -> Self {
        Failure::Protocol(error.to_string())
    }
}

/// Dependencies in the form that the driver wants.
fn array(nodes: &[CUgraphNode]) -> *const CUgraphNode {
    if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() }
}
