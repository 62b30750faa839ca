//! The monitor thread: wakes clients that sleep for a completion, and finds out when the context is
//! lost.
//!
//! A device's write wakes nobody, so while any client sleeps this thread looks at the completion
//! words at short intervals, and asks the driver at longer ones whether the context still lives.
//! While no client sleeps it sleeps itself, and asks once a second where there is work; session
//! threads wake it. Where more clients are busy than there are cores it tells them so, and looks
//! all the time: then they sleep instead of spinning, without telling anybody.

use crate::Shared;
use crate::session::session_handle::SessionHandle;
use cuda_abi::types::{CUresult, CUstream};
use executor_link::log::log_server;
use executor_link::messages::FromExecutor;
use link::atomic::Ordering;
use link::bus_error;
use link::session_memory::SessionMemory;
use link::spin::Cores;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

const POLL_SHORTEST: Duration = Duration::from_micros(20);
const POLL_LONGEST: Duration = Duration::from_micros(500);
/// What has taken a time so far is looked at again after this part of it: whoever waits long is
/// woken late by 3 per cent at most, and a millisecond's wait costs some hundred looks.
const POLLS_PER_WAIT: u32 = 32;
/// In a crowd, where nobody sleeps: who begins to does not say so.
const POLL_CROWDED: Duration = Duration::from_micros(50);
const ASK_DRIVER: Duration = Duration::from_millis(5);
const HEARTBEAT: Duration = Duration::from_secs(1);

const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1000);

/// The sessions that are watched.
type Watched = Arc<Mutex<Vec<Weak<SessionHandle>>>>;

/// Starts watching, and wakes the monitor.
pub(crate) struct Monitor {
    watched: Watched,
    waker: Waker,
}

/// Wakes the monitor: somebody sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    thread: Thread,
    /// The monitor sleeps until it is woken, or is about to.
    parked: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// The same where it is needed: between two commands a session's thread asks for no more than
    /// that costs.
    pub(crate) fn wake_if_parked(&self) {
        // SeqCst: partner of the store before the monitor's last look; the sleeper that the caller
        // has seen is seen there, or this sees the store.
        if self.parked.load(Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Monitor {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, String> {
        let (watched, parked) = (Watched::default(), Arc::<AtomicBool>::default());
        let watch = Watch {
            shared,
            watched: Arc::clone(&watched),
            parked: Arc::clone(&parked),
            sessions: Vec::new(),
            has_ended: false,
            cores: Cores::Spare,
            reported_lost: false,
            bus_errors: 0,
        };
        let thread = std::thread::Builder::new().name("monitor".into());
        let thread = thread
            .spawn(move || watch.run())
            .map_err(|error| format!("cannot start the monitor: {error}"))?;
        Ok(Self { watched, waker: Waker { thread: thread.thread().clone(), parked } })
    }

    pub(crate) fn watch(&self, session: Arc<SessionHandle>) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&session));
        self.waker.wake();
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Lets this thread's sleeps end on time: Linux may end any sleep 50 us late, which is longer than
/// most sleeps of the executor's threads.
pub(crate) fn sleep_exactly() {
    // Where it is refused, sleeps are just that: longer.
    let _ = set_current_timer_slack(TIMER_SLACK_NS);
}

/// How long to sleep when nothing has happened for this long.
fn poll_after(waited: Duration) -> Duration {
    (waited / POLLS_PER_WAIT).clamp(POLL_SHORTEST, POLL_LONGEST)
}

struct Seen {
    session: Weak<SessionHandle>,
    /// The session's, which its client reads as well: a look at who does not sleep touches nothing
    /// else.
    memory: Arc<SessionMemory>,
    progress: u64,
}

/// What one look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    NobodySleeps,
    NoProgress,
    Progress,
}

struct Watch {
    shared: Arc<Shared>,
    watched: Watched,
    /// See [`Waker`].
    parked: Arc<AtomicBool>,
    sessions: Vec<Seen>,
    /// Some of them may have ended.
    has_ended: bool,
    /// What the clients were told.
    cores: Cores,
    reported_lost: bool,
    /// How often clients' memory had failed when it was last looked at.
    bus_errors: usize,
}

impl Watch {
    fn run(mut self) {
        sleep_exactly();
        if let Err(code) = self.shared.context.make_current() {
            log_server!("The monitor has no context: {code}");
        }
        let stream = self.shared.context.new_stream(0).unwrap_or(CUstream::NULL);
        let (mut progressed, mut asked, mut beaten) =
            (Instant::now(), Instant::now(), Instant::now());
        loop {
            self.take_new();
            self.tell_of_cores();
            let look = self.look();
            let now = Instant::now();
            // Where nobody sleeps a fault may still keep others waiting: a stream of another
            // device, a thread that looks at memory.
            let is_due = match look {
                Look::NobodySleeps => self.shared.flights.busy() > 0 && now - asked >= HEARTBEAT,
                _ => now - asked >= ASK_DRIVER,
            };
            if is_due {
                asked = now;
                // SAFETY: the monitor's own stream.
                let _ = self.shared.context.check(
                    match unsafe { self.shared.context.driver().cuStreamQuery(stream) } {
                        CUresult::ERROR_NOT_READY => CUresult::SUCCESS,
                        other => other,
                    },
                );
            }
            self.report_loss();
            self.end_lost_sessions();
            if now - beaten >= HEARTBEAT {
                beaten = now;
                self.has_ended = true;
                self.for_each(|session| {
                    session.memory.shared().heartbeat.0.fetch_add(1, Ordering::Relaxed);
                });
            }
            match look {
                Look::NobodySleeps if self.cores == Cores::Wanted => {
                    progressed = now;
                    std::thread::sleep(POLL_CROWDED);
                }
                Look::NobodySleeps => {
                    self.parked.store(true, Ordering::SeqCst);
                    if self.look() == Look::NobodySleeps {
                        std::thread::park_timeout(HEARTBEAT);
                    }
                    self.parked.store(false, Ordering::SeqCst);
                    self.has_ended = true;
                    progressed = Instant::now();
                }
                Look::Progress => {
                    progressed = now;
                    std::thread::sleep(POLL_SHORTEST);
                }
                Look::NoProgress => std::thread::sleep(poll_after(now - progressed)),
            }
        }
    }

    /// Ends the sessions whose memory could not be touched: what was read there were zeros.
    fn end_lost_sessions(&mut self) {
        let failures = bus_error::failures();
        if std::mem::replace(&mut self.bus_errors, failures) == failures {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.for_each(|session| {
            if session.has_lost_memory() && session.ended().is_none() {
                session.end(CUresult::ERROR_MPS_RPC_FAILURE.0);
                let message = "its memory cannot be touched (SIGBUS)".to_owned();
                shared.tell(&FromExecutor::SessionBroken { session: session.id, message });
            }
        });
    }

    fn take_new(&mut self) {
        let mut new = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for session in new.drain(..) {
            let Some(handle) = session.upgrade() else { continue };
            let memory = Arc::clone(&handle.memory);
            // Another executor may have said something else.
            memory.set_cores(self.cores);
            self.sessions.push(Seen { session, memory, progress: 0 });
            self.has_ended = true;
        }
        drop(new);
        if std::mem::take(&mut self.has_ended) {
            let is_here = |handle: Arc<SessionHandle>| !handle.has_left();
            self.sessions.retain(|seen| seen.session.upgrade().is_some_and(is_here));
        }
    }

    /// Tells the clients whether there are cores for threads that spin, if that has changed. Before
    /// a look: who sleeps where there are none does not say so.
    fn tell_of_cores(&mut self) {
        let cores = self.shared.flights.cores();
        if std::mem::replace(&mut self.cores, cores) != cores {
            self.for_each(|session| session.memory.set_cores(cores));
        }
    }

    fn look(&mut self) -> Look {
        let mut look = Look::NobodySleeps;
        for seen in &mut self.sessions {
            if seen.memory.sleepers() == 0 {
                continue;
            }
            let Some(session) = seen.session.upgrade() else {
                self.has_ended = true;
                continue;
            };
            if look == Look::NobodySleeps {
                look = Look::NoProgress;
            }
            let progress = session.progress();
            if progress != seen.progress {
                seen.progress = progress;
                look = Look::Progress;
                seen.memory.wake_sleepers();
            }
        }
        look
    }

    /// Tells the keeper, once, that the context is gone.
    fn report_loss(&mut self) {
        let Some(code) = self.shared.context.lost() else { return };
        if !std::mem::replace(&mut self.reported_lost, true) {
            log_server!("The context of the device was lost to {code}");
            // Before the keeper looks for a culprit.
            self.for_each(|session| session.mark_ended(&self.shared.counters));
            self.shared.tell(&FromExecutor::ContextLost { code: code.0 });
        }
    }

    fn for_each(&self, mut act: impl FnMut(&SessionHandle)) {
        self.sessions
            .iter()
            .filter_map(|seen| seen.session.upgrade())
            .filter(|session| !session.has_left())
            .for_each(|session| act(&session));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Bed, Client, Takes, take};
    use link::completion::Sleeper;
    use policy::turns::priorities::Class;

    /// What the monitor's thread would be, in the test's hands.
    fn watch(bed: &Bed) -> Watch {
        Watch {
            shared: Arc::clone(&bed.shared),
            watched: Watched::default(),
            parked: Arc::default(),
            sessions: Vec::new(),
            has_ended: false,
            cores: Cores::Spare,
            reported_lost: false,
            bus_errors: 0,
        }
    }

    fn begin(watch: &mut Watch, client: &mut Client) -> Arc<SessionHandle> {
        let handle = Arc::clone(&client.session.state().handle);
        watch.watched.lock().unwrap().push(Arc::downgrade(&handle));
        watch.take_new();
        handle
    }

    /// How often its sleepers were woken.
    fn wakes(session: &SessionHandle) -> u32 {
        session.memory.shared().wake_epoch.0.load(Ordering::SeqCst)
    }

    #[test]
    fn who_sleeps_is_woken_by_the_end_of_its_own_work_alone() {
        let bed = Bed::new();
        let mut watch = watch(&bed);
        let mut clients: Vec<Client> = (0..3).map(|_| bed.open()).collect();
        let sessions: Vec<_> = clients.iter_mut().map(|client| begin(&mut watch, client)).collect();
        assert_eq!(watch.look(), Look::NobodySleeps);
        let _sleepers =
            [&sessions[0], &sessions[1]].map(|session| Sleeper::register(&session.memory));
        assert_eq!(watch.look(), Look::NoProgress);
        take(Takes { between_events_ms: 0.001, launch: Duration::ZERO });
        for client in &mut clients[1..] {
            client.post_launch();
            client.post_signal(1);
            client.serve();
        }
        assert_eq!(watch.look(), Look::Progress);
        assert_eq!(sessions.iter().map(|session| wakes(session)).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(watch.look(), Look::NoProgress, "they were woken");
    }

    #[test]
    fn all_are_told_that_cores_are_wanted_and_that_they_are_not() {
        let bed = Bed::new();
        let mut watch = watch(&bed);
        let mut clients: Vec<Client> = (0..3).map(|_| bed.open()).collect();
        let early = begin(&mut watch, &mut clients[0]);
        let flights = &bed.shared.flights;
        let crowd: Vec<_> = (0..=link::spin::cores())
            .map(|_| flights.open(Arc::clone(&early.memory), Class::Throughput))
            .collect();
        crowd.iter().for_each(|flight| flights.set_busy(flight));
        watch.tell_of_cores();
        let late = begin(&mut watch, &mut clients[1]);
        assert_eq!([&early, &late].map(|session| session.memory.cores()), [Cores::Wanted; 2]);
        flights.close(&crowd[0]);
        watch.tell_of_cores();
        assert_eq!([&early, &late].map(|session| session.memory.cores()), [Cores::Spare; 2]);
        // What another executor has said counts no more.
        clients[2].session.state().handle.memory.set_cores(Cores::Wanted);
        let inherited = begin(&mut watch, &mut clients[2]);
        assert_eq!(inherited.memory.cores(), Cores::Spare);
    }

    #[test]
    fn looks_become_rarer_in_proportion_to_the_wait() {
        assert_eq!(poll_after(Duration::ZERO), POLL_SHORTEST);
        assert_eq!(poll_after(Duration::from_millis(1)), Duration::from_nanos(31_250));
        assert_eq!(poll_after(Duration::from_secs(1)), POLL_LONGEST);
    }
}
