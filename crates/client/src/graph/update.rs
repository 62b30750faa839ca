//! Changes of executable graphs in place: which are allowed, and telling the executor.

use super::executable::{Executable, Snapshot, State, pageable_ends};
use super::kinds::NodeKind;
use super::model::Graph;
use super::plan::{HostAction, parts_of};
use crate::client::Client;
use crate::session::Result;
use cuda_abi::graph::pairing::{Mismatch, pair};
use cuda_abi::types::{
    CUgraphExecUpdateResult as Outcome, CUgraphExecUpdateResultInfo, CUgraphNode, CUresult,
};
use link::wire::command::Opcode;
use link::wire::graph::{GraphSet, write_node};
use std::sync::Arc;
use zerocopy::IntoBytes;

type Changes = Vec<(usize, NodeKind)>;

/// Changes one node: CUDA_ERROR_INVALID_VALUE for a node that it was not made of and for what cannot be changed.
pub(crate) fn set(
    client: &Client,
    executable: &Executable,
    node: CUgraphNode,
    new: NodeKind,
) -> Result {
    const REFUSED: CUresult = CUresult::ERROR_INVALID_VALUE;
    executable.settle()?;
    let mut state = executable.lock();
    let changes = match (&new, state.source.child(node.0)) {
        (NodeKind::Child(graph), Some(old)) => {
            pair_all(old, &Snapshot::of(graph)?).map_err(|_| REFUSED)?
        }
        _ => {
            let place = state.place(node.0)?;
            check(&state.steps[place].kind, &new).map_err(|_| REFUSED)?;
            vec![(node.0, new)]
        }
    };
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
    match pair_all(&state.source, &new) {
        Ok(changes) => state.change(client, executable, changes)?,
        Err(Mismatch { outcome, node, from }) => {
            info.result = outcome;
            info.errorNode = CUgraphNode(node);
            info.errorFromNode = CUgraphNode(from);
        }
    }
    Ok(info)
}

/// What every node becomes when its graph is updated to another.
fn pair_all(old: &Snapshot, new: &Snapshot) -> core::result::Result<Changes, Mismatch> {
    let mut changes = Vec::new();
    let same_type = |a: &NodeKind, b: &NodeKind| a.type_code() == b.type_code();
    for (from, to) in pair(&old.shape, &new.shape, same_type)? {
        let (Some(old_node), Some(new_node)) = (old.shape.get(from), new.shape.get(to)) else {
            continue;
        };
        match (old.children.get(&from), new.children.get(&to)) {
            (Some(old), Some(new)) => changes.extend(pair_all(old, new)?),
            _ => {
                let checked = check(&old_node.kind, &new_node.kind);
                checked.map_err(|outcome| Mismatch::at(outcome, to))?;
                changes.push((from, new_node.kind.clone()));
            }
        }
    }
    Ok(changes)
}

/// Whether a node of an executable graph can get these parameters.
fn check(old: &NodeKind, new: &NodeKind) -> core::result::Result<(), Outcome> {
    let is_fine = match (old, new) {
        (NodeKind::Kernel(_), NodeKind::Kernel(_))
        | (NodeKind::EventRecord(_), NodeKind::EventRecord(_))
        | (NodeKind::EventWait(_), NodeKind::EventWait(_)) => old.context() == new.context(),
        // Plain copies between the same kinds of memory.
        (NodeKind::Memcpy(old), NodeKind::Memcpy(new)) => {
            old.is_linear() && new.is_linear() && old.is_host == new.is_host
        }
        (NodeKind::Memset(old), NodeKind::Memset(new)) => {
            old.rows.height == 1 && new.rows.height == 1
        }
        (NodeKind::MemAlloc(old), NodeKind::MemAlloc(new))
        | (NodeKind::MemFree(old), NodeKind::MemFree(new)) => Arc::ptr_eq(old, new),
        _ if old.type_code() == new.type_code() => true,
        _ => return Err(Outcome::ERROR_NODE_TYPE_CHANGED),
    };
    if is_fine { Ok(()) } else { Err(Outcome::ERROR_PARAMETERS_CHANGED) }
}

impl State {
    /// Gives steps other work, by the nodes that they were made of.
    fn change(&mut self, client: &Client, executable: &Executable, changes: Changes) -> Result {
        let (backend, id) = (executable.backend, executable.id);
        let mut checked = Vec::new();
        for (key, kind) in changes {
            // Embedded graphs have no step of their own work, and user-made mixtures no step at all.
            let Ok(place) = self.place(key) else { continue };
            kind.check_alive(client)?;
            checked.push((place, pageable_ends(client, &kind)?, kind));
        }
        self.run = None;
        let is_same = |(place, pageable, _): &(usize, _, _)| self.pageable[*place] == *pageable;
        if !self.is_made() || backend.session.may_hold() || !checked.iter().all(is_same) {
            // Other steps take place in this process now, or held launches need what is there: everything is planned and made anew.
            let mut steps = self.steps.clone();
            for (place, _, kind) in checked {
                steps[place].kind = kind;
            }
            return self.make_again(client, executable, steps);
        }
        for (place, pageable, kind) in checked {
            self.steps[place].kind = kind;
            self.make_bounce(backend, id, place)?;
            let bounce = self.bounce(place);
            let (before, device, after) = parts_of(&self.steps[place].kind, pageable, bounce);
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
            let mut bytes = Vec::new();
            write_node(&mut bytes, old.opcode, &[&old.body]);
            let body = GraphSet { graph, node: *node };
            let parts = [body.as_bytes(), &bytes];
            backend.session.post_parts(id, Opcode::GraphSet, &parts)?;
        }
        Ok(())
    }
}
