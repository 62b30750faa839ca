//! Host functions in streams (`cuLaunchHostFunc`, `cuStreamAddCallback`).
//!
//! They run on a thread of this process, in stream order: the stream's earlier work signals its end
//! in the completion word, as for any wait, and its later work is held by a
//! [gate](crate::stream::gates). One thread serves all streams of a device and runs whatever is
//! ready, so that one stream's function never waits for another's.

use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use crate::stream::gates::Ordered;
use crate::thread::callback;
use cuda_abi::types::CUresult;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// Streams whose jobs post more work of the launch that they are part of.
    continuing: BTreeSet<u32>,
}

/// Where a job goes in its stream's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// After what was enqueued before.
    Last,
    /// Before it: the job continues the one that runs.
    Next,
}

/// A stream, for a thread that has no call of the program's at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    /// The executor's number of the context.
    pub(crate) id: u32,
    pub(crate) slot: u32,
    pub(crate) ordered: Ordered,
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
    pub(crate) fn enqueue(
        &'static self,
        session: &'static Session,
        lane: Lane,
        function: HostFunction,
    ) -> Result {
        self.put(session, lane, Turn::Last, function).map(drop)
    }

    /// Has `function` called in its turn; it posts the rest of a launch, then calls
    /// [`Self::settle`].
    pub(crate) fn continue_after(
        &'static self,
        session: &'static Session,
        lane: Lane,
        turn: Turn,
        function: HostFunction,
    ) -> Result {
        self.put(session, lane, turn, function)?.continuing.insert(lane.slot);
        Ok(())
    }

    /// All of a launch has been posted: jobs enqueued meanwhile come after it.
    pub(crate) fn settle(&self, session: &Session, lane: Lane) -> Result {
        let mut state = self.lock();
        state.continuing.remove(&lane.slot);
        let ready = session.mark(lane.id, lane.slot)?;
        for job in state.queues.get_mut(&lane.slot).into_iter().flatten() {
            job.ready = ready;
        }
        Ok(())
    }

    /// Waits until all of the launches in a stream has been posted.
    pub(crate) fn await_continuation(&self, session: &Session, slot: u32) -> Result {
        while self.lock().continuing.contains(&slot) {
            session.check()?;
            std::thread::sleep(LOOK_AROUND);
        }
        Ok(())
    }

    fn put(
        &'static self,
        session: &'static Session,
        lane: Lane,
        turn: Turn,
        function: HostFunction,
    ) -> Result<MutexGuard<'static, State>> {
        let mut state = self.lock();
        if state.thread == Thread::None {
            let started = crate::thread::spawn("openmps-callback", move || self.serve(session));
            started.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
            state.thread = Thread::Running;
        }
        let ready = session.mark(lane.id, lane.slot)?;
        session.gates().raise(lane.slot, lane.ordered);
        let queue = state.queues.entry(lane.slot).or_default();
        match turn {
            Turn::Last => queue.push_back(Job { ready, function }),
            Turn::Next => queue.push_front(Job { ready, function }),
        }
        self.added.notify_one();
        Ok(state)
    }

    fn serve(&self, session: &Session) {
        loop {
            let Job { ready, function } = self.next(session);
            // The function may look at what the work before it has written.
            let outcome = session.settle().and_then(|()| session.check());
            callback::run(|| function(outcome));
            session.gates().lower(ready.slot);
        }
    }

    /// Waits for a function that may run, oldest of its stream first.
    fn next(&self, session: &Session) -> Job {
        let mut state = self.lock();
        loop {
            let failed = session.check().is_err();
            let ready = |jobs: &VecDeque<Job>| {
                jobs.front().is_some_and(|job| failed || session.is_complete(job.ready))
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
                    let _ = session.wait_briefly(mark, LOOK_AROUND);
                    self.lock()
                }
            };
        }
    }
}
