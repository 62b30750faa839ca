//! Streams that wait for a value (`cuStreamWaitValue`): their later commands stay here until it is there; see [`crate::policy::holds`].
//!
//! A value in shared memory is looked at where it lies; one in device memory is copied out, again and again, on a stream for that purpose.

use super::failure::Failure;
use super::memory::address;
use super::state::State;
use crate::policy::holds::{Arrival, Holds, Kind, Test, Value, Width};
use cuda_abi::types::*;
use link::ring::Command;
use link::wire::command::{Header, NO_CALL, Opcode, StreamWriteValue};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::FromBytes;

/// Commands that a session may have held, and their bytes; beyond it the ring fills up, and the client waits.
const MAX_HELD: usize = 1 << 16;
const MAX_HELD_BYTES: usize = 32 << 20;

/// A command that is held.
#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) header: Header,
    pub(super) body: Box<[u8]>,
}

/// What a session has held.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    holds: Holds<Deferred>,
    held_bytes: usize,
    probe: Option<Probe>,
}

/// Reads values in device memory.
#[derive(Debug)]
struct Probe {
    stream: CUstream,
    /// A pinned word.
    word: *mut c_void,
    /// What is on its way into the word.
    asked: Option<Value>,
}

// SAFETY: the word is pinned memory of the session, read by its thread alone.
unsafe impl Send for Probe {}

impl Holding {
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Whether no more commands may be taken for now.
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes >= MAX_HELD_BYTES || self.holds.len() >= MAX_HELD
    }
}

impl State {
    /// Keeps a command that must wait; says whether it may be done now.
    pub(super) fn admit(&mut self, command: &Command<'_>) -> Result<bool, Failure> {
        let is_wait = command.header.opcode == Opcode::StreamWaitValue as u16;
        if self.holding.is_empty() && !is_wait {
            return Ok(true);
        }
        let Some((slot, kind)) = self.stream_of(command)? else { return Ok(true) };
        let arrival = Arrival { slot, ordered: self.streams.ordered(slot), kind };
        let now = self
            .holding
            .holds
            .admit(&arrival, || Deferred { header: command.header, body: command.body.into() });
        if !now {
            self.holding.held_bytes += command.body.len();
        }
        if !now && command.header.call_slot != NO_CALL {
            // No client of ours waits for a stream in this way.
            return Err(Failure::Protocol("a call cannot wait behind a value".into()));
        }
        Ok(now)
    }

    /// The stream of a command, and what matters of it.
    fn stream_of(&self, command: &Command<'_>) -> Result<Option<(u32, Kind)>, Failure> {
        let words = |count: usize| -> Option<u32> {
            let at = count * 4;
            Some(u32::from_le_bytes(command.body.get(at..at + 4)?.try_into().ok()?))
        };
        let Some(opcode) = Opcode::from_number(command.header.opcode) else { return Ok(None) };
        let found = match opcode {
            Opcode::StreamDestroy
            | Opcode::Signal
            | Opcode::StreamSynchronize
            | Opcode::Copy
            | Opcode::Copy3d
            | Opcode::Fill
            | Opcode::StreamWriteValue
            | Opcode::ArrayCopy => words(0).map(|slot| (slot, Kind::Work)),
            Opcode::Launch | Opcode::GraphLaunch | Opcode::GraphUpload => {
                words(1).map(|slot| (slot, Kind::Work))
            }
            Opcode::EventRecord => {
                words(1).zip(words(0)).map(|(slot, event)| (slot, Kind::Record(event)))
            }
            Opcode::StreamWaitEvent => {
                words(0).zip(words(1)).map(|(slot, event)| (slot, Kind::WaitEvent(event)))
            }
            Opcode::StreamWaitValue => {
                let (wanted, _) = StreamWriteValue::read_from_prefix(command.body)
                    .map_err(|_| Failure::Protocol("a wait is too short".into()))?;
                Some((wanted.stream, Kind::WaitValue(self.awaited_value(&wanted)?)))
            }
            _ => None,
        };
        Ok(found)
    }

    fn awaited_value(&self, wanted: &StreamWriteValue) -> Result<Value, Failure> {
        let invalid = || Failure::Cuda(CUresult::ERROR_INVALID_VALUE);
        let width = match wanted.value_bytes {
            4 => Width::Bits32,
            8 => Width::Bits64,
            _ => return Err(invalid()),
        };
        let test = Test::from_flags(wanted.flags).ok_or_else(invalid)?;
        if !wanted.address.is_multiple_of(width.bytes()) {
            return Err(invalid());
        }
        self.check_range(wanted.address, width.bytes())?;
        Ok(Value { address: wanted.address, width, test, operand: wanted.value })
    }

    /// A held command whose turn has come.
    pub(super) fn next_held(&mut self) -> Option<Deferred> {
        let mut holds = std::mem::take(&mut self.holding.holds);
        let next = holds.next(|value| self.is_met(value));
        self.holding.holds = holds;
        if let Some(next) = &next {
            self.holding.held_bytes -= next.body.len();
        }
        next
    }

    fn is_met(&mut self, value: &Value) -> bool {
        let Value { address, width, .. } = *value;
        if self.check_range(address, width.bytes()).is_err() {
            // It was freed: a program's mistake must not hold the stream for ever.
            return true;
        }
        let read = if self.memory.is_shared(address, width.bytes()) {
            Some(read_shared(address, width))
        } else {
            // What fails here shows in the session's next call.
            self.probe(value).unwrap_or(None)
        };
        read.is_some_and(|read| value.is_met_by(read))
    }

    /// Asks for a value in device memory; gives what has come of the last question, if it was about the same.
    fn probe(&mut self, value: &Value) -> Result<Option<u64>, Failure> {
        let driver = self.driver();
        let (stream, word, asked) = match &self.holding.probe {
            Some(probe) => (probe.stream, probe.word, probe.asked),
            None => {
                let (mut stream, mut word) = (CUstream::NULL, ptr::null_mut());
                const NON_BLOCKING: u32 = 1;
                // SAFETY: both results are written.
                self.check(unsafe {
                    driver.cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, 0)
                })?;
                // SAFETY: as above.
                self.check(unsafe { driver.cuMemHostAlloc(&mut word, 8, 0) })?;
                self.holding.probe = Some(Probe { stream, word, asked: None });
                (stream, word, None)
            }
        };
        if let Some(asked) = asked {
            // SAFETY: a live stream of this session.
            match unsafe { driver.cuStreamQuery(stream) } {
                CUresult::ERROR_NOT_READY => return Ok(None),
                result => self.check(result)?,
            }
            self.set_asked(None);
            if asked == *value {
                // SAFETY: the word is there as long as the probe; the copy into it has ended.
                return Ok(Some(unsafe { word.cast::<u64>().read_volatile() }));
            }
        }
        let length = value.width.bytes() as usize;
        // SAFETY: the value is this client's memory, the word is ours.
        self.check(unsafe {
            word.cast::<u64>().write_volatile(0);
            driver.cuMemcpyAsync(word.addr() as u64, value.address, length, stream)
        })?;
        self.set_asked(Some(*value));
        Ok(None)
    }

    fn set_asked(&mut self, asked: Option<Value>) {
        if let Some(probe) = &mut self.holding.probe {
            probe.asked = asked;
        }
    }

    /// Gives up what is held: its client is gone.
    pub(super) fn clear_holding(&mut self) {
        let Holding { probe, .. } = std::mem::take(&mut self.holding);
        if let Some(Probe { stream, word, .. }) = probe {
            let driver = self.driver();
            // SAFETY: the session's own; the stream's copies have ended once it is synchronised.
            unsafe {
                let _ = driver.cuStreamSynchronize(stream);
                let _ = driver.cuStreamDestroy_v2(stream);
                let _ = driver.cuMemFreeHost(word);
            }
        }
    }
}

/// Reads a word that the client, or the device, may be writing.
fn read_shared(at: u64, width: Width) -> u64 {
    // SAFETY: aligned, inside a region that is mapped here; atomic, as others write. Acquire pairs with whatever order the client's program gives
    // its write: what it wrote before is there for the work that follows.
    unsafe {
        match width {
            Width::Bits32 => (*address(at).cast::<AtomicU32>()).load(Ordering::Acquire).into(),
            Width::Bits64 => (*address(at).cast::<AtomicU64>()).load(Ordering::Acquire),
        }
    }
}
