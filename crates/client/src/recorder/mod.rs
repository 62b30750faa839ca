//! A process that is traced (`openmps trace`): its driver calls and NVTX ranges go into a ring that
//! the tracer reads; the executors of its sessions are told to do the same with their work.
//!
//! A process finds its tracer in its environment, or the server hands it one while it runs. Then
//! the jump table leads through [`call`]; who is not traced pays nothing for a call, and one look
//! at a flag for a command that is posted. The messages are `link::wire::trace`, the records
//! `link::trace`. [`tracer`] says how it begins and ends; [`nvtx`] is what NVTX loads.

mod nvtx;
pub(crate) mod tracer;

use crate::warn;
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use cuda_abi::functions::FUNCTION_NUMBERS;
use cuda_abi::types::CUresult;
use link::socket::Connection;
use link::trace::{Record, TraceRing, Words};
use link::wire::trace::FromTraced;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks whether the tracer has made room.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);
/// A tracer that makes no room for so long is taken for stuck, and what it does not take is counted
/// as lost.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Texts that are known by number; others are sent anew each time.
const MAX_KNOWN_TEXTS: usize = 1 << 16;

/// A trace that is being made. Never freed: a thread may be in the middle of a record.
struct Recorder {
    ring: TraceRing,
    connection: Arc<Connection>,
    texts: Mutex<Texts>,
    /// How much the tracer had read, and 1, when it was last waited for in vain; 0 if it never was.
    stuck_at: AtomicU64,
}

#[derive(Default)]
struct Texts {
    known: HashMap<Box<str>, u64>,
    last: u64,
}

/// Null while nothing is recorded.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(core::ptr::null_mut());

/// What the present call of a thread has posted.
#[derive(Clone, Copy, Default)]
struct Posted {
    /// Ordinal and 1.
    device: u32,
    first: u64,
    last: u64,
}

thread_local! {
    static POSTED: Cell<Posted> = const { Cell::new(Posted { device: 0, first: 0, last: 0 }) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

fn recorder() -> Option<&'static Recorder> {
    // SAFETY: null, or a box that is never freed; Acquire: with the Release in `publish`.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The calling thread's number in the system.
fn thread_number() -> u32 {
    let known = THREAD.try_with(Cell::get).unwrap_or(0);
    if known != 0 {
        return known;
    }
    let number = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let _ = THREAD.try_with(|cell| cell.set(number));
    number
}

/// Runs a driver call and records it.
#[inline]
pub(crate) fn call(index: usize, body: impl FnOnce() -> CUresult) -> CUresult {
    let start_ns = now_ns();
    let _ = POSTED.try_with(|posted| posted.set(Posted::default()));
    let result = body();
    if let Some(recorder) = recorder() {
        let Posted { device, first, last } = POSTED.try_with(Cell::get).unwrap_or_default();
        recorder.push(&Record::Call {
            thread: thread_number(),
            function: FUNCTION_NUMBERS[index],
            result: result.0,
            device: device.saturating_sub(1),
            start_ns,
            end_ns: now_ns(),
            first,
            last,
        });
    }
    result
}

/// Whether anything is recorded.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: who sees an old value records one command's place more or less.
    !RECORDER.load(Ordering::Relaxed).is_null()
}

/// A command of the present call ends at `position` of the ring of device `ordinal - 1`'s session.
#[cold]
pub(crate) fn posted(device: u32, position: u64) {
    let _ = POSTED.try_with(|cell| {
        let mut posted = cell.get();
        if posted.first == 0 {
            posted = Posted { device, first: position, last: position };
        } else if posted.device == device {
            posted.last = position;
        }
        cell.set(posted);
    });
}

impl Recorder {
    fn push(&self, record: &Record) {
        let words = record.to_words();
        if self.ring.try_push(&words) {
            return;
        }
        self.push_when_there_is_room(&words);
    }

    #[cold]
    fn push_when_there_is_room(&self, words: &Words) {
        let read = self.ring.read().wrapping_add(1);
        // Relaxed: a number alone. A tracer that was waited for once and has read nothing since is
        // not waited for again: every call of the program would take that long.
        if self.stuck_at.load(Ordering::Relaxed) == read {
            return self.ring.count_lost(1);
        }
        let started = Instant::now();
        let is_there = self.ring.push(words, || {
            std::thread::sleep(ROOM_INTERVAL);
            is_on() && started.elapsed() < ROOM_PATIENCE
        });
        if !is_there {
            self.stuck_at.store(self.ring.read().wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The number of a text, which the reader is told.
    fn text(&self, text: &str) -> u64 {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = texts.known.get(text) {
            return known;
        }
        texts.last += 1;
        let id = texts.last;
        if texts.known.len() < MAX_KNOWN_TEXTS {
            texts.known.insert(text.into(), id);
        }
        // Told under the lock: nobody else may name it before.
        Record::texts(id, text).for_each(|record| self.push(&record));
        id
    }

    fn tell(&self, message: &FromTraced, file: Option<&OwnedFd>) {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        if let Err(error) = self.connection.send(message, &files, TIMEOUT) {
            warn!("the tracer cannot be told {message:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracer_that_has_read_nothing_since_is_not_waited_for_again() {
        let (_file, ring) = TraceRing::create().unwrap();
        let (ours, _theirs) = Connection::pair().unwrap();
        let recorder = Recorder {
            ring,
            connection: Arc::new(ours),
            texts: Mutex::default(),
            stuck_at: AtomicU64::new(0),
        };
        let words = [1; link::trace::RECORD_WORDS];
        while recorder.ring.try_push(&words) {}
        // Nothing is recorded in this process, so nobody waits; but that is noted.
        recorder.push_when_there_is_room(&words);
        assert_eq!(recorder.stuck_at.load(Ordering::Relaxed), 1, "it has read nothing, and 1");
        let before = Instant::now();
        for _ in 0..1000 {
            recorder.push_when_there_is_room(&words);
        }
        assert!(before.elapsed() < ROOM_PATIENCE, "each waited");
        let reader = link::trace::TraceReader::new(recorder.ring);
        assert_eq!(reader.lost(), 1001);
    }
}
