//! What a graph is: nodes in the order they were made, and edges between them. No execution, no C.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::types::{CUgraph, CUgraphEdgeData, CUgraphNode, CUresult};

use super::kinds::NodeKind;
use crate::api::Answer;
use crate::api::driver::Driver;
use crate::api::table::fresh_handle;

/// A graph: `CUgraph`. Embedded graphs of child nodes are graphs, too.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) handle: CUgraph,
    state: Mutex<GraphState>,
    /// Executable graphs made of it that still exist; graphs with memory nodes may have one.
    pub(crate) executables: AtomicUsize,
}

/// Nodes and edges; behind the graph's lock.
#[derive(Debug, Default)]
pub(crate) struct GraphState {
    /// By handle, which is the order in which they were made.
    pub(crate) nodes: BTreeMap<usize, Node>,
    pub(crate) edges: Vec<Edge>,
    /// User objects that the graph holds, and how many references.
    pub(crate) objects: HashMap<usize, u32>,
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    /// In a clone: the node that this one was made of.
    pub(crate) origin: Option<usize>,
}

/// `to` runs after `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) data: EdgeData,
}

/// What an edge says beyond its nodes: `CUgraphEdgeData`. Programmatic edges are kept and treated as full ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EdgeData {
    from_port: u8,
    to_port: u8,
    kind: u8,
}

impl EdgeData {
    /// CUDA_ERROR_INVALID_VALUE for unknown ports and types.
    pub(crate) fn from_c(data: &CUgraphEdgeData) -> Answer<Self> {
        let is_known = data.type_ <= 1 && data.from_port <= 2 && data.to_port == 0;
        if !is_known || data.reserved != [0; 5] {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(EdgeData { from_port: data.from_port, to_port: data.to_port, kind: data.type_ })
    }

    pub(crate) fn to_c(self) -> CUgraphEdgeData {
        CUgraphEdgeData {
            from_port: self.from_port,
            to_port: self.to_port,
            type_: self.kind,
            reserved: [0; 5],
        }
    }

    pub(crate) fn is_default(self) -> bool {
        self == EdgeData::default()
    }
}

impl GraphState {
    /// The node's dependencies, in the order of their edges.
    pub(crate) fn dependencies(&self, node: usize) -> impl Iterator<Item = Edge> + '_ {
        self.edges.iter().copied().filter(move |edge| edge.to == node)
    }

    /// What depends on the node.
    pub(crate) fn dependents(&self, node: usize) -> impl Iterator<Item = Edge> + '_ {
        self.edges.iter().copied().filter(move |edge| edge.from == node)
    }

    /// Nodes without dependencies.
    pub(crate) fn roots(&self) -> Vec<usize> {
        let targets: BTreeSet<usize> = self.edges.iter().map(|edge| edge.to).collect();
        self.nodes.keys().copied().filter(|node| !targets.contains(node)).collect()
    }

    /// Nodes that nothing depends on.
    pub(crate) fn sinks(&self) -> Vec<usize> {
        let sources: BTreeSet<usize> = self.edges.iter().map(|edge| edge.from).collect();
        self.nodes.keys().copied().filter(|node| !sources.contains(node)).collect()
    }

    /// Adds edges, all or none: CUDA_ERROR_INVALID_VALUE for a node of another graph, an edge to itself and one that is there.
    pub(crate) fn add_edges(&mut self, edges: &[Edge]) -> Answer {
        let before = self.edges.len();
        for edge in edges {
            let is_new = !self.edges.iter().any(|old| (old.from, old.to) == (edge.from, edge.to));
            let is_known = self.nodes.contains_key(&edge.from) && self.nodes.contains_key(&edge.to);
            if !is_new || !is_known || edge.from == edge.to {
                self.edges.truncate(before);
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            self.edges.push(*edge);
        }
        Ok(())
    }

    /// Removes edges; CUDA_ERROR_INVALID_VALUE, and nothing removed, if one is not there.
    pub(crate) fn remove_edges(&mut self, edges: &[(usize, usize)]) -> Answer {
        let has =
            |wanted: &(usize, usize)| self.edges.iter().any(|edge| (edge.from, edge.to) == *wanted);
        if !edges.iter().all(has) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.edges.retain(|edge| !edges.contains(&(edge.from, edge.to)));
        Ok(())
    }

    /// All nodes, each after its dependencies; `None`: there is a cycle.
    pub(crate) fn topological(&self) -> Option<Vec<usize>> {
        let mut open: HashMap<usize, usize> = HashMap::new();
        let mut next: HashMap<usize, Vec<usize>> = HashMap::new();
        for edge in &self.edges {
            *open.entry(edge.to).or_default() += 1;
            next.entry(edge.from).or_default().push(edge.to);
        }
        let mut ready: BTreeSet<usize> = self.roots().into_iter().collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(node) = ready.pop_first() {
            order.push(node);
            for &after in next.get(&node).into_iter().flatten() {
                let left = open.entry(after).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    ready.insert(after);
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// The given nodes and everything that they depend on.
    pub(crate) fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = of.iter().copied().collect();
        let mut left: Vec<usize> = of.to_vec();
        while let Some(node) = left.pop() {
            for edge in self.dependencies(node) {
                if found.insert(edge.from) {
                    left.push(edge.from);
                }
            }
        }
        found
    }

    /// Whether nodes allocate or free memory: such graphs cannot be cloned or embedded.
    pub(crate) fn has_memory_nodes(&self) -> bool {
        self.nodes
            .values()
            .any(|node| matches!(node.kind, NodeKind::MemAlloc(_) | NodeKind::MemFree(_)))
    }
}

impl Graph {
    /// An empty graph, registered under a new handle.
    pub(crate) fn create(driver: &Driver) -> Arc<Self> {
        let graph = Arc::new(Graph {
            handle: CUgraph(fresh_handle()),
            state: Mutex::default(),
            executables: AtomicUsize::new(0),
        });
        driver.graphs.insert(graph.handle.0, graph.clone());
        graph
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GraphState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node after `dependencies`.
    pub(crate) fn add(
        self: &Arc<Self>,
        driver: &Driver,
        kind: NodeKind,
        dependencies: &[(usize, EdgeData)],
    ) -> Answer<CUgraphNode> {
        let handle = fresh_handle();
        let mut state = self.lock();
        state.nodes.insert(handle, Node { kind, origin: None });
        let edges: Vec<Edge> =
            dependencies.iter().map(|&(from, data)| Edge { from, to: handle, data }).collect();
        if let Err(code) = state.add_edges(&edges) {
            state.nodes.remove(&handle);
            return Err(code);
        }
        drop(state);
        driver.graph_nodes.insert(handle, self.clone());
        Ok(CUgraphNode(handle))
    }

    /// A copy with nodes of its own; embedded graphs are copied, too. 801 when nodes allocate or free memory.
    pub(crate) fn duplicate(&self, driver: &Driver) -> Answer<Arc<Self>> {
        let state = self.lock();
        if state.has_memory_nodes() {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let copy = Graph::create(driver);
        let mut names = HashMap::new();
        let mut copied = GraphState::default();
        for (&handle, node) in &state.nodes {
            let kind = match &node.kind {
                NodeKind::Child(inner) => NodeKind::Child(inner.duplicate(driver)?),
                other => other.clone(),
            };
            let name = fresh_handle();
            names.insert(handle, name);
            copied.nodes.insert(name, Node { kind, origin: Some(handle) });
            driver.graph_nodes.insert(name, copy.clone());
        }
        for edge in &state.edges {
            if let (Some(&from), Some(&to)) = (names.get(&edge.from), names.get(&edge.to)) {
                copied.edges.push(Edge { from, to, data: edge.data });
            }
        }
        for (&object, &count) in &state.objects {
            if let Some(found) = driver.user_objects.find(object) {
                found.retain(count);
                copied.objects.insert(object, count);
            }
        }
        *copy.lock() = copied;
        Ok(copy)
    }

    /// Takes a node and its edges out.
    pub(crate) fn remove(&self, driver: &Driver, node: usize) -> Answer {
        let mut state = self.lock();
        if state.has_memory_nodes() {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let removed = state.nodes.remove(&node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        state.edges.retain(|edge| edge.from != node && edge.to != node);
        drop(state);
        let _ = driver.graph_nodes.remove(node);
        if let NodeKind::Child(inner) = removed.kind {
            inner.forget(driver);
        }
        Ok(())
    }

    /// Ends the handles of the graph, its nodes and the graphs in it.
    pub(crate) fn forget(&self, driver: &Driver) {
        let _ = driver.graphs.remove(self.handle.0);
        let state = std::mem::take(&mut *self.lock());
        for (handle, node) in state.nodes {
            let _ = driver.graph_nodes.remove(handle);
            match node.kind {
                NodeKind::Child(inner) => inner.forget(driver),
                NodeKind::MemAlloc(allocation) => allocation.memory.disown(driver),
                _ => {}
            }
        }
        for (object, count) in state.objects {
            super::user_object::release(driver, object, count);
        }
    }

    /// The parameters of a node.
    pub(crate) fn kind(&self, node: CUgraphNode) -> Answer<NodeKind> {
        let state = self.lock();
        state.nodes.get(&node.0).map(|node| node.kind.clone()).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Gives a node new parameters of the same kind.
    pub(crate) fn set_kind(&self, node: CUgraphNode, kind: NodeKind) -> Answer {
        let mut state = self.lock();
        let found = state.nodes.get_mut(&node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if found.kind.type_code() != kind.type_code() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        found.kind = kind;
        Ok(())
    }

    /// Counts an executable graph of this one; 801 for a second one if nodes allocate memory.
    pub(crate) fn begin_executable(&self) -> Answer {
        let is_single = self.lock().has_memory_nodes();
        // AcqRel: partner of `end_executable`; only the count matters.
        let before = self.executables.fetch_add(1, Ordering::AcqRel);
        if is_single && before > 0 {
            self.end_executable();
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }

    pub(crate) fn end_executable(&self) {
        // AcqRel: partner of `begin_executable`.
        self.executables.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Driver {
    /// The graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph(&self, handle: CUgraph) -> Answer<Arc<Graph>> {
        self.graphs.find(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The graph that a node is in, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph_of(&self, node: CUgraphNode) -> Answer<Arc<Graph>> {
        self.graph_nodes.find(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(nodes: &[usize], edges: &[(usize, usize)]) -> GraphState {
        let mut state = GraphState::default();
        for &node in nodes {
            state.nodes.insert(node, Node { kind: NodeKind::Empty, origin: None });
        }
        let edge = |&(from, to)| Edge { from, to, data: EdgeData::default() };
        state.edges = edges.iter().map(edge).collect();
        state
    }

    #[test]
    fn order_follows_edges_and_finds_cycles() {
        let diamond = state(&[1, 2, 3, 4], &[(4, 2), (4, 3), (2, 1), (3, 1)]);
        assert_eq!(diamond.topological(), Some(vec![4, 2, 3, 1]));
        assert_eq!((diamond.roots(), diamond.sinks()), (vec![4], vec![1]));
        assert_eq!(diamond.ancestors(&[2]).into_iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(state(&[1, 2], &[(1, 2), (2, 1)]).topological(), None);
    }

    #[test]
    fn edges_are_added_all_or_none() {
        let mut graph = state(&[1, 2, 3], &[(1, 2)]);
        let edge = |from, to| Edge { from, to, data: EdgeData::default() };
        assert_eq!(graph.add_edges(&[edge(2, 3), edge(1, 2)]), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(graph.edges.len(), 1);
        assert_eq!(graph.add_edges(&[edge(3, 3)]), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(graph.remove_edges(&[(1, 2), (2, 3)]), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(graph.remove_edges(&[(1, 2)]), Ok(()));
        assert!(graph.edges.is_empty());
    }
}
