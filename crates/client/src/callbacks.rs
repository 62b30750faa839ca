//! Host functions in streams (`cuLaunchHostFunc`, `cuStreamAddCallback`).
//!
//! They run on a thread of this process, in stream order: the stream's earlier work signals its end in the completion word, as for any wait, and its
//! later work is held by a [gate](crate::gates). One thread serves all streams of a device and runs whatever is ready, so that one
//! stream's function never waits for another's.

use crate::backend::Backend;
use crate::current;
use crate::session::Result;
use crate::slots::Mark;
use crate::stream::Target;
use cuda_abi::types::CUresult;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What is called: with success, or with the error that the session has failed with.
pub(crate) type HostFunction = Box<dyn FnOnce(Result) + Send>;

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
    thread: Thread,
    queues: BTreeMap<u32, VecDeque<Job>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Thread {
    #[default]
    None,
    Running,
}

struct Job {
    /// The stream's work before the function.
    ready: Mark,
    function: HostFunction,
}

impl Callbacks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has `function` called after the stream's earlier work and before its later.
    pub(crate) fn enqueue(&self, target: &Target, function: HostFunction) -> Result {
        let mut state = self.lock();
        let backend = target.backend;
        if state.thread == Thread::None {
            let started =
                crate::thread::spawn("openmps-callback", move || backend.callbacks.serve(backend));
            started.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
            state.thread = Thread::Running;
        }
        let ready = backend.session.mark(target.id, target.slot)?;
        backend.session.gates().raise(target.slot, target.ordered());
        state.queues.entry(target.slot).or_default().push_back(Job { ready, function });
        drop(state);
        self.added.notify_one();
        Ok(())
    }

    fn serve(&self, backend: &'static Backend) {
        loop {
            let Job { ready, function } = self.next(backend);
            let outcome = backend.session.check();
            current::run_callback(|| function(outcome));
            backend.session.gates().lower(ready.slot);
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
