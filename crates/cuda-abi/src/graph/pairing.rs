//! Pairing the nodes of an executable graph with those of the graph that it is updated to.

use super::shape::Shape;
use crate::types::CUgraphExecUpdateResult as Outcome;
use std::collections::HashMap;

/// Why an update is refused, with the nodes of the new graph that it is about; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// `CUgraphExecUpdateResultInfo::result`.
    pub outcome: Outcome,
    /// `CUgraphExecUpdateResultInfo::errorNode`.
    pub node: usize,
    /// `CUgraphExecUpdateResultInfo::errorFromNode`.
    pub from: usize,
}

impl Mismatch {
    /// One that concerns a single node.
    pub fn at(outcome: Outcome, node: usize) -> Self {
        Self { outcome, node, from: 0 }
    }
}

/// Pairs nodes, old to new: sinks in the order in which they were made, then their dependencies in
/// the order of the edges, and so on.
///
/// # Errors
/// The first place where the two differ in shape or, by `same_type`, in a node's type.
pub fn pair<K>(
    old: &Shape<K>,
    new: &Shape<K>,
    same_type: impl Fn(&K, &K) -> bool,
) -> Result<HashMap<usize, usize>, Mismatch> {
    const CHANGED: Outcome = Outcome::ERROR_TOPOLOGY_CHANGED;
    if old.len() != new.len() {
        return Err(Mismatch::at(CHANGED, 0));
    }
    let (old_sinks, new_sinks) = (old.sinks(), new.sinks());
    if old_sinks.len() != new_sinks.len() {
        // One of those that are too many: as observed, not the last.
        let node = new_sinks.len().checked_sub(old_sinks.len() + 1);
        let node = node.map_or(new_sinks.last(), |place| new_sinks.get(place)).copied();
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
        let (Some(old_node), Some(new_node)) = (old.get(from), new.get(to)) else {
            return Err(Mismatch::at(CHANGED, to));
        };
        if !same_type(&old_node.kind, &new_node.kind) {
            return Err(Mismatch::at(Outcome::ERROR_NODE_TYPE_CHANGED, to));
        }
        pairs.insert(from, to);
        let before = |shape: &Shape<K>, node| -> Vec<usize> {
            shape.dependencies(node).map(|edge| edge.from).collect()
        };
        let (old_before, new_before) = (before(old, from), before(new, to));
        if old_before.len() != new_before.len() {
            return Err(Mismatch::at(CHANGED, to));
        }
        left.extend(old_before.into_iter().zip(new_before).map(|(a, b)| (a, b, to)).rev());
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::super::shape::EdgeData;
    use super::*;

    /// Nodes by key, type and dependencies.
    fn shape(nodes: &[(usize, char, &[usize])]) -> Shape<char> {
        let mut shape = Shape::default();
        for (key, kind, after) in nodes {
            let after: Vec<_> = after.iter().map(|&node| (node, EdgeData::default())).collect();
            shape.add(*key, *kind, None, &after).unwrap();
        }
        shape
    }

    fn outcome(old: &Shape<char>, new: &Shape<char>) -> Result<Vec<(usize, usize)>, Mismatch> {
        let mut pairs: Vec<_> = pair(old, new, |a, b| a == b)?.into_iter().collect();
        pairs.sort();
        Ok(pairs)
    }

    #[test]
    fn nodes_are_paired_from_the_sinks_backwards() {
        let old = shape(&[(1, 'a', &[]), (2, 'b', &[]), (3, 'c', &[1, 2])]);
        let new = shape(&[(11, 'b', &[]), (12, 'a', &[]), (13, 'c', &[12, 11])]);
        assert_eq!(outcome(&old, &new), Ok(vec![(1, 12), (2, 11), (3, 13)]));
    }

    #[test]
    fn the_first_difference_is_named() {
        let old = shape(&[(1, 'a', &[]), (2, 'b', &[1])]);
        let changed = |node| Err(Mismatch::at(Outcome::ERROR_TOPOLOGY_CHANGED, node));
        let kind = |node| Err(Mismatch::at(Outcome::ERROR_NODE_TYPE_CHANGED, node));
        assert_eq!(outcome(&old, &shape(&[(5, 'a', &[])])), changed(0));
        assert_eq!(outcome(&old, &shape(&[(5, 'a', &[]), (6, 'b', &[])])), changed(5));
        assert_eq!(outcome(&old, &shape(&[(5, 'b', &[]), (6, 'a', &[5])])), kind(6));
        assert_eq!(outcome(&old, &shape(&[(5, 'x', &[]), (6, 'b', &[5])])), kind(5));
        assert_eq!(outcome(&Shape::default(), &Shape::default()), Ok(vec![]));
    }
}
