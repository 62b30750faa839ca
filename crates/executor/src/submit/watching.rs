//! Streams that wait for a stream of the client's other devices (`cuStreamWaitEvent` with an event
//! from there).
//!
//! The device there writes how far its streams are into the completion words of the session there
//! ([`link::completion`]); the keeper hands that file to this executor when the first wait comes,
//! and the wait is held in software ([`super::holding`]) until the word says so. A session that has
//! failed gets no further: what waits for it goes on, and the client learns of the failure where it
//! happened.

use crate::session::failure::Failure;
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::State;
use cuda_abi::types::CUresult;
use executor_link::messages::{FromExecutor, GrantOutcome};
use link::completion::CompletionWords;
use link::session_memory::SessionMemory;
use policy::turns::holds::Signal;
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::time::Duration;

/// The keeper answers at once, or is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What one session sees of its client's sessions on other devices.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// By the keeper's number.
    sessions: HashMap<u64, Watch>,
    /// The client's session on a device.
    current: HashMap<u32, u64>,
}

impl Watched {
    /// Whether any session is watched.
    pub(crate) fn is_any(&self) -> bool {
        !self.sessions.is_empty()
    }
}

#[derive(Debug)]
struct Watch {
    words: CompletionWords,
    memory: SessionMemory,
}

impl Watch {
    fn has_failed(&self) -> bool {
        self.memory.error() != 0 || self.words.is_guard_broken()
    }
}

impl Watched {
    /// The client's session on a device, if it is known and has not failed.
    pub(crate) fn session_on(&self, device: u32) -> Option<u64> {
        let session = self.current.get(&device)?;
        self.sessions.get(session).filter(|watch| !watch.has_failed()).map(|_| *session)
    }

    /// Whether a stream there is so far, or never will be.
    pub(crate) fn is_met(&self, signal: &Signal) -> bool {
        self.sessions.get(&signal.session).is_none_or(|watch| {
            watch.words.completed(signal.slot) >= signal.value || watch.has_failed()
        })
    }
}

impl State {
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
        let DeliveredGrant { outcome, memory, words } = self.memory.await_answer(ANSWER_TIMEOUT)?;
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
