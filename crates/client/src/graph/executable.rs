//! Executable graphs: a graph as it was when it was made executable, and what the executor has of it.

use super::kinds::NodeKind;
use super::launching::{Chain, Run};
use super::model::{Graph, has_memory_nodes};
use super::plan::{Pageable, Plan, Step, parts_of, plan};
use super::user_object;
use crate::backend::Backend;
use crate::client::Client;
use crate::context::Context;
use crate::current;
use crate::late::{self, Named};
use crate::session::Result;
use cuda_abi::graph::shape::Shape;
use cuda_abi::types::{CUgraphExec, CUgraphNode, CUresult};
use link::wire::command::{Opcode, REGION_PINNED};
use link::wire::graph::{DescriptionWriter, GraphCreate, GraphEnable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(super) const AUTO_FREE_ON_LAUNCH: u64 = 1;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 0xf;
/// An executable graph whose change failed, and could not be taken back.
pub(super) const NOT_MADE: CUresult = CUresult::ERROR_INVALID_HANDLE;

/// A graph as it was when it was made executable, with the graphs in it. Pairs nodes in updates.
pub(super) struct Snapshot {
    pub(super) shape: Shape<NodeKind>,
    pub(super) children: HashMap<usize, Snapshot>,
}

/// An executable graph: `CUgraphExec`.
pub(crate) struct Executable {
    pub(crate) handle: CUgraphExec,
    pub(crate) flags: u64,
    pub(super) context: Arc<Context>,
    pub(super) backend: &'static Backend,
    /// The executor's number of the context.
    pub(super) id: u32,
    graph: Arc<Graph>,
    objects: HashMap<usize, u32>,
    pub(super) state: Mutex<State>,
    pub(super) chain: Arc<Chain>,
}

/// What launches and updates change.
pub(super) struct State {
    pub(super) source: Snapshot,
    pub(super) steps: Vec<Step>,
    places: HashMap<usize, usize>,
    pub(super) pageable: Vec<Pageable>,
    /// By step.
    bounces: HashMap<usize, Bounce>,
    pub(super) plan: Plan,
    /// The executor's number of each segment's graph.
    pub(super) numbers: Vec<Option<u32>>,
    /// What a launch does; `None` after a change.
    pub(super) run: Option<Run>,
    /// Slot of the last launch's stream.
    pub(super) launched_in: Option<u32>,
}

/// Memory that the executor reaches, in place of a copy's pageable end.
#[derive(Clone, Copy, Debug)]
struct Bounce {
    address: u64,
    size_bytes: u64,
}

impl Snapshot {
    /// Copies a graph's structure; CUDA_ERROR_INVALID_VALUE for a cycle.
    pub(super) fn of(graph: &Graph) -> Result<Self> {
        let shape = graph.lock().shape.clone();
        if shape.topological().is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut children = HashMap::new();
        for (key, node) in shape.nodes() {
            if let NodeKind::Child(inner) = &node.kind {
                children.insert(key, Snapshot::of(inner)?);
            }
        }
        Ok(Self { shape, children })
    }

    /// The embedded graph of a node, at any depth.
    pub(super) fn child(&self, node: usize) -> Option<&Snapshot> {
        let mut inner = self.children.values();
        self.children.get(&node).or_else(|| inner.find_map(|child| child.child(node)))
    }

    /// All nodes' work, embedded graphs' included.
    fn for_each(&self, visit: &mut impl FnMut(&NodeKind) -> Result) -> Result {
        for (_, node) in self.shape.nodes() {
            visit(&node.kind)?;
        }
        self.children.values().try_for_each(|child| child.for_each(visit))
    }
}

/// Appends a graph's nodes, each after its dependencies, embedded graphs in their nodes' places. Returns the places of its sinks.
fn flatten(source: &Snapshot, after: &[usize], steps: &mut Vec<Step>) -> Vec<usize> {
    let order = source.shape.topological().unwrap_or_default();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for key in order {
        let Some(node) = source.shape.get(key) else { continue };
        let dependencies = source.shape.dependencies(key);
        let mut own: Vec<usize> =
            dependencies.filter_map(|edge| places.get(&edge.from).copied()).collect();
        if own.is_empty() {
            own = after.to_vec();
        }
        if let Some(inner) = source.children.get(&key) {
            let ends = flatten(inner, &own, steps);
            own.extend(ends);
        }
        places.insert(key, steps.len());
        steps.push(Step { key, kind: node.kind.clone(), after: own, is_enabled: true });
    }
    source.shape.sinks().iter().filter_map(|sink| places.get(sink).copied()).collect()
}

/// Makes a graph executable in the current context, or the one that its nodes belong to.
pub(crate) fn instantiate(client: &Client, graph: &Arc<Graph>, flags: u64) -> Result<CUgraphExec> {
    if flags & !ALL_FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let source = Snapshot::of(graph)?;
    let context = context_of(client, &source)?;
    let (backend, id) = context.backend()?;
    let mut steps = Vec::new();
    flatten(&source, &[], &mut steps);
    let places = steps.iter().enumerate().map(|(place, step)| (step.key, place)).collect();
    let mut state = State {
        source,
        steps,
        places,
        pageable: Vec::new(),
        bounces: HashMap::new(),
        plan: Plan::default(),
        numbers: Vec::new(),
        run: None,
        launched_in: None,
    };
    graph.begin_executable()?;
    if let Err(error) = state.make(client, backend, id, flags) {
        // A failed session has nothing left.
        let _ = state.clear(backend, id);
        graph.end_executable();
        return Err(error);
    }
    let objects = graph.lock().objects.clone();
    user_object::retain_all(client, &objects);
    let made = client.graphs.executables.insert_with(|token| Executable {
        handle: CUgraphExec(token),
        flags,
        context,
        backend,
        id,
        graph: Arc::clone(graph),
        objects,
        state: Mutex::new(state),
        chain: Arc::default(),
    });
    Ok(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.handle)
}

/// The context of all nodes that need one, else the current one. Nodes of several contexts are absent (801).
fn context_of(client: &Client, source: &Snapshot) -> Result<Arc<Context>> {
    let mut token = None;
    source.for_each(&mut |kind| match (token, kind.context()) {
        (Some(known), Some(other)) if known != other => Err(CUresult::ERROR_NOT_SUPPORTED),
        (_, other) => {
            token = token.or(other);
            Ok(())
        }
    })?;
    match token {
        Some(token) => client.context(token),
        None => current::owner(),
    }
}

impl State {
    /// Plans the steps and makes the executor's graphs, of which there are none.
    pub(super) fn make(
        &mut self,
        client: &Client,
        backend: &Backend,
        id: u32,
        flags: u64,
    ) -> Result {
        for place in 0..self.steps.len() {
            self.steps[place].kind.check_alive(client)?;
            let pageable = pageable_ends(client, &self.steps[place].kind)?;
            self.pageable.push(pageable);
            self.make_bounce(backend, id, place)?;
        }
        self.plan = plan(&self.steps, |place| {
            parts_of(&self.steps[place].kind, self.pageable[place], self.bounce(place))
        });
        for index in 0..self.plan.segments.len() {
            let number = self.make_segment(backend, id, flags, index)?;
            self.numbers.push(number);
        }
        Ok(())
    }

    /// Changes all steps and makes other graphs of the executor's in place of those that it has: launches that are held go on with the old
    /// ones. On failure it goes on doing what it did.
    pub(super) fn make_again(
        &mut self,
        client: &Client,
        executable: &Executable,
        steps: Vec<Step>,
    ) -> Result {
        let Executable { backend, id, flags, .. } = *executable;
        let before = std::mem::replace(&mut self.steps, steps);
        self.clear(backend, id)?;
        let made = self.make(client, backend, id, flags);
        if made.is_err() {
            self.steps = before;
            self.clear(backend, id)?;
            if self.make(client, backend, id, flags).is_err() {
                self.clear(backend, id)?;
            }
        }
        made
    }

    fn make_segment(
        &self,
        backend: &Backend,
        id: u32,
        flags: u64,
        index: usize,
    ) -> Result<Option<u32>> {
        let mut writer = DescriptionWriter::default();
        for &step in &self.plan.segments[index].device {
            if let Some((_, _, encoded)) = &self.plan.parts[step].device {
                writer.add(encoded.opcode, &[&encoded.body]);
            }
        }
        if writer.nodes() == 0 {
            return Ok(None);
        }
        for (before, after) in self.plan.edges(&self.steps, index) {
            writer.depend(before, after);
        }
        let bytes = writer.finish().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let number = backend.graphs.take()?;
        let made = backend.lend(id, &bytes, |address| {
            let body = GraphCreate {
                graph: number,
                flags: flags as u32,
                address,
                size_bytes: bytes.len() as u64,
            };
            backend.session.call(id, Opcode::GraphCreate, &[body.as_bytes()])
        });
        made.inspect_err(|_| backend.graphs.give_back(number))?;
        for &step in &self.plan.segments[index].device {
            if !self.steps[step].is_enabled {
                self.post_enabled(backend, id, number, step)?;
            }
        }
        Ok(Some(number))
    }

    fn post_enabled(&self, backend: &Backend, id: u32, graph: u32, step: usize) -> Result {
        let Some((_, node, _)) = self.plan.parts[step].device else { return Ok(()) };
        let enabled = u32::from(self.steps[step].is_enabled);
        let body = GraphEnable { graph, node, enabled, reserved: 0 };
        backend.session.post(id, Opcode::GraphEnable, &body)
    }

    /// The address of a step's bounce buffer.
    pub(super) fn bounce(&self, place: usize) -> u64 {
        self.bounces.get(&place).map_or(0, |bounce| bounce.address)
    }

    /// Makes a bounce buffer for a step that needs one, as long as its copy.
    pub(super) fn make_bounce(&mut self, backend: &Backend, id: u32, place: usize) -> Result {
        let NodeKind::Memcpy(work) = &self.steps[place].kind else { return Ok(()) };
        let size_bytes = work.size_bytes();
        let is_needed = self.pageable[place].to != self.pageable[place].from;
        let is_there =
            self.bounces.get(&place).is_some_and(|bounce| bounce.size_bytes >= size_bytes);
        if !is_needed || is_there {
            return Ok(());
        }
        let (session, heap) = (&backend.session, &backend.host_heap);
        let address = match heap.allocate_small(session, id, size_bytes) {
            Some(small) => small?,
            None => heap.create_region(session, id, size_bytes, REGION_PINNED)?.address,
        };
        if let Some(old) = self.bounces.insert(place, Bounce { address, size_bytes }) {
            free_bounce(backend, id, old)?;
        }
        Ok(())
    }

    /// Whether [`Self::make`] has made all of it.
    pub(super) fn is_made(&self) -> bool {
        self.plan.parts.len() == self.steps.len() && self.plan.segments.len() == self.numbers.len()
    }

    /// Gives up what the executor has; all of it is to be made again.
    pub(super) fn clear(&mut self, backend: &Backend, id: u32) -> Result {
        self.run = None;
        self.pageable.clear();
        self.plan = Plan::default();
        for graph in self.numbers.drain(..).flatten() {
            late::destroy(backend, id, Named::Graph(graph))?;
        }
        for (_, bounce) in self.bounces.drain() {
            free_bounce(backend, id, bounce)?;
        }
        Ok(())
    }

    /// The place of the step that was made of a node; CUDA_ERROR_INVALID_VALUE if there is none.
    pub(super) fn place(&self, node: usize) -> Result<usize> {
        self.places.get(&node).copied().ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// Launches may still use it.
fn free_bounce(backend: &Backend, id: u32, bounce: Bounce) -> Result {
    const PAGE_BYTES: u64 = 4096;
    backend.session.wait_all(0)?;
    if backend.host_heap.free_small(bounce.address) {
        return Ok(());
    }
    let size_bytes = bounce.size_bytes.next_multiple_of(PAGE_BYTES);
    backend.host_heap.destroy_region(&backend.session, id, bounce.address, size_bytes)
}

/// Which ends of a node's copy only this process reaches.
pub(super) fn pageable_ends(client: &Client, kind: &NodeKind) -> Result<Pageable> {
    let NodeKind::Memcpy(work) = kind else { return Ok(Pageable::default()) };
    let [to, from] = crate::copy::reaches(client, work.to, work.from, work.extent)?;
    Ok(Pageable { to: to.is_private(), from: from.is_private() })
}

impl Executable {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all of the last launch has been posted, before something changes that it uses.
    pub(super) fn settle(&self) -> Result {
        self.chain.wait(&self.backend.session)
    }

    /// Whether a step is done in launches.
    pub(crate) fn is_enabled(&self, node: CUgraphNode) -> Result<bool> {
        let state = self.lock();
        Ok(state.steps[state.place(node.0)?].is_enabled)
    }

    /// Includes a step in later launches, or leaves it out: kernels, copies and fills only.
    pub(crate) fn set_enabled(
        &self,
        client: &Client,
        node: CUgraphNode,
        is_enabled: bool,
    ) -> Result {
        self.settle()?;
        let mut state = self.lock();
        let place = state.place(node.0)?;
        let can_be = |kind: &NodeKind| {
            matches!(kind, NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_))
        };
        if !can_be(&state.steps[place].kind) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if state.steps[place].is_enabled == is_enabled {
            return Ok(());
        }
        if !state.is_made() {
            return Err(NOT_MADE);
        }
        if self.backend.session.may_hold() {
            let mut steps = state.steps.clone();
            steps[place].is_enabled = is_enabled;
            return state.make_again(client, self, steps);
        }
        state.steps[place].is_enabled = is_enabled;
        state.run = None;
        let segment = state.plan.parts[place].device.as_ref().map(|(segment, ..)| *segment);
        match segment.and_then(|segment| state.numbers[segment]) {
            Some(number) => state.post_enabled(self.backend, self.id, number, place),
            None => Ok(()),
        }
    }

    /// Ends it; what was launched goes on.
    pub(crate) fn destroy(&self, client: &Client) -> Result {
        client.graphs.executables.remove(self.handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let waited = self.settle();
        let cleared = waited.and_then(|()| self.lock().clear(self.backend, self.id));
        let (had_memory, nodes) = {
            let mut state = self.lock();
            let shape = std::mem::take(&mut state.source.shape);
            state.source.children.clear();
            (has_memory_nodes(&shape), (std::mem::take(&mut state.steps), shape))
        };
        drop(nodes);
        self.graph.end_executable();
        for (&object, &count) in &self.objects {
            user_object::release(client, object, count);
        }
        if had_memory {
            client.graphs.memory.collect(client);
        }
        cleared
    }
}

/// Destroys the executable graphs of a context that is ending; memory of graphs goes with the context's other memory.
pub(crate) fn end_context(client: &Client, context: &Context) {
    let of_context = |executable: &Executable| executable.context.token == context.token;
    for executable in client.graphs.executables.select(of_context) {
        // A failed session has no graphs left.
        let _ = executable.destroy(client);
    }
    client.graphs.memory.forget_context(context);
}
