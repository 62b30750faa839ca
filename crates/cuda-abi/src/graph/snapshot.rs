//! A graph as it was when it was made executable, with the graphs in it.

use super::Answer;
use super::conditional::{Conditional, check_body};
use super::model::{Graph, Kind, Role};
use super::pairing::{Mismatch, pair};
use super::shape::Shape;
use crate::types::{CUgraphExecUpdateResult as Outcome, CUresult};
use std::collections::HashMap;

/// A graph's nodes and edges, and those of the graphs that its nodes embed.
#[derive(Debug)]
pub struct Snapshot<K> {
    /// Nodes and edges.
    pub shape: Shape<K>,
    /// By node, in the order in which the node has them.
    embedded: HashMap<usize, Vec<Snapshot<K>>>,
}

/// One node of a flattened graph.
#[derive(Clone, Debug)]
pub struct Flat<K> {
    /// Handle of the node that it was made of.
    pub key: usize,
    /// What it does. An embedded graph's nodes come before their node, which has nothing left to
    /// do.
    pub kind: K,
    /// Places of what it comes after.
    pub after: Vec<usize>,
}

/// What nodes become, by the handles that they were made of.
pub type Changes<K> = Vec<(usize, K)>;

impl<K: Kind> Snapshot<K> {
    /// Copies a graph's structure.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a cycle and nodes that a conditional node's graph may not have.
    pub fn of(graph: &Graph<K>) -> Answer<Self> {
        let shape = graph.lock().shape.clone();
        if shape.topological().is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut embedded = HashMap::new();
        for (key, node) in shape.nodes() {
            let role = node.kind.role();
            let graphs: Answer<Vec<_>> =
                role.embedded().iter().map(|graph| Snapshot::of(graph)).collect();
            let graphs = graphs?;
            if matches!(role, Role::Conditional(_)) {
                graphs.iter().try_for_each(|body| check_body(&body.shape))?;
            }
            if !graphs.is_empty() {
                embedded.insert(key, graphs);
            }
        }
        Ok(Self { shape, embedded })
    }

    /// The graphs in a node.
    pub fn embedded(&self, node: usize) -> &[Snapshot<K>] {
        self.embedded.get(&node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The graphs in a node at any depth.
    pub fn inside(&self, node: usize) -> &[Snapshot<K>] {
        if self.shape.contains(node) {
            return self.embedded(node);
        }
        let deeper = self.embedded.values().flatten().map(|inner| inner.inside(node));
        deeper.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// The embedded graph of a node that does one in its place, at any depth.
    pub fn child(&self, node: usize) -> Option<&Snapshot<K>> {
        if let Some(found) = self.shape.get(node) {
            return match found.kind.role() {
                Role::Child(_) => self.embedded(node).first(),
                _ => None,
            };
        }
        self.embedded.values().flatten().find_map(|inner| inner.child(node))
    }

    /// Visits all nodes' work, embedded graphs' included.
    ///
    /// # Errors
    /// The first of `visit`.
    pub fn for_each<E>(&self, visit: &mut impl FnMut(&K) -> Result<(), E>) -> Result<(), E> {
        for (_, node) in self.shape.nodes() {
            visit(&node.kind)?;
        }
        self.embedded.values().flatten().try_for_each(|inner| inner.for_each(visit))
    }

    /// All nodes, each after what it depends on, embedded graphs in their nodes' places; graphs of
    /// conditional nodes are left to their nodes.
    pub fn flatten(&self) -> Vec<Flat<K>> {
        let mut flat = Vec::new();
        self.flatten_into(&[], &mut flat);
        flat
    }

    /// Appends the nodes, to come after `after`; returns the places of the sinks.
    fn flatten_into(&self, after: &[usize], flat: &mut Vec<Flat<K>>) -> Vec<usize> {
        let mut places: HashMap<usize, usize> = HashMap::new();
        for key in self.shape.topological().unwrap_or_default() {
            let Some(node) = self.shape.get(key) else { continue };
            let dependencies = self.shape.dependencies(key);
            let mut own: Vec<usize> =
                dependencies.filter_map(|edge| places.get(&edge.from).copied()).collect();
            if own.is_empty() {
                own = after.to_vec();
            }
            if let (Role::Child(_), [inner]) = (node.kind.role(), self.embedded(key)) {
                let ends = inner.flatten_into(&own, flat);
                own.extend(ends);
            }
            places.insert(key, flat.len());
            flat.push(Flat { key, kind: node.kind.clone(), after: own });
        }
        self.shape.sinks().iter().filter_map(|sink| places.get(sink).copied()).collect()
    }

    /// What every node becomes when the graph is updated to another of the same shape. `check` says
    /// what a node can become.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn changes_to(
        &self,
        new: &Self,
        check: &impl Fn(&K, &K) -> Result<(), Outcome>,
    ) -> Result<Changes<K>, Mismatch> {
        let mut changes = Vec::new();
        let same_type = |a: &K, b: &K| a.type_code() == b.type_code();
        let pairs = pair(&self.shape, &new.shape, same_type)?;
        // In the order of the new graph's nodes, so that the first mismatch is always the same one.
        let mut pairs: Vec<(usize, usize)> = pairs.into_iter().collect();
        pairs.sort_unstable_by_key(|&(_, to)| to);
        for (from, to) in pairs {
            let (Some(old_node), Some(new_node)) = (self.shape.get(from), new.shape.get(to)) else {
                continue;
            };
            let (old_inner, new_inner) = (self.embedded(from), new.embedded(to));
            if !matches!(old_node.kind.role(), Role::Child(_)) {
                let checked = check(&old_node.kind, &new_node.kind);
                checked.map_err(|outcome| Mismatch::at(outcome, to))?;
                changes.push((from, new_node.kind.clone()));
            }
            for (old, new) in old_inner.iter().zip(new_inner) {
                changes.extend(old.changes_to(new, check)?);
            }
        }
        Ok(changes)
    }

    /// What one node becomes: an embedded graph's nodes, or itself.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what cannot be.
    pub fn changes_of(
        &self,
        node: usize,
        old: Option<&K>,
        new: K,
        check: &impl Fn(&K, &K) -> Result<(), Outcome>,
    ) -> Answer<Changes<K>> {
        const REFUSED: CUresult = CUresult::ERROR_INVALID_VALUE;
        match (new.role(), self.child(node)) {
            (Role::Child(graph), Some(old)) => {
                old.changes_to(&Snapshot::of(graph)?, check).map_err(|_| REFUSED)
            }
            _ => {
                check(old.ok_or(REFUSED)?, &new).map_err(|_| REFUSED)?;
                Ok(vec![(node, new)])
            }
        }
    }
}

/// Whether a conditional node can become another: its condition may be another, too.
pub fn is_same_conditional<K>(old: &Conditional<K>, new: &Conditional<K>) -> bool {
    (old.type_, old.bodies().len(), old.condition.context)
        == (new.type_, new.bodies().len(), new.condition.context)
}
