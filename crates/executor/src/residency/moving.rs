//! Device memory of a session that is moved out to the host and back, at the same addresses, where
//! a device has too little for all.
//!
//! What is moved, and when it is worth it, the keeper decides (`policy/src/memory/residency.rs`).
//! Here it is seen to that nobody notices: memory goes only while the session has nothing in
//! flight, and comes back before a command is done that could touch it. The client's numbers,
//! streams, graphs and events know addresses only, which stay. What others may use, by an IPC
//! handle, stays where it is. Memory without an address of its own goes with its mappings
//! ([`super::moving_pieces`]).

mod moves;

use cuda_abi::types::CUstream;
use executor_link::messages::MoveOrder;
use link::wire::command::Opcode;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

const NONE: u8 = 0;
const WHEN_IDLE: u8 = 1;
const PAUSING: u8 = 2;

/// What the keeper wants moved out; given by the main thread, taken by the session's.
#[derive(Debug, Default)]
pub(crate) struct MoveOrders {
    urgency: AtomicU8,
    allocations: Mutex<Vec<(u64, u64)>>,
}

impl MoveOrders {
    pub(crate) fn give(&self, order: MoveOrder) {
        let mut allocations = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        // SeqCst, here and below: with the ring's own, so that a session thread that goes to sleep
        // sees the order, or is woken for it.
        match order {
            MoveOrder::Start { allocations: wanted, pauses } => {
                allocations.extend(wanted);
                self.urgency.store(if pauses { PAUSING } else { WHEN_IDLE }, Ordering::SeqCst);
            }
            MoveOrder::Pause if !allocations.is_empty() => {
                self.urgency.store(PAUSING, Ordering::SeqCst);
            }
            // The session may be moving already, and has the list; else it answers that all stayed.
            MoveOrder::CallOff if !allocations.is_empty() => {
                for (_, size_bytes) in allocations.iter_mut() {
                    *size_bytes = 0;
                }
                self.urgency.store(WHEN_IDLE, Ordering::SeqCst);
            }
            MoveOrder::Pause | MoveOrder::CallOff => {}
        }
    }

    /// Whether something is to be moved.
    pub(crate) fn is_any(&self) -> bool {
        self.urgency.load(Ordering::SeqCst) != NONE
    }

    /// Whether no command is to be taken before.
    pub(crate) fn pauses(&self) -> bool {
        self.urgency.load(Ordering::SeqCst) == PAUSING
    }

    fn is_called_off(&self) -> bool {
        let allocations = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        !allocations.is_empty() && allocations.iter().all(|(_, size_bytes)| *size_bytes == 0)
    }

    fn take(&self) -> Vec<(u64, u64)> {
        let mut allocations = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        self.urgency.store(NONE, Ordering::SeqCst);
        std::mem::take(&mut allocations)
    }
}

/// The bytes of one grant. Not initialised until a copy has been.
#[derive(Debug)]
pub(crate) struct HostCopy(Vec<u8>);

impl HostCopy {
    fn new(size_bytes: u64) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(size_bytes).ok()?).ok()?;
        Some(Self(bytes))
    }

    fn at(&mut self, offset: usize) -> *mut c_void {
        self.0.as_mut_ptr().wrapping_add(offset).cast()
    }
}

/// What of a session is in host memory.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// By the first address of the grant, or the key of the piece.
    copies: BTreeMap<u64, HostCopy>,
    stream: Option<CUstream>,
}

impl Moved {
    /// Whether anything is moved out.
    pub(crate) fn is_any(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Whether what was at an address, or under a key, is moved out.
    pub(crate) fn has(&self, at: u64) -> bool {
        self.copies.contains_key(&at)
    }

    /// Drops what was at an address, or under a key; says whether it was moved out.
    pub(crate) fn forget(&mut self, at: u64) -> bool {
        self.copies.remove(&at).is_some()
    }
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    New,
    /// All that was moved out.
    Return,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Out,
    Back,
}

/// What became of one allocation that was to be moved out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    Stayed,
    Fixed,
}

/// Whether a command cannot touch device memory, nor make the driver look at it.
fn does_without_memory(opcode: u16) -> bool {
    Opcode::from_number(opcode).is_none_or(|opcode| !opcode.facts().memory.is_needed())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATION: (u64, u64) = (1, 2);

    fn start_when_idle() -> MoveOrder {
        MoveOrder::Start { allocations: vec![ALLOCATION], pauses: false }
    }

    fn start_now() -> MoveOrder {
        MoveOrder::Start { allocations: vec![ALLOCATION], pauses: true }
    }

    #[test]
    fn orders_are_taken_once_and_can_become_urgent() {
        let orders = MoveOrders::default();
        orders.give(MoveOrder::Pause);
        assert!(!orders.is_any(), "a pause for what was answered already");
        orders.give(start_when_idle());
        assert!(orders.is_any() && !orders.pauses());
        orders.give(MoveOrder::Pause);
        assert!(orders.pauses());
        assert_eq!(orders.take(), [ALLOCATION]);
        assert!(!orders.is_any() && !orders.pauses());
    }

    #[test]
    fn what_is_called_off_is_answered_and_not_done() {
        let orders = MoveOrders::default();
        orders.give(MoveOrder::CallOff);
        assert!(!orders.is_any());
        orders.give(start_now());
        orders.give(MoveOrder::CallOff);
        assert!(orders.is_any() && !orders.pauses() && orders.is_called_off());
        assert_eq!(orders.take(), [(1, 0)], "no grant is that short");
    }

    #[test]
    fn work_needs_its_memory_and_questions_do_not() {
        for opcode in [Opcode::Launch, Opcode::Copy, Opcode::GraphCreate, Opcode::StreamWaitValue] {
            assert!(!does_without_memory(opcode as u16), "{opcode:?}");
        }
        assert!(does_without_memory(Opcode::MemoryInfo as u16));
    }
}
