//! One session's shared file as mapped memory: the header, the ring's bytes, the call slots.
//!
//! Knows where things are ([`crate::wire::layout`]) and nothing of protocols; [`crate::ring`],
//! [`crate::call`] and [`crate::completion`] work on it. Everything handed out is an atomic or is
//! copied, because the other process may write at any time.

use crate::atomic::{DataWord, Ordering};
use crate::shm::{self, Access, Mapping, ShmError};
use crate::wire::attach::Window;
use crate::wire::layout::{
    CALL_REPLY_BYTES, CALL_SLOTS, CALLS_OFFSET, CallSlot, RING_BYTES, RING_OFFSET, SESSION_BYTES,
    Shared,
};
use rustix::fd::{BorrowedFd, OwnedFd};

/// Keeps the memory alive; never read.
#[derive(Debug)]
enum Backing {
    Mapped {
        _mapping: Mapping,
    },
    /// Plain memory: the model checker's atomics fit no file.
    #[cfg(any(test, feature = "loom"))]
    Owned {
        _shared: Box<Shared>,
        _ring: Box<[DataWord]>,
        _calls: Box<[CallSlot]>,
    },
}

/// A mapped session file.
#[derive(Debug)]
pub struct SessionMemory {
    shared: *const Shared,
    ring: *const DataWord,
    ring_bytes: usize,
    calls: *const CallSlot,
    _backing: Backing,
}

// SAFETY: the pointers lead into `_backing`, which lives as long as `self`; what they lead to is
// used through atomics.
unsafe impl Send for SessionMemory {}
// SAFETY: as above.
unsafe impl Sync for SessionMemory {}

impl SessionMemory {
    /// Makes a session file, of zeros, that can neither shrink nor grow.
    ///
    /// # Errors
    /// When the kernel refuses the file.
    pub fn create_file() -> Result<OwnedFd, ShmError> {
        shm::create("openmps-session", SESSION_BYTES as u64)
    }

    /// Maps a session file, after checking its seals and size.
    ///
    /// # Errors
    /// When the descriptor is no such file or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        shm::check(file, SESSION_BYTES as u64)?;
        let mapping = Mapping::new(file, SESSION_BYTES, Access::ReadWrite)?;
        let base: *const u8 = mapping.base();
        Ok(Self {
            shared: base.cast(),
            // Within the mapping by the layout's constants.
            ring: base.wrapping_add(RING_OFFSET).cast(),
            ring_bytes: RING_BYTES,
            calls: base.wrapping_add(CALLS_OFFSET).cast(),
            _backing: Backing::Mapped { _mapping: mapping },
        })
    }

    /// Memory for tests, in this process alone, with a ring of `ring_bytes`, a power of two.
    #[cfg(any(test, feature = "loom"))]
    pub fn in_process(ring_bytes: usize) -> Self {
        assert!(ring_bytes.is_power_of_two() && ring_bytes >= 64);
        let shared = Box::<Shared>::default();
        let ring: Box<[DataWord]> = (0..ring_bytes / 8).map(|_| DataWord::new(0)).collect();
        let calls: Box<[CallSlot]> = (0..CALL_SLOTS).map(|_| CallSlot::default()).collect();
        Self {
            shared: &raw const *shared,
            ring: ring.as_ptr(),
            ring_bytes,
            calls: calls.as_ptr(),
            _backing: Backing::Owned { _shared: shared, _ring: ring, _calls: calls },
        }
    }

    /// The addresses that the file is mapped at.
    pub fn range(&self) -> Window {
        Window { base: self.shared.expose_provenance() as u64, size_bytes: SESSION_BYTES as u64 }
    }

    /// The words that both sides share.
    pub fn shared(&self) -> &Shared {
        // SAFETY: inside `_backing`, aligned (page or box), only atomics.
        unsafe { &*self.shared }
    }

    /// Length of the ring's data.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// The ring's data as words, written and read relaxed; `tail` and `head` order them.
    pub(crate) fn ring_words(&self) -> &[DataWord] {
        // SAFETY: `ring_bytes` long inside `_backing`, page-aligned, only atomics.
        unsafe { std::slice::from_raw_parts(self.ring, self.ring_bytes / 8) }
    }

    /// The words of call slot `index`; `None` beyond the last.
    pub(crate) fn call(&self, index: usize) -> Option<Call<'_>> {
        (index < CALL_SLOTS).then_some(Call { memory: self, index })
    }
}

/// One call slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    memory: &'a SessionMemory,
    index: usize,
}

impl<'a> Call<'a> {
    fn slot(self) -> *const CallSlot {
        self.memory.calls.wrapping_add(self.index)
    }

    /// [`CallSlot::state`].
    pub(crate) fn state(self) -> &'a crate::atomic::AtomicU32 {
        // SAFETY: `index` was checked by `SessionMemory::call`; an atomic inside `_backing`.
        unsafe { &(*self.slot()).state }
    }

    /// [`CallSlot::status`].
    pub(crate) fn status(self) -> &'a crate::atomic::AtomicU32 {
        // SAFETY: as for `state`.
        unsafe { &(*self.slot()).status }
    }

    /// [`CallSlot::reply_bytes`].
    pub(crate) fn reply_bytes(self) -> &'a crate::atomic::AtomicU32 {
        // SAFETY: as for `state`.
        unsafe { &(*self.slot()).reply_bytes }
    }

    fn reply_words(self) -> &'a [DataWord] {
        // SAFETY: as for `state`.
        unsafe { &(*self.slot()).reply }
    }

    /// [`CallSlot::claims`].
    pub(crate) fn claims(self) -> &'a crate::atomic::AtomicU32 {
        // SAFETY: as for `state`.
        unsafe { &(*self.slot()).claims }
    }

    /// Writes a reply, which must fit [`CALL_REPLY_BYTES`].
    pub(crate) fn write_reply(self, bytes: &[u8]) {
        store_bytes(self.reply_words(), 0, bytes);
    }

    /// Copies the first `length` bytes of the reply, at most all of it, to the end of `into`.
    pub(crate) fn read_reply(self, length: usize, into: &mut Vec<u8>) {
        let length = length.min(CALL_REPLY_BYTES);
        let start = into.len();
        for word in &self.reply_words()[..length.div_ceil(8)] {
            into.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        into.truncate(start + length);
    }
}

/// Stores `bytes` from word `first` on; the last word is filled up with zeros. The caller has
/// checked that they fit.
pub(crate) fn store_bytes(words: &[DataWord], first: usize, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    let words = &words[first..];
    for (word, chunk) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

const _: () = assert!(CALL_REPLY_BYTES.is_multiple_of(8));
