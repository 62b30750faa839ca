//! Memory of one device of a client in the executor of another one: lent by the keeper, whose
//! memory it is. What is lent counts for its owner until it is given back, even if the owner has
//! released it meanwhile: a client gets no more memory by lending it to itself.

use crate::Keeper;
use cuda_abi::types::CUresult;
use executor_link::messages::{GrantOutcome, PeerMemory, ToExecutor};
use policy::memory::reservations::Reservations;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};

/// What of a session's memory other sessions of the client have, and the reverse.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// By first address or key: how many have it.
    lent: BTreeMap<u64, u32>,
    /// Released by its own executor, but still lent.
    released: BTreeSet<u64>,
    /// (device, key) of what it has: whose it is, and how often.
    borrowed: BTreeMap<(u32, u64), (u64, u32)>,
}

impl Lending {
    /// Whether memory that its executor releases must be kept for others; it is noted then.
    pub(crate) fn keep(&mut self, key: u64) -> bool {
        let is_lent = self.lent.contains_key(&key);
        if is_lent {
            self.released.insert(key);
        }
        is_lent
    }

    /// Whether other sessions have memory of it.
    pub(crate) fn is_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Whose memory it has, and which, as often as it has it.
    pub(crate) fn borrowed(&self) -> Vec<(u64, u64)> {
        let each = self.borrowed.iter();
        each.flat_map(|(&(_, key), &(owner, times))| (0..times).map(move |_| (owner, key)))
            .collect()
    }

    /// Counts what comes back; whether it is to be released now.
    fn take_back(&mut self, key: u64) -> bool {
        let Some(times) = self.lent.get_mut(&key) else { return false };
        *times -= 1;
        if *times > 0 {
            return false;
        }
        self.lent.remove(&key);
        self.released.remove(&key)
    }
}

impl Keeper {
    /// Sends memory of the client's on another device to a session's executor.
    pub(crate) fn lend(&mut self, id: u64, device: u32, key: u64) {
        let lent = self.find_lent(id, device, key);
        let Some(session) = self.sessions.get(&id) else { return };
        let place = session.place();
        match lent {
            Ok((owner, memory, file)) => {
                // What another executor has mapped stays where it is.
                if let Some(there) = self.sessions.get(&owner).map(|owner| owner.device) {
                    self.residencies[there].fix(owner, key);
                }
                let granted =
                    ToExecutor::Granted { session: id, grant: GrantOutcome::Peer(memory) };
                if let Some(executor) = self.executor(place) {
                    executor.tell(&granted, &[file.as_fd()]);
                }
                if let Some(owner) = self.sessions.get_mut(&owner) {
                    *owner.lending.lent.entry(key).or_insert(0) += 1;
                }
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.lending.borrowed.entry((device, key)).or_insert((owner, 0)).1 += 1;
                }
            }
            Err(code) => {
                let granted =
                    ToExecutor::Granted { session: id, grant: GrantOutcome::Refused(code.0) };
                if let Some(executor) = self.executor(place) {
                    executor.tell(&granted, &[]);
                }
            }
        }
    }

    /// The session that has the memory, and what its executor must know of it.
    fn find_lent(
        &self,
        id: u64,
        device: u32,
        key: u64,
    ) -> Result<(u64, PeerMemory, OwnedFd), CUresult> {
        let session = self.sessions.get(&id).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        let is_owner = |owner: &crate::Session| {
            owner.client == session.client
                && owner.told_device == device
                && owner.told_device != session.told_device
        };
        let mut owners = self.sessions.iter().filter(|(_, owner)| is_owner(owner));
        let (&number, owner) = owners.next().ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        if owner.device == session.device {
            // Two devices for the client: its kernels there have the addresses already.
            return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let size_bytes = owner.grants.length(key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let memory = owner.memory.get(&key).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let window = match owner.windows.device.contains(key, 1) {
            true => owner.windows.device,
            false => Reservations::share(owner.device as u32, self.devices.len() as u32),
        };
        let file = memory.descriptor(self.driver)?;
        Ok((number, PeerMemory { window, size_bytes }, file))
    }

    /// Lets a session's executor see how far the client's session on another device is.
    pub(crate) fn show_signals(&self, id: u64, device: u32) {
        let Some(session) = self.sessions.get(&id) else { return };
        let Some(executor) = self.executor(session.place()) else { return };
        let is_it = |(_, other): &(&u64, &crate::Session)| {
            other.client == session.client
                && other.told_device == device
                && other.files.error() == 0
        };
        let found = self.sessions.iter().find(is_it);
        match found.and_then(|(&number, other)| Some((number, other.files.signals()?))) {
            Some((number, (memory, words))) => {
                let grant = GrantOutcome::Signals { session: number };
                let files = [memory, words.as_fd()];
                executor.tell(&ToExecutor::Granted { session: id, grant }, &files);
            }
            None => {
                let grant = GrantOutcome::Refused(CUresult::ERROR_INVALID_DEVICE.0);
                executor.tell(&ToExecutor::Granted { session: id, grant }, &[]);
            }
        }
    }

    /// A session has given up what it had of another one.
    pub(crate) fn give_back_lent(&mut self, id: u64, device: u32, key: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let borrowed = &mut session.lending.borrowed;
        let Some((owner, times)) = borrowed.get_mut(&(device, key)) else { return };
        let owner = *owner;
        *times -= 1;
        if *times == 0 {
            borrowed.remove(&(device, key));
        }
        self.take_back(owner, key);
    }

    pub(crate) fn take_back(&mut self, owner: u64, key: u64) {
        let Some(session) = self.sessions.get_mut(&owner) else { return };
        if session.lending.take_back(key) {
            self.release(owner, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_memory_is_released_when_the_last_one_gives_it_back() {
        let mut lending = Lending::default();
        assert!(!lending.keep(1), "not lent");
        lending.lent.insert(1, 2);
        assert!(!lending.take_back(1));
        assert!(lending.keep(1));
        assert!(lending.take_back(1), "released meanwhile");
        assert!(!lending.take_back(1) && !lending.keep(1));
        lending.lent.insert(2, 1);
        assert!(!lending.take_back(2), "its owner still has it");
    }

    #[test]
    fn what_is_borrowed_is_known_as_often_as_it_is() {
        let mut lending = Lending::default();
        lending.borrowed.insert((1, 7), (40, 2));
        lending.borrowed.insert((2, 7), (41, 1));
        assert_eq!(lending.borrowed(), [(40, 7), (40, 7), (41, 7)]);
    }
}
