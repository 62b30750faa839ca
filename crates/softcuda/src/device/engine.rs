//! Streams and their order: which operation may start, what its end lets go on.
//!
//! All state is behind one lock. An operation at the head of its stream either completes at once
//! (records, satisfied waits, value writes) or is handed to whoever does it: workers (kernels,
//! copies), the host thread (callbacks), or a calling thread (synchronous copies, at a [`Gate`]). A
//! stream that waits occupies nobody.
//!
//! Order: operations of a context are numbered as they are enqueued. One on the legacy stream
//! starts when all blocking streams have completed what came before it, and the other way round.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::ClockMode;
use super::conditions::Conditions;
use super::config::{Config, LogLevel};
use super::error::{DeviceError, Result};
use super::fault::Sticky;
use super::marker::{Marker, MarkerState};
use super::memory::AddressSpace;
use super::ops::{Gate, GateState, HostCall, Op, Task};
use super::placement::Placement;
use super::textures::TextureTable;

/// Longest a thread sleeps before it looks again, in case a wake-up was for another.
const RECHECK: Duration = Duration::from_millis(100);

/// How a stream relates to its context's legacy stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

struct Queued {
    number: u64,
    op: Op,
}

struct Stream {
    context: u64,
    kind: StreamKind,
    queue: VecDeque<Queued>,
    /// The head is being done by somebody.
    is_busy: bool,
    is_destroyed: bool,
}

struct Context {
    legacy: u64,
    blocking: Vec<u64>,
    others: Vec<u64>,
    next_number: u64,
    failed: Option<Sticky>,
}

/// A task at the head of its stream, waiting for a worker.
pub(crate) struct ReadyTask {
    pub(crate) stream: u64,
    pub(crate) task: Box<dyn Task>,
}

/// Everything behind the lock.
pub(crate) struct State {
    streams: HashMap<u64, Stream>,
    contexts: HashMap<u64, Context>,
    next_id: u64,
    pub(crate) devices: Vec<Placement>,
    pub(crate) tasks: VecDeque<ReadyTask>,
    /// Streams whose head waits for a value in memory.
    pub(crate) polls: Vec<u64>,
    pub(crate) host_calls: VecDeque<(u64, HostCall, Option<Sticky>)>,
    pub(crate) is_shut_down: bool,
}

/// The software GPU's engine: one per process, shared by all its devices.
pub(crate) struct Engine {
    state: Mutex<State>,
    /// Workers wait here for blocks and tasks.
    pub(crate) work: Condvar,
    /// The host thread waits here.
    pub(crate) host_work: Condvar,
    /// Callers wait here for streams, markers and gates.
    pub(crate) done: Condvar,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) textures: TextureTable,
    pub(crate) conditions: Conditions,
    pub(crate) log: LogLevel,
    pub(crate) clock: ClockMode,
    /// The longest that a kernel may run.
    pub(crate) kernel_limit: Option<Duration>,
}

impl Engine {
    /// An engine without threads; see [`super::worker::start`].
    pub(crate) fn new(devices: Vec<Placement>, space: Arc<AddressSpace>, config: &Config) -> Self {
        let state = State {
            streams: HashMap::new(),
            contexts: HashMap::new(),
            next_id: 1,
            devices,
            tasks: VecDeque::new(),
            polls: Vec::new(),
            host_calls: VecDeque::new(),
            is_shut_down: false,
        };
        Engine {
            state: Mutex::new(state),
            work: Condvar::new(),
            host_work: Condvar::new(),
            done: Condvar::new(),
            space,
            textures: TextureTable::default(),
            conditions: Conditions::default(),
            log: config.log,
            clock: config.clock,
            kernel_limit: config.kernel_limit,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a context; returns its id and that of its legacy stream.
    pub(crate) fn create_context(&self) -> (u64, u64) {
        let mut state = self.lock();
        let (context, legacy) = (state.new_id(), state.new_id());
        state.streams.insert(legacy, Stream::new(context, StreamKind::Legacy));
        let opened = Context {
            legacy,
            blocking: Vec::new(),
            others: Vec::new(),
            next_number: 1,
            failed: None,
        };
        state.contexts.insert(context, opened);
        (context, legacy)
    }

    /// Ends a context: queued work is dropped, kernels are stopped. Returns when nothing of it runs
    /// any more, or with `NotSupported` after `limit` (something of the program never returned,
    /// e.g. a host function).
    pub(crate) fn destroy_context(&self, context: u64, limit: Duration) -> Result<()> {
        let mut state = self.lock();
        self.fail_context(&mut state, context, Sticky::ContextDestroyed);
        let deadline = Instant::now() + limit;
        while state.streams.values().any(|stream| stream.context == context && stream.is_busy) {
            if Instant::now() >= deadline {
                return Err(DeviceError::NotSupported("work of the context does not end"));
            }
            state = self.wait_done(state);
        }
        state.contexts.remove(&context);
        state.streams.retain(|_, stream| stream.context != context);
        Ok(())
    }

    /// A number that nothing else of the engine has.
    pub(crate) fn fresh_number(&self) -> u64 {
        self.lock().new_id()
    }

    /// The context's sticky error.
    pub(crate) fn context_error(&self, context: u64) -> Option<Sticky> {
        self.lock().contexts.get(&context)?.failed
    }

    /// Creates a stream.
    pub(crate) fn create_stream(&self, context: u64, kind: StreamKind) -> Result<u64> {
        let mut state = self.lock();
        let id = state.new_id();
        let owner = state.contexts.get_mut(&context).ok_or(DeviceError::WrongState)?;
        match kind {
            StreamKind::Blocking => owner.blocking.push(id),
            _ => owner.others.push(id),
        }
        state.streams.insert(id, Stream::new(context, kind));
        Ok(id)
    }

    /// Destroys a stream once its work is done; returns at once.
    pub(crate) fn destroy_stream(&self, id: u64) {
        let mut state = self.lock();
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.is_destroyed = true;
        }
        self.pump(&mut state, id);
    }

    /// Appends an operation to a stream.
    pub(crate) fn enqueue(&self, stream: u64, op: Op) -> Result<()> {
        let mut state = self.lock();
        self.enqueue_locked(&mut state, stream, op)
    }

    /// Appends several operations that nothing of another thread comes between.
    pub(crate) fn enqueue_all(&self, stream: u64, ops: Vec<Op>) -> Result<()> {
        self.enqueue_plan(ops.into_iter().map(|op| (stream, op)).collect())
    }

    /// The same for several streams.
    pub(crate) fn enqueue_plan(&self, plan: Vec<(u64, Op)>) -> Result<()> {
        let mut state = self.lock();
        for (stream, op) in plan {
            self.enqueue_locked(&mut state, stream, op)?;
        }
        Ok(())
    }

    fn enqueue_locked(&self, state: &mut State, stream: u64, op: Op) -> Result<()> {
        let queue = state.streams.get(&stream).ok_or(DeviceError::WrongState)?;
        let context = state.contexts.get_mut(&queue.context).ok_or(DeviceError::WrongState)?;
        if let Some(sticky) = context.failed {
            return Err(DeviceError::Failed(sticky));
        }
        let number = context.next_number;
        context.next_number += 1;
        if let Some(queue) = state.streams.get_mut(&stream) {
            queue.queue.push_back(Queued { number, op });
            if queue.queue.len() == 1 {
                self.pump(state, stream);
            }
        }
        Ok(())
    }

    /// Does `work` on the calling thread at the stream's turn; for synchronous calls.
    pub(crate) fn run_on_caller<T>(&self, stream: u64, work: impl FnOnce() -> T) -> Result<T> {
        let gate = Arc::new(Gate::default());
        let mut state = self.lock();
        self.enqueue_locked(&mut state, stream, Op::Caller(gate.clone()))?;
        loop {
            match gate.get() {
                GateState::Open => break,
                GateState::Failed(sticky) => return Err(DeviceError::Failed(sticky)),
                GateState::Closed => state = self.wait_done(state),
            }
        }
        drop(state);
        // Completes the operation even if `work` unwinds.
        let _completion = Completion { engine: self, stream };
        Ok(work())
    }

    /// Whether everything enqueued so far on the stream is done.
    pub(crate) fn query_stream(&self, stream: u64) -> Result<bool> {
        let state = self.lock();
        let queue = state.streams.get(&stream).ok_or(DeviceError::WrongState)?;
        let context = state.contexts.get(&queue.context).ok_or(DeviceError::WrongState)?;
        if let Some(sticky) = context.failed {
            return Err(DeviceError::Failed(sticky));
        }
        Ok(queue.queue.is_empty())
    }

    /// Waits until everything enqueued so far on the stream is done.
    pub(crate) fn synchronize_stream(&self, stream: u64) -> Result<()> {
        let mut state = self.lock();
        let queue = state.streams.get(&stream).ok_or(DeviceError::WrongState)?;
        let (context, kind) = (queue.context, queue.kind);
        if kind == StreamKind::Legacy {
            // Blocking streams' earlier work counts as the legacy stream's own.
            return self.synchronize(state, context, |context, id| {
                id == context.legacy || context.blocking.contains(&id)
            });
        }
        let last = queue.queue.back().map_or(0, |queued| queued.number);
        loop {
            if let Some(sticky) =
                state.contexts.get(&context).map_or(Some(Sticky::ContextDestroyed), |c| c.failed)
            {
                return Err(DeviceError::Failed(sticky));
            }
            let front = state
                .streams
                .get(&stream)
                .and_then(|s| s.queue.front())
                .map(|queued| queued.number);
            if front.is_none_or(|number| number > last) {
                return Ok(());
            }
            state = self.wait_done(state);
        }
    }

    /// Waits until everything enqueued so far in the context is done.
    pub(crate) fn synchronize_context(&self, context: u64) -> Result<()> {
        self.synchronize(self.lock(), context, |_, _| true)
    }

    fn synchronize(
        &self,
        mut state: MutexGuard<'_, State>,
        id: u64,
        concerns: impl Fn(&Context, u64) -> bool,
    ) -> Result<()> {
        let before = state.contexts.get(&id).ok_or(DeviceError::WrongState)?.next_number;
        loop {
            let context =
                state.contexts.get(&id).ok_or(DeviceError::Failed(Sticky::ContextDestroyed))?;
            if let Some(sticky) = context.failed {
                return Err(DeviceError::Failed(sticky));
            }
            let is_pending = {
                let mut streams =
                    context.blocking.iter().chain(&context.others).chain([&context.legacy]);
                streams.any(|&stream| {
                    let front = state.streams.get(&stream).and_then(|s| s.queue.front());
                    concerns(context, stream) && front.is_some_and(|queued| queued.number < before)
                })
            };
            if !is_pending {
                return Ok(());
            }
            state = self.wait_done(state);
        }
    }

    /// Waits until a marker is resolved.
    pub(crate) fn wait_marker(&self, marker: &Marker) -> MarkerState {
        let mut state = self.lock();
        loop {
            match marker.state() {
                MarkerState::Pending => state = self.wait_done(state),
                resolved => return resolved,
            }
        }
    }

    fn wait_done<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.done.wait_timeout(state, RECHECK).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The head of stream `id` is done once `plan` is: its operations of this stream take the
    /// head's place, those of others follow what these have.
    pub(crate) fn continue_with(&self, state: &mut State, id: u64, plan: Vec<(u64, Op)>) {
        let (own, others): (Vec<_>, Vec<_>) = plan.into_iter().partition(|(to, _)| *to == id);
        if let Some(stream) = state.streams.get_mut(&id)
            && let Some(head) = stream.queue.pop_front()
        {
            stream.is_busy = false;
            for (_, op) in own.into_iter().rev() {
                stream.queue.push_front(Queued { number: head.number, op });
            }
        }
        for (to, op) in others {
            // Refused by a failed context alone, which ends the stream's own part, too.
            let _ = self.enqueue_locked(state, to, op);
        }
        self.pump(state, id);
        for dependant in state.dependants(id) {
            self.pump(state, dependant);
        }
        self.done.notify_all();
    }

    /// The head of the stream is done: goes on with it and with whoever waited for it.
    pub(crate) fn complete(&self, state: &mut State, id: u64) {
        if let Some(stream) = state.streams.get_mut(&id) {
            stream.queue.pop_front();
            stream.is_busy = false;
        }
        self.pump(state, id);
        for dependant in state.dependants(id) {
            self.pump(state, dependant);
        }
        self.done.notify_all();
    }

    /// Starts what can start on a stream, and on streams that this lets go on.
    pub(crate) fn pump(&self, state: &mut State, first: u64) {
        let mut again = vec![first];
        while let Some(id) = again.pop() {
            while self.advance(state, id, &mut again) {}
        }
    }

    /// One step of a stream; `true`: the head completed at once, go on.
    fn advance(&self, state: &mut State, id: u64, again: &mut Vec<u64>) -> bool {
        let Some(stream) = state.streams.get(&id) else { return false };
        if stream.is_busy {
            return false;
        }
        let Some(head) = stream.queue.front() else {
            if stream.is_destroyed {
                // Asked while the stream is known: who waits for its last work is told by nobody
                // else.
                again.extend(state.dependants(id));
                state.forget_stream(id);
            }
            self.done.notify_all();
            return false;
        };
        let failed = state.contexts.get(&stream.context).and_then(|context| context.failed);
        if failed.is_none() && !state.is_turn(stream, head.number) {
            return false;
        }
        let Some(stream) = state.streams.get_mut(&id) else { return false };
        let Some(head) = stream.queue.front_mut() else { return false };
        // The operation is taken out; its place in the queue stays until it is complete.
        let op = std::mem::replace(&mut head.op, Op::Host(Box::new(|_| {})));
        if let Some(sticky) = failed {
            let is_busy = self.discard(state, id, op, sticky, again);
            if let Some(stream) = state.streams.get_mut(&id) {
                stream.is_busy = is_busy;
            }
        } else {
            match self.start(state, id, op, again) {
                Started::Complete => {}
                Started::Busy => {
                    if let Some(stream) = state.streams.get_mut(&id) {
                        stream.is_busy = true;
                    }
                }
                Started::Waiting(op) => {
                    if let Some(head) = state.streams.get_mut(&id).and_then(|s| s.queue.front_mut())
                    {
                        head.op = op;
                    }
                    return false;
                }
            }
        }
        let Some(stream) = state.streams.get_mut(&id) else { return false };
        if stream.is_busy {
            return false;
        }
        stream.queue.pop_front();
        again.extend(state.dependants(id));
        self.done.notify_all();
        true
    }
}

/// What starting an operation came to.
pub(crate) enum Started {
    Complete,
    /// Somebody does it and calls [`Engine::complete`].
    Busy,
    /// It cannot start yet; it is handed back and looked at again later.
    Waiting(Op),
}

struct Completion<'a> {
    engine: &'a Engine,
    stream: u64,
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        let mut state = self.engine.lock();
        self.engine.complete(&mut state, self.stream);
    }
}

impl Stream {
    fn new(context: u64, kind: StreamKind) -> Self {
        Stream { context, kind, queue: VecDeque::new(), is_busy: false, is_destroyed: false }
    }
}

impl State {
    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Whether the implicit order with the legacy stream lets an operation start.
    fn is_turn(&self, stream: &Stream, number: u64) -> bool {
        let Some(context) = self.contexts.get(&stream.context) else { return true };
        let is_clear = |id: &u64| {
            let front = self.streams.get(id).and_then(|other| other.queue.front());
            front.is_none_or(|queued| queued.number > number)
        };
        match stream.kind {
            StreamKind::NonBlocking => true,
            StreamKind::Blocking => is_clear(&context.legacy),
            StreamKind::Legacy => context.blocking.iter().all(is_clear),
        }
    }

    /// Streams whose turn may come when stream `id` has completed an operation.
    fn dependants(&self, id: u64) -> Vec<u64> {
        let Some(stream) = self.streams.get(&id) else { return Vec::new() };
        let Some(context) = self.contexts.get(&stream.context) else { return Vec::new() };
        match stream.kind {
            StreamKind::NonBlocking => Vec::new(),
            StreamKind::Blocking => vec![context.legacy],
            StreamKind::Legacy => context.blocking.clone(),
        }
    }

    fn forget_stream(&mut self, id: u64) {
        let Some(stream) = self.streams.remove(&id) else { return };
        if let Some(context) = self.contexts.get_mut(&stream.context) {
            context.blocking.retain(|other| *other != id);
            context.others.retain(|other| *other != id);
        }
    }

    pub(crate) fn context_of(&self, stream: u64) -> Option<u64> {
        self.streams.get(&stream).map(|found| found.context)
    }

    /// Sets the sticky error; `false` when there is one already or no such context.
    pub(crate) fn set_failed(&mut self, context: u64, sticky: Sticky) -> bool {
        match self.contexts.get_mut(&context) {
            Some(found) if found.failed.is_none() => {
                found.failed = Some(sticky);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_failed(&self, context: u64) -> bool {
        self.contexts.get(&context).is_none_or(|found| found.failed.is_some())
    }

    /// Takes the head off a stream that nobody is busy with any more.
    pub(crate) fn end_head(&mut self, stream: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.queue.pop_front();
            found.is_busy = false;
        }
    }

    pub(crate) fn streams_of(&self, context: u64) -> Vec<u64> {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(id, _)| *id)
            .collect()
    }
}
