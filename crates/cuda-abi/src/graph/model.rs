//! A graph: nodes, edges, user objects, and the graphs that its nodes embed.

use super::Answer;
use super::capture::CapturedGraph;
use super::conditional::Conditional;
use super::dot::Label;
use super::reuse::MemoryUse;
use super::shape::{EdgeData, Shape};
use super::user_object::UserObject;
use crate::types::{CUgraph, CUgraphNode, CUgraphNodeType, CUresult, CUstreamCaptureMode};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What a node does.
pub trait Kind: Clone + Sized {
    /// The node's type in the C API.
    fn type_code(&self) -> CUgraphNodeType;

    /// What graphs have to know of it.
    fn role(&self) -> Role<'_, Self>;

    /// A node that embeds a graph.
    fn child(graph: Arc<Graph<Self>>) -> Self;

    /// What is printed of it.
    fn label(&self) -> Label;

    /// See [`CapturedGraph::thread_mode`]: threads belong to the driver library, which knows the
    /// quickest way to what it keeps for them.
    fn thread_mode() -> CUstreamCaptureMode;
}

/// What graphs have to know of a node.
#[derive(Debug)]
pub enum Role<'a, K> {
    /// It just does something.
    Plain,
    /// It allocates or frees memory.
    Memory(MemoryUse),
    /// It does an embedded graph, in its place.
    Child(&'a Arc<Graph<K>>),
    /// It does one of its graphs, or none.
    Conditional(&'a Arc<Conditional<K>>),
}

impl<'a, K> Role<'a, K> {
    /// The graphs in the node.
    pub fn embedded(&self) -> &'a [Arc<Graph<K>>] {
        match self {
            Self::Plain | Self::Memory(_) => &[],
            Self::Child(graph) => std::slice::from_ref(graph),
            Self::Conditional(conditional) => conditional.bodies(),
        }
    }
}

/// A graph: `CUgraph`. Embedded graphs are graphs, too.
#[derive(Debug)]
pub struct Graph<K> {
    /// Its handle.
    pub handle: CUgraph,
    nodes: Arc<Nodes<K>>,
    contents: Mutex<Contents<K>>,
    /// Handle of the graph whose node holds it, with which it goes; 0: none.
    parent: AtomicUsize,
    /// Executable graphs made of it that still exist.
    executables: AtomicUsize,
}

/// What a graph consists of; behind its lock.
#[derive(Debug)]
pub struct Contents<K> {
    /// Nodes and edges.
    pub shape: Shape<K>,
    /// User objects that it holds, by handle, and how many references.
    pub objects: HashMap<usize, (Arc<UserObject>, u32)>,
}

impl<K> Default for Contents<K> {
    fn default() -> Self {
        Self { shape: Shape::default(), objects: HashMap::new() }
    }
}

/// Whether some node of a graph may be there only once, so that the graph cannot be cloned or
/// embedded, and has one executable graph.
pub fn is_single<K: Kind>(shape: &Shape<K>) -> bool {
    shape
        .nodes()
        .any(|(_, node)| matches!(node.kind.role(), Role::Memory(_) | Role::Conditional(_)))
}

/// Whether nodes of a graph allocate or free memory: no node and no edge can be taken out of it.
pub fn has_memory_nodes<K: Kind>(shape: &Shape<K>) -> bool {
    shape.nodes().any(|(_, node)| matches!(node.kind.role(), Role::Memory(_)))
}

/// Handles of nodes and the graphs that the nodes are in. A later node has a greater handle.
#[derive(Debug)]
pub struct Nodes<K> {
    name: fn() -> usize,
    graphs: RwLock<HashMap<usize, Arc<Graph<K>>>>,
}

impl<K> Nodes<K> {
    /// No nodes yet; `name` makes handles, each greater than the one before.
    pub(super) fn new(name: fn() -> usize) -> Self {
        Self { name, graphs: RwLock::default() }
    }

    fn fresh(&self) -> usize {
        (self.name)()
    }

    fn insert(&self, nodes: impl IntoIterator<Item = usize>, graph: &Arc<Graph<K>>) {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        graphs.extend(nodes.into_iter().map(|node| (node, Arc::clone(graph))));
    }

    fn remove(&self, nodes: impl IntoIterator<Item = usize>) {
        let mut graphs = self.graphs.write().unwrap_or_else(PoisonError::into_inner);
        for node in nodes {
            graphs.remove(&node);
        }
    }

    /// The graph that a node is in.
    pub(super) fn graph_of(&self, node: usize) -> Option<Arc<Graph<K>>> {
        self.graphs.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }
}

impl<K> Graph<K> {
    /// An empty graph.
    pub(super) fn new(handle: CUgraph, nodes: &Arc<Nodes<K>>) -> Arc<Self> {
        Arc::new(Self {
            handle,
            nodes: Arc::clone(nodes),
            contents: Mutex::default(),
            parent: AtomicUsize::new(0),
            executables: AtomicUsize::new(0),
        })
    }

    /// What it consists of.
    pub fn lock(&self) -> MutexGuard<'_, Contents<K>> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The graph whose node holds it, if one does.
    pub fn parent(&self) -> Option<CUgraph> {
        // Acquire: pairs with the release in `embed`.
        let handle = self.parent.load(Ordering::Acquire);
        (handle != 0).then_some(CUgraph(handle))
    }

    /// A node of a graph takes it over.
    pub(super) fn embed(&self, parent: CUgraph) {
        // Release: pairs with the acquire in `parent`.
        self.parent.store(parent.0, Ordering::Release);
    }

    fn end_executable(&self) {
        // AcqRel: partner of `begin_executable`.
        self.executables.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<K: Kind> Graph<K> {
    /// Adds a node after others.
    ///
    /// # Errors
    /// As for [`Shape::add`].
    pub fn add(self: &Arc<Self>, kind: K, after: &[(usize, EdgeData)]) -> Answer<CUgraphNode> {
        let handle = self.nodes.fresh();
        let embedded = kind.role().embedded().to_vec();
        self.lock().shape.add(handle, kind, None, after)?;
        embedded.iter().for_each(|graph| graph.embed(self.handle));
        self.nodes.insert([handle], self);
        Ok(CUgraphNode(handle))
    }

    /// What a node does.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node that is not there.
    pub fn kind(&self, node: CUgraphNode) -> Answer<K> {
        let contents = self.lock();
        let found = contents.shape.get(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(found.kind.clone())
    }

    /// Gives a node other parameters.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node that is not there and one of another type.
    pub fn set_kind(&self, node: CUgraphNode, kind: K) -> Answer {
        let mut contents = self.lock();
        let found = contents.shape.get_mut(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if found.kind.type_code() != kind.type_code() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        found.kind = kind;
        Ok(())
    }

    /// Nodes and edges again for another graph, each node changed by `change`, under handles of
    /// their own; user objects are retained.
    pub(super) fn copy_into(
        &self,
        copy: &Arc<Self>,
        change: impl FnMut(&K) -> Answer<K>,
    ) -> Answer {
        let contents = self.lock();
        if is_single(&contents.shape) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let shape = contents.shape.renamed(|| self.nodes.fresh(), change)?;
        self.nodes.insert(shape.nodes().map(|(key, _)| key), copy);
        let objects = contents.objects.clone();
        objects.values().for_each(|(object, count)| object.retain(*count));
        *copy.lock() = Contents { shape, objects };
        Ok(())
    }

    /// Takes a node and its edges out.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if it is not there, CUDA_ERROR_NOT_SUPPORTED where nodes allocate
    /// or free memory.
    pub(super) fn take(&self, node: usize) -> Answer<K> {
        let mut contents = self.lock();
        if has_memory_nodes(&contents.shape) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let removed = contents.shape.remove(node).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        drop(contents);
        self.nodes.remove([node]);
        Ok(removed.kind)
    }

    /// Takes everything out.
    pub(super) fn take_all(&self) -> Contents<K> {
        let contents = std::mem::take(&mut *self.lock());
        self.nodes.remove(contents.shape.nodes().map(|(key, _)| key));
        contents
    }

    /// Counts an executable graph of this one, until the result is dropped.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for a second one where nodes may be there only once.
    pub fn begin_executable(self: &Arc<Self>) -> Answer<Instance<K>> {
        let is_single = is_single(&self.lock().shape);
        // AcqRel: partner of `end_executable`; only the count matters.
        let before = self.executables.fetch_add(1, Ordering::AcqRel);
        let instance = Instance(Arc::clone(self));
        match is_single && before > 0 {
            true => Err(CUresult::ERROR_NOT_SUPPORTED),
            false => Ok(instance),
        }
    }
}

/// An executable graph, as its graph counts it.
#[derive(Debug)]
pub struct Instance<K>(Arc<Graph<K>>);

impl<K> Drop for Instance<K> {
    fn drop(&mut self) {
        self.0.end_executable();
    }
}

impl<K: Kind> CapturedGraph for Graph<K> {
    type Work = K;

    fn add_captured(self: &Arc<Self>, work: K, after: &[(usize, EdgeData)]) -> Answer<usize> {
        self.add(work, after).map(|node| node.0)
    }

    fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        self.lock().shape.ancestors(of)
    }

    fn has_all(&self, nodes: &[(usize, EdgeData)]) -> bool {
        let contents = self.lock();
        nodes.iter().all(|(node, _)| contents.shape.contains(*node))
    }

    fn thread_mode() -> CUstreamCaptureMode {
        K::thread_mode()
    }
}
