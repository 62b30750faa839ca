//! A session's thread: takes commands off the client's ring, has them done, and says how they
//! ended.
//!
//! How a session begins is [`crate::session::session_opening`], what other threads may ask of it
//! [`crate::session::session_handle`], what it has [`crate::session::state`], what it does while
//! there is nothing to take [`idling`].

pub(crate) mod allowance;
pub(crate) mod budgets;
pub(crate) mod charges;
pub(crate) mod descriptors;
mod ending;
pub(crate) mod failure;
mod going_away;
mod idling;
pub(crate) mod incoming;
pub(crate) mod session_handle;
pub(crate) mod session_opening;
pub(crate) mod state;
pub(crate) mod teardown;
#[cfg(test)]
mod tests;

use crate::recovery::relocation::Due;
use crate::recovery::replay::Past;
use crate::recovery::restless::Restless;
use crate::session::failure::Failure;
use crate::session::going_away::Going;
use crate::session::session_handle::Wish;
use crate::session::state::{Outcome, State};
use crate::submit::batch::Refused;
use crate::submit::holding::Deferred;
use crate::submit::nearness::{Look, Nearness, signal_of};
use crate::submit::waiting::Admission;
use crate::watch::monitor::{Waker, sleep_exactly};
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, ShareWish};
use link::call::{self, Prepared};
use link::ring::{Command, Consumer, RingError};
use link::spin::Cores;
use link::wire::command::{Facts, Header, NO_CALL, Opcode, Refusal, Signal, Time};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest sleep of an idle session thread.
const IDLE: Duration = Duration::from_secs(1);
/// Between two looks at whether a pausing session's work has ended.
const PAUSE_POLL: Duration = Duration::from_micros(200);
/// Failed commands of one session that the log tells of: a client that goes on and on must not fill
/// the disk.
const MOST_LOGGED_FAILURES: u32 = 32;

/// What belongs to the session thread alone.
pub(crate) struct Session {
    consumer: Consumer,
    state: State,
    /// The SMs that it is to have.
    share: ShareWish,
    /// What it had when another executor served it.
    past: Option<Past>,
    waker: Waker,
    failures_logged: u32,
    /// Calls that wait for work.
    awaited: Vec<(u16, u32)>,
    /// The answer to the call that is done and not committed.
    owed: Option<Prepared>,
    /// The counters say since when it has taken no command.
    is_idle: bool,
    nearness: Nearness,
    /// What it was told to do, as far as that is done.
    heeded: Wish,
    restless: Option<Restless>,
}

impl Session {
    /// A session that goes on behind what the consumer has committed; its thread is to call
    /// [`Session::run`].
    pub(crate) fn new(
        consumer: Consumer,
        state: State,
        share: ShareWish,
        past: Option<Past>,
        waker: Waker,
    ) -> Self {
        Self {
            consumer,
            state,
            share,
            past,
            waker,
            failures_logged: 0,
            awaited: Vec::new(),
            owed: None,
            is_idle: false,
            nearness: Nearness::default(),
            heeded: Wish::Serve,
            restless: Restless::from_environment(),
        }
    }

    /// What it has.
    #[cfg(test)]
    pub(crate) fn state(&mut self) -> &mut State {
        &mut self.state
    }

    /// What its lone launches have taught.
    #[cfg(test)]
    pub(crate) fn nearness(&self) -> &Nearness {
        &self.nearness
    }

    /// The thread: serves until the session is stopped, then takes down what it has.
    pub(crate) fn run(mut self) {
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
            if self.state.context().lost().is_some() {
                // It is the next executor's to make.
                self.await_end();
            }
            self.state.give_up_replay(&error);
        }
        self.settle_debts();
        match self.repeat().and_then(|()| self.serve()) {
            Ok(()) => {}
            Err(StepError::Leaves) => {
                let Self { state, consumer, waker, .. } = self;
                drop(consumer);
                state.leave();
                return waker.wake();
            }
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
        if !self.state.has_come_to_rest() {
            self.await_end();
        }
        let Self { state, consumer, waker, .. } = self;
        drop(consumer);
        let session = state.handle.id;
        state.tear_down(FromExecutor::SessionClosed { session });
        waker.wake();
    }

    /// The context is lost: nothing may change any more, until the keeper ends this process.
    fn await_end(&self) -> ! {
        loop {
            self.waker.wake();
            std::thread::park_timeout(IDLE);
        }
    }

    /// Does again what had not ended when another executor did.
    fn repeat(&mut self) -> Result<(), StepError> {
        for (header, result) in self.state.repeat() {
            self.finish(header, result)?;
            self.give_answer();
        }
        self.check_context()
    }

    /// Takes commands until the session is stopped.
    ///
    /// # Errors
    /// What the client did wrong, or that the context is lost.
    fn serve(&mut self) -> Result<(), StepError> {
        loop {
            match self.state.handle.wished() {
                wished if wished == self.heeded => {}
                Wish::Stop => return Ok(()),
                Wish::Serve | Wish::Rest => self.come_to_rest()?,
            }
            match self.step()? {
                // Of a client with several threads one may sleep while the others keep this one at
                // work. In a crowd nobody tells of a sleeper.
                Step::Done
                    if self.state.handle.memory.sleepers() > 0
                        || self.state.shared.flights.cores() == Cores::Wanted =>
                {
                    self.waker.wake_if_parked();
                }
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
    }

    /// Does one command, if there is one and it may be done.
    pub(crate) fn step(&mut self) -> Result<Step, StepError> {
        self.check_context()?;
        self.state.look_at_guard();
        if self.state.shared.quiescing.load(Ordering::Relaxed) || self.state.shared.has_trials() {
            return Ok(Step::Paused);
        }
        self.state.counters().set_queued(self.consumer.backlog_bytes());
        if self.state.handle.mailbox.has_mail() || self.state.resharing.is_active() {
            self.state.see_to_shares();
            if self.leaves_for_quarantine()? {
                return Err(StepError::Leaves);
            }
        }
        if self.state.relocation.away.is_some() && self.goes_away()? == Going::Rests {
            return Ok(Step::Paused);
        }
        if self.release_held()? == Step::Held {
            return Ok(Step::Held);
        }
        if self.state.holding.is_full() || self.state.must_pause() {
            return self.submit_batch();
        }
        if self.state.is_bounded()
            && self.consumer.next_opcode()?.is_some_and(launches)
            && !self.state.may_submit()
        {
            self.submit_batch()?;
            return Ok(Step::Held);
        }
        if self.restless.is_some() && self.leaves_for_a_test()? {
            return Err(StepError::Leaves);
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
            return self.done(header, Err(failure));
        }
        if self.state.admit_to_batch(&command) == Admission::Waits {
            self.state.counters().count_command();
            if self.state.batch_is_full() {
                self.submit_batch()?;
            } else if !self.consumer.has_posted() && !self.more_is_near()? {
                self.submit_some()?;
            }
            return Ok(Step::Done);
        }
        if let Some(Signal { stream, value, .. }) = signal_of(&command)
            && self.state.submit_with_signal(stream, value)
        {
            return self.done(header, Ok(Outcome::Done));
        }
        let refused = self.state.submit_batch();
        if self.state.context().lost().is_some() {
            return Err(StepError::Lost);
        }
        // Before the command that may signal their end: launches that have ended are not to be done
        // again.
        self.state.standing.commit(taken);
        self.state.standing.begin(header.opcode);
        if !refused.is_empty() {
            // Before the command: it may be the signal by which the client finds out.
            let body: Box<[u8]> = command.body.into();
            self.tell_refused(refused)?;
            let result = self.state.obey(&Command { header, body: &body });
            return self.done(header, result);
        }
        let is_quick = facts_of(header.opcode).is_some_and(|facts| facts.time == Time::Short);
        if !is_quick {
            self.state.step_away();
        }
        // Who waits for an answer is to have it here.
        let result = match self.awaited.is_empty() {
            true => self.state.obey_or_leave(&command),
            false => self.state.obey(&command),
        };
        if !is_quick {
            self.state.come_back();
        }
        if let Err(Failure::Elsewhere) = result {
            self.check_context()?;
            return Err(StepError::Leaves);
        }
        self.done(header, result)
    }

    /// A command was taken and ended so: says so, and commits it.
    fn done(
        &mut self,
        header: Header,
        result: Result<Outcome, Failure>,
    ) -> Result<Step, StepError> {
        self.state.counters().count_command();
        self.finish(header, result)?;
        self.commit();
        Ok(Step::Done)
    }

    /// Whether the session goes on elsewhere before its next command.
    fn leaves_for_quarantine(&mut self) -> Result<bool, StepError> {
        if self.state.relocation.due == Due::Nothing || !self.awaited.is_empty() {
            return Ok(false);
        }
        // What waits there was taken, and belongs to the commands so far.
        self.submit_batch()?;
        Ok(self.state.leaves_for_quarantine())
    }

    /// Whether the session goes on elsewhere for no reason ([`Restless`]).
    #[cold]
    fn leaves_for_a_test(&mut self) -> Result<bool, StepError> {
        let Some(restless) = &mut self.restless else { return Ok(false) };
        if !self.consumer.has_posted() || !restless.is_due() || !self.awaited.is_empty() {
            return Ok(false);
        }
        self.submit_batch()?;
        Ok(self.state.wanders())
    }

    /// All that was taken is done, or noted where it survives this process. Who waits for its
    /// answer gets it now, and not before.
    fn commit(&mut self) {
        self.state.standing.note_held(self.state.holding.len());
        let taken = self.consumer.commit();
        if let Some(answer) = self.owed {
            self.state.standing.owe(taken, answer);
        }
        self.state.standing.commit(taken);
        self.give_answer();
        self.state.take_region_file();
    }

    /// After the command is committed, or if it was before: what it gave up goes first, since its
    /// client may count on that being free.
    fn give_answer(&mut self) {
        self.state.tell_given_up();
        if let Some(answer) = self.owed.take() {
            call::give(&self.state.handle.memory, answer);
        }
    }

    /// What the last executor had committed, and may not have finished when it ended.
    fn settle_debts(&mut self) {
        if let Some(answer) = self.state.standing.owed() {
            call::give(&self.state.handle.memory, answer);
        }
        self.state.drop_stale_region_file();
    }

    fn check_context(&self) -> Result<(), StepError> {
        self.state.context().lost().map_or(Ok(()), |_| Err(StepError::Lost))
    }

    /// Nothing is behind a launch in the ring: says whether the signal by which its client waits,
    /// or what goes with it, comes at once, if it did the last times.
    fn more_is_near(&mut self) -> Result<bool, RingError> {
        if !self.nearness.is_worth_a_look() || !self.state.may_take_signals() {
            return Ok(false);
        }
        Nearness::look(self.state.shared.flights.busy(), || self.consumer.has_posted());
        let next = self.consumer.next_opcode()?;
        let is_near = next.is_some_and(|opcode| self.state.goes_with_batch(opcode));
        self.nearness.learn(if is_near { Look::Found } else { Look::InVain });
        Ok(is_near)
    }

    /// Nothing is behind the launches that wait: submits them, or some of them, unless they go
    /// together with what comes soon.
    fn submit_some(&mut self) -> Result<(), StepError> {
        if self.state.gathers(|| self.consumer.has_posted()) {
            return Ok(());
        }
        if self.state.has_burst_begun() {
            let (refused, position) = self.state.submit_beginning();
            self.tell_refused(refused)?;
            if let Some(position) = position {
                self.state.standing.commit(self.consumer.commit_until(position));
            }
            let has_more = || self.consumer.has_posted();
            if !self.state.batch_is_empty() && (has_more() || self.state.gathers(has_more)) {
                return Ok(());
            }
        }
        self.submit_batch().map(drop)
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
        while !self.state.holding.is_empty()
            && let Some((slot, opcode)) = self.state.ready_held()
        {
            if launches(opcode) && self.state.is_bounded() && !self.state.may_submit() {
                return Ok(Step::Held);
            }
            let Some(Deferred { header, body }) = self.state.take_held(slot) else { break };
            let signals = signals(opcode);
            if signals {
                // Whoever sees it may have waited for the last that was held.
                self.state.streams.expect_signal(slot);
                self.state.standing.note_held(self.state.holding.len());
            }
            let result = match self.state.ended() {
                Some(code) => Err(Failure::Cuda(code)),
                None => self.state.execute(&Command { header, body: &body }),
            };
            self.finish(header, result)?;
            if signals {
                self.state.streams.end_expectation(slot);
            }
            self.state.standing.note_held(self.state.holding.len());
            self.give_answer();
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
            Err(Failure::Elsewhere) => return Err(StepError::Leaves),
        };
        let memory = &self.state.handle.memory;
        if slot != NO_CALL {
            self.owed = Some(call::prepare(memory, slot, status.0, &self.state.reply)?);
        } else if !status.is_success() {
            let refusal = facts_of(header.opcode).map(|facts| facts.refusal);
            let alone = refusal == Some(Refusal::Alone)
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
}

fn facts_of(opcode: u16) -> Option<&'static Facts> {
    Opcode::from_number(opcode).map(Opcode::facts)
}

/// Whether such a command waits for credit.
fn launches(opcode: u16) -> bool {
    facts_of(opcode).is_some_and(|facts| facts.does.launches())
}

/// Whether a client sees by a completion word that such a command is done.
fn signals(opcode: u16) -> bool {
    let opcode = Opcode::from_number(opcode);
    matches!(opcode, Some(Opcode::Signal | Opcode::EventRecord))
}

/// What came of looking for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) enum StepError {
    #[error("the device's context is lost")]
    Lost,
    #[error("the session goes on in another context")]
    Leaves,
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Answer(#[from] call::AnswerError),
    #[error("{0}")]
    Command(String),
}
