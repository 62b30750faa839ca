//! What a session consists of, so that the next executor can make it again: the commands that made
//! what lives, in the order in which they were done.
//!
//! A file in shared memory, written by the session's thread and read by nobody until that thread is
//! gone. What ends an object marks the entries that made it; when there is no more room, what lives
//! is written to a new file, so a journal is as long as what lives, never as what happened. An
//! entry counts only if its command was [committed](crate::standing::Standing::commit): one that
//! was being done when the executor ended is done again by the next one, and must find things as
//! they were. Descriptors (of pinned memory, of images) stay with the keeper, and are named by
//! number.

use link::pages::Pages;
use link::shm::{Access, Mapping, ShmError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Room of a new journal.
const SMALLEST_BYTES: u64 = 32 << 10;
/// Where entries begin; the word at the start says where they end.
const FIRST: u64 = 64;
const ALIGN: u64 = 8;
/// A position that no ring reaches.
const NEVER: u64 = u64::MAX;
/// Longest body; commands are shorter, values of variables may be as long.
const MAX_BODY_BYTES: u32 = 8 << 20;

/// Starts an entry; its body follows, padded to a multiple of 8.
#[repr(C)]
struct Head {
    /// The ring's position after the command that made it.
    made_at: AtomicU64,
    /// The ring's position after the command that ended it, 0: it lives.
    ended_at: AtomicU64,
    /// The file that belongs to it, 0: none.
    file: AtomicU64,
    opcode: AtomicU32,
    body_bytes: AtomicU32,
}

const HEAD_BYTES: u64 = size_of::<Head>() as u64;

/// An entry that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub opcode: u16,
    /// The keeper's file of it, 0: none.
    pub file: u64,
    pub body: Vec<u8>,
}

/// What an entry is found by: an opcode, and the numbers that its command names.
pub type Key = (u16, u64);

/// See the module's description.
#[derive(Debug)]
pub struct Journal {
    mapping: Mapping,
    end: u64,
    places: HashMap<Key, u64>,
    /// Ended entries that others still need: see [`Self::bury`].
    buried: Vec<(u64, Vec<u64>)>,
    next_grave: u64,
}

/// Makes a file for a journal.
pub fn create_file() -> Result<OwnedFd, ShmError> {
    create_sized(SMALLEST_BYTES)
}

fn create_sized(size_bytes: u64) -> Result<OwnedFd, ShmError> {
    let make = || {
        let file = rustix::fs::memfd_create("openmps-journal", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size_bytes)?;
        Ok(file)
    };
    make().map_err(|source| ShmError::Create { size_bytes, source })
}

fn map(file: BorrowedFd<'_>) -> Result<Mapping, ShmError> {
    let status = rustix::fs::fstat(file).map_err(ShmError::NotAMemfd)?;
    let size_bytes = status.st_size as u64;
    if size_bytes < FIRST {
        return Err(ShmError::WrongSize { actual: size_bytes, expected: SMALLEST_BYTES });
    }
    Mapping::new(file, size_bytes as usize, Access::ReadWrite)
}

/// Whether an entry counts when all before `committed_bytes` is done.
fn counts(made_at: u64, ended_at: u64, committed_bytes: u64) -> bool {
    made_at <= committed_bytes && (ended_at == 0 || ended_at > committed_bytes)
}

fn entry(mapping: &Mapping, place: u64, head: &Head) -> Entry {
    Entry {
        opcode: head.opcode.load(Ordering::Relaxed) as u16,
        file: head.file.load(Ordering::Relaxed),
        body: body(mapping, place, head),
    }
}

/// The entry at a place, if all of it is there.
fn head(mapping: &Mapping, place: u64) -> Option<&Head> {
    let end = place.checked_add(HEAD_BYTES)?;
    if !place.is_multiple_of(ALIGN) || end > mapping.size_bytes() as u64 {
        return None;
    }
    // SAFETY: inside the mapping, aligned, only atomics.
    let head = unsafe { &*mapping.base().add(place as usize).cast::<Head>() };
    let body_bytes = head.body_bytes.load(Ordering::Relaxed);
    let fits = end + u64::from(body_bytes) <= mapping.size_bytes() as u64;
    (body_bytes <= MAX_BODY_BYTES && fits).then_some(head)
}

fn body(mapping: &Mapping, place: u64, head: &Head) -> Vec<u8> {
    let from = mapping.base().wrapping_add((place + HEAD_BYTES) as usize);
    let length = head.body_bytes.load(Ordering::Relaxed) as usize;
    // SAFETY: `head` has checked that the body is inside the mapping; nobody else writes now.
    unsafe { std::slice::from_raw_parts(from, length) }.to_vec()
}

/// Where the entries are.
fn places(mapping: &Mapping) -> Vec<u64> {
    let end = end_word(mapping).load(Ordering::Acquire).min(mapping.size_bytes() as u64);
    let (mut place, mut found) = (FIRST, Vec::new());
    while place < end {
        let Some(head) = head(mapping, place) else { break };
        found.push(place);
        place += room(head.body_bytes.load(Ordering::Relaxed) as usize);
    }
    found
}

fn end_word(mapping: &Mapping) -> &AtomicU64 {
    // SAFETY: the first word of a mapping, which is longer.
    unsafe { &*mapping.base().cast() }
}

/// Bytes that an entry takes.
fn room(body_bytes: usize) -> u64 {
    HEAD_BYTES + (body_bytes as u64).next_multiple_of(ALIGN)
}

/// All entries of a file that nobody writes any more, in order, of commands that are done. What is
/// ended is among them.
pub fn read(file: BorrowedFd<'_>, committed_bytes: u64) -> Result<Vec<Entry>, ShmError> {
    let mapping = map(file)?;
    let heads =
        places(&mapping).into_iter().filter_map(|place| Some((place, head(&mapping, place)?)));
    let done = heads.filter(|(_, head)| head.made_at.load(Ordering::Relaxed) <= committed_bytes);
    Ok(done.map(|(place, head)| entry(&mapping, place, head)).collect())
}

impl Journal {
    /// Bytes that are written.
    pub fn end_bytes(&self) -> u64 {
        self.end
    }

    /// Goes on in a file: what does not count is dropped, and the rest is to be told by
    /// [`Self::adopt`], in this order.
    pub fn open(
        file: BorrowedFd<'_>,
        committed_bytes: u64,
    ) -> Result<(Self, Vec<(u64, Entry)>), ShmError> {
        let mapping = map(file)?;
        let (mut entries, mut end) = (Vec::new(), FIRST);
        for place in places(&mapping) {
            let Some(head) = head(&mapping, place) else { break };
            let length = room(head.body_bytes.load(Ordering::Relaxed) as usize);
            let [made_at, ended_at] =
                [&head.made_at, &head.ended_at].map(|word| word.load(Ordering::Relaxed));
            if counts(made_at, ended_at, committed_bytes) {
                head.ended_at.store(0, Ordering::Relaxed);
                entries.push((place, entry(&mapping, place, head)));
            } else {
                // Also for whoever comes next.
                head.made_at.store(NEVER, Ordering::Relaxed);
                head.ended_at.store(1, Ordering::Relaxed);
            }
            end = place + length;
        }
        end_word(&mapping).store(end, Ordering::Release);
        let (places, buried) = (HashMap::new(), Vec::new());
        let journal = Self { mapping, end, places, buried, next_grave: 1 };
        Ok((journal, entries))
    }

    /// An entry that [`Self::open`] gave is made again.
    pub fn adopt(&mut self, key: Key, place: u64) {
        self.places.insert(key, place);
    }

    /// Appends an entry, in the place of one with the same key; a file if the journal goes on
    /// there.
    pub fn add(
        &mut self,
        key: Key,
        made_at: u64,
        file: u64,
        body: &[u8],
    ) -> Result<Option<OwnedFd>, ShmError> {
        let length = room(body.len());
        let moved = match self.end + length > self.mapping.size_bytes() as u64 {
            true => Some(self.move_on(length, made_at)?),
            false => None,
        };
        let before = self.places.get(&key).copied();
        self.append(key, made_at, file, body);
        // After the new one is there: of two that count, the later one is done later.
        if let Some(before) = before {
            self.end_at(before, made_at);
        }
        Ok(moved)
    }

    fn append(&mut self, key: Key, made_at: u64, file: u64, body: &[u8]) {
        let place = self.end;
        // SAFETY: `add` has seen to the room, and nobody reads beyond the end.
        let head = unsafe { &*self.mapping.base().add(place as usize).cast::<Head>() };
        head.made_at.store(made_at, Ordering::Relaxed);
        head.ended_at.store(0, Ordering::Relaxed);
        head.file.store(file, Ordering::Relaxed);
        head.opcode.store(key.0.into(), Ordering::Relaxed);
        head.body_bytes.store(body.len() as u32, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe {
            let to = self.mapping.base().add((place + HEAD_BYTES) as usize);
            std::ptr::copy_nonoverlapping(body.as_ptr(), to, body.len());
        }
        self.end += room(body.len());
        // Release: the entry is there before it counts; partner of the acquire in `places`.
        end_word(&self.mapping).store(self.end, Ordering::Release);
        self.places.insert(key, place);
    }

    /// The file of what was made under a key, 0: none.
    pub fn file(&self, key: Key) -> u64 {
        let head = self.places.get(&key).and_then(|&place| head(&self.mapping, place));
        head.map_or(0, |head| head.file.load(Ordering::Relaxed))
    }

    /// Where the entry of a key is, among the others; `None`: there is none.
    pub fn place(&self, key: Key) -> Option<u64> {
        self.places.get(&key).copied()
    }

    /// What was made under a key has ended. Returns its file, 0: none.
    pub fn end(&mut self, key: Key, ended_at: u64) -> Option<u64> {
        let place = self.places.remove(&key)?;
        self.end_at(place, ended_at)
    }

    fn end_at(&mut self, place: u64, ended_at: u64) -> Option<u64> {
        let head = head(&self.mapping, place)?;
        head.ended_at.store(ended_at.max(1), Ordering::Relaxed);
        Some(head.file.load(Ordering::Relaxed))
    }

    /// Keys whose entries `is_wanted` takes.
    pub fn keys(&self, is_wanted: impl Fn(Key, &[u8]) -> bool) -> Vec<Key> {
        let of = |place: u64| head(&self.mapping, place).map(|h| body(&self.mapping, place, h));
        let mut found: Vec<(u64, Key)> = self
            .places
            .iter()
            .filter(|&(key, place)| of(*place).is_some_and(|body| is_wanted(*key, &body)))
            .map(|(key, place)| (*place, *key))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, key)| key).collect()
    }

    /// What was made under these keys has ended for the client, but others need it: it is made
    /// again, and `tombstone`, the command that ended it, is done again after that. Returns the
    /// number by which [`Self::exhume`] ends it all.
    pub fn bury(
        &mut self,
        keys: &[Key],
        opcode: u16,
        ended_at: u64,
        tombstone: &[u8],
    ) -> Result<(u64, Option<OwnedFd>), ShmError> {
        let key = (opcode, self.next_grave << 32);
        let moved = self.add(key, ended_at, 0, tombstone)?;
        // After the journal may have gone on elsewhere.
        let tombstone = self.places.remove(&key);
        Ok((self.lay(keys, tombstone), moved))
    }

    /// What [`Self::bury`] buried, of which an executor before had written the tombstone at this
    /// place, has been made and ended again.
    pub fn adopt_buried(&mut self, keys: &[Key], tombstone: u64) -> u64 {
        self.lay(keys, Some(tombstone))
    }

    fn lay(&mut self, keys: &[Key], tombstone: Option<u64>) -> u64 {
        let grave = self.next_grave;
        self.next_grave += 1;
        let mut places: Vec<u64> = keys.iter().filter_map(|key| self.places.remove(key)).collect();
        places.extend(tombstone);
        self.buried.push((grave, places));
        grave
    }

    /// Ends what was buried. Returns the files of it.
    pub fn exhume(&mut self, grave: u64, ended_at: u64) -> Vec<u64> {
        let Some(index) = self.buried.iter().position(|(known, _)| *known == grave) else {
            return Vec::new();
        };
        let (_, places) = self.buried.swap_remove(index);
        places.into_iter().filter_map(|place| self.end_at(place, ended_at)).collect()
    }

    /// Writes what lives to a new file with room for one more entry, and goes on there.
    fn move_on(&mut self, more_bytes: u64, now: u64) -> Result<OwnedFd, ShmError> {
        let lives = |place: u64| {
            let head = head(&self.mapping, place)?;
            let ended_at = head.ended_at.load(Ordering::Relaxed);
            // What the present command has ended may live again.
            let lives = ended_at == 0 || ended_at >= now;
            lives.then(|| room(head.body_bytes.load(Ordering::Relaxed) as usize))
        };
        let places = places(&self.mapping).into_iter();
        let kept: Vec<(u64, u64)> =
            places.filter_map(|place| Some((place, lives(place)?))).collect();
        let kept_bytes: u64 = kept.iter().map(|(_, length)| length).sum();
        let wanted = (FIRST + 2 * (kept_bytes + more_bytes)).max(SMALLEST_BYTES);
        let file = create_sized(Pages::of_system().whole(wanted).unwrap_or(wanted))?;
        let mapping = map(file.as_fd())?;
        let (mut end, mut moved) = (FIRST, HashMap::new());
        for (place, length) in kept {
            // SAFETY: both inside their mappings, of which the new one has room for twice as much.
            unsafe {
                let from = self.mapping.base().add(place as usize);
                let to = mapping.base().add(end as usize);
                std::ptr::copy_nonoverlapping(from, to, length as usize);
            }
            moved.insert(place, end);
            end += length;
        }
        end_word(&mapping).store(end, Ordering::Release);
        let at = |place: &mut u64| *place = moved.get(place).copied().unwrap_or(*place);
        self.places.values_mut().for_each(at);
        self.buried.iter_mut().flat_map(|(_, places)| places).for_each(at);
        (self.mapping, self.end) = (mapping, end);
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Written {
        file: OwnedFd,
        journal: Journal,
    }

    impl Written {
        fn new() -> Self {
            let file = create_file().unwrap();
            let (journal, entries) = Journal::open(file.as_fd(), 0).unwrap();
            assert!(entries.is_empty());
            Self { file, journal }
        }

        fn add(&mut self, key: Key, made_at: u64, body: &[u8]) {
            if let Some(file) = self.journal.add(key, made_at, 0, body).unwrap() {
                self.file = file;
            }
        }

        /// What the next one finds, as opcodes and bodies.
        fn read(&self, committed_bytes: u64) -> Vec<(u16, Vec<u8>)> {
            let (_, entries) = Journal::open(self.file.as_fd(), committed_bytes).unwrap();
            entries.into_iter().map(|(_, entry)| (entry.opcode, entry.body)).collect()
        }
    }

    #[test]
    fn what_lives_is_found_in_the_order_in_which_it_was_made() {
        let mut written = Written::new();
        written.add((1, 7), 16, b"one");
        written.add((2, 7), 32, b"a second one");
        written.add((1, 8), 48, b"");
        assert_eq!(written.journal.end((1, 7), 64), Some(0));
        assert_eq!(written.journal.end((1, 7), 64), None);
        let found = written.read(64);
        assert_eq!(found, [(2, b"a second one".to_vec()), (1, Vec::new())]);
    }

    #[test]
    fn what_was_not_committed_did_not_happen() {
        let mut written = Written::new();
        written.add((1, 1), 16, b"stays");
        written.add((1, 2), 32, b"was being made");
        written.journal.end((1, 1), 32);
        assert_eq!(written.read(16), [(1, b"stays".to_vec())]);
        // Nor later, whatever is committed then.
        assert_eq!(written.read(1000), [(1, b"stays".to_vec())]);
    }

    #[test]
    fn what_two_executors_did_not_commit_did_not_happen_either() {
        let mut written = Written::new();
        written.add((1, 1), 16, b"was being made");
        assert_eq!(written.read(0), []);
        assert_eq!(written.read(0), [], "the second ended in its first command, too");
    }

    #[test]
    fn its_length_is_that_of_what_lives() {
        let mut written = Written::new();
        written.add((9, 0), 16, b"kept");
        for number in 1..20_000_u64 {
            written.add((1, number % 10), 16 * (number + 1), &[number as u8; 100]);
        }
        assert!(rustix::fs::fstat(&written.file).unwrap().st_size as u64 <= 2 * SMALLEST_BYTES);
        let found = written.read(u64::MAX);
        assert_eq!(found.len(), 11);
        assert_eq!(found[0], (9, b"kept".to_vec()));
        let many = (0..5000).map(|number| ((2, number), [1; 64]));
        many.for_each(|(key, body)| written.add(key, 1 << 30, &body));
        assert_eq!(written.read(u64::MAX).len(), 5011);
    }

    #[test]
    fn an_entrys_file_is_known_until_it_ends_or_is_replaced() {
        let mut written = Written::new();
        let key = (1, 5);
        assert_eq!(written.journal.file(key), 0);
        written.journal.add(key, 16, 7, b"first").unwrap();
        assert_eq!(written.journal.file(key), 7);
        written.journal.add(key, 32, 8, b"second").unwrap();
        assert_eq!(written.journal.file(key), 8);
        assert_eq!((written.journal.end(key, 48), written.journal.file(key)), (Some(8), 0));
    }

    #[test]
    fn what_is_buried_is_made_and_ended_again_until_nobody_needs_it() {
        let mut written = Written::new();
        written.add((1, 5), 16, b"module");
        written.add((2, 6), 32, b"graph");
        let (grave, moved) = written.journal.bury(&[(1, 5)], 3, 48, b"unload").unwrap();
        assert!(moved.is_none());
        written.add((1, 5), 64, b"another");
        let bodies: Vec<_> = written.read(64).into_iter().map(|(_, body)| body).collect();
        assert_eq!(bodies, [&b"module"[..], b"graph", b"unload", b"another"]);
        assert_eq!(written.journal.exhume(grave, 80), [0, 0]);
        let bodies: Vec<_> = written.read(80).into_iter().map(|(_, body)| body).collect();
        assert_eq!(bodies, [&b"graph"[..], b"another"]);
    }

    #[test]
    fn what_is_buried_stays_so_for_the_next_executor() {
        let mut written = Written::new();
        written.add((1, 5), 16, b"module");
        written.add((2, 6), 32, b"graph");
        written.journal.bury(&[(1, 5)], 3, 48, b"unload").unwrap();
        let (mut journal, entries) = Journal::open(written.file.as_fd(), 48).unwrap();
        let [module, graph, unload] = [0, 1, 2].map(|at: usize| entries[at].0);
        journal.adopt((1, 5), module);
        journal.adopt((2, 6), graph);
        let grave = journal.adopt_buried(&[(1, 5)], unload);
        written.journal = journal;
        // Its number is free: this is not in the place of what the graph needs.
        written.add((1, 5), 64, b"another");
        let bodies = |written: &Written| -> Vec<Vec<u8>> {
            written.read(100).into_iter().map(|(_, body)| body).collect()
        };
        assert_eq!(bodies(&written), [&b"module"[..], b"graph", b"unload", b"another"]);
        assert_eq!(written.journal.exhume(grave, 80), [0, 0]);
        assert_eq!(bodies(&written), [&b"graph"[..], b"another"]);
    }
}
