//! Which parameters of an executable graph can be changed in place.

use std::sync::Arc;

use cuda_abi::graph::model::Kind;
use cuda_abi::graph::pairing::Mismatch;
use cuda_abi::graph::params::operations;
use cuda_abi::graph::snapshot::{Snapshot, is_same_conditional};
use cuda_abi::types::{CUgraphExecUpdateResult as Outcome, CUgraphNode};

use super::executable::Executable;
use super::kinds::NodeKind;
use crate::api::answer::Answer;
use crate::device::transfer::Fill;

/// Changes one node of an executable graph: CUDA_ERROR_INVALID_VALUE for a node that it was not
/// made of and for what cannot be changed.
pub(crate) fn set(executable: &Executable, node: CUgraphNode, new: NodeKind) -> Answer {
    executable
        .change(|view| view.source().changes_of(node.0, view.kind(node).as_ref(), new, &check))
}

/// Makes an executable graph do what another graph of the same shape does.
pub(crate) fn update(executable: &Executable, new: &Snapshot<NodeKind>) -> Result<(), Mismatch> {
    executable.change(|view| view.source().changes_to(new, &check))
}

/// Whether a node of an executable graph can get these parameters.
fn check(old: &NodeKind, new: &NodeKind) -> Result<(), Outcome> {
    let is_fine = match (old, new) {
        // A chain belongs to its context: green contexts are what limits SMs.
        (NodeKind::Kernel(old), NodeKind::Kernel(new)) => {
            if old.asked.residency != new.asked.residency {
                return Err(Outcome::ERROR_ATTRIBUTES_CHANGED);
            }
            old.context() == new.context()
        }
        // Plain copies between the same kinds of memory.
        (NodeKind::Memcpy(old), NodeKind::Memcpy(new)) => {
            old.is_linear() && new.is_linear() && old.kinds() == new.kinds()
        }
        (NodeKind::Memset(old), NodeKind::Memset(new)) => {
            let shape = |fill: &Fill| (fill.width, fill.height, fill.element_bytes);
            old.height == 1 && new.height == 1 || shape(old) == shape(new)
        }
        (NodeKind::MemAlloc(old), NodeKind::MemAlloc(new)) => {
            old.memory.size_bytes == new.memory.size_bytes
        }
        (NodeKind::MemFree(old), NodeKind::MemFree(new)) => Arc::ptr_eq(&old.memory, &new.memory),
        (NodeKind::BatchMemOp(old), NodeKind::BatchMemOp(new)) => {
            operations(&old.asked).eq(operations(&new.asked))
        }
        (NodeKind::Conditional(old), NodeKind::Conditional(new)) => is_same_conditional(old, new),
        _ if old.type_code() == new.type_code() => true,
        _ => return Err(Outcome::ERROR_NODE_TYPE_CHANGED),
    };
    if is_fine { Ok(()) } else { Err(Outcome::ERROR_PARAMETERS_CHANGED) }
}
