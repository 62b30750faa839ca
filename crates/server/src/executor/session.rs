//! A session: the shared memory, the thread, and what other threads may ask of it.

use super::Shared;
use super::allowance::Allowance;
use super::batch::{Admission, Refused};
use super::charges::SESSION_BYTES;
use super::failure::Failure;
use super::guard::Guard;
use super::holding::Deferred;
use super::kept::Kept;
use super::memory::Memory;
use super::module::Modules;
use super::monitor::{Monitor, Waker, sleep_exactly};
use super::moving::MoveOrders;
use super::nearness::{Nearness, signal_of};
use super::pacing::{Pacing, is_paced};
use super::partition::Partition;
use super::recording::Records;
use super::replay::{Estate, Past};
use super::resharing::{Mail, Mailbox, Mover};
use super::state::{Awaited, Outcome, State};
use super::stream::Streams;
use crate::counters::{CounterPage, monotonic_ns};
use crate::executor_link::{FromExecutor, GrantOutcome, MoveOrder, OpenSession, Origin, ShareWish};
use crate::journal::Journal;
use crate::log::log_server;
use crate::standing::Standing;
use cuda_abi::types::CUresult;
use link::call;
use link::completion::CompletionWords;
use link::ring::{Command, Consumer, RingError, Waited};
use link::session_memory::SessionMemory;
use link::socket::Connection;
use link::wire::command::{Header, NO_CALL, Opcode, Signal};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest sleep of an idle session thread.
const IDLE: Duration = Duration::from_secs(1);
/// Between two questions to the driver while a client waits for a stream's end.
const SYNCHRONIZE_POLL: Duration = Duration::from_micros(50);
/// Between two looks at whether a pausing session's work has ended.
const PAUSE_POLL: Duration = Duration::from_micros(200);

/// Memory that the keeper sent.
pub(crate) struct DeliveredGrant {
    pub(crate) outcome: GrantOutcome,
    pub(crate) memory: Option<OwnedFd>,
}

/// Failed commands of one session that the log tells of: a client that goes on and on must not fill the disk.
const MOST_LOGGED_FAILURES: u32 = 32;

/// What other threads know of a session.
pub(crate) struct SessionHandle {
    pub(crate) id: u64,
    pub(crate) label: String,
    /// Its place in the counters' page.
    pub(super) counter_slot: usize,
    pub(crate) memory: Arc<SessionMemory>,
    pub(crate) words: CompletionWords,
    /// The device memory that it may hold.
    pub(crate) allowance: Arc<Allowance>,
    /// What other threads have for the session's.
    pub(super) mailbox: Mailbox,
    /// Where its work runs; `None`: on the whole device.
    pub(super) share: Mutex<Option<Arc<Partition>>>,
    stop: AtomicBool,
    /// The `CUresult` that answers everything, 0 while the session serves.
    ended: AtomicU32,
    streams: AtomicU32,
    /// A weight that the client is to have from now on, 0: none that it has not.
    new_weight: Arc<AtomicU32>,
    grants: Sender<DeliveredGrant>,
    pub(super) moves: MoveOrders,
    pub(super) kept: Kept,
}

impl SessionHandle {
    /// Ends the session thread, after the command in its hands.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.memory.wake_consumer();
    }

    /// From now on every command gets `code` for an answer and nothing is done.
    pub(crate) fn end(&self, code: u32) {
        self.ended.store(code, Ordering::SeqCst);
        self.memory.fail(code);
    }

    /// From now on the client's share of a device that others want goes by this weight.
    pub(crate) fn weigh(&self, weight: u32) {
        // Relaxed: the number is all that there is.
        self.new_weight.store(weight, Ordering::Relaxed);
    }

    pub(super) fn ended(&self) -> Option<CUresult> {
        match self.ended.load(Ordering::SeqCst) {
            0 => None,
            code => Some(CUresult(code)),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Hands the keeper's answer to the session thread; one that nobody waits for is dropped, descriptor and all.
    pub(crate) fn deliver_grant(&self, outcome: GrantOutcome, memory: Option<OwnedFd>) {
        let _ = self.grants.send(DeliveredGrant { outcome, memory });
    }

    /// Tells the session thread what to move out, when it comes to it.
    pub(crate) fn order_move(&self, order: MoveOrder) {
        self.moves.give(order);
        self.memory.wake_consumer();
    }

    /// Puts something into the session's mailbox.
    pub(super) fn deliver(&self, mail: Mail) {
        self.mailbox.put(mail);
        self.memory.wake_consumer();
    }

    /// Marks which of its last calls have ended, as far as the device has said.
    pub(super) fn mark_ended(&self, counters: &CounterPage) {
        counters.history(self.counter_slot).mark_ended(|slot| self.words.completed(slot));
    }

    /// Says how many stream slots are in use, for the monitor.
    pub(crate) fn note_streams(&self, slots: usize) {
        self.streams.fetch_max(slots as u32, Ordering::Relaxed);
    }

    /// A number that changes when any completion word does: the words only grow.
    pub(crate) fn progress(&self) -> u64 {
        let slots = self.streams.load(Ordering::Relaxed);
        (0..slots).fold(0, |sum: u64, slot| sum.wrapping_add(self.words.completed(slot)))
    }
}

/// What comes with a session from the keeper, which has all of it, too.
pub(crate) struct SessionFiles(Vec<OwnedFd>);

impl SessionFiles {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors)
    }
}

/// Makes a session and starts its thread.
pub(crate) fn open(
    shared: &Arc<Shared>,
    monitor: &Monitor,
    mover: &Arc<Mover>,
    wanted: OpenSession,
    files: SessionFiles,
    estate: Estate,
) -> Result<Arc<SessionHandle>, (CUresult, String)> {
    if let Some(code) = shared.context.lost() {
        return Err((
            CUresult::ERROR_MPS_SERVER_NOT_READY,
            format!("the device's context was lost to {code}"),
        ));
    }
    let no_memory =
        |error: &dyn std::fmt::Display| (CUresult::ERROR_OUT_OF_MEMORY, error.to_string());
    let Ok([session_file, completion_file, socket, standing_file, journal_file]) =
        <[OwnedFd; 5]>::try_from(files.0)
    else {
        return Err(no_memory(&"the files of a session did not all come"));
    };
    let memory =
        Arc::new(SessionMemory::map(session_file.as_fd()).map_err(|error| no_memory(&error))?);
    let words = CompletionWords::map_writable(completion_file.as_fd())
        .map_err(|error| no_memory(&error))?;
    let socket = Connection::from_socket(socket).map_err(|error| no_memory(&error))?;
    let standing = Standing::map(standing_file.as_fd()).map_err(|error| no_memory(&error))?;
    let committed = standing.committed_bytes();
    let (journal, entries) =
        Journal::open(journal_file.as_fd(), committed).map_err(|error| no_memory(&error))?;
    let Estate { grants: inherited, files } = estate;
    let (sender, grants) = channel();
    let group = wanted.group.as_ref();
    let group = group.map(|group| shared.group_memory.join(&group.name, group.memory_limit_bytes));
    let allowance = Arc::new(Allowance::new(wanted.memory_limit_bytes, group));
    let handle = Arc::new(SessionHandle {
        id: wanted.session,
        label: wanted.label.clone(),
        counter_slot: wanted.counter_slot,
        memory: Arc::clone(&memory),
        words,
        allowance: Arc::clone(&allowance),
        mailbox: Mailbox::default(),
        share: Mutex::default(),
        stop: AtomicBool::new(false),
        ended: AtomicU32::new(0),
        streams: AtomicU32::new(0),
        new_weight: Default::default(),
        grants: sender,
        moves: MoveOrders::default(),
        kept: Kept::default(),
    });
    // Before anything is taken from the driver, which the thread gives back at its end.
    let (give, take) = sync_channel::<Session>(1);
    let thread = std::thread::Builder::new().name(format!("session {}", wanted.session));
    let run = move || take.recv().map_or((), Session::run);
    thread.spawn(run).map_err(|error| no_memory(&error))?;
    let memory =
        Memory::reserve(&shared.context, &wanted, &handle.words, socket, grants, allowance)?;
    handle.allowance.hold(SESSION_BYTES);
    let streams = Streams::new(standing.clone());
    shared.gate.join(streams.lane());
    let state = State {
        shared: Arc::clone(shared),
        handle: Arc::clone(&handle),
        flight: shared.flights.open(Arc::clone(&handle.memory), wanted.class),
        counter_slot: wanted.counter_slot,
        streams,
        events: Default::default(),
        graphs: Default::default(),
        batches: Default::default(),
        memory,
        modules: Modules::default(),
        virtual_memory: Default::default(),
        arrays: Default::default(),
        sharing: Default::default(),
        peers: Default::default(),
        partitions: Default::default(),
        resharing: Default::default(),
        mover: Arc::clone(mover),
        holding: Default::default(),
        moved: Default::default(),
        default_stack_bytes: shared.context.default_stack_bytes(),
        local_bytes: 0,
        side_stream: None,
        printing: Default::default(),
        meter: Default::default(),
        tracing: None,
        guard: Guard::new(wanted.guard),
        pacing: Pacing::new(wanted.claim, wanted.class, Arc::clone(&handle.new_weight)),
        standing,
        records: Records::new(journal, committed, files),
        unloaded_in_use: None,
        last_function: None,
        reply: Vec::new(),
    };
    let consumer = Consumer::resume(Arc::clone(&handle.memory), committed);
    let past = (wanted.origin == Origin::Inherited).then_some((entries, inherited));
    let session = Session {
        consumer,
        state,
        share: wanted.share,
        past,
        waker: monitor.waker(),
        failures_logged: 0,
        awaited: Vec::new(),
        is_idle: false,
        nearness: Nearness::default(),
    };
    monitor.watch(Arc::clone(&handle));
    give.send(session).map_err(|error| no_memory(&error))?;
    Ok(handle)
}

/// What belongs to the session thread alone.
struct Session {
    consumer: Consumer,
    state: State,
    /// The SMs that it is to have.
    share: ShareWish,
    /// What it had when another executor served it.
    past: Option<Past>,
    waker: Waker,
    failures_logged: u32,
    /// Calls that wait for work.
    awaited: Vec<(u16, Awaited)>,
    /// The counters say since when it has taken no command.
    is_idle: bool,
    nearness: Nearness,
}

impl Session {
    fn run(mut self) {
        sleep_exactly();
        if let Err(code) = self.state.shared.context.make_current() {
            log_server!("{} has no context: {code}", self.state.handle.label);
            self.state.handle.memory.fail(code.0);
        }
        if let Err(failure) = self.state.take_share(&self.share) {
            let label = &self.state.handle.label;
            log_server!("{label} cannot have its share of the SMs: {failure:?}");
            self.state.handle.end(CUresult::ERROR_MPS_SERVER_NOT_READY.0);
        }
        if let Some((entries, grants)) = self.past.take()
            && let Err(error) = self.state.replay(entries, grants)
        {
            self.state.give_up_replay(&error);
        }
        match self.serve() {
            Ok(()) => {}
            Err(StepError::Lost) => self.await_end(),
            Err(error) => {
                let (handle, message) = (&self.state.handle, error.to_string());
                log_server!("{} broke the protocol: {message}", handle.label);
                handle.memory.fail(CUresult::ERROR_MPS_RPC_FAILURE.0);
                let session = handle.id;
                self.state.shared.tell(&FromExecutor::SessionBroken { session, message });
            }
        }
        self.state.look_at_guard();
        let Self { state, consumer, waker, .. } = self;
        drop(consumer);
        state.tear_down();
        waker.wake();
    }

    /// The context is lost: nothing may change any more, until the keeper ends this process.
    fn await_end(&self) -> ! {
        loop {
            self.waker.wake();
            std::thread::park_timeout(IDLE);
        }
    }

    /// Takes commands until the session is stopped.
    ///
    /// # Errors
    /// What the client did wrong, or that the context is lost.
    fn serve(&mut self) -> Result<(), StepError> {
        while !self.state.handle.stopped() {
            match self.step()? {
                Step::Done => {}
                Step::Nothing => self.idle()?,
                Step::Held => self.wait_for_turn()?,
                Step::Paused => {
                    self.see_to_waiters()?;
                    std::thread::sleep(PAUSE_POLL);
                    if self.awaited.is_empty() {
                        self.state.look_whether_idle();
                    }
                }
            }
        }
        Ok(())
    }

    /// Does one command, if there is one and it may be done.
    fn step(&mut self) -> Result<Step, StepError> {
        self.check_context()?;
        self.state.look_at_guard();
        if self.state.shared.quiescing.load(Ordering::Relaxed) {
            return Ok(Step::Paused);
        }
        self.state.counters().set_queued(self.consumer.backlog_bytes());
        if self.state.handle.mailbox.has_mail() || self.state.resharing.is_active() {
            self.state.see_to_shares();
        }
        if self.release_held()? == Step::Held {
            return Ok(Step::Held);
        }
        if self.state.holding.is_full() || self.state.must_pause() {
            return self.submit_batch();
        }
        if self.state.is_bounded()
            && self.consumer.next_opcode()?.is_some_and(is_paced)
            && !self.state.may_submit()
        {
            self.submit_batch()?;
            return Ok(Step::Held);
        }
        let taken = self.consumer.taken_bytes();
        let Some(command) = self.consumer.take()? else { return self.submit_batch() };
        if self.state.is_traced() {
            self.state.note_position(taken + u64::from(command.header.size_bytes));
        }
        let header = command.header;
        self.state.standing.begin(header.opcode);
        self.state.begin_record(taken + u64::from(header.size_bytes));
        if std::mem::take(&mut self.is_idle) {
            self.state.counters().set_idle_since(None);
        }
        if self.state.ended().is_none()
            && let Err(failure) = self.state.bring_back(header.opcode)
        {
            self.state.counters().count_command();
            self.finish(header, Err(failure))?;
            self.commit();
            return Ok(Step::Done);
        }
        if self.state.admit_to_batch(&command) == Admission::Waits {
            self.state.counters().count_command();
            if self.state.batch_is_full()
                || !(self.consumer.has_posted() || self.signal_is_near()?)
            {
                self.submit_batch()?;
            }
            return Ok(Step::Done);
        }
        if let Some(Signal { stream, value, .. }) = signal_of(&command)
            && self.state.submit_with_signal(stream, value)
        {
            self.state.counters().count_command();
            self.finish(header, Ok(Outcome::Done))?;
            self.commit();
            return Ok(Step::Done);
        }
        let refused = self.state.submit_batch();
        if self.state.context().lost().is_some() {
            return Err(StepError::Lost);
        }
        // Before the command that may signal their end: launches that have ended are not to be done again.
        self.state.standing.commit(taken);
        self.state.standing.begin(header.opcode);
        if !refused.is_empty() {
            // Before the command: it may be the signal by which the client finds out.
            let body: Box<[u8]> = command.body.into();
            self.tell_refused(refused)?;
            let result = self.state.obey(&Command { header, body: &body });
            self.state.counters().count_command();
            self.finish(header, result)?;
            self.commit();
            return Ok(Step::Done);
        }
        let result = self.state.obey(&command);
        self.state.counters().count_command();
        self.finish(header, result)?;
        self.commit();
        Ok(Step::Done)
    }

    /// All that was taken is done, or noted where it survives this process.
    fn commit(&mut self) {
        self.state.standing.note_held(self.state.holding.len());
        self.state.standing.commit(self.consumer.commit());
    }

    fn check_context(&self) -> Result<(), StepError> {
        self.state.context().lost().map_or(Ok(()), |_| Err(StepError::Lost))
    }

    /// Nothing is behind a launch in the ring: says whether the signal by which its client waits comes at once, if it did the last times.
    fn signal_is_near(&mut self) -> Result<bool, RingError> {
        if !self.nearness.is_worth_a_look() || !self.state.may_take_signals() {
            return Ok(false);
        }
        Nearness::look(|| self.consumer.has_posted());
        let is_near = self.consumer.next_opcode()? == Some(Opcode::Signal as u16);
        self.nearness.learn(is_near);
        Ok(is_near)
    }

    /// Submits the launches that wait for others; says whether there were any.
    fn submit_batch(&mut self) -> Result<Step, StepError> {
        if self.state.batch_is_empty() {
            return Ok(Step::Nothing);
        }
        let refused = self.state.submit_batch();
        self.tell_refused(refused)?;
        self.commit();
        Ok(Step::Done)
    }

    fn tell_refused(&mut self, refused: Vec<Refused>) -> Result<(), StepError> {
        refused.into_iter().try_for_each(|(header, failure)| self.finish(header, Err(failure)))
    }

    /// Does the commands that waited for values and need not any longer.
    fn release_held(&mut self) -> Result<Step, StepError> {
        while !self.state.holding.is_empty() {
            // Not known before it is taken: any of them may be a launch.
            if self.state.is_bounded() && !self.state.may_submit() {
                return Ok(Step::Held);
            }
            let Some(Deferred { header, body }) = self.state.next_held() else { break };
            let result = match self.state.ended() {
                Some(code) => Err(Failure::Cuda(code)),
                None => self.state.execute(&Command { header, body: &body }),
            };
            self.finish(header, result)?;
            self.state.standing.note_held(self.state.holding.len());
        }
        Ok(Step::Done)
    }

    /// Says how a command ended, to whom it concerns.
    fn finish(
        &mut self,
        header: Header,
        result: Result<Outcome, Failure>,
    ) -> Result<(), StepError> {
        // What the next executor does again is not answered here.
        self.check_context()?;
        let slot = header.call_slot;
        let status = match result {
            Ok(Outcome::Done) => CUresult::SUCCESS,
            Ok(Outcome::Await(awaited)) if slot != NO_CALL => {
                if self.awaited.len() >= link::wire::layout::CALL_SLOTS {
                    return Err(StepError::Command("more calls wait than there are slots".into()));
                }
                self.awaited.push((slot, awaited));
                return Ok(());
            }
            Ok(Outcome::Await(_)) => CUresult::SUCCESS,
            Err(Failure::Cuda(code)) => code,
            Err(Failure::Protocol(message)) => return Err(StepError::Command(message)),
        };
        let memory = &self.state.handle.memory;
        if slot != NO_CALL {
            call::answer(memory, slot, status.0, &self.state.reply)?;
        } else if !status.is_success() {
            let alone = fails_alone(header.opcode)
                && !self.state.handle.stopped()
                && self.state.handle.ended().is_none();
            if memory.error() == 0 && self.failures_logged < MOST_LOGGED_FAILURES {
                self.failures_logged += 1;
                let last = self.failures_logged == MOST_LOGGED_FAILURES;
                log_server!(
                    "{}: a command of opcode {} failed: {status}{}",
                    self.state.handle.label,
                    header.opcode,
                    if last { "; what fails from now on is not logged" } else { "" }
                );
            }
            if alone {
                memory.refuse(status.0);
            } else {
                memory.fail(status.0);
                self.state.counters().set_error(status.0);
            }
        }
        Ok(())
    }

    /// The next launch must wait: sees to those who wait for earlier ones, then sleeps.
    fn wait_for_turn(&mut self) -> Result<(), StepError> {
        if std::mem::take(&mut self.is_idle) {
            self.state.counters().set_idle_since(None);
        }
        self.see_to_waiters()?;
        if self.state.handle.memory.sleepers() > 0 {
            self.waker.wake();
        }
        self.state.wait_for_turn();
        Ok(())
    }

    fn see_to_waiters(&mut self) -> Result<(), StepError> {
        self.answer_awaited()?;
        if self.state.collect_output().is_err() {
            // The context is lost, which the monitor tells everybody.
            self.waker.wake();
        }
        Ok(())
    }

    /// Nothing to take: sees to those who wait, then sleeps.
    fn idle(&mut self) -> Result<(), StepError> {
        self.see_to_waiters()?;
        if !std::mem::replace(&mut self.is_idle, true) {
            self.state.counters().set_idle_since(Some(monotonic_ns()));
        }
        let handle = Arc::clone(&self.state.handle);
        let ordered = handle.moves.is_any();
        if ordered {
            let has_commands = self.consumer.backlog_bytes() > 0 && !self.state.must_pause();
            if self.awaited.is_empty() && !has_commands && self.state.move_out() {
                return Ok(());
            }
            if self.state.must_pause() {
                std::thread::sleep(self.state.pace_idle(PAUSE_POLL));
                return Ok(());
            }
        }
        let waits = ordered
            || self.state.trace_idle()
            || !self.awaited.is_empty()
            || self.state.printing.is_active()
            || self.state.resharing.is_active()
            || !self.state.holding.is_empty();
        let limit = if waits { SYNCHRONIZE_POLL } else { self.state.sleep_limit(IDLE) };
        let limit = self.state.pace_idle(limit);
        let waker = &self.waker;
        // Looked at after this thread has announced its sleep: a client that begins to sleep later rings.
        let waited = self.consumer.wait(limit, &mut || {
            if handle.memory.sleepers() > 0 {
                waker.wake();
            }
            handle.stopped() || handle.mailbox.has_mail() || (!ordered && handle.moves.is_any())
        });
        if waited == Waited::Nothing && self.awaited.is_empty() {
            self.state.look_whether_idle();
        }
        Ok(())
    }

    fn answer_awaited(&mut self) -> Result<(), StepError> {
        let (state, mut wrong, mut has_copied) = (&self.state, Ok(()), false);
        self.awaited.retain(|&(slot, awaited)| {
            let result = match state.awaited_stream(awaited) {
                // SAFETY: a live stream of this session: one that took the place of another waits for it.
                Some(stream) => unsafe { state.driver().cuStreamQuery(stream) },
                None => CUresult::ERROR_INVALID_HANDLE,
            };
            if result == CUresult::ERROR_NOT_READY {
                return true;
            }
            let _ = state.context().check(result);
            if state.context().lost().is_some() {
                return true;
            }
            if let Err(error) = call::answer(&state.handle.memory, slot, result.0, &[]) {
                wrong = Err(error.into());
            }
            has_copied |= awaited == Awaited::SideStream;
            false
        });
        // After the answers: whoever waits when this process ends must be told.
        if has_copied && self.awaited.is_empty() {
            self.state.standing.note_side_work(false);
        }
        wrong
    }
}

/// Whether a posted command that the driver refuses leaves everything after it as it was. A native program would have got the error from
/// that very call and gone on. What makes an object or a signal does not fail alone: later commands, and waits, count on it.
fn fails_alone(opcode: u16) -> bool {
    [
        Opcode::Launch,
        Opcode::GraphLaunch,
        Opcode::GraphUpload,
        Opcode::GraphSet,
        Opcode::GraphEnable,
    ]
    .map(|alone| alone as u16)
    .contains(&opcode)
}

/// What came of looking for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// One was done.
    Done,
    /// There is none.
    Nothing,
    /// It is a launch that must wait for its turn.
    Held,
    /// Nobody takes any.
    Paused,
}

/// What ends a session.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("the device's context is lost")]
    Lost,
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Answer(#[from] call::AnswerError),
    #[error("{0}")]
    Command(String),
}
