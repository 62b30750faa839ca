//! Completion words: how far each stream has got, written by the device.
//!
//! The client reads them without asking anybody. A device's write wakes no one, so a client thread
//! that would rather sleep registers in `sleepers`, nudges the session thread, and sleeps on
//! `wake_epoch`; the executor's monitor polls the words while anybody sleeps, and moves the epoch
//! when one has changed or the session has failed. Every sleep is bounded besides, since the device
//! and the monitor are not in any common order that could be proven. Where more clients are at work
//! than there are cores the monitor looks all the time, so that nobody need be nudged.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::doorbell::Doorbell;
use crate::futex;
use crate::pages::Pages;
use crate::ring::LIVENESS_INTERVAL;
use crate::session_memory::SessionMemory;
use crate::shm::{self, Access, Mapping, ShmError, Spot};
use crate::spin::{Cores, Spin};
use crate::wire::layout::{
    COMPLETION_BYTES, COMPLETION_WORDS_BYTES, GUARD_RECORD_OFFSET, GUARD_RECORD_WORDS, STREAM_SLOTS,
};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why a stream's value was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CompletionError {
    /// The session has failed with this `CUresult`; the value may never come.
    #[error("the session failed with CUDA result {0}")]
    SessionFailed(u32),
    /// The server is gone.
    #[error("the server is gone")]
    PeerGone,
    /// The caller's time was up.
    #[error("the time was up")]
    TimedOut,
}

/// A mapped completion file. Its parts are mapped apart: guarded kernels know where the guard's
/// record is, and that must not tell them where the words are.
#[derive(Debug)]
pub struct CompletionWords(Parts);

#[derive(Debug)]
enum Parts {
    Mapped {
        words: Mapping,
        guard_record: Mapping,
    },
    /// Plain memory: the model checker's atomics fit no file.
    #[cfg(feature = "loom")]
    Owned {
        words: Box<[AtomicU64]>,
        guard_record: Box<[AtomicU32]>,
    },
}

impl CompletionWords {
    /// Makes a completion file. One executor after another maps it to write; clients get
    /// [`shm::read_only`] descriptors.
    ///
    /// # Errors
    /// When the kernel refuses the file.
    pub fn create_file() -> Result<OwnedFd, ShmError> {
        shm::create("openmps-completion", COMPLETION_BYTES as u64)
    }

    /// Maps a completion file for the device to write, at addresses that cannot be guessed: kernels
    /// of other clients share them.
    ///
    /// # Errors
    /// When the descriptor is no such file or cannot be mapped.
    pub fn map_writable(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        Self::map_parts(file, Access::ReadWrite, Spot::Scattered, Pages::of_system())
    }

    /// Maps a received completion file, to read.
    ///
    /// # Errors
    /// When the descriptor is no such file or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        Self::map_parts(file, Access::ReadOnly, Spot::Anywhere, Pages::of_system())
    }

    /// Each part takes the pages that it needs: the device pins them.
    fn map_parts(
        file: BorrowedFd<'_>,
        access: Access,
        spot: Spot,
        pages: Pages,
    ) -> Result<Self, ShmError> {
        shm::check(file, COMPLETION_BYTES as u64)?;
        let part = |offset: usize, size_bytes: usize| {
            let whole = pages.whole(size_bytes as u64).unwrap_or(0) as usize;
            Mapping::of_part(file, offset, whole, access, spot)
        };
        Ok(Self(Parts::Mapped {
            words: part(0, COMPLETION_WORDS_BYTES)?,
            guard_record: part(GUARD_RECORD_OFFSET, GUARD_RECORD_WORDS * 4)?,
        }))
    }

    /// Memory for the model, with a word for each of so many streams.
    #[cfg(feature = "loom")]
    pub fn in_process(streams: usize) -> Self {
        let words = (0..streams).map(|_| AtomicU64::new(0)).collect();
        let guard_record = (0..GUARD_RECORD_WORDS).map(|_| AtomicU32::new(0)).collect();
        Self(Parts::Owned { words, guard_record })
    }

    /// What a device does in a model: its earlier writes are seen before this one.
    #[cfg(feature = "loom")]
    pub fn reach(&self, stream: usize, value: u64) {
        self.words()[stream].store(value, Ordering::Release);
    }

    /// What a guarded kernel does in a model: it writes its record, the first word last.
    #[cfg(feature = "loom")]
    pub fn break_guard(&self, record: &[u32]) {
        for (word, value) in self.guard_words().iter().zip(record).skip(1) {
            word.store(*value, Ordering::Relaxed);
        }
        self.guard_words()[0].store(record[0], Ordering::Release);
    }

    /// Where this process has them, and how many bytes, for registering them with the device.
    pub fn range(&self) -> (u64, usize) {
        match &self.0 {
            Parts::Mapped { words, .. } => (words.base().addr() as u64, words.size_bytes()),
            #[cfg(feature = "loom")]
            Parts::Owned { .. } => (0, 0),
        }
    }

    /// The same of the guard's record.
    pub fn guard_record_range(&self) -> (u64, usize) {
        match &self.0 {
            Parts::Mapped { guard_record, .. } => {
                (guard_record.base().addr() as u64, guard_record.size_bytes())
            }
            #[cfg(feature = "loom")]
            Parts::Owned { .. } => (0, 0),
        }
    }

    /// The last value that the device wrote for a stream slot; 0 for slots that do not exist.
    pub fn completed(&self, stream: u32) -> u64 {
        self.words().get(stream as usize).map_or(0, |word| {
            // Acquire: pairs with the device's write, which follows the stream's earlier writes to
            // host memory.
            word.load(Ordering::Acquire)
        })
    }

    /// Whether a guarded kernel was about to touch what it must not: then nothing that the session
    /// has waited for counts.
    pub fn is_guard_broken(&self) -> bool {
        // Acquire: pairs with the kernel's write, which follows those of the other words.
        self.guard_words()[0].load(Ordering::Acquire) != 0
    }

    /// What a guarded kernel has recorded, if it has begun to.
    pub fn guard_record(&self) -> Option<[u32; GUARD_RECORD_WORDS]> {
        self.is_guard_broken().then(|| {
            core::array::from_fn(|at| {
                // Relaxed: the first word was read before, and says that the others are there.
                self.guard_words()[at].load(Ordering::Relaxed)
            })
        })
    }

    fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            // SAFETY: inside the mapping, aligned; the device and other mappings write whole words.
            Parts::Mapped { words, .. } => unsafe {
                std::slice::from_raw_parts(words.base().cast(), STREAM_SLOTS)
            },
            #[cfg(feature = "loom")]
            Parts::Owned { words, .. } => words,
        }
    }

    fn guard_words(&self) -> &[AtomicU32] {
        match &self.0 {
            // SAFETY: inside the mapping, aligned; the device and other mappings write whole words.
            Parts::Mapped { guard_record, .. } => unsafe {
                std::slice::from_raw_parts(guard_record.base().cast(), GUARD_RECORD_WORDS)
            },
            #[cfg(feature = "loom")]
            Parts::Owned { guard_record, .. } => guard_record,
        }
    }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`, which a session has failed with once
/// [`CompletionWords::is_guard_broken`].
pub const GUARD_ERROR: u32 = 700;

/// Waits until `stream` has reached `value`: spins, then sleeps, and spins again where waits have a
/// usual length that is nearly over. Without `timeout`, until it is reached or the session has
/// failed.
///
/// # Errors
/// [`CompletionError`]; a failed session wins over a value that has been reached, as CUDA's waits
/// return a sticky error.
pub fn wait(
    memory: &SessionMemory,
    words: &CompletionWords,
    stream: u32,
    value: u64,
    timeout: Option<Duration>,
    spin: &mut Spin,
    peer_alive: &mut dyn FnMut() -> bool,
) -> Result<(), CompletionError> {
    let failed = || match memory.shared().session_error.0.load(Ordering::Acquire) {
        0 if words.is_guard_broken() => GUARD_ERROR,
        error => error,
    };
    let is_over = || words.completed(stream) >= value || failed() != 0;
    let began = Instant::now();
    if spin.until(memory.cores(), is_over) {
        return outcome(failed());
    }
    let deadline = timeout.map(|timeout| began + timeout);
    let _sleeper = Sleeper::register(memory);
    let mut napped = false;
    loop {
        // Acquire: pairs with the release in `wake_sleepers`; read before the words, so that a
        // change after this look moves it.
        let epoch = memory.shared().wake_epoch.0.load(Ordering::Acquire);
        if is_over() {
            let waited = began.elapsed();
            spin.came_after(waited);
            spin.took(waited);
            return outcome(failed());
        }
        let left = deadline.map_or(LIVENESS_INTERVAL, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if left.is_zero() {
            return Err(CompletionError::TimedOut);
        }
        let nap = spin.nap(began.elapsed()).filter(|nap| *nap < left);
        if nap.is_none() && std::mem::take(&mut napped) {
            // The end is near. Who waits once has more to do then: the executor is awake by that
            // time.
            memory.wake_consumer();
            let _ = spin.after_nap(is_over);
            continue;
        }
        let sleep = nap.unwrap_or(left).min(LIVENESS_INTERVAL);
        let before = Instant::now();
        let woke = futex::wait(&memory.shared().wake_epoch.0, epoch, sleep);
        napped |= nap.is_some();
        if nap.is_some() && woke == futex::Woke::TimedOut {
            spin.napped(sleep, before.elapsed());
            if is_over() {
                spin.overslept(began.elapsed());
                return outcome(failed());
            }
        }
        if !is_over() && !peer_alive() {
            return Err(CompletionError::PeerGone);
        }
    }
}

fn outcome(error: u32) -> Result<(), CompletionError> {
    match error {
        0 => Ok(()),
        error => Err(CompletionError::SessionFailed(error)),
    }
}

// What `crowded` says.
pub(crate) const CORES_SPARE: u32 = 0;
pub(crate) const CORES_WANTED: u32 = 1;
pub(crate) const CORES_PLENTY: u32 = 2;

/// A client thread counted in `sleepers`.
#[derive(Debug)]
pub struct Sleeper<'a>(&'a SessionMemory);

impl<'a> Sleeper<'a> {
    /// Counts the calling thread, and sees to it that the executor finds out.
    pub fn register(memory: &'a SessionMemory) -> Self {
        memory.shared().sleepers.0.fetch_add(1, Ordering::SeqCst);
        // Partner: the fence in `set_cores`. Orders the count before the look at `crowded`.
        fence(Ordering::SeqCst);
        if memory.cores() == Cores::Wanted {
            return Self(memory);
        }
        // The session thread looks at `sleepers` before it sleeps; when it sleeps already, this
        // wakes it, and it tells the monitor.
        Doorbell::new(&memory.shared().consumer_asleep.0).ring();
        Self(memory)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.shared().sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SessionMemory {
    /// Client threads that sleep for completions, as the client says.
    pub fn sleepers(&self) -> u32 {
        self.shared().sleepers.0.load(Ordering::SeqCst)
    }

    /// Whether there are cores for threads that spin, as the executor says.
    pub fn cores(&self) -> Cores {
        // Relaxed: it is advice, but in `Sleeper::register`, which has a fence.
        match self.shared().crowded.0.load(Ordering::Relaxed) {
            CORES_SPARE => Cores::Spare,
            CORES_PLENTY => Cores::Plenty,
            _ => Cores::Wanted,
        }
    }

    /// Says whether there are. Where there are none, whoever says so looks at [`Self::sleepers`]
    /// all the time: those who begin to sleep then tell nobody. So who says that there are looks at
    /// them once more before it looks no longer.
    pub fn set_cores(&self, cores: Cores) {
        let crowded = match cores {
            Cores::Spare => CORES_SPARE,
            Cores::Wanted => CORES_WANTED,
            Cores::Plenty => CORES_PLENTY,
        };
        self.shared().crowded.0.store(crowded, Ordering::Relaxed);
        // Partner: the fence in `Sleeper::register`. Orders this before the caller's look at
        // `sleepers`: one of the two sees the other.
        fence(Ordering::SeqCst);
    }

    /// Makes all sleepers look again.
    pub fn wake_sleepers(&self) {
        // Release: pairs with the acquire in `wait`.
        self.shared().wake_epoch.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.shared().wake_epoch.0, i32::MAX as u32);
    }

    /// Records the session's first error and makes all sleepers look; later errors change nothing.
    pub fn fail(&self, error: u32) {
        // Release: pairs with the acquire in `wait`.
        let _ = self.shared().session_error.0.compare_exchange(
            0,
            error,
            Ordering::Release,
            Ordering::Relaxed,
        );
        self.wake_sleepers();
    }

    /// Says how many SMs the session's work runs on.
    pub fn set_multiprocessors(&self, count: u32) {
        // Release: pairs with the acquire in `multiprocessors`.
        self.shared().multiprocessors.0.store(count, Ordering::Release);
    }

    /// SMs that the session's work runs on, if the executor has said so.
    pub fn multiprocessors(&self) -> Option<u32> {
        // Acquire: pairs with the release in `set_multiprocessors`.
        let count = self.shared().multiprocessors.0.load(Ordering::Acquire);
        (count != 0).then_some(count)
    }

    /// Leaves an error of one posted command for the client's next synchronisation; the first one
    /// not yet taken stays.
    pub fn refuse(&self, error: u32) {
        // Release: pairs with the acquire in `take_refusal`.
        let _ = self.shared().refusal.0.compare_exchange(
            0,
            error,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    /// Takes what [`Self::refuse`] left, 0 when there is nothing. Whoever has waited for a stream
    /// sees the refusals of all that was posted to it before, since the executor leaves them before
    /// it submits the signal.
    pub fn take_refusal(&self) -> u32 {
        let word = &self.shared().refusal.0;
        // Relaxed: a look that spares the exchange; the waiter's acquire of the completion word
        // ordered it.
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // Acquire: pairs with the release in `refuse`.
        word.swap(0, Ordering::Acquire)
    }

    /// Leaves a text for the program's standard error, before [`Self::fail`]: as many whole lines
    /// as there is room for.
    pub fn leave_last_words(&self, text: &str) {
        let words = &self.shared().last_words;
        let room = &text.as_bytes()[..text.len().min(words.text.len())];
        let whole = match room.len() == text.len() {
            true => room,
            false => &room[..room.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)],
        };
        for (byte, to) in whole.iter().zip(&words.text) {
            to.store(*byte, core::sync::atomic::Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `take_last_words`.
        words.size_bytes.store(whole.len() as u32, core::sync::atomic::Ordering::Release);
    }

    /// Takes what was left; once.
    pub fn take_last_words(&self) -> Vec<u8> {
        let words = &self.shared().last_words;
        // Acquire: see `leave_last_words`.
        let size_bytes = words.size_bytes.swap(0, core::sync::atomic::Ordering::Acquire) as usize;
        let text = words.text.iter().take(size_bytes);
        text.map(|byte| byte.load(core::sync::atomic::Ordering::Relaxed)).collect()
    }

    /// The session's first error as a `CUresult`, 0 while there is none.
    pub fn error(&self) -> u32 {
        self.shared().session_error.0.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::pages;
    use rustix::fd::AsFd;

    #[test]
    fn both_parts_have_pages_of_their_own_whatever_their_length() {
        for kib in [4, 16, 64] {
            let pages = Pages::of(kib << 10);
            let file = CompletionWords::create_file().unwrap();
            let writes = |spot| {
                CompletionWords::map_parts(file.as_fd(), Access::ReadWrite, spot, pages).unwrap()
            };
            let (device, client) = (writes(Spot::Scattered), writes(Spot::Anywhere));
            let parts = [device.range(), device.guard_record_range()];
            let offsets = [0, GUARD_RECORD_OFFSET];
            for ((_, size_bytes), offset) in parts.into_iter().zip(offsets) {
                assert!(pages.are_whole(offset as u64, size_bytes as u64), "{kib} KiB");
                assert!(offset + size_bytes <= COMPLETION_BYTES, "{kib} KiB");
            }
            assert!(parts[0].1 <= GUARD_RECORD_OFFSET, "{kib} KiB: one mapping has both");
            assert!(parts[0].0.is_multiple_of(pages::LONGEST_BYTES as u64), "{:#x}", parts[0].0);
            let last = STREAM_SLOTS - 1;
            device.words()[last].store(kib, Ordering::Release);
            device.guard_words()[GUARD_RECORD_WORDS - 1].store(7, Ordering::Relaxed);
            device.guard_words()[0].store(1, Ordering::Release);
            assert_eq!(client.completed(last as u32), kib);
            assert_eq!(client.guard_record().unwrap()[GUARD_RECORD_WORDS - 1], 7);
        }
    }
}
