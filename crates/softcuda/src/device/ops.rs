//! Operations that a stream holds, in order.

use std::sync::Arc;

use super::fault::Sticky;
use super::grid::Grid;
use super::marker::Marker;

/// A piece-wise job for a worker: copies, memsets, deferred frees. `step` is bounded (about a
/// millisecond).
pub(crate) trait Task: Send {
    /// Does one piece.
    fn step(&mut self) -> Step;
}

/// What one piece of a task came to.
pub(crate) enum Step {
    More,
    Done,
    /// It is done when these operations are, which come before all others of its own stream, and
    /// behind them in other streams.
    Then(Vec<(u64, Op)>),
    /// The task touched memory that is gone: the context fails.
    Fault(Sticky),
}

/// Lets a calling thread do a stream's operation itself, at its turn.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: std::sync::Mutex<GateState>,
}

/// Where a gate stands; changes with the engine's lock held, so that its condition variable covers
/// it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateState {
    #[default]
    Closed,
    Open,
    Failed(Sticky),
}

impl Gate {
    pub(crate) fn get(&self) -> GateState {
        *self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn set(&self, state: GateState) {
        *self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = state;
    }
}

/// Host code in stream order; told whether the context has failed.
pub(crate) type HostCall = Box<dyn FnOnce(Option<Sticky>) + Send>;

/// Width of a stream memory operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Bits32,
    Bits64,
}

/// When a wait for a memory value is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// `(int)(memory - value) >= 0`, cyclic.
    GreaterOrEqual,
    Equal,
    /// `memory & value != 0`
    And,
    /// `~(memory | value) != 0`
    Nor,
}

impl Condition {
    /// Whether `memory` satisfies the condition for `value`.
    pub(crate) fn holds(self, memory: u64, value: u64, width: Width) -> bool {
        let (memory, value, mask) = match width {
            Width::Bits32 => (memory & 0xffff_ffff, value & 0xffff_ffff, 0xffff_ffff),
            Width::Bits64 => (memory, value, u64::MAX),
        };
        match (self, width) {
            (Condition::GreaterOrEqual, Width::Bits32) => {
                (memory as u32).wrapping_sub(value as u32) as i32 >= 0
            }
            (Condition::GreaterOrEqual, Width::Bits64) => memory.wrapping_sub(value) as i64 >= 0,
            (Condition::Equal, _) => memory == value,
            (Condition::And, _) => memory & value != 0,
            (Condition::Nor, _) => !(memory | value) & mask != 0,
        }
    }
}

/// One operation of a stream.
pub(crate) enum Op {
    Launch(Arc<Grid>),
    Task(Box<dyn Task>),
    Caller(Arc<Gate>),
    Record(Arc<Marker>),
    Wait(Arc<Marker>),
    Host(HostCall),
    WriteValue { address: u64, value: u64, width: Width },
    WaitValue { address: u64, value: u64, width: Width, condition: Condition },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_cyclic_and_mind_their_width() {
        use Condition::*;
        assert!(GreaterOrEqual.holds(5, 5, Width::Bits32));
        assert!(GreaterOrEqual.holds(2, 0xffff_fffe, Width::Bits32), "wrapped past the value");
        assert!(!GreaterOrEqual.holds(2, 0xffff_fffe, Width::Bits64));
        assert!(Equal.holds(0x1_0000_0007, 7, Width::Bits32));
        assert!(And.holds(6, 2, Width::Bits64) && !And.holds(4, 2, Width::Bits64));
        assert!(!Nor.holds(0xffff_0000, 0xffff, Width::Bits32) && Nor.holds(0, 1, Width::Bits32));
    }
}
