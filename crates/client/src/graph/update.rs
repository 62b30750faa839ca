//! Changes of executable graphs in place: which are allowed, and telling the executor.

use super::encoding::Encoded;
use super::executable::{Executable, State};
use super::kinds::{Graph, MemsetWork, NodeKind};
use super::making::{check_alive, check_inside, pageable_ends};
use super::plan::HostAction;
use crate::client::Client;
use crate::context::backend::Backend;
use crate::result::Result;
use cuda_abi::graph::conditional::Condition;
use cuda_abi::graph::model::Kind;
use cuda_abi::graph::pairing::Mismatch;
use cuda_abi::graph::params::operations;
use cuda_abi::graph::snapshot::{Changes, Snapshot, is_same_conditional};
use cuda_abi::types::{
    CUgraphExecUpdateResult as Outcome, CUgraphExecUpdateResultInfo, CUgraphNode,
};
use link::wire::command::Opcode;
use link::wire::graph::{GraphSet, write_node};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Changes one node: CUDA_ERROR_INVALID_VALUE for a node that it was not made of and for what
/// cannot be changed.
pub(crate) fn set(
    client: &Client,
    executable: &Executable,
    node: CUgraphNode,
    new: NodeKind,
) -> Result {
    executable.settle()?;
    let mut state = executable.lock();
    let old = state.step(node.0).ok().map(|step| step.kind.clone());
    let changes = state.source.changes_of(node.0, old.as_ref(), new, &check)?;
    state.change(client, executable, changes)
}

/// Makes an executable graph do what another graph of the same shape does; says what does not fit.
pub(crate) fn update(
    client: &Client,
    executable: &Executable,
    graph: &Graph,
) -> Result<CUgraphExecUpdateResultInfo> {
    let new = Snapshot::of(graph)?;
    executable.settle()?;
    let mut state = executable.lock();
    let mut info = CUgraphExecUpdateResultInfo::default();
    match state.source.changes_to(&new, &check) {
        Ok(changes) => state.change(client, executable, changes)?,
        Err(Mismatch { outcome, node, from }) => {
            info.result = outcome;
            info.errorNode = CUgraphNode(node);
            info.errorFromNode = CUgraphNode(from);
        }
    }
    Ok(info)
}

/// Whether a node of an executable graph can get these parameters.
fn check(old: &NodeKind, new: &NodeKind) -> core::result::Result<(), Outcome> {
    let is_fine = match (old, new) {
        (NodeKind::Kernel(new_work), NodeKind::Kernel(old_work))
            if new_work.is_cooperative() != old_work.is_cooperative() =>
        {
            return Err(Outcome::ERROR_ATTRIBUTES_CHANGED);
        }
        (NodeKind::Kernel(_), NodeKind::Kernel(_))
        | (NodeKind::EventRecord(_), NodeKind::EventRecord(_))
        | (NodeKind::EventWait(_), NodeKind::EventWait(_)) => old.context() == new.context(),
        // Plain copies between the same kinds of memory.
        (NodeKind::Memcpy(old), NodeKind::Memcpy(new)) => {
            old.is_linear() && new.is_linear() && old.is_host == new.is_host
        }
        (NodeKind::Memset(old), NodeKind::Memset(new)) => {
            let shape =
                |fill: &MemsetWork| (fill.rows.width, fill.rows.height, fill.pattern.element_bytes);
            old.rows.height == 1 && new.rows.height == 1 || shape(old) == shape(new)
        }
        (NodeKind::MemAlloc(old), NodeKind::MemAlloc(new)) => old.size_bytes == new.size_bytes,
        (NodeKind::MemFree(old), NodeKind::MemFree(new)) => Arc::ptr_eq(old, new),
        (NodeKind::BatchMemOp(old), NodeKind::BatchMemOp(new)) => {
            old.context == new.context && operations(&old.asked).eq(operations(&new.asked))
        }
        (NodeKind::Conditional(old), NodeKind::Conditional(new)) => is_same_conditional(old, new),
        _ if old.type_code() == new.type_code() => true,
        _ => return Err(Outcome::ERROR_NODE_TYPE_CHANGED),
    };
    if is_fine { Ok(()) } else { Err(Outcome::ERROR_PARAMETERS_CHANGED) }
}

impl State {
    /// Gives steps other work, by the nodes that they were made of.
    fn change(
        &mut self,
        client: &Client,
        executable: &Executable,
        changes: Changes<NodeKind>,
    ) -> Result {
        let (backend, id) = (executable.backend, executable.id);
        let (mut checked, mut inside) = (Vec::new(), Vec::new());
        let mut is_anew = false;
        for (key, kind) in changes {
            // Embedded graphs have no step of their own work, and user-made mixtures no step at
            // all.
            let Ok(step) = self.step(key) else { continue };
            is_anew |= has_other_condition(&step.kind, &kind);
            check_alive(client, &kind)?;
            match self.place(key) {
                Ok(place) => {
                    let pageable = pageable_ends(client, &kind)?;
                    is_anew |= self.pageable[place] != pageable;
                    checked.push((place, pageable, kind));
                }
                Err(_) => {
                    check_inside(client, &kind)?;
                    inside.push((key, kind));
                }
            }
        }
        self.run = None;
        if !self.is_made() || backend.session.may_hold() || is_anew {
            // Other steps take place in this process now, others' values decide, or held launches
            // need what is there: everything is planned and made anew.
            let (mut steps, mut bodies) = (self.steps.clone(), self.bodies.clone());
            for (place, _, kind) in checked {
                steps[place].kind = kind;
            }
            for (key, kind) in inside {
                if let Some(step) = bodies.find_mut(key) {
                    step.kind = kind;
                }
            }
            return self.make_again(client, executable, steps, bodies);
        }
        for (key, kind) in inside {
            let old = self.bodies.encode(self.step(key)?);
            self.step_mut(key)?.kind = kind;
            let new = self.bodies.encode(self.step(key)?);
            if let Some((graph, node)) = self.node(key).filter(|_| old != new) {
                post_node(backend, id, GraphSet { graph, node }, &new)?;
            }
        }
        for (place, pageable, kind) in checked {
            self.steps[place].kind = kind;
            self.make_bounce(backend, id, place)?;
            self.pageable[place] = pageable;
            let (before, device, after) = self.parts(place);
            let parts = &mut self.plan.parts[place];
            let set = |part: &mut Option<(usize, HostAction)>, new: Option<HostAction>| {
                if let (Some((_, old)), Some(new)) = (part, new) {
                    *old = new;
                }
            };
            set(&mut parts.before, before);
            set(&mut parts.after, after);
            let (Some((segment, node, old)), Some(new)) = (&mut parts.device, device) else {
                continue;
            };
            if *old == new {
                continue;
            }
            *old = new;
            let Some(graph) = self.numbers[*segment] else { continue };
            post_node(backend, id, GraphSet { graph, node: *node }, old)?;
        }
        Ok(())
    }
}

/// Whether another value decides about a conditional node.
fn has_other_condition(old: &NodeKind, new: &NodeKind) -> bool {
    match (old, new) {
        (NodeKind::Conditional(old), NodeKind::Conditional(new)) => {
            let of = |condition: &Condition| (condition.value.home(), condition.handle);
            of(&old.condition) != of(&new.condition)
        }
        _ => false,
    }
}

/// Tells the executor what a node does now.
fn post_node(backend: &Backend, id: u32, body: GraphSet, node: &Encoded) -> Result {
    let mut bytes = Vec::new();
    write_node(&mut bytes, node.opcode, &[&node.body]);
    backend.session.post_parts(id, Opcode::GraphSet, &[body.as_bytes(), &bytes])
}
