//! What a session with repeatable kernels has in flight, so that the next executor can do it again:
//! the commands, in the order in which they were submitted, and how far each stream has got with
//! them.
//!
//! A file of the session that outlives the executor, as [`crate::standing`] and [`crate::journal`].
//! A command is noted, and counts as taken from the ring, before it is submitted; behind it the
//! device writes the command's number to the stream's *progress word*. So what has ended is known
//! of each command by itself: of what is noted and not reached, at most one command of each stream
//! has begun, and nothing that waits for it has. That is what makes it right to do it again:
//! - a kernel because its client says so ([`policy::turns::repeatable`]);
//! - a fill, a copy between places that do not overlap, the record of an event, a wait for one, a
//!   signal: nothing that they read has changed since they began.
//!
//! All other work is noted as such. As long as any of it is not reached the session is told of a
//! fault as others are.

use link::pages;
use link::shm::{self, Access, Mapping, ShmError};
use link::wire::layout::STREAM_SLOTS;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the progress words are, one for each stream: the device pins their pages.
const PROGRESS_OFFSET: usize = pages::LONGEST_BYTES;
/// Their length.
pub const PROGRESS_BYTES: usize = STREAM_SLOTS * 8;
/// Where entries are; a place is a count of bytes from here, modulo [`ENTRIES_BYTES`].
const ENTRIES_OFFSET: usize =
    (PROGRESS_OFFSET + PROGRESS_BYTES).next_multiple_of(pages::LONGEST_BYTES);
/// Room for more launches than a stream may be ahead of the device; pages are taken as they are
/// written.
const ENTRIES_BYTES: usize = 4 << 20;
const FILE_BYTES: usize = ENTRIES_OFFSET + ENTRIES_BYTES;
const ALIGN: u64 = 8;

#[repr(C, align(64))]
#[derive(Debug)]
struct Words {
    /// Where the first entry is, and where they end; both only grow.
    first: AtomicU64,
    end: AtomicU64,
    last_number: AtomicU64,
    /// Work was submitted for which there was no room here.
    lost: AtomicU32,
    /// How often it has been done again without an end.
    attempts: AtomicU32,
}

/// Starts an entry; the command's body follows, padded to a multiple of 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Head {
    number: u64,
    /// The ring's position after the command.
    position: u64,
    stream: u32,
    kind: u16,
    opcode: u16,
    body_bytes: u32,
}

const HEAD_BYTES: usize = 32;

impl Head {
    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.stream.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.kind.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.opcode.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; HEAD_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            number: long(0),
            position: long(8),
            stream: word(16),
            kind: half(20),
            opcode: half(22),
            body_bytes: word(24),
        }
    }
}

/// What is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command that can be done again.
    Again,
    /// Work that cannot.
    Once,
    /// The end of something that earlier commands may name.
    Ends,
    /// It was refused, or is done.
    Struck,
}

impl Kind {
    fn from_number(number: u16) -> Self {
        [Self::Again, Self::Once, Self::Ends]
            .into_iter()
            .find(|kind| *kind as u16 == number)
            .unwrap_or(Self::Struck)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: u64,
    length: u64,
    head: Head,
}

/// A command that is to be done again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub number: u64,
    pub stream: u32,
    pub opcode: u16,
    pub body: Vec<u8>,
}

/// What becomes of what a session has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it can be done again; there may be nothing to do.
    CanBeRepeated,
    /// Something cannot.
    IsLost,
}

/// See the module's description.
#[derive(Debug)]
pub struct Redo {
    mapping: Mapping,
    entries: VecDeque<Entry>,
}

impl Redo {
    /// A file in which nothing is noted.
    pub fn create_file() -> Result<OwnedFd, ShmError> {
        shm::create("openmps-redo", FILE_BYTES as u64)
    }

    /// What is noted in a file that nobody else writes now.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        shm::check(file, FILE_BYTES as u64)?;
        let mapping = Mapping::new(file, FILE_BYTES, Access::ReadWrite)?;
        let mut redo = Self { mapping, entries: VecDeque::new() };
        let words = redo.words();
        // Acquire: partner of the release in `note`.
        let end = words.end.load(Ordering::Acquire);
        let mut place = words.first.load(Ordering::Relaxed);
        while place < end && end - place <= ENTRIES_BYTES as u64 {
            let mut bytes = [0; HEAD_BYTES];
            redo.read(place, &mut bytes);
            let head = Head::from_bytes(bytes);
            let length = room(head.body_bytes as usize);
            if place + length > end {
                break;
            }
            redo.entries.push_back(Entry { place, length, head });
            place += length;
        }
        Ok(redo)
    }

    fn words(&self) -> &Words {
        // SAFETY: the file's first page, page-aligned; atomics only.
        unsafe { &*self.mapping.base().cast() }
    }

    /// Where this process has the progress words, for registering them with the device.
    pub fn progress_address(&self) -> u64 {
        self.mapping.base().wrapping_add(PROGRESS_OFFSET).addr() as u64
    }

    /// Whether a stream has got to the command of this number.
    fn is_reached(&self, stream: u32, number: u64) -> bool {
        if stream as usize >= STREAM_SLOTS {
            return false;
        }
        let first = self.mapping.base().wrapping_add(PROGRESS_OFFSET).cast::<AtomicU64>();
        // SAFETY: inside the mapping, aligned; the device writes whole words.
        let word = unsafe { &*first.add(stream as usize) };
        // Acquire: pairs with the device's write, which follows the stream's earlier writes to host
        // memory.
        word.load(Ordering::Acquire) >= number
    }

    fn is_over(&self, head: &Head) -> bool {
        match Kind::from_number(head.kind) {
            Kind::Again | Kind::Once => self.is_reached(head.stream, head.number),
            // When it is the first: what named it is over.
            Kind::Ends | Kind::Struck => true,
        }
    }

    /// Notes what is about to be submitted on a stream, or ended. The ring's position is that after
    /// its command. Returns its number; `None`: there is no room, and the session counts as one
    /// whose work cannot be repeated until [`Self::settle`].
    pub fn note(
        &mut self,
        kind: Kind,
        stream: u32,
        position: u64,
        (opcode, body): (u16, &[u8]),
    ) -> Option<u64> {
        self.retire(position);
        let length = room(body.len());
        let words = self.words();
        let mut place = words.end.load(Ordering::Relaxed);
        if self.entries.is_empty() {
            // From the beginning again, so that the file takes few pages.
            place = place.next_multiple_of(ENTRIES_BYTES as u64);
        }
        let first = self.entries.front().map_or(place, |entry| entry.place);
        if place + length - first > ENTRIES_BYTES as u64 {
            words.lost.store(1, Ordering::Relaxed);
            return None;
        }
        let number = words.last_number.load(Ordering::Relaxed) + 1;
        words.last_number.store(number, Ordering::Relaxed);
        let body_bytes = body.len() as u32;
        let head = Head { number, position, stream, kind: kind as u16, opcode, body_bytes };
        if self.entries.is_empty() {
            // Until the end is behind it there is nothing.
            words.first.store(place, Ordering::Release);
        }
        self.write(place, &head.to_bytes());
        self.write(place + HEAD_BYTES as u64, body);
        let words = self.words();
        // Release: the entry is there before it counts; partner of the acquire in `map`.
        words.end.store(place + length, Ordering::Release);
        self.entries.push_back(Entry { place, length, head });
        Some(number)
    }

    /// Forgets the first entries that are over, of commands before this position.
    fn retire(&mut self, position: u64) {
        while let Some(entry) = self.entries.front()
            && entry.head.position < position
            && self.is_over(&entry.head)
        {
            let next = entry.place + entry.length;
            self.words().first.store(next, Ordering::Release);
            self.entries.pop_front();
        }
    }

    /// What is noted under this number was not done, and is not to be.
    pub fn strike(&mut self, number: u64) {
        let Some(index) = self.entries.iter().position(|entry| entry.head.number == number) else {
            return;
        };
        let entry = &mut self.entries[index];
        entry.head.kind = Kind::Struck as u16;
        let Entry { place, head, .. } = *entry;
        self.write(place, &head.to_bytes());
    }

    /// Whether anything that is noted is not known to be over.
    pub fn has_any(&mut self, position: u64) -> bool {
        self.retire(position);
        !self.entries.is_empty()
    }

    /// All work of the session has ended, and all that was done again.
    pub fn settle(&self) {
        self.words().lost.store(0, Ordering::Relaxed);
        self.words().attempts.store(0, Ordering::Relaxed);
    }

    /// Whether there is anything for [`Self::settle`].
    pub fn is_unsettled(&self) -> bool {
        let words = self.words();
        words.lost.load(Ordering::Relaxed) != 0 || words.attempts.load(Ordering::Relaxed) != 0
    }

    /// Counts one more attempt to do it again, the first one as 1.
    pub fn attempt(&self) -> u32 {
        self.words().attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What becomes of it when all commands before this position are done and nothing is being
    /// submitted.
    pub fn verdict(&self, committed_bytes: u64) -> Verdict {
        if self.words().lost.load(Ordering::Relaxed) != 0 {
            return Verdict::IsLost;
        }
        let mut waits = false;
        for Entry { head, .. } in &self.entries {
            let is_over = self.is_over(head);
            match Kind::from_number(head.kind) {
                Kind::Again => waits |= !is_over,
                // One that was being done would be done once more, from the ring.
                Kind::Once if !is_over || head.position > committed_bytes => {
                    return Verdict::IsLost;
                }
                Kind::Ends if waits => return Verdict::IsLost,
                Kind::Once | Kind::Ends | Kind::Struck => {}
            }
        }
        Verdict::CanBeRepeated
    }

    /// Commands that are to be done again, in order.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let waits = |entry: &&Entry| {
            Kind::from_number(entry.head.kind) == Kind::Again && !self.is_over(&entry.head)
        };
        let read = |entry: &Entry| {
            let Head { number, stream, opcode, body_bytes, .. } = entry.head;
            let mut body = vec![0; body_bytes as usize];
            self.read(entry.place + HEAD_BYTES as u64, &mut body);
            Unfinished { number, stream, opcode, body }
        };
        self.entries.iter().filter(waits).map(read).collect()
    }

    /// A place as an offset in the file, and how many bytes are left there before the entries go on
    /// at their beginning.
    fn at(place: u64) -> (usize, usize) {
        let offset = (place % ENTRIES_BYTES as u64) as usize;
        (ENTRIES_OFFSET + offset, ENTRIES_BYTES - offset)
    }

    fn write(&self, place: u64, bytes: &[u8]) {
        let (at, left) = Self::at(place);
        let (here, rest) = bytes.split_at(bytes.len().min(left));
        let base = self.mapping.base();
        // SAFETY: both parts are inside the mapping, as `bytes` is shorter than the entries' room;
        // nobody reads an entry before it counts.
        unsafe {
            std::ptr::copy_nonoverlapping(here.as_ptr(), base.add(at), here.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), base.add(ENTRIES_OFFSET), rest.len());
        }
    }

    fn read(&self, place: u64, bytes: &mut [u8]) {
        let (at, left) = Self::at(place);
        let (here, rest) = bytes.split_at_mut(bytes.len().min(left));
        let base = self.mapping.base();
        // SAFETY: both parts are inside the mapping, as an entry is shorter than the entries' room;
        // nobody writes there now.
        unsafe {
            std::ptr::copy_nonoverlapping(base.add(at), here.as_mut_ptr(), here.len());
            std::ptr::copy_nonoverlapping(base.add(ENTRIES_OFFSET), rest.as_mut_ptr(), rest.len());
        }
    }
}

/// Bytes that an entry takes.
fn room(body_bytes: usize) -> u64 {
    HEAD_BYTES as u64 + (body_bytes as u64).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    struct Noted {
        file: OwnedFd,
        redo: Redo,
    }

    impl Noted {
        fn new() -> Self {
            let file = Redo::create_file().unwrap();
            let redo = Redo::map(file.as_fd()).unwrap();
            Self { file, redo }
        }

        fn note(&mut self, kind: Kind, stream: u32, position: u64, body: &[u8]) -> u64 {
            self.redo.note(kind, stream, position, (7, body)).unwrap()
        }

        fn reach(&self, stream: u32, number: u64) {
            let first = self.redo.mapping.base().wrapping_add(PROGRESS_OFFSET);
            // SAFETY: inside the mapping, aligned.
            let word = unsafe { &*first.cast::<AtomicU64>().add(stream as usize) };
            word.store(number, Ordering::Release);
        }

        /// What the next executor finds.
        fn next(&self) -> Vec<(u64, Vec<u8>)> {
            let found = Redo::map(self.file.as_fd()).unwrap().unfinished();
            found.into_iter().map(|it| (it.number, it.body)).collect()
        }

        fn verdict(&self, committed_bytes: u64) -> Verdict {
            Redo::map(self.file.as_fd()).unwrap().verdict(committed_bytes)
        }
    }

    #[test]
    fn what_is_not_reached_is_found_in_order() {
        let mut noted = Noted::new();
        let numbers = [(1, 16), (2, 32), (1, 48)]
            .map(|(stream, at)| noted.note(Kind::Again, stream, at, &[stream as u8, at as u8, 3]));
        noted.reach(1, numbers[0]);
        let left = [(numbers[1], vec![2, 32, 3]), (numbers[2], vec![1, 48, 3])];
        assert_eq!(noted.next(), left);
        assert_eq!(noted.verdict(48), Verdict::CanBeRepeated);
        noted.reach(1, numbers[2]);
        assert_eq!(noted.next(), left[..1]);
        noted.redo.strike(numbers[1]);
        assert_eq!(noted.next(), []);
    }

    #[test]
    fn other_work_is_lost_until_it_is_reached_and_committed() {
        let mut noted = Noted::new();
        noted.note(Kind::Again, 1, 16, b"kernel");
        let other = noted.note(Kind::Once, 2, 32, b"");
        assert_eq!(noted.verdict(32), Verdict::IsLost);
        noted.reach(2, other);
        assert_eq!(noted.verdict(16), Verdict::IsLost, "it would be done twice");
        assert_eq!(noted.verdict(32), Verdict::CanBeRepeated);
    }

    #[test]
    fn what_unfinished_commands_may_name_must_not_have_ended() {
        let mut noted = Noted::new();
        let kernel = noted.note(Kind::Again, 1, 16, b"kernel");
        noted.note(Kind::Ends, 0, 32, b"");
        noted.note(Kind::Again, 1, 48, b"another");
        assert_eq!(noted.verdict(48), Verdict::IsLost);
        noted.reach(1, kernel);
        assert_eq!(noted.verdict(48), Verdict::CanBeRepeated);
    }

    #[test]
    fn it_goes_round_and_what_has_no_room_is_lost_until_all_has_ended() {
        let mut noted = Noted::new();
        let body = [5; 60_001];
        let mut last = 0;
        for at in 1..1000 {
            last = noted.note(Kind::Again, 3, at, &body);
            if at % 50 == 0 {
                noted.reach(3, last - 1);
            }
        }
        assert_eq!(noted.next().len(), 50);
        assert!(noted.next().iter().all(|(_, found)| *found == body));
        while noted.redo.note(Kind::Again, 3, 1000, (7, &body)).is_some() {
            last += 1;
        }
        assert_eq!(noted.verdict(1000), Verdict::IsLost);
        noted.reach(3, last);
        assert!(!noted.redo.has_any(2000));
        assert_eq!(noted.verdict(2000), Verdict::IsLost, "until somebody says that all has ended");
        noted.redo.settle();
        assert_eq!((noted.verdict(2000), noted.next()), (Verdict::CanBeRepeated, vec![]));
        assert!(noted.note(Kind::Again, 3, 3000, &body) > last);
        assert_eq!(noted.redo.entries[0].place % ENTRIES_BYTES as u64, 0);
        assert_eq!(noted.next().len(), 1);
    }
}
