//! Executable graphs: a graph's nodes in order, spread over lanes, launched into streams any number of times.
//!
//! A lane is a stream of the engine. The first is the stream of the launch, the others belong to the executable graph; a node
//! continues the lane of one of its dependencies where it can, and waits for the others by markers. A chain therefore needs no marker at all.
//! Launches of one executable graph follow one another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::types::{CUgraphExec, CUgraphNode, CUresult};

use super::kinds::NodeKind;
use super::memory::{GraphMemory, collect, note_high_water};
use super::model::{Graph, GraphState};
use super::user_object;
use crate::api::Answer;
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
/// Most lanes; more branches than this share them.
const MOST_LANES: usize = 64;

/// A graph as it was when it was made executable, with the graphs in it. Pairs nodes in updates.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) state: GraphState,
    pub(crate) children: HashMap<usize, Snapshot>,
}

/// One node of an executable graph.
#[derive(Debug)]
struct Step {
    /// Handle of the node that it was made of.
    key: usize,
    kind: NodeKind,
    /// Places of what it runs after.
    after: Vec<usize>,
    lane: usize,
    /// Whether a step of another lane waits for it.
    is_awaited: bool,
    is_enabled: bool,
}

/// An executable graph: `CUgraphExec`.
#[derive(Debug)]
pub(crate) struct Executable {
    pub(crate) handle: CUgraphExec,
    pub(crate) flags: u64,
    graph: Arc<Graph>,
    state: Mutex<State>,
}

/// What launches and updates change.
#[derive(Debug)]
struct State {
    source: Snapshot,
    steps: Vec<Step>,
    places: HashMap<usize, usize>,
    lane_count: usize,
    /// Engine streams beyond the first lane, by context.
    lanes: HashMap<u64, Vec<u64>>,
    /// The last launch's end and the stream that it was in.
    last: Option<(u64, Arc<Marker>)>,
}

impl Snapshot {
    /// Copies a graph's structure; CUDA_ERROR_INVALID_VALUE for a cycle.
    pub(crate) fn of(graph: &Graph) -> Answer<Self> {
        let state = {
            let state = graph.lock();
            GraphState {
                nodes: state.nodes.clone(),
                edges: state.edges.clone(),
                objects: state.objects.clone(),
            }
        };
        if state.topological().is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut children = HashMap::new();
        for (&handle, node) in &state.nodes {
            if let NodeKind::Child(inner) = &node.kind {
                children.insert(handle, Snapshot::of(inner)?);
            }
        }
        Ok(Snapshot { state, children })
    }

    fn child(&self, node: usize) -> Option<&Snapshot> {
        let mut inner = self.children.values();
        self.children.get(&node).or_else(|| inner.find_map(|child| child.child(node)))
    }
}

impl Executable {
    /// Makes a graph executable and registers it.
    pub(crate) fn new(driver: &Driver, graph: &Arc<Graph>, flags: u64) -> Answer<Arc<Self>> {
        let source = Snapshot::of(graph)?;
        graph.begin_executable()?;
        let mut steps = Vec::new();
        flatten(&source, &[], &mut steps);
        let lane_count = assign_lanes(&mut steps);
        let places = steps.iter().enumerate().map(|(place, step)| (step.key, place)).collect();
        user_object::retain_all(driver, &source.state.objects);
        let state = State { source, steps, places, lane_count, lanes: HashMap::new(), last: None };
        let executable = Arc::new(Executable {
            handle: CUgraphExec(fresh_handle()),
            flags,
            graph: graph.clone(),
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
        let objects = {
            let mut state = self.lock();
            for stream in state.lanes.drain().flat_map(|(_, streams)| streams) {
                driver.engine.destroy_stream(stream);
            }
            state.steps.clear();
            std::mem::take(&mut state.source.state)
        };
        for (object, count) in objects.objects {
            user_object::release(driver, object, count);
        }
        drop(objects.nodes);
        self.graph.end_executable();
        drop(self);
        collect(driver);
    }

    /// Launches it into a stream.
    pub(crate) fn launch(&self, driver: &Driver, stream: &Stream) -> Answer {
        let mut state = self.lock();
        let mut plan = Vec::new();
        if let Some((_, marker)) =
            state.last.as_ref().filter(|(id, marker)| *id != stream.id && !marker.is_resolved())
        {
            plan.push((stream.id, Op::Wait(marker.clone())));
        }
        let memory = self.free_leftovers(&state, stream, &mut plan)?;
        let lanes = state.lanes(driver, stream)?;
        self.plan(driver, &state, stream, &lanes, &mut plan)?;
        let done = Arc::new(Marker::default());
        plan.push((stream.id, Op::Record(done.clone())));
        driver.engine.enqueue_plan(plan)?;
        state.last = Some((stream.id, done));
        for (memory, is_live) in memory {
            memory.set_live(is_live);
            note_high_water(driver, memory.device);
        }
        Ok(())
    }

    /// Which memory the launch leaves allocated or freed. What an earlier launch left is freed first if the flags say so, else the launch is refused.
    fn free_leftovers(
        &self,
        state: &State,
        stream: &Stream,
        plan: &mut Vec<(u64, Op)>,
    ) -> Answer<Vec<(Arc<GraphMemory>, bool)>> {
        let mut outcome: Vec<(Arc<GraphMemory>, bool)> = Vec::new();
        for step in &state.steps {
            let (memory, is_live) = match &step.kind {
                NodeKind::MemAlloc(allocation) => (&allocation.memory, true),
                NodeKind::MemFree(free) => (&free.memory, false),
                _ => continue,
            };
            let place = outcome.iter().position(|(other, _)| Arc::ptr_eq(other, memory));
            let was_live = place.map_or_else(|| memory.is_live(), |place| outcome[place].1);
            if was_live && is_live {
                if self.flags & AUTO_FREE_ON_LAUNCH == 0 {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                plan.push((stream.id, memory.unmap_op()));
            }
            if !was_live && !is_live {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            match place {
                Some(place) => outcome[place].1 = is_live,
                None => outcome.push((memory.clone(), is_live)),
            }
        }
        Ok(outcome)
    }

    fn plan(
        &self,
        driver: &Driver,
        state: &State,
        stream: &Stream,
        lanes: &[u64],
        plan: &mut Vec<(u64, Op)>,
    ) -> Answer {
        let start = Arc::new(Marker::default());
        if lanes.len() > 1 {
            plan.push((lanes[0], Op::Record(start.clone())));
            plan.extend(lanes[1..].iter().map(|&lane| (lane, Op::Wait(start.clone()))));
        }
        let mut ends: Vec<Option<Arc<Marker>>> = Vec::with_capacity(state.steps.len());
        for step in &state.steps {
            let lane = lanes[step.lane];
            let others = step.after.iter().filter(|&&place| state.steps[place].lane != step.lane);
            plan.extend(
                others.filter_map(|&place| ends[place].clone()).map(|end| (lane, Op::Wait(end))),
            );
            if step.is_enabled {
                let own = step.kind.own_priority().filter(|_| self.flags & USE_NODE_PRIORITY != 0);
                let ops = step.kind.ops(driver, own.unwrap_or(stream.priority()))?;
                plan.extend(ops.into_iter().map(|op| (lane, op)));
            }
            let end = step.is_awaited.then(Arc::<Marker>::default);
            plan.extend(end.iter().map(|end| (lane, Op::Record(end.clone()))));
            ends.push(end);
        }
        for &lane in lanes.iter().skip(1) {
            let end = Arc::new(Marker::default());
            plan.push((lane, Op::Record(end.clone())));
            plan.push((lanes[0], Op::Wait(end)));
        }
        Ok(())
    }

    /// Whether a step is done in launches.
    pub(crate) fn is_enabled(&self, node: CUgraphNode) -> Answer<bool> {
        let state = self.lock();
        let place = state.places.get(&node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(state.steps[*place].is_enabled)
    }

    /// Includes a step in later launches, or leaves it out: kernels, copies and fills only.
    pub(crate) fn set_enabled(&self, node: CUgraphNode, is_enabled: bool) -> Answer {
        let mut state = self.lock();
        let place = *state.places.get(&node.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let step = &mut state.steps[place];
        if !matches!(step.kind, NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_)) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        step.is_enabled = is_enabled;
        Ok(())
    }

    /// Gives steps the parameters that `decide` chooses, by the nodes that they were made of; none if it refuses.
    pub(crate) fn change<E>(
        &self,
        decide: impl FnOnce(&View<'_>) -> Result<Vec<(usize, NodeKind)>, E>,
    ) -> Result<(), E> {
        let mut state = self.lock();
        for (key, kind) in decide(&View(&state))? {
            if let Some(place) = state.places.get(&key).copied() {
                state.steps[place].kind = kind;
            }
        }
        Ok(())
    }
}

/// What deciding about a change can look at.
pub(crate) struct View<'a>(&'a State);

impl View<'_> {
    /// The graph that it was made of.
    pub(crate) fn source(&self) -> &Snapshot {
        &self.0.source
    }

    /// What the step does that was made of a node; of an embedded graph's node, nothing.
    pub(crate) fn kind(&self, node: CUgraphNode) -> Option<&NodeKind> {
        let place = self.0.places.get(&node.0)?;
        Some(&self.0.steps[*place].kind)
    }

    /// The embedded graph of a node, at any depth.
    pub(crate) fn child(&self, node: CUgraphNode) -> Option<&Snapshot> {
        self.0.source.child(node.0)
    }
}

impl State {
    /// Engine streams of all lanes for a launch into `stream`.
    fn lanes(&mut self, driver: &Driver, stream: &Stream) -> Answer<Vec<u64>> {
        let own = self.lanes.entry(stream.context_id).or_default();
        while own.len() + 1 < self.lane_count {
            own.push(driver.engine.create_stream(stream.context_id, StreamKind::NonBlocking)?);
        }
        Ok(std::iter::once(stream.id).chain(own.iter().copied()).collect())
    }
}

/// Appends a graph's nodes, each after its dependencies, embedded graphs in their nodes' places. Returns the places of its sinks.
fn flatten(source: &Snapshot, after: &[usize], steps: &mut Vec<Step>) -> Vec<usize> {
    let order = source.state.topological().unwrap_or_default();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for node in order {
        let mut own: Vec<usize> = source
            .state
            .dependencies(node)
            .filter_map(|edge| places.get(&edge.from).copied())
            .collect();
        if own.is_empty() {
            own = after.to_vec();
        }
        let mut kind = match source.state.nodes.get(&node) {
            Some(found) => found.kind.clone(),
            None => continue,
        };
        if let Some(inner) = source.children.get(&node) {
            let ends = flatten(inner, &own, steps);
            own.extend(ends);
            kind = NodeKind::Empty;
        }
        places.insert(node, steps.len());
        steps.push(Step {
            key: node,
            kind,
            after: own,
            lane: 0,
            is_awaited: false,
            is_enabled: true,
        });
    }
    source.state.sinks().iter().filter_map(|sink| places.get(sink).copied()).collect()
}

/// Spreads steps over lanes and returns how many lanes that takes.
fn assign_lanes(steps: &mut [Step]) -> usize {
    // The last step of each lane.
    let mut tails: Vec<usize> = Vec::new();
    for place in 0..steps.len() {
        let continued = tails.iter().position(|tail| steps[place].after.contains(tail));
        let lane = match continued {
            Some(lane) => lane,
            None if tails.len() < MOST_LANES => {
                tails.push(place);
                tails.len() - 1
            }
            None => place % MOST_LANES,
        };
        tails[lane] = place;
        steps[place].lane = lane;
        for index in 0..steps[place].after.len() {
            let before = steps[place].after[index];
            if steps[before].lane != lane {
                steps[before].is_awaited = true;
            }
        }
    }
    tails.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(after: &[&[usize]]) -> (Vec<usize>, usize) {
        let step = |after: &&[usize]| Step {
            key: 0,
            kind: NodeKind::Empty,
            after: after.to_vec(),
            lane: 0,
            is_awaited: false,
            is_enabled: true,
        };
        let mut steps: Vec<Step> = after.iter().map(step).collect();
        let count = assign_lanes(&mut steps);
        (steps.iter().map(|step| step.lane).collect(), count)
    }

    #[test]
    fn a_chain_is_one_lane_and_a_branch_another() {
        assert_eq!(lanes(&[&[], &[0], &[1]]), (vec![0, 0, 0], 1));
        assert_eq!(lanes(&[&[], &[0], &[0], &[1, 2]]), (vec![0, 0, 1, 0], 2));
        assert_eq!(lanes(&[]), (vec![], 1));
    }

    #[test]
    fn more_branches_than_lanes_share_them() {
        let after: Vec<&[usize]> = vec![&[]; 3 * MOST_LANES];
        let (lanes, count) = lanes(&after);
        assert_eq!(count, MOST_LANES);
        assert!(lanes.iter().all(|lane| *lane < MOST_LANES));
    }
}
