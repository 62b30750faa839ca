//! The shared memory of a session: one file for the ring and the calls, one for completions.
//!
//! Session file, mapped as one, in this order: [`Shared`] header, ring data
//! ([`RING_BYTES`]), call slots. The client maps all of it read-write, so the executor believes
//! nothing in it that it has not copied and checked, and keeps its own indices. The completion file
//! holds one `u64` per stream slot, written by the device in stream order; the client maps it
//! read-only.

use crate::atomic::{AtomicU32, AtomicU64, DataWord};
use crate::pages;

/// Length of the ring's data area; a power of two.
pub const RING_BYTES: usize = 1 << 20;
/// Commands that wait for an answer, at most this many at a time per session.
#[cfg(not(feature = "loom"))]
pub const CALL_SLOTS: usize = 32;
/// Room for one answer.
#[cfg(not(feature = "loom"))]
pub const CALL_REPLY_BYTES: usize = 8 * 1024 - 64;
/// As many as a model needs: it pays for each word.
#[cfg(feature = "loom")]
pub const CALL_SLOTS: usize = 2;
/// Likewise.
#[cfg(feature = "loom")]
pub const CALL_REPLY_BYTES: usize = 16;
/// Streams of a session, its default streams included.
pub const STREAM_SLOTS: usize = 4096;
/// Byte offset of the ring data in the session file.
pub const RING_OFFSET: usize = 4096;
/// Byte offset of the call slots in the session file.
pub const CALLS_OFFSET: usize = RING_OFFSET + RING_BYTES;
/// Length of the session file.
pub const SESSION_BYTES: usize = CALLS_OFFSET + CALL_SLOTS * size_of::<CallSlot>();
/// Length of the words at the completion file's begin, one for each stream.
pub const COMPLETION_WORDS_BYTES: usize = STREAM_SLOTS * 8;
/// Byte offset in the completion file of what a guarded kernel has recorded, which is mapped apart:
/// pages of their own, on every system.
pub const GUARD_RECORD_OFFSET: usize =
    COMPLETION_WORDS_BYTES.next_multiple_of(pages::LONGEST_BYTES);
/// Room for it, in words of 32 bits.
pub const GUARD_RECORD_WORDS: usize = 14;
/// Length of the completion file.
pub const COMPLETION_BYTES: usize = GUARD_RECORD_OFFSET + pages::LONGEST_BYTES;

/// Begin of the session file. Every word says who writes it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Shared {
    /// Bytes posted so far; written by the client (release), read by the executor (acquire).
    pub tail: Line<AtomicU64>,
    /// Bytes taken so far; written by the executor (release), read by the client (acquire).
    pub head: Line<AtomicU64>,
    /// Not 0 while the executor sleeps; its futex word.
    pub consumer_asleep: Line<AtomicU32>,
    /// Not 0 while a client thread sleeps for room; its futex word.
    pub producer_asleep: Line<AtomicU32>,
    /// Client threads that sleep until some stream completes; written by the client.
    pub sleepers: Line<AtomicU32>,
    /// Grows whenever a sleeper should look again; the sleepers' futex word, written by the
    /// executor.
    pub wake_epoch: Line<AtomicU32>,
    /// The first asynchronous error of the session as a `CUresult`, 0 while there is none; written
    /// by the executor.
    pub session_error: Line<AtomicU32>,
    /// The first error of a posted command that failed alone, as a `CUresult`, 0 while there is
    /// none; written by the executor, taken by the client when it synchronises.
    pub refusal: Line<AtomicU32>,
    /// Grows once a second while the executor lives; written by the executor.
    pub heartbeat: Line<AtomicU32>,
    /// SMs that the session's work runs on, 0 while that is what the client was told when it
    /// attached; written by the executor.
    pub multiprocessors: Line<AtomicU32>,
    /// Not 0 while more clients are at work than there are cores: who waits sleeps, and need not
    /// say so, since the executor looks at `sleepers` all the time. Written by the executor.
    pub crowded: Line<AtomicU32>,
    /// What the driver has said of the client's work that failed; written by the keeper before the
    /// session's error, taken by the client with it.
    pub last_words: LastWords,
}

/// Room for [`LastWords`].
pub const LAST_WORDS_BYTES: usize = 2048;

/// A text for the program's standard error.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct LastWords {
    /// How many bytes of the text count; 0: there is none, or it was taken.
    pub size_bytes: core::sync::atomic::AtomicU32,
    /// The text.
    pub text: [core::sync::atomic::AtomicU8; LAST_WORDS_BYTES],
}

impl Default for LastWords {
    fn default() -> Self {
        Self {
            size_bytes: core::sync::atomic::AtomicU32::new(0),
            text: [const { core::sync::atomic::AtomicU8::new(0) }; LAST_WORDS_BYTES],
        }
    }
}

/// Keeps what one side writes off the other side's cache lines.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Line<T>(pub T);

/// Where the answer to a called command arrives.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CallSlot {
    /// [`CALL_IDLE`], [`CALL_PENDING`], [`CALL_PENDING_ASLEEP`] or [`CALL_DONE`]; the caller's
    /// futex word.
    pub state: AtomicU32,
    /// The `CUresult`; written before `state` becomes [`CALL_DONE`].
    pub status: AtomicU32,
    /// Bytes of `reply` that count.
    pub reply_bytes: AtomicU32,
    /// How often the slot was claimed: tells calls that follow one another in it apart.
    pub claims: AtomicU32,
    /// Keeps `reply` aligned for what is read from it.
    pub _reserved: [u32; 12],
    /// A reply struct of [`super::command`], with what follows it.
    pub reply: [DataWord; CALL_REPLY_BYTES / 8],
}

impl Default for CallSlot {
    fn default() -> Self {
        Self {
            state: AtomicU32::new(CALL_IDLE),
            status: AtomicU32::new(0),
            reply_bytes: AtomicU32::new(0),
            claims: AtomicU32::new(0),
            _reserved: [0; 12],
            reply: core::array::from_fn(|_| DataWord::new(0)),
        }
    }
}

/// The slot is free.
pub const CALL_IDLE: u32 = 0;
/// A client thread waits and spins.
pub const CALL_PENDING: u32 = 1;
/// A client thread waits and sleeps: wake it.
pub const CALL_PENDING_ASLEEP: u32 = 2;
/// The answer is there.
pub const CALL_DONE: u32 = 3;

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Shared>() <= RING_OFFSET);
#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<CallSlot>() == 8 * 1024);
const _: () = assert!(RING_BYTES.is_power_of_two());
const _: () = assert!(GUARD_RECORD_WORDS * 4 <= pages::LONGEST_BYTES);
