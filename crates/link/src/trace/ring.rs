//! The ring of a trace: fixed records from writers of one process, any of its threads, to one
//! reader of another.
//!
//! Writers claim a slot, fill it, and publish it by its sequence number; the reader takes slots in
//! order, so a record is there whole or not at all, however its writer ends. A reader takes words
//! that may be anything, a writer uses positions only modulo the ring's length.

use super::record::{RECORD_WORDS, Words};
use crate::shm::{self, Access, Mapping, ShmError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Records that a ring holds.
pub const RING_RECORDS: u64 = 1 << 17;
const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = (RECORD_WORDS + 1) * 8;
/// Length of a ring's file.
pub const RING_BYTES: u64 = HEADER_BYTES as u64 + RING_RECORDS * SLOT_BYTES as u64;

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
        // SAFETY: the mapping is that long, page-aligned, and lives as long as `self`; all fields
        // are atomics, for which any bytes are a value.
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
            // Acquire: with the Release in `TraceReader::publish`: the reader has copied what was
            // in the slot.
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

    /// Appends a record; `wait` is called as long as there is no room, and says whether to go on
    /// waiting. Records that are given up are counted.
    pub fn push(&self, words: &Words, mut wait: impl FnMut() -> bool) -> bool {
        while !self.try_push(words) {
            if !wait() {
                self.count_lost(1);
                return false;
            }
        }
        true
    }

    /// Records that the reader has taken so far, by its word.
    pub fn read(&self) -> u64 {
        // Relaxed: only compared with what it said before.
        self.header().head.0.load(Ordering::Relaxed)
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

    /// Passes a record that its writer has begun and, having been killed, will not end; says
    /// whether there was one.
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

/// Where what is in a ring's file, for who holds it to that.
#[cfg(test)]
pub(crate) fn ring_layout() -> String {
    use core::mem::offset_of;
    // One more is told here as well.
    let _: fn(&Header) = |it| {
        let Header { tail: _, head: _, lost: _, closed: _ } = it;
    };
    format!(
        "tail u64@{} head u64@{} lost u64@{} closed u32@{}, {RING_RECORDS} slots of {SLOT_BYTES} bytes @{HEADER_BYTES}, sequence u64@0, {RECORD_WORDS} words u64@8",
        offset_of!(Header, tail),
        offset_of!(Header, head),
        offset_of!(Header, lost),
        offset_of!(Header, closed),
    )
}

#[cfg(test)]
mod tests {
    use super::super::record::{Annotation, Record};
    use super::*;

    fn mark(at_ns: u64) -> Words {
        Record::Mark(Annotation { thread: 1, text: 2, at_ns, domain: 3, id: 4 }).to_words()
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
                let (number, writer) = (words[3] as u32, (words[3] >> 32) as u32);
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
