//! Conditions of graphs, and what they are made for.
//!
//! A driver makes a condition for a graph, and its handle goes into kernels' parameters long before that graph is made executable. So a *home*, an
//! empty graph of the driver's, is kept for each graph of a client that has conditions; it becomes the template of that graph's only
//! executable graph, and is emptied when that ends.

use super::super::failure::{Failure, below};
use super::super::state::State;
use cuda_abi::types::*;
use link::wire::graph::{GraphCondition, GraphConditionReply, GraphHomeDestroy, MAX_GRAPHS};
use std::collections::HashMap;
use std::ptr;
use zerocopy::IntoBytes;

/// Conditions of one home.
const MAX_CONDITIONS: usize = 1 << 14;

/// All homes of a session.
#[derive(Debug, Default)]
pub(super) struct Homes(HashMap<u32, Home>);

#[derive(Debug)]
struct Home {
    graph: CUgraph,
    conditions: Vec<CUgraphConditionalHandle>,
    usage: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    Free,
    /// It is the template of an executable graph.
    Template,
}

impl Homes {
    /// The conditions that were made for a home.
    pub(super) fn conditions(&self, home: u32) -> &[CUgraphConditionalHandle] {
        self.0.get(&home).map(|home| home.conditions.as_slice()).unwrap_or_default()
    }
}

impl State {
    pub(in super::super) fn graph_condition(
        &mut self,
        wanted: GraphCondition,
    ) -> Result<(), Failure> {
        let GraphCondition { home: number, value, flags, .. } = wanted;
        below("home", number, MAX_GRAPHS + 1)?;
        let known = self.graphs.homes.0.get(&number);
        if known.is_some_and(|home| home.conditions.len() >= MAX_CONDITIONS) {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let graph = match known {
            Some(home) => home.graph,
            None => {
                let home =
                    Home { graph: self.empty_graph()?, conditions: Vec::new(), usage: Usage::Free };
                let graph = home.graph;
                self.graphs.homes.0.insert(number, home);
                graph
            }
        };
        let mut handle = 0;
        let (driver, context) = (self.driver(), self.context().handle());
        // SAFETY: live handles of this session; the result is written.
        self.check(unsafe {
            driver.cuGraphConditionalHandleCreate(&mut handle, graph, context, value, flags)
        })?;
        if let Some(home) = self.graphs.homes.0.get_mut(&number) {
            home.conditions.push(handle);
        }
        self.reply.extend_from_slice(GraphConditionReply { handle }.as_bytes());
        Ok(())
    }

    pub(in super::super) fn graph_home_destroy(
        &mut self,
        wanted: GraphHomeDestroy,
    ) -> Result<(), Failure> {
        let home = self.graphs.homes.0.remove(&wanted.home);
        if let Some(home) = home.filter(|home| home.usage == Usage::Free) {
            // SAFETY: a live handle of this session, which nothing names any more.
            let _ = unsafe { self.driver().cuGraphDestroy(home.graph) };
        }
        Ok(())
    }

    /// A home's graph, empty, to be a template.
    pub(super) fn take_home(&mut self, number: u32) -> Result<CUgraph, Failure> {
        match self.graphs.homes.0.get_mut(&number) {
            Some(home) if home.usage == Usage::Free => {
                home.usage = Usage::Template;
                Ok(home.graph)
            }
            Some(_) => Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
            None => Err(Failure::Protocol(format!("home {number} does not exist"))),
        }
    }

    /// Empties a template and makes it a home again; `false` if there is no such home any more.
    pub(super) fn give_home_back(&mut self, number: u32, template: CUgraph) -> bool {
        let Some(home) = self.graphs.homes.0.get_mut(&number) else { return false };
        home.usage = Usage::Free;
        if self.empty(template).is_err() {
            // Nothing can be made of it any more; it goes with what is in it.
            self.graphs.homes.0.remove(&number);
            return false;
        }
        true
    }

    fn empty(&self, graph: CUgraph) -> Result<(), Failure> {
        let (driver, mut count) = (self.driver(), 0);
        // SAFETY: a live graph of this session; the count is written.
        self.check(unsafe { driver.cuGraphGetNodes(graph, ptr::null_mut(), &mut count) })?;
        let mut nodes = vec![CUgraphNode::NULL; count];
        // SAFETY: as above; the array has room for the count.
        self.check(unsafe { driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) })?;
        for node in nodes.into_iter().take(count) {
            // SAFETY: a live node, which nothing names any more.
            self.check(unsafe { driver.cuGraphDestroyNode(node) })?;
        }
        Ok(())
    }

    /// Destroys homes; those that are templates go with their graphs.
    pub(super) fn clear_homes(&self, homes: Homes) {
        for home in homes.0.into_values().filter(|home| home.usage == Usage::Free) {
            // SAFETY: a live handle of this session, which nothing names any more.
            let _ = unsafe { self.driver().cuGraphDestroy(home.graph) };
        }
    }
}
