//! What sessions of one device share with each other: who has it, and who uses it.

use std::collections::HashMap;

/// Names what is shared; unguessable.
pub type Token = [u64; 2];

/// Memory that a session shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The session that owns it.
    pub owner: u64,
    /// First address.
    pub address: u64,
    /// Length.
    pub size_bytes: u64,
}

#[derive(Debug)]
struct Entry {
    memory: Memory,
    users: u32,
    /// Its owner has freed it, or is gone: nobody else may open it.
    withdrawn: bool,
}

/// All memory that is shared.
#[derive(Debug, Default)]
pub struct Exports {
    entries: HashMap<Token, Entry>,
}

impl Exports {
    /// Shares memory under `token`, or under the token that it has already, which is returned.
    pub fn share(&mut self, memory: Memory, token: Token) -> Token {
        let known = self.entries.iter().find(|(_, e)| e.memory == memory && !e.withdrawn);
        if let Some((known, _)) = known {
            return *known;
        }
        self.entries.insert(token, Entry { memory, users: 0, withdrawn: false });
        token
    }

    /// Counts a user in; `None` for what is not shared, or not any more.
    pub fn open(&mut self, token: Token) -> Option<Memory> {
        let entry = self.entries.get_mut(&token).filter(|entry| !entry.withdrawn)?;
        entry.users += 1;
        Some(entry.memory)
    }

    /// Counts a user out.
    pub fn close(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(&token) else { return };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0 && entry.withdrawn {
            self.entries.remove(&token);
        }
    }

    /// No longer shares what a session has inside a range.
    pub fn withdraw(&mut self, owner: u64, address: u64, size_bytes: u64) {
        let end = address.saturating_add(size_bytes);
        for entry in self.entries.values_mut() {
            let Memory { owner: of, address: at, size_bytes: length } = entry.memory;
            if of == owner && at < end && address < at.saturating_add(length) {
                entry.withdrawn = true;
            }
        }
        self.entries.retain(|_, entry| !entry.withdrawn || entry.users > 0);
    }

    /// Whether somebody uses what a session shares inside a range.
    pub fn in_use(&self, owner: u64, address: u64, size_bytes: u64) -> bool {
        self.within(owner, address, size_bytes).any(|entry| entry.users > 0)
    }

    /// Whether a session shares something inside a range, used or not.
    pub fn overlaps(&self, owner: u64, address: u64, size_bytes: u64) -> bool {
        self.within(owner, address, size_bytes).next().is_some()
    }

    fn within(&self, owner: u64, address: u64, size_bytes: u64) -> impl Iterator<Item = &Entry> {
        let end = address.saturating_add(size_bytes);
        self.entries.values().filter(move |entry| {
            let Memory { owner: of, address: at, size_bytes: length } = entry.memory;
            of == owner && at < end && address < at.saturating_add(length)
        })
    }

    /// How many things a session shares.
    pub fn count(&self, owner: u64) -> usize {
        self.entries.values().filter(|entry| entry.memory.owner == owner).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_use_until_the_last_user_closes_it() {
        let mut exports = Exports::default();
        let memory = Memory { owner: 1, address: 0x1000, size_bytes: 0x100 };
        let token = exports.share(memory, [1, 2]);
        assert_eq!(exports.share(memory, [3, 4]), token, "shared once, one token");
        assert_eq!(exports.open([9, 9]), None);
        assert_eq!(exports.open(token), Some(memory));
        assert_eq!(exports.open(token), Some(memory));
        assert!(exports.in_use(1, 0, u64::MAX) && exports.in_use(1, 0x10ff, 1));
        assert!(!exports.in_use(1, 0x1100, 0x100) && !exports.in_use(2, 0, u64::MAX));
        assert!(exports.overlaps(1, 0x10ff, 1) && !exports.overlaps(1, 0x1100, 1));
        exports.withdraw(1, 0x1000, 0x100);
        assert_eq!(exports.open(token), None, "its owner has freed it");
        exports.close(token);
        assert!(exports.in_use(1, 0, u64::MAX));
        exports.close(token);
        assert!(!exports.in_use(1, 0, u64::MAX));
        assert_eq!(exports.count(1), 0);
    }

    #[test]
    fn what_nobody_uses_is_forgotten_at_once() {
        let mut exports = Exports::default();
        for address in [0x1000, 0x2000] {
            exports.share(Memory { owner: 1, address, size_bytes: 0x100 }, [address, 0]);
        }
        exports.withdraw(1, 0x1000, 1);
        assert_eq!(exports.count(1), 1);
        exports.withdraw(2, 0, u64::MAX);
        assert_eq!(exports.count(1), 1, "another's are not touched");
        exports.close([7, 7]);
    }
}
