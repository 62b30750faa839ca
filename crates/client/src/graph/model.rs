//! A graph: nodes and edges, and the user objects that it holds.

use super::kinds::NodeKind;
use super::user_object;
use crate::client::Client;
use crate::session::Result;
use cuda_abi::graph::capture::CapturedGraph;
use cuda_abi::graph::shape::{EdgeData, Shape};
use cuda_abi::types::{CUgraph, CUgraphNode, CUresult};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A graph: `CUgraph`. Embedded graphs of child nodes are graphs, too.
pub(crate) struct Graph {
    pub(crate) handle: CUgraph,
    state: Mutex<GraphState>,
    /// Executable graphs made of it that still exist; graphs with memory nodes may have one.
    executables: AtomicUsize,
}

/// What a graph consists of; behind its lock.
#[derive(Default)]
pub(crate) struct GraphState {
    pub(crate) shape: Shape<NodeKind>,
    /// User objects that the graph holds, and how many references.
    pub(crate) objects: HashMap<usize, u32>,
}

/// Whether nodes allocate or free memory: such graphs cannot be cloned or embedded, and have one executable graph.
pub(crate) fn has_memory_nodes(shape: &Shape<NodeKind>) -> bool {
    shape.nodes().any(|(_, node)| matches!(node.kind, NodeKind::MemAlloc(_) | NodeKind::MemFree(_)))
}

impl Graph {
    /// An empty graph, with a new handle.
    pub(crate) fn create(client: &Client) -> Result<Arc<Self>> {
        let made = client.graphs.graphs.insert_with(|token| Self {
            handle: CUgraph(token),
            state: Mutex::default(),
            executables: AtomicUsize::new(0),
        });
        made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GraphState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node after others.
    pub(crate) fn add(
        self: &Arc<Self>,
        client: &Client,
        kind: NodeKind,
        after: &[(usize, EdgeData)],
    ) -> Result<CUgraphNode> {
        let handle = client.graphs.nodes.fresh();
        self.lock().shape.add(handle, kind, None, after)?;
        client.graphs.nodes.insert([handle], self);
        Ok(CUgraphNode(handle))
    }

    /// A copy with nodes of its own; embedded graphs are copied, too. 801 when nodes allocate or free memory.
    pub(crate) fn duplicate(&self, client: &Client) -> Result<Arc<Self>> {
        let state = self.lock();
        if has_memory_nodes(&state.shape) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let copy_kind = |kind: &NodeKind| match kind {
            NodeKind::Child(inner) => inner.duplicate(client).map(NodeKind::Child),
            other => Ok(other.clone()),
        };
        let shape = state.shape.renamed(|| client.graphs.nodes.fresh(), copy_kind)?;
        let copy = Graph::create(client)?;
        client.graphs.nodes.insert(shape.nodes().map(|(key, _)| key), &copy);
        user_object::retain_all(client, &state.objects);
        *copy.lock() = GraphState { shape, objects: state.objects.clone() };
        drop(state);
        Ok(copy)
    }

    /// Takes a node and its edges out.
    pub(crate) fn remove(&self, client: &Client, node: usize) -> Result {
        let mut state = self.lock();
        if has_memory_nodes(&state.shape) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let removed = state.shape.remove(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        drop(state);
        client.graphs.nodes.remove([node]);
        if let NodeKind::Child(inner) = removed.kind {
            inner.forget(client);
        }
        Ok(())
    }

    /// Ends the handles of the graph, its nodes and the graphs in it.
    pub(crate) fn forget(&self, client: &Client) {
        client.graphs.graphs.remove(self.handle.0);
        let GraphState { shape, objects } = std::mem::take(&mut *self.lock());
        client.graphs.nodes.remove(shape.nodes().map(|(key, _)| key));
        for (_, node) in shape.nodes() {
            if let NodeKind::Child(inner) = &node.kind {
                inner.forget(client);
            }
        }
        drop(shape);
        client.graphs.memory.collect(client);
        for (object, count) in objects {
            user_object::release(client, object, count);
        }
    }

    /// What a node does.
    pub(crate) fn kind(&self, node: CUgraphNode) -> Result<NodeKind> {
        let state = self.lock();
        let found = state.shape.get(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(found.kind.clone())
    }

    /// Gives a node new parameters of the same kind.
    pub(crate) fn set_kind(&self, node: CUgraphNode, kind: NodeKind) -> Result {
        let mut state = self.lock();
        let found = state.shape.get_mut(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if found.kind.type_code() != kind.type_code() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        found.kind = kind;
        Ok(())
    }

    /// Counts an executable graph of this one; 801 for a second one if nodes allocate memory.
    pub(crate) fn begin_executable(&self) -> Result {
        let is_single = has_memory_nodes(&self.lock().shape);
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

impl CapturedGraph for Graph {
    type Work = NodeKind;

    fn add_captured(
        self: &Arc<Self>,
        work: NodeKind,
        after: &[(usize, EdgeData)],
    ) -> Result<usize> {
        let client = crate::client::started().ok_or(CUresult::ERROR_NOT_INITIALIZED)?;
        self.add(client, work, after).map(|node| node.0)
    }

    fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        self.lock().shape.ancestors(of)
    }

    fn has_all(&self, nodes: &[(usize, EdgeData)]) -> bool {
        let state = self.lock();
        nodes.iter().all(|(node, _)| state.shape.contains(*node))
    }
}
