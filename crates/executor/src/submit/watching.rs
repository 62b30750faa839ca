//! Streams that wait for a stream of the client's other devices (`cuStreamWaitEvent` with an event
//! from there).
//!
//! The device there writes how far its streams are into the completion words of the session there
//! ([`link::completion`]); the keeper hands that file to this executor when the first wait comes,
//! and the wait is held in software ([`super::holding`]) until the word says so. A session that has
//! failed gets no further: what waits for it goes on, and the client learns of the failure where it
//! happened.

use link::completion::CompletionWords;
use link::session_memory::SessionMemory;
use policy::turns::holds::Signal;
use std::collections::HashMap;

/// What one session sees of its client's sessions on other devices.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// By the keeper's number.
    pub(super) sessions: HashMap<u64, Watch>,
    /// The client's session on a device.
    pub(super) current: HashMap<u32, u64>,
}

impl Watched {
    /// Whether any session is watched.
    pub(crate) fn is_any(&self) -> bool {
        !self.sessions.is_empty()
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) words: CompletionWords,
    pub(super) memory: SessionMemory,
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
