//! Waiting for a session's work.

use super::slots::Mark;
use super::{Session, with_spin};
use crate::result::Result;
use crate::session::expected_wait;
use crate::session::expected_wait::Woke;
use cuda_abi::types::CUresult;
use link::completion::{self, CompletionError};
use link::wire::command::Opcode;
use std::time::Duration;

impl Session {
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
}
