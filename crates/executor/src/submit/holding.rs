//! Streams that wait for a value (`cuStreamWaitValue`), or for another device
//! ([`super::watching`]): their later commands stay here until it is there; see
//! [`policy::turns::holds`].
//!
//! A value in shared memory is looked at where it lies; one in device memory is copied out, again
//! and again, by a [`Probe`].

use super::probe::Probe;
use super::watching::Watch;
use crate::memory::address;
use crate::session::failure::Failure;
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::{State, read};
use cuda_abi::types::CUresult;
use executor_link::messages::{FromExecutor, GrantOutcome};
use link::completion::CompletionWords;
use link::ring::Command;
use link::session_memory::SessionMemory;
use link::wire::command::{Header, NO_CALL, Opcode, Order};
use policy::turns::holds::{Arrival, Awaited, Holds, Kind, Signal, Test, Value, Width};
use policy::turns::questions::Place;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Commands that a session may have held, and their bytes; beyond it the ring fills up, and the
/// client waits.
const MAX_HELD: usize = 1 << 16;
const MAX_HELD_BYTES: usize = 32 << 20;
/// What they wait for, counted: a command behind the legacy stream waits for each blocking stream.
const MAX_CONDITIONS: usize = 1 << 18;

/// A command that is held.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) header: Header,
    pub(crate) body: Box<[u8]>,
}

/// What a session has held.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    holds: Holds<Deferred>,
    held_bytes: usize,
    probe: Probe,
}

impl Holding {
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// How many commands are held.
    pub(crate) fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether no more commands may be taken for now.
    pub(crate) fn is_full(&self) -> bool {
        self.held_bytes >= MAX_HELD_BYTES
            || self.holds.len() >= MAX_HELD
            || self.holds.conditions() >= MAX_CONDITIONS
    }
}

impl State {
    /// Keeps a command that must wait; says whether it may be done now.
    pub(crate) fn admit(&mut self, command: &Command<'_>) -> Result<bool, Failure> {
        let Some(opcode) = Opcode::from_number(command.header.opcode) else { return Ok(true) };
        if self.holding.is_empty() && !opcode.facts().holds_stream {
            return Ok(true);
        }
        let order = read(opcode, command)?.order();
        let Some(slot) = order.stream() else { return Ok(true) };
        let (kind, awaits, records) = self.kind_of(order)?;
        let ordered = self.streams.ordered(slot);
        let arrival = Arrival { slot, ordered, kind, awaits: &awaits, records: &records };
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

    /// What matters of a command's place in its stream; events that it waits for, and those that it
    /// records.
    fn kind_of(&mut self, order: Order) -> Result<(Kind, Vec<u32>, Vec<u32>), Failure> {
        let alone = |kind| (kind, Vec::new(), Vec::new());
        Ok(match order {
            Order::Apart | Order::Work { .. } => alone(Kind::Work),
            Order::Record { event, .. } => (Kind::Work, Vec::new(), vec![event]),
            Order::Wait { event, .. } => (Kind::Work, vec![event], Vec::new()),
            Order::Graph { graph, .. } => {
                let (awaits, records) = self.graph_events(graph);
                (Kind::Work, awaits, records)
            }
            Order::Signal { .. } => alone(Kind::Signal),
            Order::End { .. } => alone(Kind::End),
            Order::Value { value_bytes, address, value, flags, .. } => {
                let value = self.awaited_value(value_bytes, address, value, flags)?;
                alone(Kind::WaitValue(value))
            }
            Order::Peer { device, slot, value, .. } => {
                self.watch(device)?;
                let signal = |session| Kind::WaitSignal(Signal { session, slot, value });
                alone(self.watched.session_on(device).map_or(Kind::Work, signal))
            }
        })
    }

    fn awaited_value(
        &self,
        value_bytes: u32,
        address: u64,
        operand: u64,
        flags: u32,
    ) -> Result<Value, Failure> {
        let invalid = || Failure::Cuda(CUresult::ERROR_INVALID_VALUE);
        let width = match value_bytes {
            4 => Width::Bits32,
            8 => Width::Bits64,
            _ => return Err(invalid()),
        };
        let test = Test::from_flags(flags).ok_or_else(invalid)?;
        if !address.is_multiple_of(width.bytes()) {
            return Err(invalid());
        }
        self.reach(address, width.bytes())?;
        Ok(Value { address, width, test, operand })
    }

    /// The stream and the opcode of a held command whose turn has come.
    pub(crate) fn ready_held(&mut self) -> Option<(u32, u16)> {
        self.holding.probe.end(&self.shared.context);
        let mut probe = std::mem::take(&mut self.holding.probe);
        let ready = self.holding.holds.ready(|value| self.is_met(value, &mut probe));
        let ready = ready.map(|(slot, held)| (slot, held.header.opcode));
        if ready.is_none() {
            let reach = |(at, width): Place| self.reach(at, width.bytes()).ok();
            // What fails here shows in the session's next call.
            let _ = probe.begin(&self.shared.context, reach);
        }
        self.holding.probe = probe;
        ready
    }

    /// Takes that command.
    pub(crate) fn take_held(&mut self, slot: u32) -> Option<Deferred> {
        let held = self.holding.holds.take(slot)?;
        self.holding.held_bytes -= held.body.len();
        Some(held)
    }

    fn is_met(&self, awaited: &Awaited, probe: &mut Probe) -> bool {
        let value = match awaited {
            Awaited::Signal(signal) => return self.watched.is_met(signal),
            Awaited::Value(value) => value,
        };
        let Value { address, width, .. } = *value;
        if self.reach(address, width.bytes()).is_err() {
            // It was freed: a program's mistake must not hold the stream for ever.
            return true;
        }
        let read = if self.memory.is_shared(address, width.bytes()) {
            Some(read_shared(address, width))
        } else {
            probe.ask(value)
        };
        read.is_some_and(|read| value.is_met_by(read))
    }

    /// Before memory goes that a probe may be reading.
    pub(crate) fn end_probing(&mut self) {
        self.holding.probe.settle(&self.shared.context);
    }

    /// Gives up what is held: its client is gone.
    pub(crate) fn clear_holding(&mut self) {
        let probe = std::mem::take(&mut self.holding).probe;
        self.quietly_each(probe.is_made().then_some(probe), |probe| probe.clear(self.context()));
    }

    /// Makes the signals of the client's session on another device visible here, if it has one
    /// there that works.
    pub(crate) fn watch(&mut self, device: u32) -> Result<(), Failure> {
        if self.watched.session_on(device).is_some() {
            return Ok(());
        }
        self.watched.current.remove(&device);
        if self.holding.is_empty() {
            let current: Vec<u64> = self.watched.current.values().copied().collect();
            self.watched.sessions.retain(|session, _| current.contains(session));
        }
        self.ask(&FromExecutor::Watch { session: self.handle.id, device });
        let DeliveredGrant { outcome, memory, words } = self.memory.await_answer()?;
        let failed = || Failure::Cuda(CUresult::ERROR_MPS_RPC_FAILURE);
        match (outcome, memory, words) {
            (GrantOutcome::Signals { session }, Some(memory), Some(words)) => {
                let memory = SessionMemory::map(memory.as_fd()).map_err(|_| failed())?;
                let words = CompletionWords::map(words.as_fd()).map_err(|_| failed())?;
                self.watched.sessions.insert(session, Watch { words, memory });
                self.watched.current.insert(device, session);
                Ok(())
            }
            // It has none there: whatever the event stood for has ended with it.
            (GrantOutcome::Refused(_), ..) => Ok(()),
            _ => Err(failed()),
        }
    }
}

/// Reads a word that the client, or the device, may be writing.
fn read_shared(at: u64, width: Width) -> u64 {
    // SAFETY: aligned, inside a region that is mapped here; atomic, as others write. Acquire pairs
    // with whatever order the client's program gives its write: what it wrote before is there for
    // the work that follows.
    unsafe {
        match width {
            Width::Bits32 => (*address(at).cast::<AtomicU32>()).load(Ordering::Acquire).into(),
            Width::Bits64 => (*address(at).cast::<AtomicU64>()).load(Ordering::Acquire),
        }
    }
}
