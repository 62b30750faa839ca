//! Handles are tokens: numbers that are looked up, never addresses that are followed.
//!
//! A token holds its kind, a generation and a place in its table, so that a stale, foreign or
//! invented handle is recognised and the call refused, as CUDA refuses it. Tokens of different
//! kinds never agree: cuLaunchKernel is given kernels and functions alike.

use crate::thread::remembered;
use crate::thread::remembered::Place;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// What a handle stands for. Threads remember what they looked up of the first ones.
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
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

impl Kind {
    /// The kind that a token claims; whether such a thing exists only its table knows.
    pub(crate) fn of(token: usize) -> u8 {
        u8::try_from(token >> KIND_SHIFT).unwrap_or(0)
    }

    /// A token of a kind whose things are numbered and never looked up in a [`Table`]: greater for
    /// a greater number.
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
    /// Different from all other tables'.
    number: u64,
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
struct Slots<T> {
    entries: Vec<Slot<T>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    /// How many things the place has had. Tokens hold its low bits, so that they recur after a
    /// million; a state never does, since a thread would take the new thing for an old one that it
    /// remembers.
    generation: u64,
    /// The generation, or [`REMOVED`]; stays where it is as long as the table, for [`remembered`].
    state: Box<AtomicU64>,
    value: Option<Arc<T>>,
}

/// The state of a place without a thing; no generation.
const REMOVED: u64 = u64::MAX;

impl<T> Slot<T> {
    /// Whether a token with these low bits of a generation is the last one that the place gave out.
    fn is_of(&self, generation: u64) -> bool {
        self.generation & GENERATION_MASK == generation
    }
}

impl<T> Table<T> {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            number: remembered::table_number(),
            slots: RwLock::new(Slots { entries: Vec::new(), free: Vec::new() }),
        }
    }

    /// Adds what `make` makes of its own token; `None` if a million are alive already.
    pub(crate) fn insert_with(&self, make: impl FnOnce(usize) -> T) -> Option<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.entries.len() < INDEX_LIMIT => {
                let state = Box::new(AtomicU64::new(REMOVED));
                slots.entries.push(Slot { generation: 0, state, value: None });
                slots.entries.len() - 1
            }
            None => return None,
        };
        let slot = &mut slots.entries[index];
        slot.generation += 1;
        let token = (usize::from(self.kind as u8) << KIND_SHIFT)
            | (((slot.generation & GENERATION_MASK) as usize) << GENERATION_SHIFT)
            | (index << LOW_BITS);
        let value = Arc::new(make(token));
        slot.value = Some(Arc::clone(&value));
        // Release: as in `remove`.
        slot.state.store(slot.generation, Ordering::Release);
        Some(value)
    }

    /// A token's place, and the low bits of its generation.
    fn index(&self, token: usize) -> Option<(usize, u64)> {
        if !self.kind.is(token) || token & ((1 << LOW_BITS) - 1) != 0 {
            return None;
        }
        let generation = (token >> GENERATION_SHIFT) as u64 & GENERATION_MASK;
        Some((token >> LOW_BITS & (INDEX_LIMIT - 1), generation))
    }

    /// Where threads remember what a token stands for; a token that was never given out is never
    /// found there.
    #[inline(always)]
    fn place(&self, token: usize) -> (u64, usize, usize) {
        (self.number, token >> KIND_SHIFT, token >> LOW_BITS)
    }

    /// What a token stands for, if it is alive.
    #[inline]
    pub(crate) fn get(&self, token: usize) -> Option<Arc<T>> {
        // SAFETY: what is remembered of this table is of its type, and the table is there.
        match unsafe { remembered::get::<T>(self.place(token), token) } {
            Some(found) => Some(found),
            None => self.find(token),
        }
    }

    /// The same of what is not remembered, and is from now on.
    #[cold]
    fn find(&self, token: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(token)?;
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner());
        let slot = slots.entries.get(index).filter(|slot| slot.is_of(generation))?;
        let found = slot.value.clone()?;
        let alive = slot.generation;
        // SAFETY: a word on the heap that lives as long as the table, which is borrowed.
        let state: &AtomicU64 = unsafe { &*core::ptr::from_ref(&*slot.state) };
        drop(slots);
        let (table, kind, index) = self.place(token);
        remembered::keep(Place { table, token, kind, index, alive, state }, &found);
        Some(found)
    }

    /// What `look` finds of what a token stands for, without the cost of a reference. It may wait,
    /// and use this table.
    #[inline]
    pub(crate) fn look<R>(&self, token: usize, look: impl FnOnce(&T) -> R) -> Option<R> {
        // SAFETY: as in `get`.
        let seen = unsafe {
            let is_meant = |known, _: &T| known == token;
            remembered::look(self.place(token), is_meant, look, |look, thing| look(thing))
        };
        match seen {
            Ok(seen) => Some(seen),
            Err(look) => self.find(token).map(|found| look(&found)),
        }
    }

    /// Takes what a token stands for; the token is dead from then on.
    pub(crate) fn remove(&self, token: usize) -> Option<Arc<T>> {
        let (index, generation) = self.index(token)?;
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let slot = slots.entries.get_mut(index)?;
        if !slot.is_of(generation) {
            return None;
        }
        let value = slot.value.take()?;
        // Release: with the Acquire of threads that remember it.
        slot.state.store(REMOVED, Ordering::Release);
        slots.free.push(index);
        drop(slots);
        remembered::forget(self.place(token), token);
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

    #[test]
    fn what_a_thread_remembers_dies_with_its_removal_anywhere() {
        let table = Table::new(Kind::Event);
        let thing = table.insert_with(|token| token).unwrap();
        assert_eq!(table.look(*thing, |found| *found), Some(*thing));
        assert_eq!(table.look(*thing, |found| *found), Some(*thing), "remembered");
        std::thread::scope(|scope| scope.spawn(|| table.remove(*thing)).join().unwrap().unwrap());
        assert_eq!(table.look(*thing, |found| *found), None);
        let next = table.insert_with(|token| token).unwrap();
        assert_eq!((table.get(*thing), table.get(*next)), (None, Some(next.clone())));
    }

    #[test]
    fn a_token_that_recurs_is_not_taken_for_what_it_was() {
        let table = Table::new(Kind::Event);
        let former = table.insert_with(|token| (token, 0)).unwrap();
        let token = former.0;
        assert_eq!(table.get(token), Some(former), "remembered");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut last = token;
                for number in 1..=1 << GENERATION_BITS {
                    table.remove(last).unwrap();
                    last = table.insert_with(|token| (token, number)).unwrap().0;
                }
                last
            });
            assert_eq!(other.join().unwrap(), token, "all generations that a token can hold");
        });
        assert_eq!(table.get(token).unwrap().1, 1 << GENERATION_BITS);
    }

    #[test]
    fn what_is_being_looked_at_is_not_forgotten() {
        let table = Table::new(Kind::Stream);
        let things: Vec<_> = (0..64).map(|_| table.insert_with(|token| token).unwrap()).collect();
        let token = *things[0];
        assert_eq!(Arc::strong_count(&things[0]), 2);
        assert!(table.get(token).is_some());
        assert_eq!(Arc::strong_count(&things[0]), 3, "remembered");
        table.look(token, |found| {
            // More than are remembered, and the thing itself removed.
            assert!(things.iter().all(|thing| table.look(**thing, |_| ()).is_some()));
            table.remove(token);
            assert_eq!((Arc::strong_count(&things[0]), *found), (2, token));
        });
        assert_eq!(table.look(token, |_| ()), None);
        assert!(things[1..].iter().all(|thing| table.look(**thing, |_| ()).is_some()));
        assert_eq!(Arc::strong_count(&things[0]), 1, "forgotten for the sake of others");
    }

    #[test]
    fn two_tables_of_one_kind_are_not_taken_for_each_other() {
        let tables = [Table::new(Kind::Module), Table::new(Kind::Module)];
        let [first, second] = tables.each_ref().map(|table| table.insert_with(|token| token));
        assert_eq!(first, second, "equal tokens");
        let token = *first.unwrap();
        tables[0].look(token, |_| ()).unwrap();
        tables[0].remove(token);
        tables[0].look(token, |_| ()).ok_or(()).unwrap_err();
        assert!(tables[1].look(token, |_| ()).is_some());
    }

    #[test]
    fn a_thread_that_ends_gives_its_references_up() {
        let table = Table::new(Kind::Function);
        let thing = table.insert_with(|token| token).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(table.get(*thing).is_some())).join().unwrap();
        });
        assert_eq!(Arc::strong_count(&thing), 2);
    }
}
