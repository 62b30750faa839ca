//! Memory and events of one session in another. All sessions of a device live in one context, so
//! what is opened has the address, or is the event, that its owner has; what is counted is who may
//! use it, and until when it must stay.

use crate::session::failure::{Failure, INVALID, below};
use crate::session::state::State;
use cuda_abi::types::{CUevent, CUresult};
use executor_link::log::log_server;
use link::wire::command::MAX_EVENTS;
use link::wire::sharing::{
    EventNumber, MAX_SHARED, OpenEvent, OpenMemoryReply, ShareMemory, Token as WireToken,
    UnshareMemory,
};
use policy::memory::exports::{Exports, Memory, Token};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Between two looks at whether others still use a dead client's memory.
const POLL: Duration = Duration::from_millis(10);
/// After so long the log says so.
const PATIENCE: Duration = Duration::from_secs(10);

/// What all sessions share with each other.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    memory: Mutex<Exports>,
    events: Mutex<HashMap<Token, Weak<SharedEvent>>>,
}

/// An event of several sessions, by one token; the last one destroys it.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    event: CUevent,
    token: Token,
}

/// What one session has of others, and its events that others may have.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// How often memory was opened, and where it is.
    opened: HashMap<Token, (u32, Memory)>,
    events: HashMap<u32, Arc<SharedEvent>>,
    /// Of the events, those that another session has shared.
    borrowed: HashSet<u32>,
}

impl Sharing {
    /// Whether memory of the token that is in these bytes is open.
    pub(crate) fn has_opened(&self, token: &[u8]) -> bool {
        WireToken::read_from_prefix(token)
            .is_ok_and(|(token, _)| self.opened.contains_key(&token.words))
    }
}

fn random_token() -> Result<Token, Failure> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|_| Failure::Cuda(CUresult::ERROR_OPERATING_SYSTEM))?;
    let word = |from: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[from..from + 8]);
        u64::from_ne_bytes(word)
    };
    Ok([word(0), word(8)])
}

impl State {
    fn shared_memory(&self) -> MutexGuard<'_, Exports> {
        self.shared.shares.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_events(&self) -> MutexGuard<'_, HashMap<Token, Weak<SharedEvent>>> {
        self.shared.shares.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn share_memory(&mut self, wanted: ShareMemory) -> Result<(), Failure> {
        self.share_memory_as(wanted, WireToken { words: random_token()? })
    }

    /// Shares memory by this token, unless it has one.
    pub(crate) fn share_memory_as(
        &mut self,
        wanted: ShareMemory,
        fresh: WireToken,
    ) -> Result<(), Failure> {
        let ShareMemory { address, size_bytes } = wanted;
        if !self.memory.is_granted(address, size_bytes) {
            return Err(INVALID);
        }
        let owner = self.handle.id;
        let mut exports = self.shared_memory();
        if exports.count(owner) >= MAX_SHARED {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let token = exports.share(Memory { owner, address, size_bytes }, fresh.words);
        drop(exports);
        self.note_lent();
        self.answer(&WireToken { words: token })
    }

    pub(crate) fn unshare_memory(&mut self, wanted: UnshareMemory) -> Result<(), Failure> {
        self.shared_memory().withdraw(self.handle.id, wanted.address, 1);
        self.note_lent();
        Ok(())
    }

    pub(crate) fn open_memory(&mut self, wanted: WireToken) -> Result<(), Failure> {
        let token = wanted.words;
        if self.sharing.opened.len() >= MAX_SHARED {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let memory = self.find_shared(|state| state.shared_memory().open(token))?;
        let known = self.sharing.opened.contains_key(&token);
        let is_own = memory.owner == self.handle.id;
        if is_own || !(known || self.memory.addressable.insert(memory.address, memory.size_bytes)) {
            self.shared_memory().close(token);
            return Err(INVALID);
        }
        self.sharing.opened.entry(token).or_insert((0, memory)).0 += 1;
        self.note_borrowed();
        let Memory { address, size_bytes, .. } = memory;
        self.answer(&OpenMemoryReply { address, size_bytes })
    }

    pub(crate) fn close_memory(&mut self, wanted: WireToken) -> Result<(), Failure> {
        let token = wanted.words;
        let (count, memory) = self.sharing.opened.get_mut(&token).ok_or(INVALID)?;
        *count -= 1;
        if *count == 0 {
            let Memory { address, size_bytes, .. } = *memory;
            self.memory.addressable.remove(address, size_bytes);
            self.sharing.opened.remove(&token);
            self.note_borrowed();
        }
        self.shared_memory().close(token);
        Ok(())
    }

    /// Whether the session shares anything, or has anything that others share.
    pub(crate) fn shares_anything(&self) -> bool {
        !self.sharing.opened.is_empty()
            || !self.sharing.events.is_empty()
            || self.shared_memory().count(self.handle.id) > 0
    }

    /// Whether it has anything that others share, or they have anything that it shares.
    pub(crate) fn has_partners(&self) -> bool {
        let are_in_use = || {
            let _lock = self.shared_events();
            self.sharing.events.values().any(|event| Arc::strong_count(event) > 1)
        };
        !self.sharing.opened.is_empty()
            || !self.sharing.borrowed.is_empty()
            || self.shared_memory().in_use(self.handle.id, 0, u64::MAX)
            || are_in_use()
    }

    /// From now on nobody can open here what the session shares; `false`, and nothing is changed,
    /// if somebody has.
    pub(crate) fn withdraw_shared(&self) -> bool {
        let (mut events, mut memory) = (self.shared_events(), self.shared_memory());
        let own = self.sharing.events.values();
        if memory.in_use(self.handle.id, 0, u64::MAX)
            || own.clone().any(|event| Arc::strong_count(event) > 1)
        {
            return false;
        }
        memory.withdraw(self.handle.id, 0, u64::MAX);
        own.for_each(|event| drop(events.remove(&event.token)));
        drop((events, memory));
        self.note_lent();
        true
    }

    /// Whether others use memory in a grant, or may begin to.
    pub(crate) fn is_open_to_others(&self, address: u64, size_bytes: u64) -> bool {
        self.shared_memory().overlaps(self.handle.id, address, size_bytes)
    }

    /// What others can open, or have open, after that has changed.
    fn note_lent(&self) {
        let events = self.sharing.events.len() - self.sharing.borrowed.len();
        self.standing.note_lent(events + self.shared_memory().count(self.handle.id));
    }

    fn note_borrowed(&self) {
        self.standing.note_borrowed(self.sharing.opened.len() + self.sharing.borrowed.len());
    }

    /// Whether a grant must stay mapped because others use memory in it; what nobody uses is no
    /// longer shared.
    pub(crate) fn must_stay(&self, address: u64, size_bytes: u64) -> bool {
        let mut exports = self.shared_memory();
        exports.withdraw(self.handle.id, address, size_bytes);
        let is_in_use = exports.in_use(self.handle.id, address, size_bytes);
        drop(exports);
        if self.standing.has_lent() {
            self.note_lent();
        }
        is_in_use
    }

    pub(crate) fn share_event(&mut self, wanted: EventNumber) -> Result<(), Failure> {
        self.share_event_as(wanted, WireToken { words: random_token()? })
    }

    /// Shares an event by this token, unless it has one.
    pub(crate) fn share_event_as(
        &mut self,
        wanted: EventNumber,
        fresh: WireToken,
    ) -> Result<(), Failure> {
        let handle = self.event(wanted.event)?;
        // Its graphs would destroy it under the others' hands.
        if self.events.get(&wanted.event).is_some_and(|event| Arc::strong_count(event) > 1) {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        if let Some(shared) = self.sharing.events.get(&wanted.event) {
            return self.answer(&WireToken { words: shared.token });
        }
        if self.sharing.events.len() >= MAX_SHARED {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let token = fresh.words;
        let event = Arc::new(SharedEvent { event: handle, token });
        let mut events = self.shared_events();
        events.retain(|_, event| event.strong_count() > 0);
        events.insert(token, Arc::downgrade(&event));
        drop(events);
        self.sharing.events.insert(wanted.event, event);
        self.note_lent();
        self.answer(&WireToken { words: token })
    }

    pub(crate) fn open_event(&mut self, wanted: OpenEvent) -> Result<(), Failure> {
        let number = wanted.event;
        if number >= MAX_EVENTS || self.events.contains_key(&number) {
            return Err(Failure::Protocol(format!("event {number} is in use, or too large")));
        }
        let token = wanted.token.words;
        let event =
            self.find_shared(|state| state.shared_events().get(&token).and_then(Weak::upgrade))?;
        self.events.insert(number, Arc::new(event.event));
        self.sharing.events.insert(number, event);
        self.sharing.borrowed.insert(number);
        self.note_borrowed();
        Ok(())
    }

    pub(crate) fn event_query(&mut self, wanted: EventNumber) -> Result<(), Failure> {
        below("event", wanted.event, MAX_EVENTS)?;
        let event = self.event(wanted.event)?;
        // SAFETY: a live event.
        match unsafe { self.driver().cuEventQuery(event) } {
            CUresult::ERROR_NOT_READY => Err(Failure::Cuda(CUresult::ERROR_NOT_READY)),
            other => self.check(other),
        }
    }

    /// Whether others may have an event.
    pub(crate) fn is_shared_event(&self, number: u32) -> bool {
        self.sharing.events.contains_key(&number)
    }

    /// Gives a shared event up. `true` when others still have it, so that it must not be destroyed.
    pub(crate) fn others_have(&mut self, number: u32) -> bool {
        let Some(event) = self.sharing.events.remove(&number) else { return false };
        match self.sharing.borrowed.remove(&number) {
            true => self.note_borrowed(),
            false => self.note_lent(),
        }
        // Opening upgrades under the lock, so that of two who give it up one is the last.
        let _lock = self.shared_events();
        Arc::into_inner(event).is_none()
    }

    /// Gives up what is of others, and waits until nobody uses what is this session's.
    pub(crate) fn end_sharing(&mut self) {
        for (token, (count, memory)) in std::mem::take(&mut self.sharing.opened) {
            self.memory.addressable.remove(memory.address, memory.size_bytes);
            for _ in 0..count {
                self.shared_memory().close(token);
            }
        }
        let numbers: Vec<u32> = self.sharing.events.keys().copied().collect();
        for number in numbers {
            if self.others_have(number) {
                self.events.remove(&number);
            }
        }
        let (started, mut complained) = (Instant::now(), false);
        while self.must_stay(0, u64::MAX) && self.context().lost().is_none() {
            if started.elapsed() > PATIENCE && !std::mem::replace(&mut complained, true) {
                log_server!("{} has left, but others have its memory open", self.handle.label);
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Bed;
    use link::wire::command::{EventCreate, EventDestroy};

    fn share(state: &mut State, event: u32) -> Vec<u8> {
        state.reply.clear();
        state.share_event(EventNumber { event, reserved: 0 }).unwrap();
        state.reply.clone()
    }

    #[test]
    fn an_event_has_one_token_however_often_it_is_shared() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        for event in [1, 2] {
            state.event_create(EventCreate { event, flags: 2 }).unwrap();
        }
        let first = share(state, 1);
        assert!((0..100).all(|_| share(state, 1) == first));
        assert_ne!(share(state, 2), first);
        assert_eq!(bed.shared.shares.events.lock().unwrap().len(), 2);
        // Who has opened it passes the same on.
        let (token, _) = WireToken::read_from_prefix(&first).unwrap();
        let mut other = bed.open();
        let open = OpenEvent { token, event: 7, reserved: 0 };
        other.session.state().open_event(open).unwrap();
        assert_eq!(share(other.session.state(), 7), first);
        let state = client.session.state();
        for event in [1, 2] {
            state.event_destroy(EventDestroy { event, reserved: 0 }).unwrap();
        }
        state.event_create(EventCreate { event: 1, flags: 2 }).unwrap();
        assert_ne!(share(state, 1), first, "it is another event");
    }
}
