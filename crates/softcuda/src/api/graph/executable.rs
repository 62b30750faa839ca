//! Executable graphs: a graph's nodes in order, spread over lanes, launched into streams any number
//! of times.
//!
//! What a launch does with its nodes is [`super::section`]'s affair. Launches of one executable
//! graph follow one another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::graph::model::{Instance, Kind, Role};
use cuda_abi::graph::reuse::{Effect, Leftovers, MemoryUse};
use cuda_abi::graph::snapshot::{Changes, Snapshot};
use cuda_abi::types::{CUgraphExec, CUgraphNode, CUresult};

use super::Graph;
use super::kinds::NodeKind;
use super::memory::{collect, note_high_water};
use super::section::{Defaults, Run, Section, Step};
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::objects::Stream;
use crate::api::table::fresh_handle;
use crate::device::engine::StreamKind;
use crate::device::marker::Marker;
use crate::device::ops::Op;

/// Frees what an earlier launch allocated and nobody freed.
const AUTO_FREE_ON_LAUNCH: u64 = 1;
/// Nodes run at their own priority instead of the stream's.
const USE_NODE_PRIORITY: u64 = 8;

/// An executable graph: `CUgraphExec`.
#[derive(Debug)]
pub(crate) struct Executable {
    pub(crate) handle: CUgraphExec,
    pub(crate) flags: u64,
    /// As its graph counts it.
    _instance: Instance<NodeKind>,
    /// User objects that it holds.
    objects: Vec<(usize, u32)>,
    state: Mutex<State>,
}

/// What launches and updates change.
#[derive(Debug)]
struct State {
    source: Snapshot<NodeKind>,
    /// Shared with launches that have not got to its end.
    root: Arc<Section>,
    places: HashMap<usize, usize>,
    lane_count: usize,
    /// Engine streams beyond the first lane, by context.
    lanes: HashMap<u64, Vec<u64>>,
    /// The last launch's end and the stream that it was in.
    last: Option<(u64, Arc<Marker>)>,
}

impl Executable {
    /// Makes a graph executable and registers it.
    pub(crate) fn new(driver: &Driver, graph: &Arc<Graph>, flags: u64) -> Answer<Arc<Self>> {
        let source = Snapshot::of(graph)?;
        if driver.graphs.has_free_conditions(graph) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let instance = graph.begin_executable()?;
        let (root, lane_count) = Section::root(&source);
        let steps = root.steps.iter().enumerate();
        let places = steps.map(|(place, step)| (step.key, place)).collect();
        let state = State {
            source,
            root: Arc::new(root),
            places,
            lane_count,
            lanes: HashMap::new(),
            last: None,
        };
        let executable = Arc::new(Executable {
            handle: CUgraphExec(fresh_handle()),
            flags,
            objects: driver.graphs.retain_all(graph),
            _instance: instance,
            state: Mutex::new(state),
        });
        driver.executables.insert(executable.handle.0, executable.clone());
        Ok(executable)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it; what was launched goes on.
    pub(crate) fn forget(self: Arc<Self>, driver: &Driver) {
        let nodes = {
            let mut state = self.lock();
            for stream in state.lanes.drain().flat_map(|(_, streams)| streams) {
                driver.engine.destroy_stream(stream);
            }
            (std::mem::take(&mut state.root), std::mem::take(&mut state.source.shape))
        };
        driver.graphs.release_all(&self.objects);
        drop(nodes);
        drop(self);
        collect(driver);
    }

    /// Launches it into a stream.
    pub(crate) fn launch(&self, driver: &'static Driver, stream: &Stream) -> Answer {
        let mut state = self.lock();
        let mut plan = Vec::new();
        if let Some((_, marker)) =
            state.last.as_ref().filter(|(id, marker)| *id != stream.id && !marker.is_resolved())
        {
            plan.push((stream.id, Op::Wait(marker.clone())));
        }
        let leftovers = match self.flags & AUTO_FREE_ON_LAUNCH {
            0 => Leftovers::Refused,
            _ => Leftovers::Freed,
        };
        let (effect, freed_first) = driver.graph_memory.launch(state.memory_uses(), leftovers)?;
        plan.extend(freed_first.iter().map(|memory| (stream.id, memory.unmap_op())));
        let values = state.root.defaults();
        if !values.is_empty() {
            plan.push((stream.id, Op::Task(Box::new(Defaults { driver, values }))));
        }
        let run = Arc::new(Run {
            driver,
            lanes: state.lanes(driver, stream)?,
            priority: stream.priority(),
            uses_node_priority: self.flags & USE_NODE_PRIORITY != 0,
        });
        state.root.plan(&run, &mut plan)?;
        let done = Arc::new(Marker::default());
        plan.push((stream.id, Op::Record(done.clone())));
        driver.engine.enqueue_plan(plan)?;
        state.last = Some((stream.id, done));
        if effect != Effect::default() {
            driver.graph_memory.note(&effect);
            (0..driver.devices.len()).for_each(|device| note_high_water(driver, device as u32));
        }
        Ok(())
    }

    /// Whether a step is done in launches.
    pub(crate) fn is_enabled(&self, node: CUgraphNode) -> Answer<bool> {
        let state = self.lock();
        let step = state.step(node.0).filter(|step| can_be_disabled(&step.kind));
        Ok(step.ok_or(CUresult::ERROR_INVALID_VALUE)?.is_enabled)
    }

    /// Includes a step in later launches, or leaves it out: kernels, copies and fills only.
    pub(crate) fn set_enabled(&self, node: CUgraphNode, is_enabled: bool) -> Answer {
        let mut state = self.lock();
        let step = state.step_mut(node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !can_be_disabled(&step.kind) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        step.is_enabled = is_enabled;
        Ok(())
    }

    /// Gives steps the parameters that `decide` chooses, by the nodes that they were made of; none
    /// if it refuses.
    pub(crate) fn change<E>(
        &self,
        decide: impl FnOnce(&View<'_>) -> Result<Changes<NodeKind>, E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        for (key, kind) in decide(&View(&state))? {
            if let Some(step) = state.step_mut(key) {
                step.kind = kind;
            }
        }
        Ok(())
    }
}

/// What deciding about a change can look at.
pub(crate) struct View<'a>(&'a State);

impl View<'_> {
    /// The graph that it was made of.
    pub(crate) fn source(&self) -> &Snapshot<NodeKind> {
        &self.0.source
    }

    /// What the step does that was made of a node.
    pub(crate) fn kind(&self, node: CUgraphNode) -> Option<NodeKind> {
        self.0.step(node.0).map(|step| step.kind.clone())
    }
}

impl State {
    /// What steps do to memory of graphs, in order.
    fn memory_uses(&self) -> Vec<MemoryUse> {
        let uses = self.root.steps.iter().filter_map(|step| match step.kind.role() {
            Role::Memory(used) => Some(used),
            _ => None,
        });
        uses.collect()
    }

    fn step(&self, key: usize) -> Option<&Step> {
        match self.places.get(&key) {
            Some(&place) => self.root.steps.get(place),
            None => self.root.find_inside(key),
        }
    }

    fn step_mut(&mut self, key: usize) -> Option<&mut Step> {
        match self.places.get(&key) {
            Some(&place) => Arc::make_mut(&mut self.root).steps.get_mut(place),
            None => Arc::make_mut(&mut self.root).find_inside_mut(key),
        }
    }

    /// Engine streams of all lanes for a launch into `stream`.
    fn lanes(&mut self, driver: &Driver, stream: &Stream) -> Answer<Vec<u64>> {
        let own = self.lanes.entry(stream.context_id).or_default();
        while own.len() + 1 < self.lane_count {
            own.push(driver.engine.create_stream(stream.context_id, StreamKind::NonBlocking)?);
        }
        Ok(std::iter::once(stream.id).chain(own.iter().copied()).collect())
    }
}

/// Kernels, copies and fills can be left out of launches.
fn can_be_disabled(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_))
}
