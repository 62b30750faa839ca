//! A session: this process's line to the executor of one device.
//!
//! Commands of all threads go into one ring, in one order, under a short lock. *Posted* ones return
//! at once; *called* ones wait for their answer in a call slot. Waits are bounded by looks at the
//! server's health, so its death is an error from the next call and never a hang.

pub(crate) mod expected_wait;
pub(crate) mod output;
pub(crate) mod portions;
pub(crate) mod quiet_copy;
pub(crate) mod slots;
pub(crate) mod staging;
pub(crate) mod trays;

use crate::attach::health::Health;
use crate::recorder;
use crate::result::Result;
use crate::session::expected_wait::Woke;
use crate::session::output::Output;
use crate::session::quiet_copy::QuietStream;
use crate::session::slots::{Mark, Slots};
use crate::stream::gates::{Gates, Ordered};
use crate::two_sided::TwoSided;
use cuda_abi::types::CUresult;
use link::call::{CallError, CallSlots};
use link::completion::{self, CompletionError, CompletionWords, GUARD_ERROR};
use link::ring::{PostError, Producer};
use link::session_memory::SessionMemory;
use link::shm::ShmError;
use link::socket::Connection;
use link::spin::Spin;
use link::wire::attach::RegionFile;
use link::wire::command::{
    DEFAULT_STREAM, EventRecord, NO_CALL, Opcode, RegionMap, RegionUnmap, Signal, StreamCreate,
    StreamDestroy,
};
use link::wire::trace::{TraceControl, TraceFile};
use link::wire::virtual_memory::{MemoryFile, MemoryNumber};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The executor says within this what share of the SMs a new session has, unless kernels are in
/// its way.
const SHARE_LIMIT: Duration = Duration::from_secs(1);
const SHARE_POLL: Duration = Duration::from_micros(50);

/// A stream that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPlan {
    /// `CU_STREAM_*`, or `DEFAULT_STREAM`.
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The executor's number of the SMs that it runs on.
    pub(crate) partition: u32,
    /// Slot of the default stream that a blocking one is ordered with.
    pub(crate) default_stream: u32,
}

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

    /// Makes a stream.
    pub(crate) fn create_stream(&self, context: u32, plan: StreamPlan) -> Result<u32> {
        self.check()?;
        let mut posting = self.lock();
        let body = self.plan_stream(&mut posting, context, plan)?;
        self.put(&mut posting, Opcode::StreamCreate, NO_CALL, context, &[body.as_bytes()])?;
        Ok(body.stream)
    }

    /// The same, and waits until it is there: where none can be made only this call fails, and not
    /// the session.
    fn create_stream_now(&self, context: u32, plan: StreamPlan) -> Result<u32> {
        self.check()?;
        let body = self.plan_stream(&mut self.lock(), context, plan)?;
        let made = self.call(context, Opcode::StreamCreate, &[body.as_bytes()]);
        made.map(|_| body.stream).inspect_err(|_| self.lock().slots.give_back(body.stream))
    }

    /// Takes a slot for a stream.
    fn plan_stream(
        &self,
        posting: &mut Posting,
        context: u32,
        plan: StreamPlan,
    ) -> Result<StreamCreate> {
        let taken = posting.slots.take(context, |slot| self.words.completed(slot));
        let slot = taken.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if plan.flags & DEFAULT_STREAM != 0 {
            posting.slots.make_default(slot);
        }
        Ok(StreamCreate {
            stream: slot,
            flags: plan.flags,
            priority: plan.priority,
            partition: plan.partition,
            legacy: plan.default_stream,
            reserved: 0,
        })
    }

    /// Destroys a stream once its work is done; returns at once.
    pub(crate) fn destroy_stream(&self, context: u32, slot: u32) -> Result {
        self.check()?;
        let mut posting = self.lock();
        let mark = posting.slots.mark(slot, context);
        self.signal(&mut posting, context, mark)?;
        let body = StreamDestroy { stream: slot, reserved: 0 };
        self.put(&mut posting, Opcode::StreamDestroy, NO_CALL, context, &[body.as_bytes()])?;
        posting.slots.give_back(slot);
        Ok(())
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

    /// Whether a mark's work is done; asks for its signal.
    pub(crate) fn query(&self, context: u32, mark: Mark) -> Result<bool> {
        self.check()?;
        if !self.is_complete(mark) {
            self.request(context, mark)?;
        }
        let is_complete = self.is_complete(mark);
        if is_complete {
            self.settle()?;
        }
        Ok(is_complete)
    }

    /// Waits until a mark's work is done.
    pub(crate) fn wait(&self, context: u32, mark: Mark) -> Result {
        self.check()?;
        if !self.is_complete(mark) {
            self.request(context, mark)?;
            self.await_word(mark, None)?;
        }
        // Whatever was wrong was wrong before what has been waited for ended.
        self.check()?;
        self.settle()?;
        self.deliver_output(context)
    }

    /// Writes what kernels have printed.
    fn deliver_output(&self, context: u32) -> Result {
        self.output.deliver(|| self.call(context, Opcode::OutputTake, &[]))
    }

    /// The same for work that should take so long: sleeps for most of that and spins for the rest,
    /// so that the end is not noticed late.
    pub(crate) fn wait_expecting(
        &self,
        context: u32,
        mark: Mark,
        expected: Duration,
    ) -> Result<Woke> {
        self.check()?;
        self.request(context, mark)?;
        let is_over = || self.is_complete(mark) || !self.is_alive();
        // Who copies once copies again: the executor is awake by then.
        let cores = || self.memory.cores();
        let woke = expected_wait::until(is_over, expected, cores, || self.memory.wake_consumer());
        self.wait(context, mark).map(|()| woke)
    }

    /// Waits until a mark's work is done, and does nothing else that belongs to waiting.
    pub(crate) fn wait_quietly(&self, context: u32, mark: Mark) -> Result {
        if !self.is_complete(mark) {
            self.request(context, mark)?;
            self.await_word(mark, None)?;
        }
        Ok(())
    }

    /// Waits until a signalled mark's work is done, `timeout` at most; says whether it is.
    pub(crate) fn wait_briefly(&self, mark: Mark, timeout: Duration) -> Result<bool> {
        match self.await_word(mark, Some(timeout)) {
            Err(CUresult::ERROR_NOT_READY) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Ok(true),
        }
    }

    fn await_word(&self, mark: Mark, timeout: Option<Duration>) -> Result {
        let Mark { slot, number } = mark;
        let waited = with_spin(|spin| {
            let mut alive = || self.is_alive();
            completion::wait(&self.memory, &self.words, slot, number, timeout, spin, &mut alive)
        });
        waited.map_err(|error| match error {
            CompletionError::SessionFailed(code) => self.failed(code),
            CompletionError::PeerGone => {
                self.check().err().unwrap_or(CUresult::ERROR_MPS_RPC_FAILURE)
            }
            CompletionError::TimedOut => CUresult::ERROR_NOT_READY,
        })
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

    /// Waits for all work of a context (0: of the session), and for the host functions of all
    /// streams.
    pub(crate) fn wait_all(&self, context: u32) -> Result {
        self.gates.wait_all(|| self.check())?;
        for mark in self.outstanding(context)? {
            self.await_word(mark, None)?;
        }
        self.settle()?;
        self.deliver_output(context)?;
        self.check()
    }

    /// Calls: posts and waits for the answer, success or not.
    pub(crate) fn call_raw(
        &self,
        context: u32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<(CUresult, Vec<u8>)> {
        self.check()?;
        let call = loop {
            match self.calls.claim() {
                Ok(call) => break call,
                Err(_) if !self.is_alive() => return Err(CUresult::ERROR_MPS_RPC_FAILURE),
                Err(_) => std::thread::yield_now(),
            }
        };
        let posted = self.put(&mut self.lock(), opcode, call.slot(), context, parts);
        if let Err(error) = posted {
            call.cancel_unposted();
            return Err(error);
        }
        let mut reply = Vec::new();
        let answered = with_spin(|spin| call.wait(spin, &mut reply, &mut || self.is_alive()));
        match answered {
            Ok(status) => Ok((CUresult(status), reply)),
            Err(CallError::PeerGone | CallError::NoFreeSlot) => {
                Err(self.check().err().unwrap_or(CUresult::ERROR_MPS_RPC_FAILURE))
            }
        }
    }

    /// Calls and returns the answer's bytes; what is not success is the error.
    pub(crate) fn call(&self, context: u32, opcode: Opcode, parts: &[&[u8]]) -> Result<Vec<u8>> {
        match self.call_raw(context, opcode, parts)? {
            (CUresult::SUCCESS, reply) => Ok(reply),
            (error, _) => Err(error),
        }
    }

    /// Calls and returns the answer's struct.
    pub(crate) fn call_for<R: FromBytes>(
        &self,
        context: u32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<R> {
        let reply = self.call(context, opcode, parts)?;
        R::read_from_prefix(&reply)
            .map(|(reply, _)| reply)
            .map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Maps a file of ours into the executor, at the address where we have it.
    pub(crate) fn map_region(
        &self,
        context: u32,
        file: BorrowedFd<'_>,
        region: RegionMap,
    ) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        let packet = RegionFile { address: region.address };
        self.executor.send(&packet, &[file], SEND_TIMEOUT).map_err(|error| {
            crate::error!("a region's file could not be sent: {error}");
            CUresult::ERROR_MPS_RPC_FAILURE
        })?;
        self.call(context, Opcode::RegionMap, &[region.as_bytes()]).map(drop)
    }

    /// Gives the executor memory of another process, as number `memory`.
    pub(crate) fn import_memory(&self, file: BorrowedFd<'_>, memory: u32) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        self.executor.send(&MemoryFile { memory }, &[file], SEND_TIMEOUT).map_err(|error| {
            crate::error!("a descriptor of memory could not be sent: {error}");
            CUresult::ERROR_INVALID_VALUE
        })?;
        let body = MemoryNumber { memory, reserved: 0 };
        self.call(0, Opcode::MemoryImport, &[body.as_bytes()]).map(drop)
    }

    /// A descriptor of the memory with that number.
    pub(crate) fn export_memory(&self, memory: u32) -> Result<OwnedFd> {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let body = MemoryNumber { memory, reserved: 0 };
        self.call(0, Opcode::MemoryExport, &[body.as_bytes()])?;
        let received = self.executor.receive::<MemoryFile>(SEND_TIMEOUT);
        let mut received = received.map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)?;
        received.descriptors.pop().ok_or(CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Has the executor tell of this session's work in a ring. `traced_as` is what calls that post
    /// commands here are known by.
    pub(crate) fn start_trace(&self, ring: BorrowedFd<'_>, traced_as: u32) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        // Relaxed: a name.
        self.traced_as.store(traced_as, Ordering::Relaxed);
        self.executor
            .send(&TraceFile { trace: () }, &[ring], SEND_TIMEOUT)
            .map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)?;
        let body = TraceControl::default();
        self.call(0, Opcode::TraceStart, &[body.as_bytes()]).map(drop)
    }

    /// Ends that; the ring is closed when all that was submitted before has been told.
    pub(crate) fn stop_trace(&self) {
        // A session that is lost tells nothing more anyway.
        let _ = self.call(0, Opcode::TraceStop, &[TraceControl::default().as_bytes()]);
    }

    /// Takes a region out of the executor; its work is done.
    pub(crate) fn unmap_region(&self, context: u32, address: u64, size_bytes: u64) -> Result {
        let body = RegionUnmap { address, size_bytes };
        self.call(context, Opcode::RegionUnmap, &[body.as_bytes()]).map(drop)
    }
}
