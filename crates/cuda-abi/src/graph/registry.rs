//! All graphs of a process: handles, and what C callers ask about graphs and their shape.

mod objects;

use super::Answer;
use super::arrays::{Ends, give_edges, give_nodes, read_dependencies, read_edges};
use super::capture::{Captures, Ended, Stream, Tips};
use super::conditional::{Condition, Conditional, check_body, check_size};
use super::model::{Contents, Graph, Kind, Nodes, Role, has_memory_nodes};
use super::params::Ownership;
use super::reuse::Site;
use super::shape::Edge;
use super::user_object::UserObject;
use crate::types::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUgraph, CUgraphEdgeData, CUgraphInstantiateResult, CUgraphNode,
    CUresult, CUstreamCaptureMode,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// How handles are made, each different from all before; a later node's is greater.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// `CUgraph`.
    pub graph: fn() -> usize,
    /// `CUgraphNode`.
    pub node: fn() -> usize,
    /// `CUuserObject`.
    pub object: fn() -> usize,
}

/// All graphs of a process.
#[derive(Debug)]
pub struct Registry<K> {
    naming: Naming,
    nodes: Arc<Nodes<K>>,
    tables: Mutex<Tables<K>>,
    /// Streams that are captured into some of them.
    pub captures: Captures<Graph<K>>,
}

#[derive(Debug)]
struct Tables<K> {
    graphs: HashMap<usize, Arc<Graph<K>>>,
    objects: HashMap<usize, Arc<UserObject>>,
    /// By the graph that it was made for and its handle, of which NVIDIA's driver gives the same to
    /// several graphs; with whether a node has it.
    conditions: HashMap<(CUgraph, u64), (Condition, Use)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Taken,
}

impl<K: Kind> Registry<K> {
    /// No graphs yet.
    pub fn new(naming: Naming) -> Self {
        let tables =
            Tables { graphs: HashMap::new(), objects: HashMap::new(), conditions: HashMap::new() };
        Self {
            naming,
            nodes: Arc::new(Nodes::new(naming.node)),
            tables: Mutex::new(tables),
            captures: Captures::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables<K>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty graph, with a new handle.
    pub fn create(&self) -> Arc<Graph<K>> {
        let handle = (self.naming.graph)();
        let graph = Graph::new(CUgraph(handle), &self.nodes);
        self.lock().graphs.insert(handle, Arc::clone(&graph));
        graph
    }

    /// The graph of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is none.
    pub fn graph(&self, handle: CUgraph) -> Answer<Arc<Graph<K>>> {
        self.lock().graphs.get(&handle.0).cloned().ok_or(INVALID)
    }

    /// The graph that a node is in.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is none.
    pub fn graph_of(&self, node: CUgraphNode) -> Answer<Arc<Graph<K>>> {
        self.nodes.graph_of(node.0).ok_or(INVALID)
    }

    /// What a node does.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is no such node.
    pub fn kind(&self, node: CUgraphNode) -> Answer<K> {
        self.graph_of(node)?.kind(node)
    }

    /// A copy with nodes of its own; embedded graphs are copied, too.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED where nodes allocate or free memory or are conditional.
    pub fn duplicate(&self, graph: &Graph<K>) -> Answer<Arc<Graph<K>>> {
        let copy = self.create();
        let copied = graph.copy_into(&copy, |kind| match kind.role() {
            Role::Child(inner) => {
                let inner = self.duplicate(inner)?;
                inner.embed(copy.handle);
                Ok(K::child(inner))
            }
            _ => Ok(kind.clone()),
        });
        if let Err(code) = copied {
            self.forget(&copy);
            return Err(code);
        }
        Ok(copy)
    }

    /// A graph for a node that embeds it: a copy, or itself.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a graph that there is not or that a node holds; as for
    /// [`Self::duplicate`].
    pub fn child(&self, graph: CUgraph, ownership: Ownership) -> Answer<Arc<Graph<K>>> {
        let graph = self.graph(graph)?;
        match ownership {
            Ownership::Copied => self.duplicate(&graph),
            Ownership::Moved if graph.parent().is_some() => Err(INVALID),
            Ownership::Moved => Ok(graph),
        }
    }

    /// Ends the handles of a graph, its nodes and the graphs in it. What nodes held is dropped.
    pub fn forget(&self, graph: &Graph<K>) {
        self.lock().graphs.remove(&graph.handle.0);
        let Contents { shape, objects } = graph.take_all();
        for (_, node) in shape.nodes() {
            self.forget_embedded(&node.kind);
        }
        self.lock().conditions.retain(|_, (condition, _)| condition.graph != graph.handle);
        drop(shape);
        for (handle, (_, count)) in objects {
            self.release(handle, count);
        }
    }

    fn forget_embedded(&self, kind: &K) {
        let role = kind.role();
        if let Role::Conditional(conditional) = &role
            && let Some((_, usage)) = self.lock().conditions.get_mut(&conditional.condition.key())
        {
            *usage = Use::Free;
        }
        role.embedded().iter().for_each(|inner| self.forget(inner));
    }

    /// `cuGraphDestroy`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a graph that a node holds, or none.
    pub fn destroy(&self, graph: CUgraph) -> Answer {
        let graph = self.graph(graph)?;
        if graph.parent().is_some() {
            return Err(INVALID);
        }
        self.forget(&graph);
        Ok(())
    }

    /// `cuGraphDestroyNode`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is none; CUDA_ERROR_NOT_SUPPORTED where nodes allocate or
    /// free memory.
    pub fn destroy_node(&self, node: CUgraphNode) -> Answer {
        let removed = self.graph_of(node)?.take(node.0)?;
        self.forget_embedded(&removed);
        Ok(())
    }

    /// `cuGraphNodeFindInClone`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the graph has no copy of the node.
    pub fn find_in_clone(&self, original: CUgraphNode, clone: CUgraph) -> Answer<CUgraphNode> {
        let graph = self.graph(clone)?;
        let contents = graph.lock();
        let found = contents.shape.nodes().find(|(_, node)| node.origin == Some(original.0));
        found.map(|(handle, _)| CUgraphNode(handle)).ok_or(INVALID)
    }

    /// Adds a node after those of C arrays and tells its handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a missing place for the handle, unknown graphs, nodes and
    /// edges; those of `make`.
    ///
    /// # Safety
    /// `node` is null or valid; the arrays have as many elements as is said.
    pub unsafe fn add_node(
        &self,
        graph: CUgraph,
        node: *mut CUgraphNode,
        after: (*const CUgraphNode, *const CUgraphEdgeData, usize),
        make: impl FnOnce() -> Answer<K>,
    ) -> Answer {
        // SAFETY: by the caller's promise.
        unsafe { self.add_node_at(graph, node, after, |_| make()) }
    }

    /// The same of a node whose work depends on where it is added.
    ///
    /// # Errors
    /// As for [`Self::add_node`].
    ///
    /// # Safety
    /// As for [`Self::add_node`].
    pub unsafe fn add_node_at(
        &self,
        graph: CUgraph,
        node: *mut CUgraphNode,
        (nodes, data, count): (*const CUgraphNode, *const CUgraphEdgeData, usize),
        make: impl FnOnce(Site<'_>) -> Answer<K>,
    ) -> Answer {
        let graph = self.graph(graph)?;
        if node.is_null() {
            return Err(INVALID);
        }
        // SAFETY: by the caller's promise.
        let after = unsafe { read_dependencies(nodes, data, count) }?;
        let nodes: Vec<usize> = after.iter().map(|(node, _)| *node).collect();
        let kind = make(Site { graph: graph.handle, after: &nodes })?;
        let added = graph.add(kind.clone(), &after).inspect_err(|_| self.give_up(&kind))?;
        // SAFETY: not null; by the caller's promise.
        unsafe { node.write_unaligned(added) };
        Ok(())
    }

    /// `cuGraphGetNodes`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown graph, and as for [`give_nodes`].
    ///
    /// # Safety
    /// As for [`give_nodes`].
    pub unsafe fn give_nodes(
        &self,
        graph: CUgraph,
        nodes: *mut CUgraphNode,
        count: *mut usize,
    ) -> Answer {
        let graph = self.graph(graph)?;
        let found: Vec<usize> = graph.lock().shape.nodes().map(|(key, _)| key).collect();
        // SAFETY: by the caller's promise.
        unsafe { give_nodes(&found, nodes, count) }
    }

    /// `cuGraphGetRootNodes`.
    ///
    /// # Errors
    /// As for [`Self::give_nodes`].
    ///
    /// # Safety
    /// As for [`give_nodes`].
    pub unsafe fn give_roots(
        &self,
        graph: CUgraph,
        nodes: *mut CUgraphNode,
        count: *mut usize,
    ) -> Answer {
        let found = self.graph(graph)?.lock().shape.roots();
        // SAFETY: by the caller's promise.
        unsafe { give_nodes(&found, nodes, count) }
    }

    /// `cuGraphGetEdges`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown graph, and as for [`give_edges`].
    ///
    /// # Safety
    /// As for [`give_edges`].
    pub unsafe fn give_edges(
        &self,
        graph: CUgraph,
        ends: Ends,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Answer {
        let edges: Vec<Edge> = self.graph(graph)?.lock().shape.edges().collect();
        // SAFETY: by the caller's promise.
        unsafe { give_edges(&edges, ends, data, count) }
    }

    /// `cuGraphNodeGetDependencies`.
    ///
    /// # Errors
    /// As for [`Self::give_edges`].
    ///
    /// # Safety
    /// As for [`give_edges`].
    pub unsafe fn give_dependencies(
        &self,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Answer {
        let edges: Vec<Edge> = self.graph_of(node)?.lock().shape.dependencies(node.0).collect();
        let ends = Ends { from: nodes, to: core::ptr::null_mut() };
        // SAFETY: by the caller's promise.
        unsafe { give_edges(&edges, ends, data, count) }
    }

    /// `cuGraphNodeGetDependentNodes`.
    ///
    /// # Errors
    /// As for [`Self::give_edges`].
    ///
    /// # Safety
    /// As for [`give_edges`].
    pub unsafe fn give_dependents(
        &self,
        node: CUgraphNode,
        nodes: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> Answer {
        let edges: Vec<Edge> = self.graph_of(node)?.lock().shape.dependents(node.0).collect();
        let ends = Ends { from: core::ptr::null_mut(), to: nodes };
        // SAFETY: by the caller's promise.
        unsafe { give_edges(&edges, ends, data, count) }
    }

    /// `cuGraphAddDependencies`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown graphs and nodes and edges that are there.
    ///
    /// # Safety
    /// The arrays have `count` elements; the data may be missing.
    pub unsafe fn add_dependencies(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) -> Answer {
        // SAFETY: by the caller's promise.
        let edges = unsafe { read_edges(from, to, data, count) }?;
        self.graph(graph)?.lock().shape.add_edges(&edges)
    }

    /// `cuGraphRemoveDependencies`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown graphs and edges that are not there;
    /// CUDA_ERROR_NOT_SUPPORTED where nodes allocate or free memory.
    ///
    /// # Safety
    /// The arrays have `count` elements; the data may be missing.
    pub unsafe fn remove_dependencies(
        &self,
        graph: CUgraph,
        from: *const CUgraphNode,
        to: *const CUgraphNode,
        data: *const CUgraphEdgeData,
        count: usize,
    ) -> Answer {
        // SAFETY: by the caller's promise.
        let edges = unsafe { read_edges(from, to, data, count) }?;
        let edges: Vec<_> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
        let graph = self.graph(graph)?;
        let mut contents = graph.lock();
        if has_memory_nodes(&contents.shape) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        contents.shape.remove_edges(&edges)
    }

    /// Begins a capture in a stream, into a graph of its own or after nodes of a given one.
    ///
    /// # Errors
    /// As for [`Captures::begin`].
    pub fn begin_capture(
        &self,
        stream: Stream,
        mode: CUstreamCaptureMode,
        into: Option<(Arc<Graph<K>>, Tips)>,
    ) -> Answer {
        self.captures.begin(stream, mode, into, || Ok(self.create()))
    }

    /// Ends a stream's capture: the graph, or null, and what the call returns.
    pub fn end_capture(&self, stream: Stream) -> (CUgraph, Answer) {
        match self.captures.end(stream) {
            Ended::Graph(graph) => (graph.handle, Ok(())),
            Ended::Failed(code, graph) => {
                if let Some(graph) = graph {
                    self.forget(&graph);
                }
                (CUgraph::NULL, Err(code))
            }
        }
    }

    /// A stream is being destroyed.
    pub fn abandon_capture(&self, stream: Stream) {
        if let Some(graph) = self.captures.abandon(stream) {
            self.forget(&graph);
        }
    }

    /// The graph that a graph is in after all, by nodes of nodes; or itself.
    pub fn root(&self, graph: CUgraph) -> CUgraph {
        self.around(graph).pop().unwrap_or(graph)
    }

    /// A graph, the one whose node holds it, and so on.
    fn around(&self, graph: CUgraph) -> Vec<CUgraph> {
        let mut around = vec![graph];
        while let Some(parent) = around.last().and_then(|last| self.graph(*last).ok()?.parent()) {
            around.push(parent);
        }
        around
    }

    /// A condition for a node of a graph; its handle was chosen by who keeps the value.
    pub fn add_condition(&self, condition: Condition) {
        self.lock().conditions.insert(condition.key(), (condition, Use::Free));
    }

    /// A conditional node's work in a graph, with empty graphs.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a condition that is unknown, of another context, of a graph
    /// that this one is not in, or has a node already, and as for [`check_size`].
    pub fn conditional(
        &self,
        graph: CUgraph,
        asked: &CUDA_CONDITIONAL_NODE_PARAMS,
    ) -> Answer<Conditional<K>> {
        check_size(asked.type_, asked.size)?;
        let around = self.around(graph);
        let condition = {
            let mut tables = self.lock();
            let mut keys = around.into_iter().map(|graph| (graph, asked.handle));
            let key = keys.find(|key| tables.conditions.contains_key(key));
            match key.and_then(|key| tables.conditions.get_mut(&key)) {
                Some((condition, usage))
                    if *usage == Use::Free && condition.context == asked.ctx =>
                {
                    *usage = Use::Taken;
                    condition.clone()
                }
                _ => return Err(INVALID),
            }
        };
        let bodies: Vec<_> = (0..asked.size).map(|_| self.create()).collect();
        bodies.iter().for_each(|body| body.embed(graph));
        Ok(Conditional::new(condition, asked.type_, bodies))
    }

    /// Takes back what [`Self::conditional`] or [`Self::duplicate`] made, when no node came of it.
    fn give_up(&self, kind: &K) {
        match kind.role() {
            Role::Child(graph) if graph.parent().is_none() => {}
            _ => self.forget_embedded(kind),
        }
    }

    /// Whether conditions that were made for a graph, or one in it, have no node.
    pub fn has_free_conditions(&self, graph: &Graph<K>) -> bool {
        let own = self
            .lock()
            .conditions
            .values()
            .any(|(condition, usage)| condition.graph == graph.handle && *usage == Use::Free);
        let embedded: Vec<_> = {
            let contents = graph.lock();
            let nodes = contents.shape.nodes();
            nodes.flat_map(|(_, node)| node.kind.role().embedded().to_vec()).collect()
        };
        own || embedded.iter().any(|inner| self.has_free_conditions(inner))
    }

    /// The result of a graph's instantiation, in the structure that tells it.
    pub fn instantiation_result(
        &self,
        graph: CUgraph,
        outcome: Answer,
    ) -> CUgraphInstantiateResult {
        let Err(code) = outcome else { return CUgraphInstantiateResult::SUCCESS };
        let unused = self.graph(graph).is_ok_and(|graph| self.has_free_conditions(&graph));
        let forbidden = self.graph(graph).is_ok_and(|graph| has_forbidden_body(&graph));
        match code {
            INVALID if unused => CUgraphInstantiateResult::CONDITIONAL_HANDLE_UNUSED,
            INVALID if forbidden => CUgraphInstantiateResult::NODE_OPERATION_NOT_SUPPORTED,
            INVALID => CUgraphInstantiateResult::INVALID_STRUCTURE,
            CUresult::ERROR_NOT_SUPPORTED => CUgraphInstantiateResult::NODE_OPERATION_NOT_SUPPORTED,
            _ => CUgraphInstantiateResult::ERROR,
        }
    }
}

/// Whether a graph has a conditional node with a graph that holds what such graphs may not, at any
/// depth.
fn has_forbidden_body<K: Kind>(graph: &Graph<K>) -> bool {
    let contents = graph.lock();
    contents.shape.nodes().any(|(_, node)| {
        let role = node.kind.role();
        role.embedded().iter().any(|inner| {
            let is_body = matches!(role, Role::Conditional(_));
            is_body && check_body(&inner.lock().shape).is_err() || has_forbidden_body(inner)
        })
    })
}
