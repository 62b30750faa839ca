//! Handles are tokens: numbers that are looked up, never addresses that are followed.
//!
//! A token holds its kind, a generation and a place in its table, so that a stale, foreign or invented handle is recognised and
//! the call refused, as CUDA refuses it. Tokens of different kinds never agree: cuLaunchKernel is given kernels and functions alike.

use std::sync::{Arc, RwLock};

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Context = 1,
    Module,
    Function,
    Library,
    Kernel,
    Stream,
    Event,
    Pool,
    Link,
    Memory,
    Array,
    MipmappedArray,
    Graph,
    GraphNode,
    Executable,
    UserObject,
    Green,
}

const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 20;
/// Tokens look aligned, since some programs keep flags in the low bits of handles.
const LOW_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = LOW_BITS + INDEX_BITS;
const KIND_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;
const INDEX_LIMIT: usize = 1 << INDEX_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

impl Kind {
    /// The kind that a token claims; whether such a thing exists only its table knows.
    pub(crate) fn of(token: usize) -> u8 {
        u8::try_from(token >> KIND_SHIFT).unwrap_or(0)
    }

    /// A token of a kind whose things are numbered and never looked up in a [`Table`]: greater for a greater number.
    pub(crate) fn numbered(self, number: usize) -> usize {
        (usize::from(self as u8) << KIND_SHIFT) + (number << LOW_BITS)
    }

    /// Whether a token claims this kind.
    pub(crate) fn is(self, token: usize) -> bool {
        Self::of(token) == self as u8
    }
}

/// All live things of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: Kind,
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    entries: Vec<Slot<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, slots: RwLock::new(Slots { entries: Vec::new(), free: Vec::new() }) }
    }

    /// Adds what `make` makes of its own token; `None` if a million are alive already.
    pub(crate) fn insert_with(&self, make: impl FnOnce(usize) -> T) -> Option<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.entries.len() < INDEX_LIMIT => {
                slots.entries.push(Slot { generation: 0, value: None });
                slots.entries.len() - 1
            }
            None => return None,
        };
        let slot = &mut slots.entries[index];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        let token = (usize::from(self.kind as u8) << KIND_SHIFT)
            | ((slot.generation as usize) << GENERATION_SHIFT)
            | (index << LOW_BITS);
        let value = Arc::new(make(token));
        slot.value = Some(Arc::clone(&value));
        Some(value)
    }

    fn index(&self, token: usize) -> Option<(usize, u32)> {
        if !self.kind.is(token) || token & ((1 << LOW_BITS) - 1) != 0 {
            return None;
        }
        let generation =
            u32::try_from(token >> GENERATION_SHIFT & GENERATION_MASK as usize).ok()?;
        Some((token >> LOW_BITS & (INDEX_LIMIT - 1), generation))
    }

    /// What a token stands for, if it is alive.
    pub(crate) fn get(&self, token: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(token)?;
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        let slot = slots.entries.get(index)?;
        if slot.generation == generation { slot.value.clone() } else { None }
    }

    /// What `look` finds of what a token stands for, without the cost of a reference; it may not use this table.
    pub(crate) fn look<R>(&self, token: usize, look: impl FnOnce(&T) -> R) -> Option<R> {
        let (index, generation) = self.index(token)?;
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        let slot = slots.entries.get(index).filter(|slot| slot.generation == generation)?;
        slot.value.as_deref().map(look)
    }

    /// Takes what a token stands for; the token is dead from then on.
    pub(crate) fn remove(&self, token: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(token)?;
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let slot = slots.entries.get_mut(index)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slots.free.push(index);
        Some(value)
    }

    /// All that are alive and meet a condition.
    pub(crate) fn select(&self, condition: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        slots
            .entries
            .iter()
            .filter_map(|s| s.value.as_ref())
            .filter(|v| condition(v))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_until_removed_and_never_again() {
        let table = Table::new(Kind::Stream);
        let first = table.insert_with(|token| token).unwrap();
        assert_eq!(table.get(*first), Some(Arc::clone(&first)));
        assert_eq!(table.remove(*first), Some(Arc::clone(&first)));
        assert_eq!(table.get(*first), None);
        assert_eq!(table.remove(*first), None);
        let second = table.insert_with(|token| token).unwrap();
        assert_ne!(first, second, "the place is used again, the token is not");
        assert_eq!(table.get(*first), None);
        assert_eq!(table.select(|_| true).len(), 1);
    }

    #[test]
    fn foreign_and_invented_tokens_are_unknown() {
        let streams = Table::new(Kind::Stream);
        let events = Table::new(Kind::Event);
        let stream = *streams.insert_with(|token| token).unwrap();
        events.insert_with(|_| 0_usize).unwrap();
        for token in [0, 1, 2, stream + 1, stream + 16, stream | 1 << 63, usize::MAX] {
            assert_eq!(streams.get(token), None, "{token:#x}");
        }
        assert_eq!(events.get(stream), None);
    }
}
