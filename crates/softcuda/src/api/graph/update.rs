//! Which parameters of an executable graph can be changed in place, and pairing its nodes with those of another graph.

use std::collections::HashMap;

use cuda_abi::types::{CUgraphExecUpdateResult as Outcome, CUgraphNode, CUresult};

use super::executable::{Executable, Snapshot};
use super::kinds::NodeKind;
use crate::api::Answer;

/// Why an update is refused, with the nodes of the new graph that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) outcome: Outcome,
    pub(crate) node: usize,
    pub(crate) from: usize,
}

impl Mismatch {
    fn at(outcome: Outcome, node: usize) -> Self {
        Mismatch { outcome, node, from: 0 }
    }
}

/// Changes one node of an executable graph: CUDA_ERROR_INVALID_VALUE for a node that it was not made of and for what cannot be changed.
pub(crate) fn set(executable: &Executable, node: CUgraphNode, new: NodeKind) -> Answer {
    const REFUSED: CUresult = CUresult::ERROR_INVALID_VALUE;
    executable.change(|view| match (&new, view.child(node)) {
        (NodeKind::Child(graph), Some(old)) => {
            pair_all(old, &Snapshot::of(graph)?).map_err(|_| REFUSED)
        }
        _ => {
            check(view.kind(node).ok_or(REFUSED)?, &new).map_err(|_| REFUSED)?;
            Ok(vec![(node.0, new)])
        }
    })
}

/// Makes an executable graph do what another graph of the same shape does.
pub(crate) fn update(executable: &Executable, new: &Snapshot) -> Result<(), Mismatch> {
    executable.change(|view| pair_all(view.source(), new))
}

/// What every node of an executable graph becomes when it is updated to another graph.
fn pair_all(old: &Snapshot, new: &Snapshot) -> Result<Vec<(usize, NodeKind)>, Mismatch> {
    let mut changes = Vec::new();
    for (from, to) in pair(old, new)? {
        let (Some(old_node), Some(new_node)) =
            (old.state.nodes.get(&from), new.state.nodes.get(&to))
        else {
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

/// Pairs nodes: sinks in the order in which they were made, then their dependencies in the order of the edges, and so on.
fn pair(old: &Snapshot, new: &Snapshot) -> Result<HashMap<usize, usize>, Mismatch> {
    const CHANGED: Outcome = Outcome::ERROR_TOPOLOGY_CHANGED;
    if old.state.nodes.len() != new.state.nodes.len() {
        return Err(Mismatch::at(CHANGED, 0));
    }
    let (old_sinks, new_sinks) = (old.state.sinks(), new.state.sinks());
    if old_sinks.len() != new_sinks.len() {
        let node = new_sinks.get(old_sinks.len().min(new_sinks.len() - 1)).copied();
        return Err(Mismatch::at(CHANGED, node.unwrap_or(0)));
    }
    let mut pairs: HashMap<usize, usize> = HashMap::new();
    let mut left: Vec<(usize, usize, usize)> =
        old_sinks.into_iter().zip(new_sinks).map(|(from, to)| (from, to, 0)).rev().collect();
    while let Some((from, to, dependent)) = left.pop() {
        match pairs.get(&from) {
            Some(known) if *known == to => continue,
            Some(_) => return Err(Mismatch { outcome: CHANGED, node: dependent, from: to }),
            None => {}
        }
        let kind = |side: &Snapshot, node| side.state.nodes.get(&node).map(|n| n.kind.type_code());
        if kind(old, from) != kind(new, to) {
            return Err(Mismatch::at(Outcome::ERROR_NODE_TYPE_CHANGED, to));
        }
        pairs.insert(from, to);
        let before = |side: &Snapshot, node| -> Vec<usize> {
            side.state.dependencies(node).map(|edge| edge.from).collect()
        };
        let (old_before, new_before) = (before(old, from), before(new, to));
        if old_before.len() != new_before.len() {
            return Err(Mismatch::at(CHANGED, to));
        }
        left.extend(old_before.into_iter().zip(new_before).map(|(a, b)| (a, b, to)).rev());
    }
    Ok(pairs)
}

/// Whether a node of an executable graph can get these parameters.
fn check(old: &NodeKind, new: &NodeKind) -> Result<(), Outcome> {
    const CHANGED: Outcome = Outcome::ERROR_PARAMETERS_CHANGED;
    let is_fine = match (old, new) {
        // A chain belongs to its context: green contexts are what limits SMs.
        (NodeKind::Kernel(old), NodeKind::Kernel(new)) => old.context() == new.context(),
        // Plain copies between the same kinds of memory.
        (NodeKind::Memcpy(old), NodeKind::Memcpy(new)) => {
            old.is_linear() && new.is_linear() && old.kinds() == new.kinds()
        }
        (NodeKind::Memset(old), NodeKind::Memset(new)) => old.height == 1 && new.height == 1,
        (NodeKind::MemAlloc(old), NodeKind::MemAlloc(new)) => {
            std::sync::Arc::ptr_eq(&old.memory, &new.memory)
        }
        (NodeKind::MemFree(old), NodeKind::MemFree(new)) => {
            std::sync::Arc::ptr_eq(&old.memory, &new.memory)
        }
        (NodeKind::BatchMemOp(old), NodeKind::BatchMemOp(new)) => old.ops.len() == new.ops.len(),
        _ => {
            return if old.type_code() == new.type_code() {
                Ok(())
            } else {
                Err(Outcome::ERROR_NODE_TYPE_CHANGED)
            };
        }
    };
    if is_fine { Ok(()) } else { Err(CHANGED) }
}
