//! Which allocations share addresses, and what launches do to them.

use super::*;
use crate::graph::dot::Label;
use crate::graph::model::Graph;
use crate::graph::shape::EdgeData;
use crate::types::{CUgraphNodeType, CUstreamCaptureMode};
use proptest::prelude::*;
use std::sync::Arc;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Where blocks lie, one after another.
const FIRST: u64 = 0x10_0000_0000;

#[derive(Clone, Copy, Debug)]
enum Node {
    Plain,
    Memory(MemoryUse),
}

impl Kind for Node {
    fn type_code(&self) -> CUgraphNodeType {
        CUgraphNodeType::EMPTY
    }

    fn role(&self) -> Role<'_, Self> {
        match self {
            Self::Plain => Role::Plain,
            Self::Memory(used) => Role::Memory(*used),
        }
    }

    fn child(_: Arc<Graph<Self>>) -> Self {
        Self::Plain
    }

    fn label(&self) -> Label {
        Label::Plain(self.type_code())
    }

    fn thread_mode() -> CUstreamCaptureMode {
        CUstreamCaptureMode::RELAXED
    }
}

/// A graph with its memory. Nodes are numbered from 0, allocations too.
struct Built {
    shape: Shape<Node>,
    blocks: Blocks<u32>,
    /// By allocation.
    ranges: Vec<Range<u64>>,
    end: u64,
}

impl Built {
    fn new() -> Self {
        Self { shape: Shape::default(), blocks: Blocks::new(512), ranges: Vec::new(), end: FIRST }
    }

    fn node(&mut self, node: Node, after: &[usize]) -> usize {
        let key = self.shape.len();
        let after: Vec<_> = after.iter().map(|&node| (node, EdgeData::default())).collect();
        self.shape.add(key, node, None, &after).unwrap();
        key
    }

    /// The allocation and its node.
    fn allocate_for(&mut self, owner: u32, size_bytes: u64, after: &[usize]) -> (u64, usize) {
        let number = self.ranges.len() as u64;
        let candidates = self.blocks.candidates(size_bytes, &owner);
        let ended = ended_before(&self.shape, after, &candidates);
        let start = self.blocks.enter(number, size_bytes, &owner, &ended).unwrap_or_else(|| {
            let range = self.end..self.end + size_bytes.next_multiple_of(512);
            self.end = range.end;
            self.blocks.add(number, size_bytes, owner, range.clone());
            range.start
        });
        self.ranges.push(start..start + size_bytes);
        (number, self.node(Node::Memory(MemoryUse::Allocates(number)), after))
    }

    fn allocate(&mut self, size_bytes: u64, after: &[usize]) -> (u64, usize) {
        self.allocate_for(0, size_bytes, after)
    }

    fn free(&mut self, number: u64, after: &[usize]) -> usize {
        self.blocks.will_end(number);
        self.node(Node::Memory(MemoryUse::Frees(number)), after)
    }

    fn start(&self, number: u64) -> u64 {
        self.ranges[number as usize].start
    }

    fn held(&self) -> u64 {
        self.blocks.usage(|_| true).held
    }

    fn uses(&self) -> Vec<MemoryUse> {
        let used = |key| match self.shape.get(key).unwrap().kind {
            Node::Memory(used) => Some(used),
            Node::Plain => None,
        };
        self.shape.topological().unwrap().into_iter().filter_map(used).collect()
    }

    fn launch(&mut self, leftovers: Leftovers) -> Answer<Effect> {
        let effect = self.blocks.launch(self.uses(), leftovers)?;
        self.blocks.note(&effect);
        Ok(effect)
    }
}

#[test]
fn a_chain_of_equal_allocations_has_one_address_and_one_block() {
    let mut built = Built::new();
    let mut after = Vec::new();
    for _ in 0..10 {
        let (number, node) = built.allocate(3 * MIB, &after);
        let kernel = built.node(Node::Plain, &[node]);
        after = vec![built.free(number, &[kernel])];
        assert_eq!(built.start(number), FIRST);
    }
    assert_eq!(built.held(), 3 * MIB);
    let usage = |built: &Built| built.blocks.usage(|_| true);
    assert_eq!(usage(&built), Usage { used: 0, held: 3 * MIB });
    assert_eq!(built.launch(Leftovers::Refused).unwrap().leaves.len(), 10);
    assert_eq!(usage(&built), Usage { used: 3 * MIB, held: 3 * MIB });
    assert_eq!(built.blocks.trim(|_| true), [FIRST]);
    assert_eq!(usage(&built), Usage { used: 0, held: 3 * MIB });
}

#[test]
fn branches_do_not_share_and_what_joins_them_finds_room() {
    let mut built = Built::new();
    let root = built.node(Node::Plain, &[]);
    let (left, left_node) = built.allocate(MIB, &[root]);
    let left_end = built.free(left, &[left_node]);
    let (right, right_node) = built.allocate(MIB, &[root]);
    let right_end = built.free(right, &[right_node]);
    assert_ne!(built.start(left), built.start(right), "in parallel");
    let (unordered, _) = built.allocate(MIB, &[left_node]);
    assert!(![left, right].map(|it| built.start(it)).contains(&built.start(unordered)));
    let (joined, _) = built.allocate(MIB, &[left_end, right_end]);
    assert_eq!(built.start(joined), built.start(left));
    let (beside, _) = built.allocate(MIB, &[left_end, right_end]);
    assert_eq!(built.start(beside), built.start(right), "the first is taken");
}

#[test]
fn what_is_not_freed_in_the_graph_keeps_its_address() {
    let mut built = Built::new();
    let (kept, node) = built.allocate(MIB, &[]);
    let (other, _) = built.allocate(MIB, &[node]);
    assert_ne!(built.start(kept), built.start(other));
}

#[test]
fn small_allocations_lie_in_a_large_one_side_by_side_and_aligned() {
    let mut built = Built::new();
    let (large, node) = built.allocate(4 * MIB, &[]);
    let end = built.free(large, &[node]);
    let (first, first_node) = built.allocate(MIB + 1, &[end]);
    let (second, second_node) = built.allocate(MIB, &[end]);
    assert_eq!(built.start(first), FIRST);
    assert_eq!(built.start(second), FIRST + MIB + 512);
    let (larger, _) = built.allocate(4 * MIB, &[end]);
    assert_ne!(built.start(larger), FIRST, "there is no room");
    let ends = [built.free(first, &[first_node]), built.free(second, &[second_node])];
    let (again, _) = built.allocate(4 * MIB, &ends);
    assert_eq!(built.start(again), FIRST, "both have ended");
    assert_eq!(built.held(), 8 * MIB);
}

#[test]
fn the_smallest_block_that_fits_is_taken_and_only_the_owners() {
    let mut built = Built::new();
    let (large, large_node) = built.allocate(8 * MIB, &[]);
    let (small, small_node) = built.allocate(2 * MIB, &[]);
    let ends = [built.free(large, &[large_node]), built.free(small, &[small_node])];
    let (foreign, _) = built.allocate_for(1, MIB, &ends);
    assert!(built.start(foreign) >= FIRST + 10 * MIB);
    let (fits, _) = built.allocate(MIB, &ends);
    assert_eq!(built.start(fits), built.start(small));
}

#[test]
fn launches_leave_allocations_live_and_are_refused_over_them() {
    let mut built = Built::new();
    let (first, node) = built.allocate(MIB, &[]);
    let end = built.free(first, &[node]);
    let (second, _) = built.allocate(MIB, &[end]);
    let address = built.start(second);
    assert_eq!(built.start(first), address);
    assert_eq!(built.blocks.at(address), Some(second), "the latest");
    assert_eq!(built.blocks.live_around(address), None);
    built.launch(Leftovers::Refused).unwrap();
    assert!(built.blocks.trim(|_| true).is_empty(), "one is live");
    assert_eq!(built.blocks.usage(|_| true).used, MIB);
    assert_eq!(built.blocks.live_around(address + MIB - 1), Some(address..address + MIB));
    assert!(built.launch(Leftovers::Refused).is_err(), "still allocated");
    let effect = built.launch(Leftovers::Freed).unwrap();
    assert_eq!(effect.freed_first, [second]);
    assert!(built.blocks.is_live(second) && built.blocks.free(second));
    assert!(!built.blocks.free(second) && built.blocks.live_around(address).is_none());
    built.launch(Leftovers::Refused).unwrap();
}

/// An executable graph can be of an earlier state of its graph.
#[test]
fn an_allocation_whose_addresses_are_live_for_another_is_refused() {
    let mut built = Built::new();
    let (first, node) = built.allocate(MIB, &[]);
    let before = built.uses();
    let end = built.free(first, &[node]);
    let (second, _) = built.allocate(MIB, &[end]);
    let effect = built.blocks.launch(before.clone(), Leftovers::Refused).unwrap();
    built.blocks.note(&effect);
    assert_eq!(built.blocks.at(built.start(first)), Some(first), "the live one");
    let only_second = [MemoryUse::Allocates(second)];
    assert!(built.blocks.launch(only_second, Leftovers::Refused).is_err());
    assert!(built.blocks.launch(only_second, Leftovers::Freed).is_err(), "another's leftover");
    assert!(built.blocks.free(first));
    built.launch(Leftovers::Refused).unwrap();
    assert!(built.blocks.launch(before, Leftovers::Refused).is_err(), "the second is live");
}

#[test]
fn a_block_goes_with_its_last_allocation() {
    let mut built = Built::new();
    let (first, node) = built.allocate(MIB, &[]);
    let end = built.free(first, &[node]);
    let (second, _) = built.allocate(MIB, &[end]);
    assert_eq!(built.blocks.leave(first), None);
    assert_eq!(built.blocks.all_at(FIRST).collect::<Vec<_>>(), [second]);
    assert_eq!(built.blocks.leave(second), Some(FIRST..FIRST + MIB));
    assert_eq!((built.held(), built.blocks.at(FIRST)), (0, None));
}

/// One node of a random graph: its dependencies are chosen of those before.
#[derive(Clone, Debug)]
enum Step {
    Plain,
    Allocate(u64),
    Free(usize),
}

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<usize>)>> {
    let step = prop_oneof![
        1 => Just(Step::Plain),
        3 => (1u64..5000).prop_map(Step::Allocate),
        3 => (0usize..64).prop_map(Step::Free),
    ];
    prop::collection::vec((step, prop::collection::vec(0usize..64, 0..3)), 1..60)
}

/// Whether a way leads from one node to another, by nothing but edges.
fn comes_before(shape: &Shape<Node>, from: usize, to: usize) -> bool {
    shape.dependencies(to).any(|edge| edge.from == from || comes_before(shape, from, edge.from))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn who_shares_an_address_is_ordered_by_a_way_through_the_graph(steps in steps()) {
        let mut built = Built::new();
        let mut nodes: Vec<usize> = Vec::new();
        // By allocation: its node, and the one that frees it.
        let mut lives: Vec<(usize, Option<usize>)> = Vec::new();
        for (step, after) in steps {
            let chosen = after.iter().filter_map(|&place| nodes.get(place % nodes.len().max(1)));
            let mut after: Vec<usize> = chosen.copied().collect();
            after.sort_unstable();
            after.dedup();
            let node = match step {
                Step::Plain => built.node(Node::Plain, &after),
                Step::Allocate(size_bytes) => {
                    let (_, node) = built.allocate(size_bytes, &after);
                    lives.push((node, None));
                    node
                }
                Step::Free(place) => {
                    let Some(place) = place.checked_rem(lives.len()) else { continue };
                    if lives[place].1.is_some() {
                        continue;
                    }
                    if !after.contains(&lives[place].0) {
                        after.push(lives[place].0);
                    }
                    let node = built.free(place as u64, &after);
                    lives[place].1 = Some(node);
                    node
                }
            };
            nodes.push(node);
        }
        for (one, range) in built.ranges.iter().enumerate() {
            prop_assert!(range.start.is_multiple_of(512));
            let block = built.blocks.block(one as u64).unwrap();
            prop_assert!(block.start <= range.start && range.end <= block.end);
            for (other, other_range) in built.ranges.iter().enumerate().skip(one + 1) {
                if overlap(range, other_range) {
                    let end = lives[one].1;
                    prop_assert!(
                        end.is_some_and(|end| comes_before(&built.shape, end, lives[other].0)),
                        "{one} and {other} can be there at once"
                    );
                }
            }
        }
        // Any order that keeps to the edges is fine, so a launch is.
        prop_assert!(built.launch(Leftovers::Refused).is_ok());
    }
}
