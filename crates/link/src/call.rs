//! Called commands: a slot in shared memory where the answer arrives.
//!
//! A client thread claims a slot, posts the command with its number, and waits: it spins, then
//! sleeps on the slot's state. The executor writes the answer, then swaps the state to done and
//! wakes the caller if the state said that it sleeps. A slot belongs to one caller until the answer
//! came, so an answer never meets the wrong call.

use crate::atomic::{AtomicU32, Ordering};
use crate::futex;
use crate::ring::LIVENESS_INTERVAL;
use crate::session_memory::SessionMemory;
use crate::spin::Spin;
use crate::wire::layout::{
    CALL_DONE, CALL_IDLE, CALL_PENDING, CALL_PENDING_ASLEEP, CALL_REPLY_BYTES, CALL_SLOTS,
};
use std::sync::Arc;
use std::time::Instant;
use thiserror::Error;

/// Why no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The server is gone.
    #[error("the server is gone")]
    PeerGone,
    /// More threads wait for answers than there are slots.
    #[error("all {CALL_SLOTS} call slots are taken")]
    NoFreeSlot,
}

/// The client's bookkeeping of its session's slots.
#[derive(Debug)]
pub struct CallSlots {
    memory: Arc<SessionMemory>,
    /// One bit per slot: 1 is taken. A word of this process, not of the shared memory.
    taken: AtomicU32,
}

const _: () = assert!(CALL_SLOTS <= u32::BITS as usize);

impl CallSlots {
    /// The slots of a fresh session.
    pub fn new(memory: Arc<SessionMemory>) -> Self {
        Self { memory, taken: AtomicU32::new(0) }
    }

    /// Claims a slot and marks it as waiting; its number goes into the command's header.
    ///
    /// # Errors
    /// [`CallError::NoFreeSlot`]: yield and try again.
    pub fn claim(&self) -> Result<PendingCall<'_>, CallError> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let index = taken.trailing_ones();
            if index as usize >= CALL_SLOTS {
                return Err(CallError::NoFreeSlot);
            }
            // Acquire: pairs with the release in `PendingCall::drop`, whose owner has read its
            // answer.
            let claimed = self.taken.compare_exchange_weak(
                taken,
                taken | 1 << index,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            match claimed {
                Ok(_) => {
                    if let Some(call) = self.memory.call(index as usize) {
                        // Relaxed: whoever has claimed the slot alone writes it.
                        let claims = call.claims().load(Ordering::Relaxed).wrapping_add(1);
                        call.claims().store(claims, Ordering::Relaxed);
                        // Release: pairs with the acquire in `give`. The ring's release of `tail`
                        // publishes it with the command.
                        call.state().store(CALL_PENDING, Ordering::Release);
                    }
                    return Ok(PendingCall { slots: self, index, answered: false });
                }
                Err(now) => taken = now,
            }
        }
    }
}

/// A claimed slot. Dropped before the answer came, it stays taken: the answer may still be written.
#[derive(Debug)]
pub struct PendingCall<'a> {
    slots: &'a CallSlots,
    index: u32,
    answered: bool,
}

impl PendingCall<'_> {
    /// For [`crate::wire::command::Header::call_slot`].
    pub fn slot(&self) -> u16 {
        self.index as u16
    }

    /// Gives the slot back when its command was never posted.
    pub fn cancel_unposted(mut self) {
        self.answered = true;
    }

    /// Waits for the answer, appends its bytes to `reply` and returns its `CUresult`.
    ///
    /// # Errors
    /// [`CallError::PeerGone`] once `peer_alive` says false and no answer is there.
    pub fn wait(
        mut self,
        spin: &mut Spin,
        reply: &mut Vec<u8>,
        peer_alive: &mut dyn FnMut() -> bool,
    ) -> Result<u32, CallError> {
        let Some(call) = self.slots.memory.call(self.index as usize) else {
            return Err(CallError::PeerGone);
        };
        let state = call.state();
        // Acquire here and below: pairs with the release in `answer`; the reply's bytes are there.
        let began = Instant::now();
        let cores = self.slots.memory.cores();
        if !spin.until(cores, || state.load(Ordering::Acquire) == CALL_DONE) {
            loop {
                // Announce the sleep; whoever answers swaps the state afterwards and sees it.
                // SeqCst is not needed: both sides read-modify-write the same word.
                let announced = state.compare_exchange(
                    CALL_PENDING,
                    CALL_PENDING_ASLEEP,
                    Ordering::Acquire,
                    Ordering::Acquire,
                );
                if announced == Err(CALL_DONE) {
                    break;
                }
                futex::wait(state, CALL_PENDING_ASLEEP, LIVENESS_INTERVAL);
                if state.load(Ordering::Acquire) == CALL_DONE {
                    break;
                }
                if !peer_alive() && state.load(Ordering::Acquire) != CALL_DONE {
                    return Err(CallError::PeerGone);
                }
            }
            spin.came_after(began.elapsed());
        }
        self.answered = true;
        call.read_reply(call.reply_bytes().load(Ordering::Relaxed) as usize, reply);
        Ok(call.status().load(Ordering::Relaxed))
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if self.answered {
            if let Some(call) = self.slots.memory.call(self.index as usize) {
                call.state().store(CALL_IDLE, Ordering::Relaxed);
            }
            // Release: pairs with the acquire in `claim`.
            self.slots.taken.fetch_and(!(1 << self.index), Ordering::Release);
        }
    }
}

/// Why an answer could not be given: the client named a wrong slot. Ends its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AnswerError {
    /// There is no such slot.
    #[error("call slot {0} does not exist")]
    NoSuchSlot(u16),
    /// Nobody waits there.
    #[error("call slot {slot} is in state {state} and waits for no answer")]
    NotPending {
        /// The slot.
        slot: u16,
        /// Its state.
        state: u32,
    },
}

/// An answer that is written, and not given yet: its slot, and which of the slot's calls it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    slot: u16,
    claims: u32,
}

impl Prepared {
    /// As a number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.claims) << 16 | u64::from(self.slot)
    }

    /// From what [`Self::to_bits`] gave.
    pub fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u16, claims: (bits >> 16) as u32 }
    }
}

/// Writes the answer of a called command: a `CUresult` and the reply's bytes (cut at
/// [`CALL_REPLY_BYTES`]). Its caller waits on until it is [given](give).
///
/// # Errors
/// [`AnswerError`] when the slot is not waiting.
pub fn prepare(
    memory: &SessionMemory,
    slot: u16,
    status: u32,
    reply: &[u8],
) -> Result<Prepared, AnswerError> {
    let call = memory.call(slot.into()).ok_or(AnswerError::NoSuchSlot(slot))?;
    let before = call.state().load(Ordering::Relaxed);
    if before != CALL_PENDING && before != CALL_PENDING_ASLEEP {
        return Err(AnswerError::NotPending { slot, state: before });
    }
    let reply = &reply[..reply.len().min(CALL_REPLY_BYTES)];
    call.write_reply(reply);
    call.reply_bytes().store(reply.len() as u32, Ordering::Relaxed);
    call.status().store(status, Ordering::Relaxed);
    // Relaxed: the acquire of the ring's `tail` that brought the command has it.
    Ok(Prepared { slot, claims: call.claims().load(Ordering::Relaxed) })
}

/// Wakes the caller of a prepared answer. Nothing happens where it has been given already, by
/// whoever prepared it.
pub fn give(memory: &SessionMemory, prepared: Prepared) {
    let Some(call) = memory.call(prepared.slot.into()) else { return };
    // Acquire: pairs with the release in `claim`: who sees that a later call waits sees its number.
    let state = call.state().load(Ordering::Acquire);
    let waits = state == CALL_PENDING || state == CALL_PENDING_ASLEEP;
    if !waits || call.claims().load(Ordering::Relaxed) != prepared.claims {
        return;
    }
    // Release: pairs with the acquires in `PendingCall::wait`. Acquire: sees the caller's
    // announcement of its sleep.
    if call.state().swap(CALL_DONE, Ordering::AcqRel) == CALL_PENDING_ASLEEP {
        futex::wake(call.state(), 1);
    }
}

/// [Prepares](prepare) an answer and [gives](give) it.
///
/// # Errors
/// [`AnswerError`] when the slot is not waiting.
pub fn answer(
    memory: &SessionMemory,
    slot: u16,
    status: u32,
    reply: &[u8],
) -> Result<(), AnswerError> {
    prepare(memory, slot, status, reply).map(|prepared| give(memory, prepared))
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn memory() -> Arc<SessionMemory> {
        Arc::new(SessionMemory::in_process(64))
    }

    #[test]
    fn an_answer_is_given_once() {
        let memory = memory();
        let slots = CallSlots::new(Arc::clone(&memory));
        let first = slots.claim().unwrap();
        let slot = first.slot();
        let prepared = prepare(&memory, slot, 0, b"first").unwrap();
        assert_eq!(memory.call(slot.into()).unwrap().state().load(Ordering::Relaxed), CALL_PENDING);
        give(&memory, prepared);
        assert_eq!(first.wait(&mut Spin::never(), &mut Vec::new(), &mut || true), Ok(0));
        // Who does not know whether it was given gives it again: it does not meet the next call.
        let second = slots.claim().unwrap();
        assert_eq!(second.slot(), slot);
        give(&memory, Prepared::from_bits(prepared.to_bits()));
        answer(&memory, slot, 7, b"second").unwrap();
        let mut reply = Vec::new();
        assert_eq!(second.wait(&mut Spin::never(), &mut reply, &mut || true), Ok(7));
        assert_eq!(reply, b"second");
    }

    #[test]
    fn an_answer_reaches_its_caller_with_status_and_bytes() {
        let memory = memory();
        let slots = CallSlots::new(Arc::clone(&memory));
        let call = slots.claim().unwrap();
        let slot = call.slot();
        let executor =
            std::thread::spawn(move || answer(&memory, slot, 201, b"thirteen byte").unwrap());
        let mut reply = vec![9];
        assert_eq!(call.wait(&mut Spin::never(), &mut reply, &mut || true), Ok(201));
        assert_eq!(reply, b"\x09thirteen byte");
        executor.join().unwrap();
    }

    #[test]
    fn slots_run_out_and_come_back_but_an_abandoned_one_stays_taken() {
        let memory = memory();
        let slots = CallSlots::new(Arc::clone(&memory));
        let abandoned = slots.claim().unwrap();
        let ended = abandoned.wait(&mut Spin::never(), &mut Vec::new(), &mut || false);
        assert_eq!(ended, Err(CallError::PeerGone));
        let claimed: Vec<_> = (1..CALL_SLOTS).map(|_| slots.claim().unwrap()).collect();
        assert_eq!(slots.claim().unwrap_err(), CallError::NoFreeSlot);
        for call in claimed {
            call.cancel_unposted();
        }
        assert_eq!(slots.claim().unwrap().slot(), 1);
    }

    #[test]
    fn answers_to_nobody_are_refused() {
        let memory = memory();
        assert_eq!(answer(&memory, 32, 0, &[]), Err(AnswerError::NoSuchSlot(32)));
        assert_eq!(
            answer(&memory, 5, 0, &[]),
            Err(AnswerError::NotPending { slot: 5, state: CALL_IDLE })
        );
    }
}
