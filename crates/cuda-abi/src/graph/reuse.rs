//! Memory that graphs allocate: which allocations share addresses, and which are there now.
//!
//! A *block* is memory with addresses of its own. It belongs to one graph, and allocations lie in
//! it. An allocation gets addresses that others had if they have ended before it begins, in
//! whatever order branches run: the nodes that allocate and free them are ancestors of its node.
//! Nodes and edges are never taken out of a graph with such nodes, so this stays true.
//!
//! Which allocations are *live* follows the order of calls: those of launches and of the program's
//! own frees.

#[cfg(test)]
mod tests;

use super::Answer;
use super::model::{Kind, Role};
use super::shape::Shape;
use crate::types::{CUgraph, CUresult};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::ops::Range;

/// What a node does to memory that graphs allocate. Every allocation has a number that no other
/// has; a later one's is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// It allocates this one.
    Allocates(u64),
    /// It frees this one.
    Frees(u64),
}

/// Where a node is added.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The graph.
    pub graph: CUgraph,
    /// Nodes that it comes after.
    pub after: &'a [usize],
}

/// Those of some allocations that have ended when a node begins that comes after the given ones.
pub fn ended_before<K: Kind>(
    shape: &Shape<K>,
    after: &[usize],
    candidates: &BTreeSet<u64>,
) -> BTreeSet<u64> {
    let (mut begun, mut freed) = (BTreeSet::new(), BTreeSet::new());
    let mut seen: HashSet<usize> = after.iter().copied().collect();
    // What was made last comes first: mostly it is near, and the rest need not be looked at.
    let mut left: BinaryHeap<usize> = seen.iter().copied().collect();
    while let Some(node) = left.pop() {
        let found = match shape.get(node).map(|node| node.kind.role()) {
            Some(Role::Memory(MemoryUse::Allocates(number))) => Some((&mut begun, number)),
            Some(Role::Memory(MemoryUse::Frees(number))) => Some((&mut freed, number)),
            _ => None,
        };
        if let Some((set, number)) = found.filter(|(_, number)| candidates.contains(number)) {
            set.insert(number);
            if begun.len() == candidates.len() && freed.len() == candidates.len() {
                break;
            }
        }
        let new = shape.dependencies(node).map(|edge| edge.from);
        left.extend(new.filter(|&from| seen.insert(from)));
    }
    &begun & &freed
}

/// Whether a node of a graph frees an allocation.
pub fn is_freed_in<K: Kind>(shape: &Shape<K>, number: u64) -> bool {
    let frees = MemoryUse::Frees(number);
    shape.nodes().any(|(_, node)| matches!(node.kind.role(), Role::Memory(used) if used == frees))
}

/// What becomes of allocations that an earlier launch of an executable graph has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// A launch is refused while there are some.
    Refused,
    /// They are freed when the next launch begins:
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
    Freed,
}

/// What a launch does to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Allocations that are freed before it begins.
    pub freed_first: Vec<u64>,
    /// Allocations that it begins.
    pub allocates: BTreeSet<u64>,
    /// Allocations that it leaves live, or not.
    pub leaves: BTreeMap<u64, bool>,
}

/// All memory of graphs. `T` says whose a block is: allocations with the same one can share.
#[derive(Clone, Debug)]
pub struct Blocks<T> {
    /// Allocations begin at multiples of this, in bytes.
    alignment_bytes: u64,
    /// By address.
    blocks: BTreeMap<u64, Block<T>>,
    /// By number.
    allocations: HashMap<u64, Allocation>,
    /// Addresses and numbers of all allocations.
    addresses: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct Block<T> {
    owner: T,
    range: Range<u64>,
    /// Number of allocations in it.
    allocations: usize,
    /// Who had which part last: parts by their addresses, and together the whole. What was there
    /// before that has ended before.
    last: BTreeMap<u64, Part>,
    live: BTreeSet<u64>,
    /// Whether a launch has allocated in it since it was trimmed.
    is_used: bool,
}

/// How much memory graphs have, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that launches have used since they were trimmed.
    pub used: u64,
    /// All blocks.
    pub held: u64,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    end: u64,
    /// `None`: nobody had it yet.
    number: Option<u64>,
}

#[derive(Clone, Debug)]
struct Allocation {
    block: u64,
    range: Range<u64>,
    /// Whether a node of its owner's graph may free it.
    has_end: bool,
}

impl<T: PartialEq> Blocks<T> {
    /// No memory yet.
    pub fn new(alignment_bytes: u64) -> Self {
        Self {
            alignment_bytes,
            blocks: BTreeMap::new(),
            allocations: HashMap::new(),
            addresses: BTreeSet::new(),
        }
    }

    /// Whose addresses an allocation could have, if they have ended.
    pub fn candidates(&self, size_bytes: u64, owner: &T) -> BTreeSet<u64> {
        let own = self.blocks.values().filter(|block| block.owner == *owner);
        let large = own.filter(|block| block.range.end - block.range.start >= size_bytes);
        let numbers = large.flat_map(|block| block.last.values().filter_map(|part| part.number));
        let has_end = |number: &u64| self.allocations.get(number).is_some_and(|it| it.has_end);
        numbers.filter(has_end).collect()
    }

    /// Notes that a node of its owner's graph may free an allocation.
    pub fn will_end(&mut self, number: u64) {
        if let Some(allocation) = self.allocations.get_mut(&number) {
            allocation.has_end = true;
        }
    }

    /// Finds addresses for an allocation in a block of its owner's, the smallest that has them:
    /// addresses that nobody had, or whose last allocation is among those that have `ended`.
    pub fn enter(
        &mut self,
        number: u64,
        size_bytes: u64,
        owner: &T,
        ended: &BTreeSet<u64>,
    ) -> Option<u64> {
        let own = self.blocks.iter().filter(|(_, block)| block.owner == *owner);
        let fits = own.filter_map(|(base, block)| {
            let place = block.room(size_bytes, self.alignment_bytes, ended)?;
            Some((block.range.end - block.range.start, *base, place))
        });
        let (_, base, place) = fits.min()?;
        self.put(number, base, place..place + size_bytes);
        Some(place)
    }

    /// Adds a block for an allocation, at its start.
    pub fn add(&mut self, number: u64, size_bytes: u64, owner: T, range: Range<u64>) {
        let (base, end) = (range.start, range.end);
        let last = BTreeMap::from([(base, Part { end, number: None })]);
        let live = BTreeSet::new();
        let block = Block { owner, range, allocations: 0, last, live, is_used: false };
        self.blocks.insert(base, block);
        self.put(number, base, base..base + size_bytes);
    }

    fn put(&mut self, number: u64, base: u64, range: Range<u64>) {
        let Some(block) = self.blocks.get_mut(&base) else { return };
        block.take(number, &range);
        block.allocations += 1;
        self.addresses.insert((range.start, number));
        self.allocations.insert(number, Allocation { block: base, range, has_end: false });
    }

    /// Forgets an allocation. Returns its block if that has no other: the block is gone.
    pub fn leave(&mut self, number: u64) -> Option<Range<u64>> {
        let Allocation { block: base, range, .. } = self.allocations.remove(&number)?;
        self.addresses.remove(&(range.start, number));
        let block = self.blocks.get_mut(&base)?;
        block.live.remove(&number);
        block.allocations -= 1;
        let is_last = block.allocations == 0;
        is_last.then(|| self.blocks.remove(&base).map(|block| block.range)).flatten()
    }

    /// The allocation that begins at an address: the live one, else the latest.
    pub fn at(&self, address: u64) -> Option<u64> {
        let numbers = || self.addresses.range((address, 0)..=(address, u64::MAX)).rev();
        let latest = numbers().next().map(|(_, number)| *number)?;
        let live = &self.block_of(latest)?.live;
        let begins_here = |number: &&u64| {
            self.allocations.get(number).is_some_and(|it| it.range.start == address)
        };
        Some(live.iter().find(begins_here).copied().unwrap_or(latest))
    }

    /// All allocations that begin at an address, the latest first.
    pub fn all_at(&self, address: u64) -> impl Iterator<Item = u64> + '_ {
        let found = self.addresses.range((address, 0)..=(address, u64::MAX));
        found.rev().map(|(_, number)| *number)
    }

    /// The addresses of the live allocation that an address lies in.
    pub fn live_around(&self, address: u64) -> Option<Range<u64>> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        let ranges = block.live.iter().filter_map(|number| self.allocations.get(number));
        ranges.map(|allocation| &allocation.range).find(|range| range.contains(&address)).cloned()
    }

    /// The addresses of an allocation's block.
    pub fn block(&self, number: u64) -> Option<Range<u64>> {
        self.block_of(number).map(|block| block.range.clone())
    }

    fn block_of(&self, number: u64) -> Option<&Block<T>> {
        self.blocks.get(&self.allocations.get(&number)?.block)
    }

    /// Whether an allocation is live.
    pub fn is_live(&self, number: u64) -> bool {
        self.block_of(number).is_some_and(|block| block.live.contains(&number))
    }

    /// Ends an allocation; says whether it was live.
    pub fn free(&mut self, number: u64) -> bool {
        self.set(number, false)
    }

    /// Says whether it was live.
    fn set(&mut self, number: u64, is_live: bool) -> bool {
        let base = self.allocations.get(&number).map(|allocation| allocation.block);
        let Some(block) = base.and_then(|base| self.blocks.get_mut(&base)) else { return false };
        match is_live {
            true => !block.live.insert(number),
            false => block.live.remove(&number),
        }
    }

    /// What a launch of nodes with these uses, in this order, comes to.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if it allocates what is live, or addresses that are, or frees what
    /// is not.
    pub fn launch(
        &self,
        uses: impl IntoIterator<Item = MemoryUse>,
        leftovers: Leftovers,
    ) -> Answer<Effect> {
        const REFUSED: CUresult = CUresult::ERROR_INVALID_VALUE;
        let uses: Vec<MemoryUse> = uses.into_iter().collect();
        let allocates = uses.iter().filter_map(MemoryUse::allocates).collect();
        let mut effect = Effect { allocates, ..Effect::default() };
        // By block, as it changes.
        let mut live: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        for used in uses {
            let (MemoryUse::Allocates(number) | MemoryUse::Frees(number)) = used;
            let allocation = self.allocations.get(&number).ok_or(REFUSED)?;
            let block = self.blocks.get(&allocation.block).ok_or(REFUSED)?;
            let live = live.entry(allocation.block).or_insert_with(|| block.live.clone());
            if used == MemoryUse::Frees(number) {
                if !live.remove(&number) {
                    return Err(REFUSED);
                }
                effect.leaves.insert(number, false);
                continue;
            }
            let in_its_way = |other: &u64| {
                let other = self.allocations.get(other).map(|other| &other.range);
                other.is_some_and(|other| overlap(other, &allocation.range))
            };
            for other in live.iter().copied().filter(in_its_way).collect::<Vec<_>>() {
                let is_leftover =
                    effect.allocates.contains(&other) && !effect.leaves.contains_key(&other);
                if leftovers == Leftovers::Refused || !is_leftover {
                    return Err(REFUSED);
                }
                live.remove(&other);
                effect.freed_first.push(other);
            }
            live.insert(number);
            effect.leaves.insert(number, true);
        }
        Ok(effect)
    }

    /// Notes that a launch was submitted.
    pub fn note(&mut self, effect: &Effect) {
        for &number in &effect.freed_first {
            self.set(number, false);
        }
        for (&number, &is_live) in &effect.leaves {
            self.set(number, is_live);
        }
        for number in &effect.allocates {
            let base = self.allocations.get(number).map(|allocation| allocation.block);
            if let Some(block) = base.and_then(|base| self.blocks.get_mut(&base)) {
                block.is_used = true;
            }
        }
    }

    /// Notes that blocks of the owners that are meant are no longer used, but for those with live
    /// allocations. Returns the addresses of all that are not used.
    pub fn trim(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<u64> {
        let meant = self.blocks.iter_mut().filter(|(_, block)| is_meant(&block.owner));
        let unused = meant.filter_map(|(base, block)| {
            block.is_used = !block.live.is_empty();
            (!block.is_used).then_some(*base)
        });
        unused.collect()
    }

    /// How much memory the owners have that are meant.
    pub fn usage(&self, is_meant: impl Fn(&T) -> bool) -> Usage {
        let meant = self.blocks.values().filter(|block| is_meant(&block.owner));
        meant.fold(Usage::default(), |usage, block| {
            let bytes = block.range.end - block.range.start;
            let used = if block.is_used { bytes } else { 0 };
            Usage { used: usage.used + used, held: usage.held + bytes }
        })
    }
}

impl MemoryUse {
    fn allocates(&self) -> Option<u64> {
        match self {
            Self::Allocates(number) => Some(*number),
            Self::Frees(_) => None,
        }
    }
}

impl<T> Block<T> {
    /// The lowest address of room for so many bytes.
    fn room(&self, size_bytes: u64, alignment_bytes: u64, ended: &BTreeSet<u64>) -> Option<u64> {
        let is_free = |part: &Part| part.number.is_none_or(|number| ended.contains(&number));
        let mut from = self.range.start;
        for part in self.last.values() {
            if !is_free(part) {
                let offset =
                    (part.end - self.range.start).checked_next_multiple_of(alignment_bytes)?;
                from = self.range.start.checked_add(offset)?;
            } else if from.checked_add(size_bytes)? <= part.end {
                return Some(from);
            }
        }
        None
    }

    /// Notes who had a range last.
    fn take(&mut self, number: u64, range: &Range<u64>) {
        let overlapped: Vec<(u64, Part)> = {
            let parts = self.last.range(..range.end);
            let overlapped = parts.filter(|(_, part)| part.end > range.start);
            overlapped.map(|(start, part)| (*start, *part)).collect()
        };
        for (start, part) in overlapped {
            self.last.remove(&start);
            if start < range.start {
                self.last.insert(start, Part { end: range.start, ..part });
            }
            if part.end > range.end {
                self.last.insert(range.end, part);
            }
        }
        self.last.insert(range.start, Part { end: range.end, number: Some(number) });
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
