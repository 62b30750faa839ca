//! Making executable graphs, making them again, ending them.

use super::bodies::Bodies;
use super::executable::{Executable, NOT_MADE, State, can_be_disabled};
use super::kinds::{Graph, NodeKind};
use super::plan::{Pageable, Plan, Step, plan};
use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::result::Result;
use crate::thread::current;
use cuda_abi::graph::model::has_memory_nodes;
use cuda_abi::graph::snapshot::Snapshot;
use cuda_abi::types::{CUgraphExec, CUgraphNode, CUresult};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
const DEVICE_LAUNCH: u64 = 4;
const ALL_FLAGS: u64 = 0xf;

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
    if client.graphs.registry.has_free_conditions(graph) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let steps: Vec<Step> = source.flatten().into_iter().map(Step::from).collect();
    let places = steps.iter().enumerate().map(|(place, step)| (step.key, place)).collect();
    let mut state = State {
        instance: Some(graph.begin_executable()?),
        bodies: Bodies::of(&source, &steps),
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
    if let Err(error) = state.make(client, backend, id, flags) {
        // A failed session has nothing left.
        let _ = state.clear(backend, id);
        return Err(error);
    }
    let objects = client.graphs.registry.retain_all(graph);
    let made = client.graphs.executables.insert_with(|token| Executable {
        handle: CUgraphExec(token),
        flags,
        context,
        backend,
        id,
        objects,
        state: Mutex::new(state),
        chain: Arc::default(),
    });
    Ok(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.handle)
}

/// The context of all nodes that need one, else the current one. Nodes of several contexts are
/// absent (801).
fn context_of(client: &Client, source: &Snapshot<NodeKind>) -> Result<Arc<Context>> {
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
            check_alive(client, &self.steps[place].kind)?;
            let pageable = pageable_ends(client, &self.steps[place].kind)?;
            self.pageable.push(pageable);
            self.make_bounce(backend, id, place)?;
        }
        self.bodies.steps().try_for_each(|step| check_inside(client, &step.kind))?;
        self.plan = plan(&self.steps, |place| self.parts(place));
        if self.conditional_segments().count() > 1 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        for index in 0..self.plan.segments.len() {
            let number = self.make_segment(backend, id, flags, index)?;
            self.numbers.push(number);
            self.leave_out(backend, id, index)?;
        }
        Ok(())
    }

    /// Changes all steps and makes other graphs of the executor's in place of those that it has:
    /// launches that are held go on with the old ones. On failure it goes on doing what it did.
    pub(super) fn make_again(
        &mut self,
        client: &Client,
        executable: &Executable,
        steps: Vec<Step>,
        bodies: Bodies,
    ) -> Result {
        let Executable { backend, id, flags, .. } = *executable;
        if bodies.count() > 0 && backend.session.may_hold() {
            // What conditions were made for is one executable graph's at a time.
            backend.session.wait_all(id)?;
        }
        let before = std::mem::replace(&mut self.steps, steps);
        let bodies_before = std::mem::replace(&mut self.bodies, bodies);
        self.clear(backend, id)?;
        let made = self.make(client, backend, id, flags);
        if made.is_err() {
            self.steps = before;
            self.bodies = bodies_before;
            self.clear(backend, id)?;
            if self.make(client, backend, id, flags).is_err() {
                self.clear(backend, id)?;
            }
        }
        made
    }
}

/// CUDA_ERROR_INVALID_HANDLE if what it names has been destroyed: its number may be another's
/// by now.
pub(super) fn check_alive(client: &Client, kind: &NodeKind) -> Result {
    let is_alive = match kind {
        NodeKind::Kernel(work) => client.functions.get(work.function.token).is_some(),
        NodeKind::EventRecord(event) | NodeKind::EventWait(event) => {
            client.events.get(event.token).is_some()
        }
        _ => true,
    };
    if is_alive { Ok(()) } else { Err(CUresult::ERROR_INVALID_HANDLE) }
}

/// Refuses what the executor cannot do in the graph of a conditional node:
/// CUDA_ERROR_NOT_SUPPORTED for memory that only this process reaches.
pub(super) fn check_inside(client: &Client, kind: &NodeKind) -> Result {
    check_alive(client, kind)?;
    match pageable_ends(client, kind)? == Pageable::default() {
        true => Ok(()),
        false => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

/// Which ends of a node's copy only this process reaches.
pub(super) fn pageable_ends(client: &Client, kind: &NodeKind) -> Result<Pageable> {
    let NodeKind::Memcpy(work) = kind else { return Ok(Pageable::default()) };
    let [to, from] = crate::copy::reaches(client, work.to, work.from, work.extent)?;
    Ok(Pageable { to: to.is_private(), from: from.is_private() })
}

impl Executable {
    /// Includes a step in later launches, or leaves it out: kernels, copies and fills only.
    pub(crate) fn set_enabled(
        &self,
        client: &Client,
        node: CUgraphNode,
        is_enabled: bool,
    ) -> Result {
        self.settle()?;
        let mut state = self.lock();
        let step = state.step(node.0)?;
        if !can_be_disabled(&step.kind) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if step.is_enabled == is_enabled {
            return Ok(());
        }
        if !state.is_made() {
            return Err(NOT_MADE);
        }
        if self.backend.session.may_hold() {
            let (mut steps, mut bodies) = (state.steps.clone(), state.bodies.clone());
            let found = match state.place(node.0) {
                Ok(place) => steps.get_mut(place),
                Err(_) => bodies.find_mut(node.0),
            };
            found.ok_or(CUresult::ERROR_INVALID_VALUE)?.is_enabled = is_enabled;
            return state.make_again(client, self, steps, bodies);
        }
        state.step_mut(node.0)?.is_enabled = is_enabled;
        state.run = None;
        state.post_enabled(self.backend, self.id, node.0)
    }

    /// Ends it; what was launched goes on.
    pub(crate) fn destroy(&self, client: &Client) -> Result {
        client.graphs.executables.remove(self.handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let waited = self.settle();
        let cleared = waited.and_then(|()| self.lock().clear(self.backend, self.id));
        let (had_memory, nodes) = {
            let mut state = self.lock();
            let shape = std::mem::take(&mut state.source.shape);
            let (steps, bodies) =
                (std::mem::take(&mut state.steps), std::mem::take(&mut state.bodies));
            (has_memory_nodes(&shape), (steps, bodies, shape, state.instance.take()))
        };
        drop(nodes);
        client.graphs.registry.release_all(&self.objects);
        if had_memory {
            client.graphs.memory.collect(client);
        }
        cleared
    }
}

/// Destroys the executable graphs of a context that is ending; memory of graphs goes with the
/// context's other memory.
pub(crate) fn end_context(client: &Client, context: &Context) {
    let of_context = |executable: &Executable| executable.context.token == context.token;
    for executable in client.graphs.executables.select(of_context) {
        // A failed session has no graphs left.
        let _ = executable.destroy(client);
    }
    client.graphs.memory.forget_context(context);
}

impl Client {
    /// The executable graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn executable(&self, handle: CUgraphExec) -> Result<Arc<Executable>> {
        self.graphs.executables.get(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
