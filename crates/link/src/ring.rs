//! The command ring: bytes from one client process to its session thread.
//!
//! `tail` and `head` count bytes since the session began; a position's place is the count modulo
//! the ring's length. Commands are multiples of [`ALIGN`] long and simply run on at the ring's
//! start when they meet its end, so there are no wrap marks and no lost room; a header, being
//! [`ALIGN`] long, is never split. One producer (the client puts a lock around it) and one
//! consumer, which trusts nothing: it keeps its own head, checks what it reads, and copies each
//! command before anybody looks at it.
//!
//! Memory order: the producer's release of `tail` pairs with the consumer's acquire (the command's
//! bytes are there), the consumer's release of `head` with the producer's acquire (the bytes have
//! been copied away, the room is free). Sleeping is [`crate::doorbell`]'s.

use crate::atomic::{DataWord, Ordering};
use crate::doorbell::Doorbell;
use crate::futex::Woke;
use crate::session_memory::SessionMemory;
use crate::spin::{Cores, Spin};
use crate::wire::command::{ALIGN, Header, MAX_COMMAND_BYTES, Opcode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// Longest sleep between two looks at whether the other side lives.
pub const LIVENESS_INTERVAL: Duration = Duration::from_millis(100);

/// Why a command was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// Longer than [`MAX_COMMAND_BYTES`], or than the ring.
    #[error(
        "the command has {size_bytes} bytes and the ring takes {limit_bytes} at most: send large data through a region"
    )]
    TooLong {
        /// Its length with header and padding.
        size_bytes: usize,
        /// What would be possible.
        limit_bytes: usize,
    },
    /// The consumer is gone, so no room will ever come.
    #[error("the server is gone while the ring is full")]
    PeerGone,
}

/// The client's end.
#[derive(Debug)]
pub struct Producer {
    memory: Arc<SessionMemory>,
    tail: u64,
    /// Last head that was read; the true one is never smaller.
    head_seen: u64,
    spin: Spin,
}

impl Producer {
    /// The producer of a fresh session; there must be one only.
    pub fn new(memory: Arc<SessionMemory>) -> Self {
        Self { memory, tail: 0, head_seen: 0, spin: Spin::default() }
    }

    /// Bytes posted so far.
    pub fn posted_bytes(&self) -> u64 {
        self.tail
    }

    /// Appends one command and wakes the consumer if it sleeps. `parts` are the opcode's struct and
    /// what follows it; they are joined and padded with zeros. Waits while the ring is full, as
    /// long as `peer_alive` says true.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn post(
        &mut self,
        opcode: Opcode,
        call_slot: u16,
        context: u32,
        parts: &[&[u8]],
        peer_alive: &mut dyn FnMut() -> bool,
    ) -> Result<(), PostError> {
        let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let size_bytes = (size_of::<Header>() + body_bytes).next_multiple_of(ALIGN);
        let limit_bytes = MAX_COMMAND_BYTES.min(self.memory.ring_bytes());
        if size_bytes > limit_bytes {
            return Err(PostError::TooLong { size_bytes, limit_bytes });
        }
        self.wait_for_room(size_bytes as u64, peer_alive)?;
        let header = Header {
            opcode: opcode as u16,
            call_slot,
            size_bytes: size_bytes as u32,
            context,
            reserved: 0,
        };
        self.write(&header, parts);
        self.tail += size_bytes as u64;
        // Release: pairs with the acquire in `Consumer::available`.
        self.memory.shared().tail.0.store(self.tail, Ordering::Release);
        Doorbell::new(&self.memory.shared().consumer_asleep.0).ring();
        Ok(())
    }

    fn write(&self, header: &Header, parts: &[&[u8]]) {
        let ring = self.memory.ring_words();
        let size_words = header.size_bytes as usize / 8;
        let (first_words, from_first) = ring.split_at((self.tail as usize / 8) & (ring.len() - 1));
        match from_first.get(..size_words) {
            Some(places) => write_words(places.iter(), header, parts),
            None => {
                let places = from_first.iter().chain(first_words).take(size_words);
                write_words(places, header, parts);
            }
        }
    }

    fn has_room(&mut self, size_bytes: u64) -> bool {
        let free = |tail: u64, head: u64| {
            (self.memory.ring_bytes() as u64).saturating_sub(tail.wrapping_sub(head))
        };
        if free(self.tail, self.head_seen) >= size_bytes {
            return true;
        }
        // Acquire: pairs with the release in `Consumer::publish_head`.
        self.head_seen = self.memory.shared().head.0.load(Ordering::Acquire);
        free(self.tail, self.head_seen) >= size_bytes
    }

    fn wait_for_room(
        &mut self,
        size_bytes: u64,
        peer_alive: &mut dyn FnMut() -> bool,
    ) -> Result<(), PostError> {
        if self.has_room(size_bytes) {
            return Ok(());
        }
        let began = Instant::now();
        let mut spin = self.spin.clone();
        let mut room = spin.until(self.memory.cores(), || self.has_room(size_bytes));
        let has_slept = !room;
        while !room {
            let memory = Arc::clone(&self.memory);
            let bell = Doorbell::new(&memory.shared().producer_asleep.0);
            bell.sleep(LIVENESS_INTERVAL, || self.has_room(size_bytes));
            room = self.has_room(size_bytes);
            if !room && !peer_alive() {
                return Err(PostError::PeerGone);
            }
        }
        if has_slept {
            spin.came_after(began.elapsed());
        }
        self.spin = spin;
        Ok(())
    }
}

/// Writes a command into its places: its parts joined, and zeros in what is left.
#[inline]
fn write_words<'a>(places: impl Iterator<Item = &'a DataWord>, header: &Header, parts: &[&[u8]]) {
    let mut places = places;
    // Relaxed: published by the tail.
    let mut write = |word: u64| {
        if let Some(place) = places.next() {
            place.store(word, Ordering::Relaxed);
        }
    };
    for word in header.as_bytes().as_chunks::<8>().0 {
        write(u64::from_ne_bytes(*word));
    }
    let mut pending = Pending::default();
    for part in parts {
        let mut bytes = *part;
        if pending.length > 0 {
            bytes = pending.fill(bytes);
            if pending.length < 8 {
                continue;
            }
            write(pending.take());
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        for word in whole {
            write(u64::from_ne_bytes(*word));
        }
        pending.fill(rest);
    }
    if pending.length > 0 {
        write(pending.take());
    }
    places.for_each(|place| place.store(0, Ordering::Relaxed));
}

/// A word that parts of odd lengths meet in.
#[derive(Debug, Default)]
struct Pending {
    bytes: [u8; 8],
    length: usize,
}

impl Pending {
    /// Takes bytes while there is room; returns the others.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (taken, others) = bytes.split_at(bytes.len().min(8 - self.length));
        // By bytes: they are fewer than a call of memcpy is worth.
        for (place, byte) in self.bytes[self.length..].iter_mut().zip(taken) {
            *place = *byte;
        }
        self.length += taken.len();
        others
    }

    /// The word, with zeros where nothing was filled in.
    fn take(&mut self) -> u64 {
        self.length = 0;
        u64::from_ne_bytes(std::mem::take(&mut self.bytes))
    }
}

/// What a client did wrong in its ring. Ends its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// More bytes than the ring has, or fewer than were already taken.
    #[error("the ring's tail is {tail}, {head} bytes were taken and the ring holds {ring_bytes}")]
    BadTail {
        /// What the client wrote.
        tail: u64,
        /// Bytes taken.
        head: u64,
        /// Length of the ring.
        ring_bytes: u64,
    },
    /// Not a multiple of [`ALIGN`].
    #[error("the ring's tail {tail} is no multiple of {ALIGN}")]
    UnalignedTail {
        /// What the client wrote.
        tail: u64,
    },
    /// Shorter than a header, longer than [`MAX_COMMAND_BYTES`], or no multiple of [`ALIGN`].
    #[error("a command of opcode {opcode} has the length {size_bytes}")]
    BadLength {
        /// Its opcode, unchecked.
        opcode: u16,
        /// Its length.
        size_bytes: u32,
    },
    /// Longer than what was posted.
    #[error(
        "a command of opcode {opcode} has the length {size_bytes} and only {available} bytes were posted"
    )]
    Incomplete {
        /// Its opcode, unchecked.
        opcode: u16,
        /// Its length.
        size_bytes: u32,
        /// Bytes that were posted and not yet taken.
        available: u64,
    },
}

/// One command, copied out of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Its header, whose length is right; nothing else of it has been checked.
    pub header: Header,
    /// What followed the header, padding included.
    pub body: &'a [u8],
}

impl<'a> Command<'a> {
    /// The opcode's struct and what follows it; `None` when the command is too short.
    pub fn parse<T: FromBytes>(&self) -> Option<(T, &'a [u8])> {
        T::read_from_prefix(self.body).ok()
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There may be something to take.
    Posted,
    /// Nothing came, or the caller's `interrupted` said true.
    Nothing,
}

/// When the producer may write where a command was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reuse {
    /// Once it is taken.
    Taken,
    /// Once [`Consumer::commit`] has said so, for all before this position: until then another
    /// consumer can go on there.
    Committed(u64),
}

/// The session thread's end.
#[derive(Debug)]
pub struct Consumer {
    memory: Arc<SessionMemory>,
    head: u64,
    /// Last tail that was read and checked.
    tail_seen: u64,
    /// Last head that the producer was told.
    head_published: u64,
    /// What may be overwritten: what was taken, or less.
    reuse: Reuse,
    buffer: Box<[u64]>,
    spin: Spin,
}

impl Consumer {
    /// The consumer of a fresh session; there must be one only.
    pub fn new(memory: Arc<SessionMemory>) -> Self {
        let buffer = vec![0; MAX_COMMAND_BYTES / 8].into_boxed_slice();
        Self {
            memory,
            head: 0,
            tail_seen: 0,
            head_published: 0,
            reuse: Reuse::Taken,
            buffer,
            spin: Spin::default(),
        }
    }

    /// The consumer of a session that may have had others before: all commands before
    /// `committed_bytes` are done. What it takes stays in the ring until it is
    /// [committed](Self::commit).
    pub fn resume(memory: Arc<SessionMemory>, committed_bytes: u64) -> Self {
        let reuse = Reuse::Committed(committed_bytes);
        Self { head: committed_bytes, tail_seen: committed_bytes, reuse, ..Self::new(memory) }
    }

    /// All that was taken is done; returns how far that is.
    pub fn commit(&mut self) -> u64 {
        self.reuse = Reuse::Committed(self.head);
        self.head
    }

    /// The same for what was taken before a position.
    pub fn commit_until(&mut self, position: u64) -> u64 {
        let committed = position.min(self.head);
        self.reuse = Reuse::Committed(committed);
        committed
    }

    /// Bytes taken so far.
    pub fn taken_bytes(&self) -> u64 {
        self.head
    }

    /// The memory that this ring lies in.
    pub fn memory(&self) -> &Arc<SessionMemory> {
        &self.memory
    }

    /// Copies the next command out of the ring, if there is one.
    ///
    /// # Errors
    /// [`RingError`] when the client wrote nonsense; the ring must not be used after that.
    pub fn take(&mut self) -> Result<Option<Command<'_>>, RingError> {
        let available = self.available()?;
        if available == 0 {
            self.publish_head();
            return Ok(None);
        }
        // `available` is a multiple of ALIGN, so a header is there.
        let first = self.first_word();
        let [o0, o1, _, _, l0, l1, l2, l3] = first.to_ne_bytes();
        let opcode = u16::from_ne_bytes([o0, o1]);
        let size_bytes = u32::from_ne_bytes([l0, l1, l2, l3]);
        let length = size_bytes as usize;
        if length < size_of::<Header>()
            || length > MAX_COMMAND_BYTES
            || !length.is_multiple_of(ALIGN)
        {
            return Err(RingError::BadLength { opcode, size_bytes });
        }
        if length as u64 > available {
            return Err(RingError::Incomplete { opcode, size_bytes, available });
        }
        self.copy(length);
        // The length that was checked is the one that counts.
        self.buffer[0] = first;
        let header = self.buffered_header();
        self.head += length as u64;
        if self.head - self.head_published >= self.memory.ring_bytes() as u64 / 8 {
            self.publish_head();
        }
        let body = &self.buffer.as_bytes()[size_of::<Header>()..length];
        Ok(Some(Command { header, body }))
    }

    /// The opcode of the next command, if there is one; it is not taken, and checked only when it
    /// is.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn next_opcode(&mut self) -> Result<Option<u16>, RingError> {
        if self.available()? == 0 {
            return Ok(None);
        }
        let [first, second, ..] = self.first_word().to_ne_bytes();
        Ok(Some(u16::from_ne_bytes([first, second])))
    }

    /// Whether something was posted that was not taken; reads shared memory.
    pub fn has_posted(&self) -> bool {
        // Relaxed: `available` reads it again, with acquire.
        self.memory.shared().tail.0.load(Ordering::Relaxed) != self.head
    }

    /// Waits until something is posted: spins, if there are `cores` for that, then sleeps,
    /// `timeout` at most. `interrupted` is looked at when the spinning ends and before sleeping;
    /// whoever makes it true calls [`SessionMemory::wake_consumer`] after.
    pub fn wait(
        &mut self,
        cores: Cores,
        timeout: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Waited {
        self.publish_head();
        let mut spin = self.spin.clone();
        // A client may compute for long; how soon its work is done depends on more than this.
        let cores = if cores == Cores::Plenty { Cores::Spare } else { cores };
        let began = Instant::now();
        if !spin.until(cores, || self.has_posted()) {
            let bell = Doorbell::new(&self.memory.shared().consumer_asleep.0);
            let woke = bell.sleep(timeout, || self.has_posted() || interrupted());
            if self.has_posted() {
                spin.came_after(began.elapsed());
            } else if woke == Woke::LookAgain && !interrupted() {
                // Who rings and has posted nothing is about to.
                spin.announced();
            }
        }
        self.spin = spin;
        if self.has_posted() { Waited::Posted } else { Waited::Nothing }
    }

    /// Bytes that were posted when this side last looked, and are not taken yet.
    pub fn backlog_bytes(&self) -> u64 {
        self.tail_seen.wrapping_sub(self.head)
    }

    fn available(&mut self) -> Result<u64, RingError> {
        if self.tail_seen == self.head {
            // Acquire: pairs with the release in `Producer::post`.
            let tail = self.memory.shared().tail.0.load(Ordering::Acquire);
            let ring_bytes = self.memory.ring_bytes() as u64;
            if tail.checked_sub(self.head).is_none_or(|posted| posted > ring_bytes) {
                return Err(RingError::BadTail { tail, head: self.head, ring_bytes });
            }
            if !tail.is_multiple_of(ALIGN as u64) {
                return Err(RingError::UnalignedTail { tail });
            }
            self.tail_seen = tail;
        }
        Ok(self.tail_seen - self.head)
    }

    /// What the command at `head` begins with: opcode, call slot and length. A command must have
    /// been posted.
    fn first_word(&self) -> u64 {
        let ring = self.memory.ring_words();
        ring[(self.head as usize / 8) & (ring.len() - 1)].load(Ordering::Relaxed)
    }

    /// Copies the first bytes of the command at `head`, a multiple of 8, at most the ring's and the
    /// buffer's length.
    fn copy(&mut self, length: usize) {
        let ring = self.memory.ring_words();
        let first = (self.head as usize / 8) & (ring.len() - 1);
        let into = &mut self.buffer[..length / 8];
        if let Some(words) = ring.get(first..first + into.len()) {
            return load_words(into, words);
        }
        let (before, after) = into.split_at_mut(ring.len() - first);
        load_words(before, &ring[first..]);
        load_words(after, ring);
    }

    fn buffered_header(&self) -> Header {
        let mut header = Header { opcode: 0, call_slot: 0, size_bytes: 0, context: 0, reserved: 0 };
        header.as_mut_bytes().copy_from_slice(&self.buffer.as_bytes()[..size_of::<Header>()]);
        header
    }

    fn publish_head(&mut self) {
        let head = match self.reuse {
            Reuse::Taken => self.head,
            Reuse::Committed(done) => done,
        };
        if self.head_published == head {
            return;
        }
        self.head_published = head;
        // Release: pairs with the acquire in `Producer::has_room`.
        self.memory.shared().head.0.store(head, Ordering::Release);
        Doorbell::new(&self.memory.shared().producer_asleep.0).ring();
    }
}

/// Fills `into` from the first words; published by the tail.
fn load_words(into: &mut [u64], words: &[DataWord]) {
    for (word, shared) in into.iter_mut().zip(words) {
        *word = shared.load(Ordering::Relaxed);
    }
}

impl SessionMemory {
    /// Makes the session thread look at its `interrupted` again.
    pub fn wake_consumer(&self) {
        Doorbell::new(&self.shared().consumer_asleep.0).ring();
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
