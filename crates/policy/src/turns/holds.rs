//! Commands that must wait for a value in memory, for another device, or behind others that do:
//! kept in software, so that no queue of the hardware, which clients share, is held by a wait that
//! only a host or another client can end.
//!
//! Pure bookkeeping: a stream's commands stay in order; work of a stream that waits for the record
//! of a held stream's event is held too, and so is what CUDA orders with a default stream.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// How wide a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// 4 bytes.
    Bits32,
    /// 8 bytes.
    Bits64,
}

impl Width {
    /// Its bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

/// `CU_STREAM_WAIT_VALUE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Not before, counted in a circle.
    GreaterOrEqual,
    /// The same.
    Equal,
    /// Has a bit in common.
    And,
    /// Lacks a bit that the operand lacks, too.
    Nor,
}

impl Test {
    /// The test of a wait's flags; `None` for unknown flags.
    pub fn from_flags(flags: u32) -> Option<Self> {
        const FLUSH: u32 = 1 << 30;
        match flags & !FLUSH {
            0 => Some(Self::GreaterOrEqual),
            1 => Some(Self::Equal),
            2 => Some(Self::And),
            3 => Some(Self::Nor),
            _ => None,
        }
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Where.
    pub address: u64,
    /// How wide.
    pub width: Width,
    /// How it is compared.
    pub test: Test,
    /// With what.
    pub operand: u64,
}

impl Value {
    /// Whether what was read ends the wait.
    pub fn is_met_by(&self, read: u64) -> bool {
        let mask = match self.width {
            Width::Bits32 => u64::from(u32::MAX),
            Width::Bits64 => u64::MAX,
        };
        let (read, operand) = (read & mask, self.operand & mask);
        match (self.test, self.width) {
            (Test::GreaterOrEqual, Width::Bits32) => {
                (read as u32).wrapping_sub(operand as u32).cast_signed() >= 0
            }
            (Test::GreaterOrEqual, Width::Bits64) => read.wrapping_sub(operand).cast_signed() >= 0,
            (Test::Equal, _) => read == operand,
            (Test::And, _) => read & operand != 0,
            (Test::Nor, _) => !(read | operand) & mask != 0,
        }
    }
}

/// How far a stream of another session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The keeper's number of the session.
    pub session: u64,
    /// The stream there.
    pub slot: u32,
    /// The completion value that it must have reached.
    pub value: u64,
}

/// What a command waits for that is no command here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A value in memory.
    Value(Value),
    /// Another session's stream.
    Signal(Signal),
}

/// Whether a stream is ordered with a default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// With that one; a default stream with itself.
    With(u32),
    /// It is not.
    Alone,
}

/// What of a command matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work.
    Work,
    /// Tells that what comes before is done. Nobody waits for it: on a default stream it is no work
    /// that blocking streams come after.
    Signal,
    /// Waits for a value.
    WaitValue(Value),
    /// Waits for a stream of another session.
    WaitSignal(Signal),
    /// Ends the stream: what comes before it is the stream's own work alone, since its slot may
    /// have a new stream at once.
    End,
}

/// A command of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The stream.
    pub slot: u32,
    /// How it is ordered.
    pub ordered: Ordered,
    /// What it does.
    pub kind: Kind,
    /// Events whose last records it waits for: itself, or in a graph that it launches.
    pub awaits: &'a [u32],
    /// Events that it records, likewise.
    pub records: &'a [u32],
}

/// What a held command waits for, besides those before it in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Awaited(Awaited),
    /// That command of that stream is done with.
    Behind {
        slot: u32,
        ticket: u64,
    },
}

#[derive(Debug)]
struct Held<C> {
    ticket: u64,
    records: Box<[u32]>,
    conditions: Vec<Condition>,
    command: C,
}

#[derive(Debug)]
struct Queue<C> {
    ordered: Ordered,
    held: VecDeque<Held<C>>,
    /// The last ticket of what others may wait for; 0 if there was none.
    last_work: u64,
}

impl<C> Queue<C> {
    /// What comes after the stream's work must wait for.
    fn pending_work(&self) -> Option<u64> {
        let front = self.held.front()?;
        (front.ticket <= self.last_work).then_some(self.last_work)
    }
}

/// See the module's description. `C` is a command, copied.
#[derive(Debug)]
pub struct Holds<C> {
    queues: BTreeMap<u32, Queue<C>>,
    /// Where the last record of an event is held.
    records: HashMap<u32, (u32, u64)>,
    last_ticket: u64,
    /// What all held commands wait for, counted.
    conditions: usize,
}

impl<C> Default for Holds<C> {
    fn default() -> Self {
        Self { queues: BTreeMap::new(), records: HashMap::new(), last_ticket: 0, conditions: 0 }
    }
}

impl<C> Holds<C> {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// How many commands are held.
    pub fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.held.len()).sum()
    }

    /// How many conditions they wait for, those of all commands together.
    pub fn conditions(&self) -> usize {
        self.conditions
    }

    /// Says whether a command may be done now; if not, keeps what `command` gives.
    pub fn admit(&mut self, arrival: &Arrival<'_>, command: impl FnOnce() -> C) -> bool {
        let Arrival { slot, ordered, kind, awaits, records } = *arrival;
        let mut conditions = Vec::new();
        match kind {
            Kind::WaitValue(value) => conditions.push(Condition::Awaited(Awaited::Value(value))),
            Kind::WaitSignal(signal) => {
                conditions.push(Condition::Awaited(Awaited::Signal(signal)));
            }
            Kind::Work | Kind::Signal | Kind::End => {}
        }
        let held_records = awaits.iter().filter_map(|event| self.records.get(event));
        conditions.extend(held_records.map(|&(slot, ticket)| Condition::Behind { slot, ticket }));
        if let Ordered::With(default) = ordered
            && kind != Kind::End
        {
            let related = self.queues.iter().filter(|(other, queue)| {
                **other != slot && (**other == default || queue.ordered == Ordered::With(slot))
            });
            conditions.extend(related.filter_map(|(&slot, queue)| {
                Some(Condition::Behind { slot, ticket: queue.pending_work()? })
            }));
        }
        if conditions.is_empty() && !self.queues.contains_key(&slot) {
            for event in records {
                self.records.remove(event);
            }
            return true;
        }
        self.last_ticket += 1;
        self.conditions += conditions.len();
        let ticket = self.last_ticket;
        for &event in records {
            self.records.insert(event, (slot, ticket));
        }
        let none = Queue { ordered, held: VecDeque::new(), last_work: 0 };
        let queue = self.queues.entry(slot).or_insert(none);
        if kind != Kind::Signal {
            queue.last_work = ticket;
        }
        queue.held.push_back(Held {
            ticket,
            records: records.into(),
            conditions,
            command: command(),
        });
        false
    }

    /// The stream of a command that need not wait any longer, and the command; `is_met` looks at
    /// what is waited for.
    pub fn ready(&self, mut is_met: impl FnMut(&Awaited) -> bool) -> Option<(u32, &C)> {
        let passed = |slot: u32, ticket: u64| {
            let front = self.queues.get(&slot).and_then(|queue| queue.held.front());
            front.is_none_or(|held| held.ticket > ticket)
        };
        let mut fronts =
            self.queues.iter().filter_map(|(&slot, queue)| Some((slot, queue.held.front()?)));
        let (slot, held) = fronts.find(|(_, held)| {
            held.conditions.iter().all(|condition| match condition {
                Condition::Awaited(awaited) => is_met(awaited),
                Condition::Behind { slot, ticket } => passed(*slot, *ticket),
            })
        })?;
        Some((slot, &held.command))
    }

    /// Takes a stream's first command, which is [ready](Self::ready).
    pub fn take(&mut self, slot: u32) -> Option<C> {
        let queue = self.queues.get_mut(&slot)?;
        let held = queue.held.pop_front()?;
        self.conditions -= held.conditions.len();
        if queue.held.is_empty() {
            self.queues.remove(&slot);
        }
        for event in &held.records {
            if self.records.get(event) == Some(&(slot, held.ticket)) {
                self.records.remove(event);
            }
        }
        Some(held.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::command::LEGACY_STREAM as LEGACY;

    const VALUE: Value =
        Value { address: 0x1000, width: Width::Bits32, test: Test::Equal, operand: 1 };

    impl<C> Holds<C> {
        fn next(&mut self, is_met: impl FnMut(&Awaited) -> bool) -> Option<C> {
            let (slot, _) = self.ready(is_met)?;
            self.take(slot)
        }
    }

    fn arrival(slot: u32, kind: Kind) -> Arrival<'static> {
        Arrival { slot, ordered: Ordered::With(LEGACY), kind, awaits: &[], records: &[] }
    }

    fn alone(slot: u32, kind: Kind) -> Arrival<'static> {
        Arrival { ordered: Ordered::Alone, ..arrival(slot, kind) }
    }

    fn records(slot: u32, records: &'static [u32]) -> Arrival<'static> {
        Arrival { records, ..alone(slot, Kind::Work) }
    }

    fn awaits(slot: u32, awaits: &'static [u32]) -> Arrival<'static> {
        Arrival { awaits, ..alone(slot, Kind::Work) }
    }

    fn drain(holds: &mut Holds<u32>) -> Vec<u32> {
        std::iter::from_fn(|| holds.next(|_| true)).collect()
    }

    #[test]
    fn a_stream_stays_in_order_behind_its_wait() {
        let mut holds = Holds::default();
        assert!(holds.admit(&alone(1, Kind::Work), || 0));
        assert!(!holds.admit(&alone(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&alone(1, Kind::Work), || 2));
        assert!(holds.admit(&alone(2, Kind::Work), || 3), "another stream goes on");
        assert_eq!(holds.next(|_| false), None);
        assert_eq!(drain(&mut holds), [1, 2]);
        assert!(holds.is_empty());
        assert!(holds.admit(&alone(1, Kind::Work), || 4));
    }

    #[test]
    fn a_wait_for_another_session_is_one_for_its_signal() {
        let signal = Signal { session: 9, slot: 3, value: 17 };
        let mut holds = Holds::default();
        assert!(!holds.admit(&alone(1, Kind::WaitSignal(signal)), || 1));
        assert!(!holds.admit(&alone(1, Kind::Work), || 2));
        assert_eq!(holds.next(|awaited| *awaited != Awaited::Signal(signal)), None);
        assert_eq!(drain(&mut holds), [1, 2]);
    }

    #[test]
    fn who_waits_for_a_held_record_is_held_until_then() {
        let mut holds = Holds::default();
        assert!(!holds.admit(&alone(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&records(1, &[7]), || 2));
        assert!(!holds.admit(&awaits(2, &[7]), || 3));
        assert!(!holds.admit(&alone(2, Kind::Work), || 4));
        assert!(holds.admit(&awaits(3, &[8]), || 5));
        assert_eq!(holds.next(|_| false), None);
        assert_eq!(drain(&mut holds), [1, 2, 3, 4]);
        // A record that is done now is the last one.
        assert!(!holds.admit(&alone(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&records(1, &[7]), || 2));
        assert!(holds.admit(&records(3, &[7]), || 6));
        assert!(holds.admit(&awaits(2, &[7]), || 7));
        assert_eq!(drain(&mut holds), [1, 2]);
    }

    #[test]
    fn graphs_record_and_wait_for_several_events() {
        let mut holds = Holds::default();
        assert!(!holds.admit(&alone(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&records(1, &[7, 8]), || 2));
        assert!(!holds.admit(&awaits(2, &[9, 8]), || 3));
        assert!(holds.admit(&records(3, &[8]), || 4));
        assert!(holds.admit(&awaits(4, &[8]), || 5));
        assert!(!holds.admit(&awaits(4, &[7]), || 6));
        assert_eq!(drain(&mut holds), [1, 2, 3, 6]);
        assert!(holds.admit(&awaits(4, &[7]), || 7));
    }

    #[test]
    fn a_signal_of_the_legacy_stream_waits_but_holds_nobody_up() {
        let mut holds = Holds::default();
        assert!(!holds.admit(&arrival(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&arrival(LEGACY, Kind::Signal), || 2));
        assert!(holds.admit(&arrival(2, Kind::Work), || 3));
        assert!(!holds.admit(&arrival(LEGACY, Kind::Work), || 4));
        assert!(!holds.admit(&arrival(LEGACY, Kind::Signal), || 5));
        assert!(!holds.admit(&arrival(2, Kind::Work), || 6), "behind the legacy stream's work");
        assert_eq!(holds.next(|_| false), None);
        assert_eq!(holds.next(|_| true), Some(1));
        let rest: Vec<_> = std::iter::from_fn(|| holds.next(|_| false)).collect();
        assert!(rest == [2, 4, 5, 6] || rest == [2, 4, 6, 5], "{rest:?}");
    }

    #[test]
    fn the_legacy_stream_is_held_with_blocking_streams_and_they_with_it() {
        let mut holds = Holds::default();
        assert!(!holds.admit(&arrival(1, Kind::WaitValue(VALUE)), || 1));
        assert!(!holds.admit(&arrival(LEGACY, Kind::Work), || 2));
        assert!(!holds.admit(&arrival(2, Kind::Work), || 3), "behind the legacy stream");
        assert!(holds.admit(&alone(3, Kind::Work), || 4));
        assert!(!holds.admit(&arrival(1, Kind::Work), || 5));
        assert_eq!(holds.next(|_| false), None);
        assert_eq!(drain(&mut holds), [1, 2, 5, 3]);
        let mut holds = Holds::default();
        assert!(!holds.admit(&alone(1, Kind::WaitValue(VALUE)), || 1));
        assert!(holds.admit(&arrival(LEGACY, Kind::Work), || 2), "a stream of its own");
    }

    #[test]
    fn a_stream_ends_behind_its_own_work_alone() {
        let mut holds = Holds::default();
        assert!(!holds.admit(&arrival(LEGACY, Kind::WaitValue(VALUE)), || 1));
        assert!(holds.admit(&arrival(1, Kind::End), || 2), "its slot is free for a new stream");
        assert!(!holds.admit(&arrival(2, Kind::Work), || 3));
        assert!(!holds.admit(&arrival(2, Kind::End), || 4));
        assert_eq!(drain(&mut holds), [1, 3, 4]);
    }

    #[test]
    fn conditions_are_counted_as_long_as_they_are_held() {
        let mut holds = Holds::default();
        for slot in 1..4 {
            assert!(!holds.admit(&arrival(slot, Kind::WaitValue(VALUE)), || slot));
        }
        assert!(!holds.admit(&arrival(LEGACY, Kind::Work), || 4));
        assert_eq!(holds.conditions(), 6);
        drain(&mut holds);
        assert_eq!(holds.conditions(), 0);
    }

    #[test]
    fn values_are_compared_as_cuda_says() {
        let value = |test, operand| Value { test, operand, ..VALUE };
        assert!(value(Test::GreaterOrEqual, 5).is_met_by(5));
        assert!(!value(Test::GreaterOrEqual, 5).is_met_by(4));
        assert!(value(Test::GreaterOrEqual, 0xffff_fff0).is_met_by(3), "in a circle");
        assert!(value(Test::Equal, 1 << 32 | 9).is_met_by(9), "the low half counts");
        assert!(value(Test::And, 6).is_met_by(2) && !value(Test::And, 6).is_met_by(8));
        assert!(value(Test::Nor, 1).is_met_by(2) && !value(Test::Nor, 1).is_met_by(0xffff_fffe));
        let wide = Value { width: Width::Bits64, ..value(Test::GreaterOrEqual, 1 << 40) };
        assert!(wide.is_met_by(1 << 41) && !wide.is_met_by(1));
        assert_eq!(Test::from_flags(1 << 30 | 2), Some(Test::And));
        assert_eq!(Test::from_flags(4), None);
    }
}
