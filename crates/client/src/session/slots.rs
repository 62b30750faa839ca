//! The streams of a session as the executor counts them: slots with a growing number of pieces of
//! work.
//!
//! Pure bookkeeping, under the session's posting lock. Work on a stream is numbered from 1; the
//! executor is asked (`Signal`) to write the number of the last piece into the stream's completion
//! word only when somebody wants to know. A slot is used again once its word shows that all work of
//! its former stream is done, so that a word never goes back.

use link::wire::command::LEGACY_STREAM;
use link::wire::layout::STREAM_SLOTS;

/// A point in a stream's work: everything up to and with the piece of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) slot: u32,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Work posted.
    posted: u64,
    /// The last number that a signal was asked for.
    signalled: u64,
    context: u32,
    /// Listed in `active`.
    is_active: bool,
    /// For a default stream: how much of all work its last mark covers.
    covers: Option<u64>,
}

/// All slots of a session.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// Slots with work that was not yet seen to be done.
    active: Vec<u32>,
    free: Vec<u32>,
    retiring: Vec<Mark>,
    /// Work posted in all slots.
    work: u64,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![Slot { covers: Some(0), ..Slot::default() }],
            active: Vec::new(),
            free: Vec::new(),
            retiring: Vec::new(),
            work: 0,
        }
    }

    /// A slot for a new stream; `completed` reads completion words. `None` if all are taken.
    pub(crate) fn take(&mut self, context: u32, completed: impl Fn(u32) -> u64) -> Option<u32> {
        let slot = self.free.pop().or_else(|| {
            let done = self.retiring.iter().position(|mark| completed(mark.slot) >= mark.number)?;
            Some(self.retiring.swap_remove(done).slot)
        });
        let slot = match slot {
            Some(slot) => slot,
            None if self.slots.len() < STREAM_SLOTS => {
                self.slots.push(Slot::default());
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let entry = &mut self.slots[slot as usize];
        (entry.context, entry.covers) = (context, None);
        Some(slot)
    }

    /// Makes a new stream a default stream, which waits for others.
    pub(crate) fn make_default(&mut self, slot: u32) {
        self.slots[slot as usize].covers = Some(0);
    }

    /// Gives a slot back whose stream is being destroyed, after its last signal was posted.
    pub(crate) fn give_back(&mut self, slot: u32) {
        let number = self.slots[slot as usize].posted;
        if number == 0 { self.free.push(slot) } else { self.retiring.push(Mark { slot, number }) }
    }

    /// The number of the next piece of work.
    pub(crate) fn next(&mut self, slot: u32, context: u32) -> u64 {
        let entry = &mut self.slots[slot as usize];
        entry.posted += 1;
        entry.context = context;
        if !entry.is_active {
            entry.is_active = true;
            self.active.push(slot);
        }
        self.work += 1;
        entry.posted
    }

    /// All of the slot's work so far. On a default stream that includes the work of all blocking
    /// streams, so it counts as a piece of its own.
    pub(crate) fn mark(&mut self, slot: u32, context: u32) -> Mark {
        if self.slots[slot as usize].covers.is_some_and(|covers| covers != self.work) {
            self.next(slot, context);
            self.slots[slot as usize].covers = Some(self.work);
        }
        Mark { slot, number: self.slots[slot as usize].posted }
    }

    /// Whether a signal must be posted before this mark shows in the completion word; the caller
    /// posts it with the returned number.
    pub(crate) fn needs_signal(&mut self, mark: Mark) -> Option<u64> {
        let slot = &mut self.slots[mark.slot as usize];
        if slot.signalled >= mark.number {
            return None;
        }
        slot.signalled = slot.posted;
        Some(slot.posted)
    }

    /// Notes that something else (an event's record) writes this number.
    pub(crate) fn note_signal(&mut self, mark: Mark) {
        let slot = &mut self.slots[mark.slot as usize];
        slot.signalled = slot.signalled.max(mark.number);
    }

    /// Marks of all work of a context (0: of all) that is not known to be done.
    pub(crate) fn outstanding(
        &mut self,
        context: u32,
        completed: impl Fn(u32) -> u64,
    ) -> Vec<Mark> {
        let slots = &mut self.slots;
        self.active.retain(|&slot| {
            let entry = &mut slots[slot as usize];
            entry.is_active = completed(slot) < entry.posted;
            entry.is_active
        });
        // The legacy stream belongs to all contexts.
        let of_context = |&slot: &u32| {
            context == 0 || slot == LEGACY_STREAM || slots[slot as usize].context == context
        };
        let mark = |&slot: &u32| Mark { slot, number: slots[slot as usize].posted };
        self.active.iter().filter(|s| of_context(s)).map(mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_asked_for_once_per_piece_of_work() {
        let mut slots = Slots::new();
        let slot = slots.take(1, |_| 0).unwrap();
        assert_eq!(slots.next(slot, 1), 1);
        assert_eq!(slots.next(slot, 1), 2);
        let early = Mark { slot, number: 1 };
        assert_eq!(slots.needs_signal(early), Some(2), "one signal covers what was posted");
        assert_eq!(slots.needs_signal(Mark { slot, number: 2 }), None);
        slots.next(slot, 1);
        slots.note_signal(Mark { slot, number: 3 });
        let mark = slots.mark(slot, 1);
        assert_eq!(mark.number, 3);
        assert_eq!(slots.needs_signal(mark), None);
    }

    #[test]
    fn the_legacy_stream_covers_other_streams_work() {
        let mut slots = Slots::new();
        let slot = slots.take(1, |_| 0).unwrap();
        assert_eq!(slots.mark(LEGACY_STREAM, 1).number, 0, "nothing was posted");
        slots.next(slot, 1);
        assert_eq!(slots.mark(LEGACY_STREAM, 1).number, 1);
        assert_eq!(slots.mark(LEGACY_STREAM, 1).number, 1, "nothing new");
        slots.next(slot, 1);
        assert_eq!(slots.mark(LEGACY_STREAM, 1).number, 2);
    }

    #[test]
    fn a_slot_is_used_again_when_its_work_is_done() {
        let mut slots = Slots::new();
        let first = slots.take(1, |_| 0).unwrap();
        slots.next(first, 1);
        slots.give_back(first);
        let second = slots.take(1, |_| 0).unwrap();
        assert_ne!(second, first);
        assert_eq!(slots.take(1, |_| 1), Some(first));
        slots.give_back(second);
        assert_eq!(slots.take(1, |_| 0), Some(second), "it never had work");
    }

    #[test]
    fn outstanding_work_is_listed_by_context_until_done() {
        let mut slots = Slots::new();
        let (a, b) = (slots.take(1, |_| 0).unwrap(), slots.take(2, |_| 0).unwrap());
        slots.next(a, 1);
        slots.next(b, 2);
        assert_eq!(slots.outstanding(1, |_| 0), [Mark { slot: a, number: 1 }]);
        assert_eq!(slots.outstanding(0, |_| 0).len(), 2);
        assert_eq!(
            slots.outstanding(0, |slot| u64::from(slot == a)),
            [Mark { slot: b, number: 1 }]
        );
        slots.next(a, 1);
        assert_eq!(
            slots.outstanding(1, |slot| u64::from(slot == a)),
            [Mark { slot: a, number: 2 }]
        );
    }

    #[test]
    fn slots_run_out() {
        let mut slots = Slots::new();
        let taken = (0..).map_while(|_| slots.take(1, |_| 0)).count();
        assert_eq!(taken, STREAM_SLOTS - 1);
    }
}
