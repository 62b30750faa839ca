//! Host functions in streams (`cuLaunchHostFunc`, `cuStreamAddCallback`).
//!
//! They run on a thread of this process, in stream order. The stream's earlier work signals its end in the completion word, as for any wait; its later
//! work is held by a `StreamWaitValue` on a *gate*, a word of memory shared with the executor that is raised when the function has
//! returned. One thread serves all streams of a device and runs whatever is ready, so that one stream's function never waits for another's.

use crate::backend::Backend;
use crate::current;
use crate::host_heap::Region;
use crate::session::Result;
use crate::slots::Mark;
use crate::stream::Target;
use cuda_abi::types::CUresult;
use link::wire::command::{Opcode, REGION_PINNED, StreamWriteValue};
use link::wire::layout::STREAM_SLOTS;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What is called: with success, or with the error that the session has failed with.
pub(crate) type HostFunction = Box<dyn FnOnce(Result) + Send>;

const GATE_BYTES: u64 = 8;
/// Bound of an idle thread's sleep; nothing depends on its length.
const IDLE: Duration = Duration::from_secs(60);
/// How long to wait for one stream before looking at the others.
const LOOK_AROUND: Duration = Duration::from_millis(2);

/// See the module's description.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
    /// One gate per stream slot; also says that the thread runs.
    gates: Option<Region>,
    /// How often each slot's gate was used.
    uses: BTreeMap<u32, u64>,
    queues: BTreeMap<u32, VecDeque<Job>>,
}

struct Job {
    context: u32,
    /// The stream's work before the function.
    ready: Mark,
    gate: Gate,
    function: HostFunction,
}

#[derive(Clone, Copy)]
struct Gate {
    address: u64,
    value: u64,
}

impl Gate {
    /// Lets the stream's later work go.
    fn raise(self) {
        // SAFETY: the gate lies in a region that is never unmapped, is aligned, and is written as a whole word by both sides.
        let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
        // Release: the device's wait on this word sees what the host function wrote.
        word.store(self.value, Ordering::Release);
    }
}

impl Callbacks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has `function` called after the stream's earlier work and before its later.
    pub(crate) fn enqueue(&self, target: &Target, function: HostFunction) -> Result {
        let mut state = self.lock();
        let gates = self.start(&mut state, target.backend, target.id)?;
        let ready = target.backend.session.mark(target.id, target.slot)?;
        let uses = state.uses.entry(target.slot).or_default();
        *uses += 1;
        let gate = Gate { address: gates + u64::from(target.slot) * GATE_BYTES, value: *uses };
        let body = StreamWriteValue {
            stream: target.slot,
            value_bytes: 8,
            address: gate.address,
            value: gate.value,
            // At least: gates only grow.
            flags: 0,
            reserved: 0,
        };
        target.post(Opcode::StreamWaitValue, &body)?;
        let job = Job { context: target.id, ready, gate, function };
        state.queues.entry(target.slot).or_default().push_back(job);
        drop(state);
        self.added.notify_one();
        Ok(())
    }

    /// The gates' address; makes them, and the thread, on first use.
    fn start(&self, state: &mut State, backend: &'static Backend, context: u32) -> Result<u64> {
        if let Some(region) = &state.gates {
            return Ok(region.address);
        }
        let size_bytes = STREAM_SLOTS as u64 * GATE_BYTES;
        let region = backend.host_heap.create_region(
            &backend.session,
            context,
            size_bytes,
            REGION_PINNED,
        )?;
        let started =
            crate::thread::spawn("openmps-callback", move || backend.callbacks.serve(backend));
        started.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        Ok(state.gates.insert(region).address)
    }

    fn serve(&self, backend: &'static Backend) {
        loop {
            let job = self.next(backend);
            let outcome = backend.session.check();
            current::run_callback(|| (job.function)(outcome));
            job.gate.raise();
            // Asks for the stream's next signal, which also makes the executor look at the gate.
            let _ = backend.session.mark(job.context, job.ready.slot);
        }
    }

    /// Waits for a function that may run, oldest of its stream first.
    fn next(&self, backend: &Backend) -> Job {
        let mut state = self.lock();
        loop {
            let failed = backend.session.check().is_err();
            let ready = |jobs: &VecDeque<Job>| {
                jobs.front().is_some_and(|job| failed || backend.session.is_complete(job.ready))
            };
            if let Some(jobs) = state.queues.values_mut().find(|jobs| ready(jobs))
                && let Some(job) = jobs.pop_front()
            {
                return job;
            }
            state.queues.retain(|_, jobs| !jobs.is_empty());
            let waited_for =
                state.queues.values().next().and_then(|jobs| jobs.front()).map(|job| job.ready);
            state = match waited_for {
                None => self.added.wait_timeout(state, IDLE).unwrap_or_else(|e| e.into_inner()).0,
                Some(mark) => {
                    drop(state);
                    // What came of it is looked at above.
                    let _ = backend.session.wait_briefly(mark, LOOK_AROUND);
                    self.lock()
                }
            };
        }
    }
}
