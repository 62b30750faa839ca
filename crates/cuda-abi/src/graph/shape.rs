//! Nodes in the order in which they were made, and what each comes after.

use crate::types::{CUgraphEdgeData, CUresult};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Nodes and edges of one graph. A node's key is its handle; a greater key was made later.
#[derive(Clone, Debug)]
pub struct Shape<K> {
    nodes: BTreeMap<usize, Node<K>>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node<K> {
    /// What it does.
    pub kind: K,
    /// In a clone: the node that this one was made of.
    pub origin: Option<usize>,
    /// What it comes after, in the order in which that was said.
    after: Vec<(usize, EdgeData)>,
}

/// `to` runs after `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// What comes first.
    pub from: usize,
    /// What waits for it.
    pub to: usize,
    /// How.
    pub data: EdgeData,
}

/// What an edge says beyond its nodes: `CUgraphEdgeData`. Programmatic edges are kept and treated
/// as full ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeData {
    from_port: u8,
    to_port: u8,
    kind: u8,
}

impl EdgeData {
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown ports and types.
    pub fn from_c(data: &CUgraphEdgeData) -> Result<Self, CUresult> {
        let is_known = data.type_ <= 1 && data.from_port <= 2 && data.to_port == 0;
        if !is_known || data.reserved != [0; 5] {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self { from_port: data.from_port, to_port: data.to_port, kind: data.type_ })
    }

    /// As C has it.
    pub fn to_c(self) -> CUgraphEdgeData {
        let Self { from_port, to_port, kind } = self;
        CUgraphEdgeData { from_port, to_port, type_: kind, reserved: [0; 5] }
    }

    /// Whether it says nothing.
    pub fn is_default(self) -> bool {
        self == Self::default()
    }
}

impl<K> Default for Shape<K> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new() }
    }
}

impl<K> Shape<K> {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes, in the order in which they were made.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &Node<K>)> {
        self.nodes.iter().map(|(&key, node)| (key, node))
    }

    /// A node.
    pub fn get(&self, node: usize) -> Option<&Node<K>> {
        self.nodes.get(&node)
    }

    /// A node, to be changed.
    pub fn get_mut(&mut self, node: usize) -> Option<&mut Node<K>> {
        self.nodes.get_mut(&node)
    }

    /// Whether there is such a node.
    pub fn contains(&self, node: usize) -> bool {
        self.nodes.contains_key(&node)
    }

    /// All edges.
    pub fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        self.nodes.iter().flat_map(|(&to, node)| {
            node.after.iter().map(move |&(from, data)| Edge { from, to, data })
        })
    }

    /// The node's dependencies, in the order in which they were added.
    pub fn dependencies(&self, node: usize) -> impl Iterator<Item = Edge> + '_ {
        let after = self.nodes.get(&node).map(|node| node.after.as_slice()).unwrap_or_default();
        after.iter().map(move |&(from, data)| Edge { from, to: node, data })
    }

    /// What depends on the node.
    pub fn dependents(&self, node: usize) -> impl Iterator<Item = Edge> + '_ {
        self.edges().filter(move |edge| edge.from == node)
    }

    /// Nodes without dependencies.
    pub fn roots(&self) -> Vec<usize> {
        self.nodes().filter(|(_, node)| node.after.is_empty()).map(|(key, _)| key).collect()
    }

    /// Nodes that nothing depends on.
    pub fn sinks(&self) -> Vec<usize> {
        let sources: BTreeSet<usize> = self.edges().map(|edge| edge.from).collect();
        self.nodes.keys().copied().filter(|node| !sources.contains(node)).collect()
    }

    /// Adds a node after others.
    ///
    /// # Errors
    /// As for [`Self::add_edges`]; then there is no such node.
    pub fn add(
        &mut self,
        key: usize,
        kind: K,
        origin: Option<usize>,
        after: &[(usize, EdgeData)],
    ) -> Result<(), CUresult> {
        self.nodes.insert(key, Node { kind, origin, after: Vec::new() });
        let edges: Vec<_> =
            after.iter().map(|&(from, data)| Edge { from, to: key, data }).collect();
        self.add_edges(&edges).inspect_err(|_| {
            self.nodes.remove(&key);
        })
    }

    /// Adds edges, all or none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another graph, an edge from a node to itself and one
    /// that is there.
    pub fn add_edges(&mut self, edges: &[Edge]) -> Result<(), CUresult> {
        for (added, edge) in edges.iter().enumerate() {
            let is_known = self.contains(edge.from) && edge.from != edge.to;
            let node = self.nodes.get_mut(&edge.to).filter(|_| is_known);
            match node {
                Some(node) if !node.after.iter().any(|(from, _)| *from == edge.from) => {
                    node.after.push((edge.from, edge.data));
                }
                _ => {
                    for edge in &edges[..added] {
                        self.cut(edge.from, edge.to);
                    }
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
            }
        }
        Ok(())
    }

    /// Removes edges, all or none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if one is not there.
    pub fn remove_edges(&mut self, edges: &[(usize, usize)]) -> Result<(), CUresult> {
        let has = |&(from, to): &(usize, usize)| self.dependencies(to).any(|e| e.from == from);
        if !edges.iter().all(has) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        edges.iter().for_each(|&(from, to)| self.cut(from, to));
        Ok(())
    }

    fn cut(&mut self, from: usize, to: usize) {
        if let Some(node) = self.nodes.get_mut(&to) {
            node.after.retain(|(before, _)| *before != from);
        }
    }

    /// Takes a node and its edges out.
    pub fn remove(&mut self, node: usize) -> Option<Node<K>> {
        let removed = self.nodes.remove(&node)?;
        for other in self.nodes.values_mut() {
            other.after.retain(|(before, _)| *before != node);
        }
        Some(removed)
    }

    /// The same edges between other keys, each node changed by `change`; every node remembers its
    /// origin.
    ///
    /// # Errors
    /// The first of `change`.
    pub fn renamed<L, E>(
        &self,
        mut new_key: impl FnMut() -> usize,
        mut change: impl FnMut(&K) -> Result<L, E>,
    ) -> Result<Shape<L>, E> {
        let names: HashMap<usize, usize> = self.nodes.keys().map(|&key| (key, new_key())).collect();
        let name = |key: usize| names.get(&key).copied();
        let mut nodes = BTreeMap::new();
        for (&key, node) in &self.nodes {
            let after =
                node.after.iter().filter_map(|&(from, data)| Some((name(from)?, data))).collect();
            let copy = Node { kind: change(&node.kind)?, origin: Some(key), after };
            nodes.extend(name(key).map(|name| (name, copy)));
        }
        Ok(Shape { nodes })
    }

    /// All nodes, each after its dependencies; `None`: there is a cycle.
    pub fn topological(&self) -> Option<Vec<usize>> {
        let mut open: HashMap<usize, usize> = HashMap::new();
        let mut next: HashMap<usize, Vec<usize>> = HashMap::new();
        for edge in self.edges() {
            *open.entry(edge.to).or_default() += 1;
            next.entry(edge.from).or_default().push(edge.to);
        }
        let mut ready: BTreeSet<usize> = self.roots().into_iter().collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(node) = ready.pop_first() {
            order.push(node);
            for &after in next.get(&node).into_iter().flatten() {
                let left = open.entry(after).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    ready.insert(after);
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }

    /// The given nodes and everything that they depend on.
    pub fn ancestors(&self, of: &[usize]) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = of.iter().copied().collect();
        let mut left: Vec<usize> = of.to_vec();
        while let Some(node) = left.pop() {
            for edge in self.dependencies(node) {
                if found.insert(edge.from) {
                    left.push(edge.from);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(nodes: &[usize], edges: &[(usize, usize)]) -> Shape<()> {
        let mut shape = Shape::default();
        nodes.iter().for_each(|&node| shape.add(node, (), None, &[]).unwrap());
        let edge = |&(from, to): &(usize, usize)| Edge { from, to, data: EdgeData::default() };
        shape.add_edges(&edges.iter().map(edge).collect::<Vec<_>>()).unwrap();
        shape
    }

    #[test]
    fn order_follows_edges_and_finds_cycles() {
        let diamond = shape(&[1, 2, 3, 4], &[(4, 2), (4, 3), (2, 1), (3, 1)]);
        assert_eq!(diamond.topological(), Some(vec![4, 2, 3, 1]));
        assert_eq!((diamond.roots(), diamond.sinks()), (vec![4], vec![1]));
        assert_eq!(diamond.ancestors(&[2]).into_iter().collect::<Vec<_>>(), [2, 4]);
        assert_eq!(diamond.dependents(4).map(|edge| edge.to).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(shape(&[1, 2], &[(1, 2), (2, 1)]).topological(), None);
    }

    #[test]
    fn edges_are_added_all_or_none() {
        let mut graph = shape(&[1, 2, 3], &[(1, 2)]);
        let edge = |from, to| Edge { from, to, data: EdgeData::default() };
        for refused in
            [[edge(2, 3), edge(1, 2)], [edge(2, 3), edge(3, 3)], [edge(2, 3), edge(9, 3)]]
        {
            assert_eq!(graph.add_edges(&refused), Err(CUresult::ERROR_INVALID_VALUE));
            assert_eq!(graph.edges().count(), 1);
        }
        assert_eq!(graph.remove_edges(&[(1, 2), (2, 3)]), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(graph.remove_edges(&[(1, 2)]), Ok(()));
        assert_eq!(graph.edges().count(), 0);
    }

    #[test]
    fn a_refused_node_is_not_there_and_a_removed_one_leaves_no_edges() {
        let mut graph = shape(&[1, 2, 3], &[(1, 2), (2, 3)]);
        let unknown = [(1, EdgeData::default()), (7, EdgeData::default())];
        assert!(graph.add(8, (), None, &unknown).is_err());
        assert!(!graph.contains(8));
        assert!(graph.remove(2).is_some());
        assert_eq!((graph.len(), graph.edges().count()), (2, 0));
    }

    #[test]
    fn a_copy_has_its_own_keys_and_the_same_edges() {
        let graph = shape(&[1, 2], &[(1, 2)]);
        let mut last = 10;
        let next = || {
            last += 1;
            last
        };
        let copy = graph.renamed(next, |()| Ok::<_, CUresult>('x')).unwrap();
        let edges: Vec<_> = copy.edges().map(|edge| (edge.from, edge.to)).collect();
        assert_eq!((edges, copy.get(12).and_then(|node| node.origin)), (vec![(11, 12)], Some(2)));
    }
}
