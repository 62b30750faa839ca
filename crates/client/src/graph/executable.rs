//! Executable graphs: a graph as it was when it was made executable, and what the executor has of
//! it.

use super::bodies::Bodies;
use super::encoding::Encoded;
use super::kinds::NodeKind;
use super::plan::{HostAction, Pageable, Plan, Step, parts_of};
use super::run::{Chain, Run};
use crate::context::Context;
use crate::context::backend::Backend;
use crate::memory::bounce::Bounce;
use crate::result::Result;
use crate::stream::late;
use crate::stream::late::Named;
use cuda_abi::graph::model::Instance;
use cuda_abi::graph::snapshot::Snapshot;
use cuda_abi::types::{CUgraphExec, CUgraphNode, CUresult};
use link::wire::command::Opcode;
use link::wire::graph::{DescriptionWriter, GraphCreate, GraphEnable};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(super) const AUTO_FREE_ON_LAUNCH: u64 = 1;
/// An executable graph whose change failed, and could not be taken back.
pub(super) const NOT_MADE: CUresult = CUresult::ERROR_INVALID_HANDLE;

/// An executable graph: `CUgraphExec`.
pub(crate) struct Executable {
    pub(crate) handle: CUgraphExec,
    pub(crate) flags: u64,
    pub(super) context: Arc<Context>,
    pub(super) backend: &'static Backend,
    /// The executor's number of the context.
    pub(super) id: u32,
    /// User objects that it holds.
    pub(super) objects: Vec<(usize, u32)>,
    pub(super) state: Mutex<State>,
    pub(super) chain: Arc<Chain>,
}

/// What launches and updates change.
pub(super) struct State {
    /// As its graph counts it; none once it was destroyed.
    pub(super) instance: Option<Instance<NodeKind>>,
    pub(super) source: Snapshot<NodeKind>,
    pub(super) steps: Vec<Step>,
    /// Graphs of conditional nodes.
    pub(super) bodies: Bodies,
    pub(super) places: HashMap<usize, usize>,
    pub(super) pageable: Vec<Pageable>,
    /// By step.
    pub(super) bounces: HashMap<usize, Bounce>,
    pub(super) plan: Plan,
    /// The executor's number of each segment's graph.
    pub(super) numbers: Vec<Option<u32>>,
    /// What a launch does; `None` after a change.
    pub(super) run: Option<Run>,
    /// Slot of the last launch's stream.
    pub(super) launched_in: Option<u32>,
}

impl State {
    /// Makes the executor's graph of a segment, if that has any.
    pub(super) fn make_segment(
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
        let mut bytes = writer.finish().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let (mut home, mut bodies) = (0, 0);
        if self.conditional_segment() == Some(index) {
            home = self.home();
            bodies = self.bodies.count();
            bytes.extend(self.bodies.describe().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?);
        }
        let number = backend.graphs.take()?;
        let made = backend.lend(id, &bytes, |address| {
            let body = GraphCreate {
                graph: number,
                flags: flags as u32,
                address,
                size_bytes: bytes.len() as u64,
                home,
                bodies,
            };
            backend.session.call(id, Opcode::GraphCreate, &[body.as_bytes()])
        });
        made.inspect_err(|_| backend.graphs.give_back(number))?;
        Ok(Some(number))
    }

    /// Tells the executor what a new segment's launches leave out.
    pub(super) fn leave_out(&self, backend: &Backend, id: u32, index: usize) -> Result {
        let own = self.plan.segments[index].device.iter().map(|&step| &self.steps[step]);
        let inside = self.bodies.steps().filter(|_| self.conditional_segment() == Some(index));
        let mut disabled = own.chain(inside).filter(|step| !step.is_enabled);
        disabled.try_for_each(|step| self.post_enabled(backend, id, step.key))
    }

    /// What a step does, part by part.
    pub(super) fn parts(
        &self,
        place: usize,
    ) -> (Option<HostAction>, Option<Encoded>, Option<HostAction>) {
        let step = &self.steps[place];
        match &step.kind {
            NodeKind::Conditional(_) => (None, Some(self.bodies.encode(step)), None),
            kind => parts_of(kind, self.pageable[place], self.bounce(place)),
        }
    }

    /// Segments with conditional nodes.
    pub(super) fn conditional_segments(&self) -> impl Iterator<Item = usize> + '_ {
        let segments = self.plan.segments.iter().enumerate();
        let is_conditional =
            |&step: &usize| matches!(self.steps[step].kind, NodeKind::Conditional(_));
        segments
            .filter(move |(_, segment)| segment.device.iter().any(is_conditional))
            .map(|(index, _)| index)
    }

    /// The one with conditional nodes.
    pub(super) fn conditional_segment(&self) -> Option<usize> {
        self.conditional_segments().next()
    }

    /// The executor's graph that the conditions were made for.
    fn home(&self) -> u32 {
        let mut steps = self.steps.iter().chain(self.bodies.steps());
        let home = steps.find_map(|step| match &step.kind {
            NodeKind::Conditional(conditional) => Some(conditional.condition.value.home()),
            _ => None,
        });
        home.unwrap_or(0)
    }

    /// A step, here or in a conditional node's graph.
    pub(super) fn step(&self, key: usize) -> Result<&Step> {
        match self.places.get(&key) {
            Some(&place) => Ok(&self.steps[place]),
            None => {
                let found = self.bodies.find(key).map(|(_, step)| step);
                found.ok_or(CUresult::ERROR_INVALID_VALUE)
            }
        }
    }

    /// The same, to be changed.
    pub(super) fn step_mut(&mut self, key: usize) -> Result<&mut Step> {
        match self.places.get(&key) {
            Some(&place) => Ok(&mut self.steps[place]),
            None => self.bodies.find_mut(key).ok_or(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// Where the executor has a step's node, if it has one: its graph and the node's place there.
    pub(super) fn node(&self, key: usize) -> Option<(u32, u32)> {
        if let Some(&place) = self.places.get(&key) {
            let (segment, node, _) = self.plan.parts.get(place)?.device.as_ref()?;
            return Some(((*self.numbers.get(*segment)?)?, *node));
        }
        let segment = self.conditional_segment()?;
        let (place, _) = self.bodies.find(key)?;
        let first = self.plan.segments[segment].device.len();
        Some(((*self.numbers.get(segment)?)?, (first + place) as u32))
    }

    /// Tells the executor whether launches include a step.
    pub(super) fn post_enabled(&self, backend: &Backend, id: u32, key: usize) -> Result {
        let Some((graph, node)) = self.node(key) else { return Ok(()) };
        let enabled = u32::from(self.step(key)?.is_enabled);
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
        late::retire(backend)?;
        let (session, heap) = (&backend.session, &backend.host_heap);
        let bounce = Bounce::take(heap, session, id, size_bytes)?;
        if let Some(old) = self.bounces.insert(place, bounce) {
            late::destroy(backend, id, Named::Bounce(old))?;
        }
        Ok(())
    }

    /// Whether `State::make` has made all of it.
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
            late::destroy(backend, id, Named::Bounce(bounce))?;
        }
        Ok(())
    }

    /// The place of the step that was made of a node; CUDA_ERROR_INVALID_VALUE if there is none.
    pub(super) fn place(&self, node: usize) -> Result<usize> {
        self.places.get(&node).copied().ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// Kernels, copies and fills can be left out of launches.
pub(super) fn can_be_disabled(kind: &NodeKind) -> bool {
    matches!(kind, NodeKind::Kernel(_) | NodeKind::Memcpy(_) | NodeKind::Memset(_))
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
        let step = state.step(node.0)?;
        match can_be_disabled(&step.kind) {
            true => Ok(step.is_enabled),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}
