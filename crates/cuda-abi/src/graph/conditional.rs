//! Conditional nodes: IF with ELSE, WHILE, SWITCH.
//!
//! A *condition* is a value on the device with a handle, which kernels set
//! (`cudaGraphSetConditional`) and one node reads. It belongs to the graph that it was made for and
//! is never destroyed alone.

use super::Answer;
use super::model::{Graph, Kind, Role};
use super::shape::Shape;
use crate::types::{
    CUDA_CONDITIONAL_NODE_PARAMS, CUcontext, CUgraph, CUgraphConditionalNodeType as Type,
    CUgraphNodeType, CUresult,
};
use std::sync::Arc;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`: each launch begins with the default value.
pub const ASSIGN_DEFAULT: u32 = 1;
/// Most graphs of a SWITCH.
const MOST_BODIES: u32 = 1 << 16;

/// Where the value of a condition is kept; dropped when nothing names the condition any more.
pub trait Value: std::fmt::Debug + Send + Sync {
    /// What its keeper knows the graph by that the condition is for; 0 where that is the graph
    /// itself.
    fn home(&self) -> u32 {
        0
    }
}

/// A condition.
#[derive(Clone, Debug)]
pub struct Condition {
    /// What kernels and the node name it by: `CUgraphConditionalHandle`.
    pub handle: u64,
    /// The graph that it was made for.
    pub graph: CUgraph,
    /// The context of its node and its kernels.
    pub context: CUcontext,
    /// The value that launches begin with, if they are to.
    pub default: Option<u32>,
    /// Keeps the value.
    pub value: Arc<dyn Value>,
}

impl Condition {
    /// What tells it from all others: the graph and the handle.
    pub fn key(&self) -> (CUgraph, u64) {
        (self.graph, self.handle)
    }

    /// The default value of a new condition.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown flags.
    pub fn default_value(value: u32, flags: u32) -> Answer<Option<u32>> {
        match flags {
            0 => Ok(None),
            ASSIGN_DEFAULT => Ok(Some(value)),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// What a conditional node is.
#[derive(Debug)]
pub struct Conditional<K> {
    /// The value that decides.
    pub condition: Condition,
    /// How it decides.
    pub type_: Type,
    bodies: Box<[Arc<Graph<K>>]>,
    /// Their handles: the program reads this array for as long as the node exists.
    handles: Box<[CUgraph]>,
}

/// Checks how many graphs a conditional node has.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a type that does not exist and a number that the type does not
/// have.
pub fn check_size(type_: Type, size: u32) -> Answer {
    let is_valid = match type_ {
        Type::IF => (1..=2).contains(&size),
        Type::WHILE => size == 1,
        Type::SWITCH => (1..=MOST_BODIES).contains(&size),
        _ => false,
    };
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

impl<K> Conditional<K> {
    /// A node with these graphs, whose number was checked.
    pub fn new(condition: Condition, type_: Type, bodies: Vec<Arc<Graph<K>>>) -> Self {
        let handles = bodies.iter().map(|body| body.handle).collect();
        Self { condition, type_, bodies: bodies.into(), handles }
    }

    /// Its graphs.
    pub fn bodies(&self) -> &[Arc<Graph<K>>] {
        &self.bodies
    }

    /// As C has it; the array lives as long as the node.
    pub fn parameters(&self) -> CUDA_CONDITIONAL_NODE_PARAMS {
        CUDA_CONDITIONAL_NODE_PARAMS {
            handle: self.condition.handle,
            type_: self.type_,
            size: self.handles.len() as u32,
            phGraph_out: self.handles.as_ptr().cast_mut(),
            ctx: self.condition.context,
        }
    }
}

/// Which graph of a node is done next when the condition has this value; `None`: none, and the node
/// is done.
pub fn chosen(type_: Type, bodies: usize, value: u32) -> Option<usize> {
    let place = match (type_, value) {
        (Type::SWITCH, value) => value as usize,
        (Type::IF, 0) => 1,
        (Type::WHILE, 0) => return None,
        _ => 0,
    };
    (place < bodies).then_some(place)
}

/// Checks what nodes in a conditional node's graph do.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for others than kernels, copies, fills, empty nodes, embedded graphs
/// and conditional nodes.
pub fn check_body<K: Kind>(shape: &Shape<K>) -> Answer {
    let is_allowed = |kind: &K| {
        use CUgraphNodeType as T;
        let allowed = [T::KERNEL, T::MEMCPY, T::MEMSET, T::EMPTY, T::GRAPH, T::CONDITIONAL];
        allowed.contains(&kind.type_code())
    };
    for (_, node) in shape.nodes() {
        if !is_allowed(&node.kind) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if let Role::Child(graph) = node.kind.role() {
            check_body(&graph.lock().shape)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_chooses_as_the_type_says() {
        assert_eq!([0, 1, 7].map(|value| chosen(Type::IF, 1, value)), [None, Some(0), Some(0)]);
        assert_eq!([0, 1].map(|value| chosen(Type::IF, 2, value)), [Some(1), Some(0)]);
        assert_eq!([0, 9].map(|value| chosen(Type::WHILE, 1, value)), [None, Some(0)]);
        let switched = [0, 2, 3, u32::MAX].map(|value| chosen(Type::SWITCH, 3, value));
        assert_eq!(switched, [Some(0), Some(2), None, None]);
    }

    #[test]
    fn each_type_has_its_number_of_graphs() {
        let fits = |type_, size| check_size(type_, size).is_ok();
        assert_eq!([0, 1, 2, 3].map(|size| fits(Type::IF, size)), [false, true, true, false]);
        assert_eq!([0, 1, 2].map(|size| fits(Type::WHILE, size)), [false, true, false]);
        assert_eq!([0, 1, 9].map(|size| fits(Type::SWITCH, size)), [false, true, true]);
        assert!(!fits(Type(3), 1));
    }
}
