//! A session: this process's line to the executor of one device.
//!
//! Commands of all threads go into one ring, in one order, under a short lock. *Posted* ones return
//! at once; *called* ones wait for their answer in a call slot. Waits are bounded by looks at the
//! server's health, so its death is an error from the next call and never a hang.

mod calls;
pub(crate) mod expected_wait;
mod files;
pub(crate) mod output;
pub(crate) mod portions;
pub(crate) mod quiet_copy;
pub(crate) mod slots;
pub(crate) mod staging;
pub(crate) mod streams;
pub(crate) mod trays;
mod waits;

use crate::attach::health::Health;
use crate::recorder;
use crate::result::Result;
use crate::session::output::Output;
use crate::session::quiet_copy::QuietStream;
use crate::session::slots::{Mark, Slots};
use crate::stream::gates::{Gates, Ordered};
use crate::two_sided::TwoSided;
use cuda_abi::types::CUresult;
use link::call::CallSlots;
use link::completion::{CompletionWords, GUARD_ERROR};
use link::ring::{PostError, Producer};
use link::session_memory::SessionMemory;
use link::shm::ShmError;
use link::socket::Connection;
use link::spin::Spin;
use link::wire::command::{EventRecord, NO_CALL, Opcode, Signal};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};
use zerocopy::{Immutable, IntoBytes};

const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The executor says within this what share of the SMs a new session has, unless kernels are in
/// its way.
const SHARE_LIMIT: Duration = Duration::from_secs(1);
const SHARE_POLL: Duration = Duration::from_micros(50);

/// See the module's description.
pub(crate) struct Session {
    memory: Arc<SessionMemory>,
    words: CompletionWords,
    calls: CallSlots,
    executor: Connection,
    health: Health,
    posting: Mutex<Posting>,
    gates: Gates,
    output: Output,
    two_sided: TwoSided,
    quiet: QuietStream,
    /// Waits for values that may not have ended.
    waits: Mutex<Vec<Mark>>,
    /// Length of `waits`, so that nobody locks an empty list.
    wait_count: AtomicUsize,
    /// Keeps a region's descriptor and its command together.
    mapping: Mutex<()>,
    /// The device's ordinal and 1, for traces.
    traced_as: AtomicU32,
    /// Whether it was waited for the executor to say what share of the SMs it has.
    share_awaited: Once,
}

struct Posting {
    producer: Producer,
    slots: Slots,
}

thread_local! {
    static SPIN: RefCell<Spin> = RefCell::new(Spin::default());
}

/// Waits with this thread's experience of how long to spin.
fn with_spin<T>(body: impl FnOnce(&mut Spin) -> T) -> T {
    // Threads that are ending have no thread-locals left.
    let mut spin = SPIN.try_with(|spin| spin.borrow().clone()).unwrap_or_default();
    let result = body(&mut spin);
    let _ = SPIN.try_with(|kept| *kept.borrow_mut() = spin);
    result
}

/// The session's error, of which the program's user is told.
#[cold]
fn failed(code: u32) -> CUresult {
    let code = CUresult(code);
    crate::log::tell_failure(code);
    code
}

impl Session {
    /// Takes over the three descriptors that come with a device's first context.
    pub(crate) fn open(
        files: [OwnedFd; 2],
        executor: Connection,
        health: Health,
    ) -> core::result::Result<Self, ShmError> {
        let [session, completion] = files;
        let memory = Arc::new(SessionMemory::map(rustix::fd::AsFd::as_fd(&session))?);
        let words = CompletionWords::map(rustix::fd::AsFd::as_fd(&completion))?;
        let producer = Producer::new(Arc::clone(&memory));
        Ok(Self {
            calls: CallSlots::new(Arc::clone(&memory)),
            memory,
            words,
            executor,
            health,
            output: Output::default(),
            two_sided: TwoSided::default(),
            quiet: QuietStream::default(),
            waits: Mutex::default(),
            wait_count: AtomicUsize::new(0),
            posting: Mutex::new(Posting { producer, slots: Slots::new() }),
            gates: Gates::default(),
            mapping: Mutex::new(()),
            traced_as: AtomicU32::new(0),
            share_awaited: Once::new(),
        })
    }

    /// SMs that this process's work runs on now, if the executor has said so. It does before the
    /// first command, a moment after the session is there, for which whoever asks first waits.
    pub(crate) fn multiprocessors(&self) -> Option<u32> {
        let told = self.memory.multiprocessors();
        if told.is_some() {
            return told;
        }
        self.share_awaited.call_once(|| {
            let until = Instant::now() + SHARE_LIMIT;
            let is_untold = || self.memory.multiprocessors().is_none() && self.memory.error() == 0;
            while is_untold() && Instant::now() < until {
                std::thread::sleep(SHARE_POLL);
            }
        });
        self.memory.multiprocessors()
    }

    /// The executor's socket, to be watched and, in the child of a fork, to be closed.
    pub(crate) fn executor(&self) -> &Connection {
        &self.executor
    }

    /// Makes all waiting threads look at the session's health.
    pub(crate) fn wake_waiters(&self) {
        self.memory.wake_sleepers();
    }

    /// The session's own error, or that the server is gone.
    pub(crate) fn check(&self) -> Result {
        match self.memory.error() {
            0 if self.health.is_lost() => Err(CUresult::ERROR_MPS_RPC_FAILURE),
            // The executor has not seen it yet.
            0 if self.words.is_guard_broken() => Err(failed(GUARD_ERROR)),
            0 => Ok(()),
            error => Err(self.failed(error)),
        }
    }

    /// The session's error, which the program is told. What the driver has said of it goes where it
    /// does natively.
    #[cold]
    fn failed(&self, error: u32) -> CUresult {
        if CUresult(error) == CUresult::ERROR_ASSERT {
            crate::session::output::write_error(&self.memory.take_last_words());
        }
        failed(error)
    }

    /// What a synchronising call of the program returns once its waiting is done: the session's
    /// error, or, once, that of a launch which was posted and which the driver then refused.
    pub(crate) fn verdict(&self) -> Result {
        self.check()?;
        match self.memory.take_refusal() {
            0 => Ok(()),
            error => Err(CUresult(error)),
        }
    }

    fn is_alive(&self) -> bool {
        !self.health.is_lost() && !self.executor.is_closed() && self.memory.error() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Posting> {
        self.posting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn put(
        &self,
        posting: &mut Posting,
        opcode: Opcode,
        call: u16,
        context: u32,
        parts: &[&[u8]],
    ) -> Result {
        posting.producer.post(opcode, call, context, parts, &mut || self.is_alive()).map_err(
            |error| match error {
                PostError::TooLong { .. } => CUresult::ERROR_INVALID_VALUE,
                PostError::PeerGone => {
                    self.check().err().unwrap_or(CUresult::ERROR_MPS_RPC_FAILURE)
                }
            },
        )?;
        if recorder::is_on() {
            // Relaxed: a name.
            let device = self.traced_as.load(Ordering::Relaxed);
            recorder::posted(device, posting.producer.posted_bytes());
        }
        Ok(())
    }

    /// Streams held by host functions.
    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// Waits while host functions hold a stream.
    pub(crate) fn pass_gates(&self, slot: u32, ordered: Ordered) -> Result {
        self.gates.wait(slot, ordered, || self.check())
    }

    /// Posts a command that is no work of a stream.
    pub(crate) fn post(
        &self,
        context: u32,
        opcode: Opcode,
        body: &(impl IntoBytes + Immutable),
    ) -> Result {
        self.check()?;
        self.put(&mut self.lock(), opcode, NO_CALL, context, &[body.as_bytes()])
    }

    /// Posts a command that is no work of a stream and consists of several parts.
    pub(crate) fn post_parts(&self, context: u32, opcode: Opcode, parts: &[&[u8]]) -> Result {
        self.check()?;
        self.put(&mut self.lock(), opcode, NO_CALL, context, parts)
    }

    /// Posts work of a stream; returns where it is.
    pub(crate) fn post_work(
        &self,
        context: u32,
        slot: u32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<Mark> {
        self.check()?;
        let mut posting = self.lock();
        self.put(&mut posting, opcode, NO_CALL, context, parts)?;
        Ok(Mark { slot, number: posting.slots.next(slot, context) })
    }

    /// Posts an event's record, which signals as well.
    pub(crate) fn post_record(&self, context: u32, slot: u32, event: u32) -> Result<Mark> {
        self.check()?;
        let mut posting = self.lock();
        let mark = Mark { slot, number: posting.slots.next(slot, context) };
        let body = EventRecord { event, stream: slot, value: mark.number };
        self.put(&mut posting, Opcode::EventRecord, NO_CALL, context, &[body.as_bytes()])?;
        posting.slots.note_signal(mark);
        Ok(mark)
    }

    fn signal(&self, posting: &mut Posting, context: u32, mark: Mark) -> Result {
        let Some(value) = posting.slots.needs_signal(mark) else { return Ok(()) };
        let body = Signal { stream: mark.slot, reserved: 0, value };
        self.put(posting, Opcode::Signal, NO_CALL, context, &[body.as_bytes()])
    }

    /// All of a stream's work so far, with its signal posted.
    pub(crate) fn mark(&self, context: u32, slot: u32) -> Result<Mark> {
        self.check()?;
        let mut posting = self.lock();
        let mark = posting.slots.mark(slot, context);
        self.signal(&mut posting, context, mark)?;
        Ok(mark)
    }

    /// Asks for the signal of a mark now, so that it does not wait for later work.
    pub(crate) fn request(&self, context: u32, mark: Mark) -> Result {
        self.signal(&mut self.lock(), context, mark)
    }

    /// All work of a context (0: of the session) that is not known to be done, with signals posted.
    pub(crate) fn outstanding(&self, context: u32) -> Result<Vec<Mark>> {
        self.check()?;
        let mut posting = self.lock();
        let marks = posting.slots.outstanding(context, |slot| self.words.completed(slot));
        for &mark in &marks {
            self.signal(&mut posting, context, mark)?;
        }
        Ok(marks)
    }

    /// Whether a mark's work is done, as far as the completion word says.
    pub(crate) fn is_complete(&self, mark: Mark) -> bool {
        self.words.completed(mark.slot) >= mark.number
    }

    /// Memory that both sides use.
    pub(crate) fn two_sided(&self) -> &TwoSided {
        &self.two_sided
    }

    /// See [`crate::session::quiet_copy`].
    pub(crate) fn quiet(&self) -> &QuietStream {
        &self.quiet
    }

    /// Posts a stream's wait for a value, or for another device.
    pub(crate) fn post_wait(&self, context: u32, slot: u32, opcode: Opcode, body: &[u8]) -> Result {
        // Locked while posting: who destroys what is named behind it must find the wait noted.
        let mut waits = self.waits.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Relaxed: who destroys what is named behind the wait does so after this call, in the
        // program's order, and so finds the count raised. Before the post, as for the lock.
        self.wait_count.store(waits.len() + 1, Ordering::Relaxed);
        waits.push(self.post_work(context, slot, opcode, &[body])?);
        Ok(())
    }

    /// Whether any work is not known to be done.
    pub(crate) fn is_busy(&self) -> bool {
        let completed = |slot| self.words.completed(slot);
        !self.lock().slots.outstanding(0, completed).is_empty()
    }

    /// Whether the executor may hold commands that wait for a value: what they name by number must
    /// not be destroyed before they are done.
    pub(crate) fn may_hold(&self) -> bool {
        // Relaxed: see `post_wait`.
        if self.wait_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut waits = self.waits.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waits.retain(|&mark| !self.is_complete(mark));
        self.wait_count.store(waits.len(), Ordering::Relaxed);
        !waits.is_empty()
    }

    /// What the session's kernels print.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }
}
