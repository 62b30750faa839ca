//! The shared memory of a trace: a ring of records from one process to whoever traces it.
//!
//! `openmps trace` gets two kinds: one ring from a client, with its driver calls and NVTX ranges, and one for each of its sessions, with what the
//! executor knows of kernels and copies. Writers wait for room, so nothing is lost while the reader lives; a record is there whole or not at all, however its writer ends. Texts
//! are records of their own, named by number from others ([`Record::Text`]).
//!
//! Neither side believes the other: a reader takes words that may be anything, a writer uses positions only modulo the ring's length.

use crate::shm::{self, Access, Mapping, ShmError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words of a record, its sequence number not counted.
pub const RECORD_WORDS: usize = 15;
/// Records that a ring holds.
pub const RING_RECORDS: u64 = 1 << 17;
/// Bytes of text in one record.
pub const TEXT_BYTES: usize = 12 * 8;
/// Texts are cut off after so many bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = (RECORD_WORDS + 1) * 8;
/// Length of a ring's file.
pub const RING_BYTES: u64 = HEADER_BYTES as u64 + RING_RECORDS * SLOT_BYTES as u64;

/// A record as it lies in the ring.
pub type Words = [u64; RECORD_WORDS];

#[repr(C, align(128))]
struct Line<T>(T);

#[repr(C)]
struct Header {
    /// Records claimed so far; writers'.
    tail: Line<AtomicU64>,
    /// Records read so far; the reader's.
    head: Line<AtomicU64>,
    /// Records that found no room in time; writers'.
    lost: Line<AtomicU64>,
    /// 1 when nothing more will come; writers'.
    closed: Line<AtomicU32>,
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES);

/// A ring that this process writes to or reads from.
#[derive(Debug)]
pub struct TraceRing {
    mapping: Mapping,
}

impl TraceRing {
    /// Makes an empty ring; the file is for the other side.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn create() -> Result<(OwnedFd, Self), ShmError> {
        let file = shm::create("openmps-trace", RING_BYTES)?;
        let ring = Self::map(file.as_fd())?;
        Ok((file, ring))
    }

    /// Maps a ring that another process has made.
    ///
    /// # Errors
    /// The file is none; the kernel refuses.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        shm::check(file, RING_BYTES)?;
        Ok(Self { mapping: Mapping::new(file, RING_BYTES as usize, Access::ReadWrite)? })
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is that long, page-aligned, and lives as long as `self`; all fields are atomics, for which any bytes are a value.
        unsafe { &*self.mapping.base().cast::<Header>() }
    }

    fn slot(&self, position: u64) -> &[AtomicU64; RECORD_WORDS + 1] {
        let offset = HEADER_BYTES + (position % RING_RECORDS) as usize * SLOT_BYTES;
        // SAFETY: inside the mapping, aligned to 128 bytes, and atomics as above.
        unsafe { &*self.mapping.base().add(offset).cast() }
    }

    /// Appends a record if there is room.
    pub fn try_push(&self, words: &Words) -> bool {
        let header = self.header();
        // Relaxed: the exchange below decides.
        let mut position = header.tail.0.load(Ordering::Relaxed);
        loop {
            // Acquire: with the Release in `TraceReader::publish`: the reader has copied what was in the slot.
            let read = header.head.0.load(Ordering::Acquire);
            if position.wrapping_sub(read) >= RING_RECORDS {
                return false;
            }
            // Relaxed: a claim; the record is published by its sequence number.
            let claim = header.tail.0.compare_exchange_weak(
                position,
                position.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match claim {
                Ok(_) => break,
                Err(now) => position = now,
            }
        }
        let slot = self.slot(position);
        for (to, from) in slot[1..].iter().zip(words) {
            // Relaxed: published by the store below.
            to.store(*from, Ordering::Relaxed);
        }
        // Release: with the Acquire in `TraceReader::take`.
        slot[0].store(position.wrapping_add(1), Ordering::Release);
        true
    }

    /// Appends a record; `wait` is called as long as there is no room, and says whether to go on waiting. Records that are given up are counted.
    pub fn push(&self, words: &Words, mut wait: impl FnMut() -> bool) -> bool {
        while !self.try_push(words) {
            if !wait() {
                self.count_lost(1);
                return false;
            }
        }
        true
    }

    /// Counts records that are not there.
    pub fn count_lost(&self, records: u64) {
        // Relaxed: a statistic.
        self.header().lost.0.fetch_add(records, Ordering::Relaxed);
    }

    /// Says that nothing more will come.
    pub fn close(&self) {
        // Release: with the Acquire in `TraceReader::is_closed`: what was pushed before is seen.
        self.header().closed.0.store(1, Ordering::Release);
    }
}

/// The reader's end; there must be one only.
#[derive(Debug)]
pub struct TraceReader {
    ring: TraceRing,
    head: u64,
}

impl TraceReader {
    /// Reads a fresh ring from its beginning.
    pub fn new(ring: TraceRing) -> Self {
        Self { ring, head: 0 }
    }

    /// The next record, if it is there.
    pub fn take(&mut self) -> Option<Words> {
        let slot = self.ring.slot(self.head);
        // Acquire: with the Release in `TraceRing::try_push`.
        if slot[0].load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None;
        }
        let mut words = [0; RECORD_WORDS];
        for (to, from) in words.iter_mut().zip(&slot[1..]) {
            // Relaxed: ordered by the load above.
            *to = from.load(Ordering::Relaxed);
        }
        self.head = self.head.wrapping_add(1);
        if self.head.is_multiple_of(64) {
            self.publish();
        }
        Some(words)
    }

    /// Gives the room of what was read back to the writers.
    pub fn publish(&self) {
        // Release: with the Acquire in `TraceRing::try_push`.
        self.ring.header().head.0.store(self.head, Ordering::Release);
    }

    /// Passes a record that its writer has begun and, having been killed, will not end; says whether there was one.
    pub fn skip_unfinished(&mut self) -> bool {
        // Relaxed: the writers are gone.
        let tail = self.ring.header().tail.0.load(Ordering::Relaxed);
        let is_behind = (1..=RING_RECORDS).contains(&tail.wrapping_sub(self.head));
        if is_behind {
            self.head = self.head.wrapping_add(1);
        }
        is_behind
    }

    /// Whether the writers say that nothing more will come; what is there must still be read.
    pub fn is_closed(&self) -> bool {
        // Acquire: with the Release in `TraceRing::close`.
        self.ring.header().closed.0.load(Ordering::Acquire) != 0
    }

    /// Records that found no room in time.
    pub fn lost(&self) -> u64 {
        // Relaxed: a statistic.
        self.ring.header().lost.0.load(Ordering::Relaxed)
    }
}

impl Drop for TraceReader {
    fn drop(&mut self) {
        // A writer keeps its mapping, for a thread that may be late: the memory goes.
        let mapping = &self.ring.mapping;
        // SAFETY: the mapping is this object's own; what another process reads there are zeros.
        let _ = unsafe {
            let advice = rustix::mm::Advice::LinuxRemove;
            rustix::mm::madvise(mapping.base().cast(), mapping.size_bytes(), advice)
        };
    }
}

/// What a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill (`cuMemset*`).
    Fill,
    /// A launch of an executable graph.
    Graph,
}

impl WorkKind {
    const ALL: [Self; 4] = [Self::Kernel, Self::Copy, Self::Fill, Self::Graph];
}

/// A piece of work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it is.
    pub kind: WorkKind,
    /// Slot of its stream.
    pub stream: u32,
    /// Number of its name's text, 0 for none.
    pub text: u64,
    /// Where its command ends in the session's ring, in bytes from the beginning of time; 0 if that is not known.
    pub position: u64,
    /// When the executor took it, by CLOCK_MONOTONIC; so are the others.
    pub taken_ns: u64,
    /// When the device began.
    pub start_ns: u64,
    /// When the device had done it.
    pub end_ns: u64,
    /// Blocks of a kernel.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u16; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Kernels that were timed together with this one, itself included: more than 1 means that the times are its part of theirs.
    pub timed_together: u16,
    /// Bytes copied or filled.
    pub size_bytes: u64,
}

/// A point of a range of NVTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The thread that calls.
    pub thread: u32,
    /// Number of the message's text, 0 for none.
    pub text: u64,
    /// When.
    pub at_ns: u64,
    /// Number of the domain's name, 0 for the default domain.
    pub domain: u64,
    /// Of a range from `nvtxRangeStart`, the range's; otherwise 0.
    pub id: u64,
}

/// What a ring carries. All times are of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A driver call that has returned.
    Call {
        /// The thread.
        thread: u32,
        /// Its position in `cuda_abi::functions::FUNCTIONS`.
        function: u32,
        /// The `CUresult`.
        result: u32,
        /// Device whose session got commands from it.
        device: u32,
        /// When it was called.
        start_ns: u64,
        /// When it returned.
        end_ns: u64,
        /// Where the first command that it posted ends, 0 for none; as [`Work::position`].
        first: u64,
        /// Where the last one ends.
        last: u64,
    },
    /// A piece of a text; the pieces of one come in order.
    Text {
        /// The text's number, not 0.
        id: u64,
        /// Whether more is to come.
        is_last: bool,
        /// Bytes that count.
        length: u8,
        /// UTF-8, perhaps cut within a character.
        bytes: [u8; TEXT_BYTES],
    },
    /// `nvtxRangePush`.
    Push(Annotation),
    /// `nvtxRangePop`.
    Pop(Annotation),
    /// `nvtxRangeStart`.
    Start(Annotation),
    /// `nvtxRangeEnd`.
    End(Annotation),
    /// `nvtxMark`.
    Mark(Annotation),
    /// `nvtxNameOsThread`.
    ThreadName(Annotation),
    /// A device's work.
    Work(Work),
}

const CALL: u64 = 1;
const TEXT: u64 = 2;
const PUSH: u64 = 3;
const POP: u64 = 4;
const START: u64 = 5;
const END: u64 = 6;
const MARK: u64 = 7;
const THREAD_NAME: u64 = 8;
const WORK: u64 = 9;

/// Two halves of a word.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Record {
    /// As it lies in the ring.
    pub fn to_words(&self) -> Words {
        let mut words = [0; RECORD_WORDS];
        let annotation =
            |words: &mut Words, kind, Annotation { thread, text, at_ns, domain, id }| {
                words[..5].copy_from_slice(&[kind, u64::from(thread), text, at_ns, domain]);
                words[5] = id;
            };
        match *self {
            Self::Call { thread, function, result, device, start_ns, end_ns, first, last } => {
                words[..7].copy_from_slice(&[
                    CALL,
                    pair(thread, function),
                    pair(result, device),
                    start_ns,
                    end_ns,
                    first,
                    last,
                ]);
            }
            Self::Text { id, is_last, length, bytes } => {
                words[..3].copy_from_slice(&[
                    TEXT,
                    id,
                    u64::from(length) | u64::from(is_last) << 8,
                ]);
                for (word, chunk) in words[3..].iter_mut().zip(bytes.as_chunks().0) {
                    *word = u64::from_le_bytes(*chunk);
                }
            }
            Self::Push(at) => annotation(&mut words, PUSH, at),
            Self::Pop(at) => annotation(&mut words, POP, at),
            Self::Start(at) => annotation(&mut words, START, at),
            Self::End(at) => annotation(&mut words, END, at),
            Self::Mark(at) => annotation(&mut words, MARK, at),
            Self::ThreadName(at) => annotation(&mut words, THREAD_NAME, at),
            Self::Work(work) => {
                let [grid_x, grid_y, grid_z] = work.grid;
                let [block_x, block_y, block_z] = work.block.map(u32::from);
                words[..12].copy_from_slice(&[
                    WORK,
                    pair(work.kind as u32, work.stream),
                    work.text,
                    work.position,
                    work.taken_ns,
                    work.start_ns,
                    work.end_ns,
                    pair(grid_x, grid_y),
                    pair(grid_z, work.shared_bytes),
                    pair(block_x, block_y),
                    pair(block_z, u32::from(work.timed_together)),
                    work.size_bytes,
                ]);
            }
        }
        words
    }

    /// What words mean; `None` if nothing.
    pub fn from_words(words: &Words) -> Option<Self> {
        let annotation = || Annotation {
            thread: words[1] as u32,
            text: words[2],
            at_ns: words[3],
            domain: words[4],
            id: words[5],
        };
        Some(match words[0] {
            CALL => {
                let (thread, function) = halves(words[1]);
                let (result, device) = halves(words[2]);
                Self::Call {
                    thread,
                    function,
                    result,
                    device,
                    start_ns: words[3],
                    end_ns: words[4],
                    first: words[5],
                    last: words[6],
                }
            }
            TEXT => {
                let mut bytes = [0; TEXT_BYTES];
                for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[3..]) {
                    *chunk = word.to_le_bytes();
                }
                let length = (words[2] as u8).min(TEXT_BYTES as u8);
                Self::Text { id: words[1], is_last: words[2] & 1 << 8 != 0, length, bytes }
            }
            PUSH => Self::Push(annotation()),
            POP => Self::Pop(annotation()),
            START => Self::Start(annotation()),
            END => Self::End(annotation()),
            MARK => Self::Mark(annotation()),
            THREAD_NAME => Self::ThreadName(annotation()),
            WORK => {
                let (kind, stream) = halves(words[1]);
                let (grid_x, grid_y) = halves(words[7]);
                let (grid_z, shared_bytes) = halves(words[8]);
                let (block_x, block_y) = halves(words[9]);
                let (block_z, timed_together) = halves(words[10]);
                Self::Work(Work {
                    kind: *WorkKind::ALL.get(kind as usize)?,
                    stream,
                    text: words[2],
                    position: words[3],
                    taken_ns: words[4],
                    start_ns: words[5],
                    end_ns: words[6],
                    grid: [grid_x, grid_y, grid_z],
                    block: [block_x as u16, block_y as u16, block_z as u16],
                    shared_bytes,
                    timed_together: timed_together as u16,
                    size_bytes: words[11],
                })
            }
            _ => return None,
        })
    }

    /// The records of a text, cut off after [`MAX_TEXT_BYTES`].
    pub fn texts(id: u64, text: &str) -> impl Iterator<Item = Self> + '_ {
        let all = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
        let pieces = all.len().div_ceil(TEXT_BYTES).max(1);
        (0..pieces).map(move |piece| {
            let part = &all[piece * TEXT_BYTES..all.len().min((piece + 1) * TEXT_BYTES)];
            let mut bytes = [0; TEXT_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            Self::Text { id, is_last: piece + 1 == pieces, length: part.len() as u8, bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at_ns: u64) -> Words {
        Record::Mark(Annotation { thread: 1, text: 2, at_ns, domain: 3, id: 4 }).to_words()
    }

    #[test]
    fn records_keep_what_they_say() {
        let at = Annotation { thread: 7, text: 8, at_ns: 9, domain: 10, id: 11 };
        let work = Work {
            kind: WorkKind::Graph,
            stream: 4095,
            text: 3,
            position: 1 << 40,
            taken_ns: 5,
            start_ns: 6,
            end_ns: u64::MAX,
            grid: [u32::MAX, 2, 65535],
            block: [1024, 3, 64],
            shared_bytes: 232_448,
            timed_together: 32,
            size_bytes: 1 << 50,
        };
        let call = Record::Call {
            thread: 1,
            function: 2,
            result: 999,
            device: 3,
            start_ns: 4,
            end_ns: 5,
            first: 6,
            last: 7,
        };
        let all = [
            call,
            Record::Push(at),
            Record::Pop(at),
            Record::Start(at),
            Record::End(at),
            Record::Mark(at),
            Record::ThreadName(at),
            Record::Work(work),
        ];
        for record in all.into_iter().chain(Record::texts(5, &"long ".repeat(100))) {
            assert_eq!(Record::from_words(&record.to_words()), Some(record));
        }
        assert_eq!(Record::from_words(&[0; RECORD_WORDS]), None);
        assert_eq!(Record::from_words(&[u64::MAX; RECORD_WORDS]), None);
    }

    #[test]
    fn a_text_comes_in_pieces_and_the_empty_one_in_one() {
        assert_eq!(Record::texts(1, "").count(), 1);
        assert_eq!(Record::texts(1, &"x".repeat(TEXT_BYTES)).count(), 1);
        assert_eq!(Record::texts(1, &"x".repeat(TEXT_BYTES + 1)).count(), 2);
        assert_eq!(
            Record::texts(1, &"x".repeat(1 << 20)).count(),
            MAX_TEXT_BYTES.div_ceil(TEXT_BYTES)
        );
    }

    #[test]
    fn writers_wait_for_the_reader_and_lose_nothing() {
        let (file, ring) = TraceRing::create().unwrap();
        let mut reader = TraceReader::new(TraceRing::map(file.as_fd()).unwrap());
        const EACH: u64 = RING_RECORDS;
        let mut seen = [0u64; 3];
        std::thread::scope(|scope| {
            for writer in 0..3u64 {
                let ring = &ring;
                scope.spawn(move || {
                    for number in 0..EACH {
                        ring.push(&mark(writer << 32 | number), || {
                            std::thread::yield_now();
                            true
                        });
                    }
                });
            }
            while seen.iter().sum::<u64>() < 3 * EACH {
                let Some(words) = reader.take() else {
                    reader.publish();
                    std::thread::yield_now();
                    continue;
                };
                let (number, writer) = halves(words[3]);
                assert_eq!(u64::from(number), seen[writer as usize], "in each writer's order");
                seen[writer as usize] += 1;
            }
        });
        assert_eq!(reader.lost(), 0);
        assert!(reader.take().is_none() && !reader.is_closed());
        ring.close();
        assert!(reader.is_closed());
    }

    #[test]
    fn a_writer_that_gives_up_is_counted() {
        let (_file, ring) = TraceRing::create().unwrap();
        for at in 0..RING_RECORDS {
            assert!(ring.try_push(&mark(at)));
        }
        assert!(!ring.try_push(&mark(0)));
        assert!(!ring.push(&mark(0), || false));
        let reader = TraceReader::new(ring);
        assert_eq!(reader.lost(), 1);
    }

    #[test]
    fn a_record_that_was_only_begun_is_passed() {
        let (_file, ring) = TraceRing::create().unwrap();
        // A writer that is killed between its claim and its record.
        ring.header().tail.0.store(1, Ordering::Relaxed);
        assert!(ring.try_push(&mark(5)));
        let mut reader = TraceReader::new(ring);
        assert!(reader.take().is_none());
        assert!(reader.skip_unfinished());
        assert_eq!(reader.take().map(|words| words[3]), Some(5));
        assert!(!reader.skip_unfinished());
    }
}
