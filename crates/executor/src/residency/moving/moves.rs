//! Memory goes out, and comes back.

use super::*;
use crate::memory::ANSWER_TIMEOUT;
use crate::session::failure::Failure;
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::State;
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, GrantOutcome, Placement};
use rustix::fd::OwnedFd;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Between two looks at whether the session has ended, while it waits for memory.
const WAIT_SLICE: Duration = Duration::from_millis(5);
/// After so long the log says who waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes copied between two looks at whether the client has gone.
const COPY_BYTES: usize = 256 << 20;

impl State {
    /// Sends the keeper a question, after forgetting answers that came after their questions were
    /// given up.
    pub(crate) fn ask(&mut self, question: &FromExecutor) {
        while self.memory.grants_from_keeper.try_recv().is_ok() {}
        self.shared.tell(question);
    }

    /// Waits for memory: its address or key, its length and its descriptor. The keeper may say that
    /// it takes a while; the wait ends with the session, and the session moves its own memory out
    /// meanwhile if that is wanted. What was moved out is put back as it comes.
    fn await_memory(&mut self, awaited: Awaited) -> Result<Option<(u64, u64, OwnedFd)>, Failure> {
        let (asked, mut must_wait, mut complained) = (Instant::now(), false, false);
        loop {
            let delivered = self.memory.grants_from_keeper.recv_timeout(WAIT_SLICE);
            let failure = match delivered {
                Ok(DeliveredGrant { outcome: GrantOutcome::Waits, .. }) => {
                    must_wait = true;
                    // Its turn to submit would be nobody's meanwhile.
                    self.stop_contending();
                    continue;
                }
                Ok(DeliveredGrant {
                    outcome: GrantOutcome::Memory { address, size_bytes },
                    memory,
                    ..
                }) => {
                    let file = memory.ok_or(CUresult::ERROR_MPS_RPC_FAILURE)?;
                    if !self.moved.copies.contains_key(&address) {
                        return Ok(Some((address, size_bytes, file)));
                    }
                    self.put_back(address, size_bytes, &file)?;
                    if self.moved.copies.is_empty() && awaited == Awaited::Return {
                        return Ok(None);
                    }
                    continue;
                }
                Ok(DeliveredGrant {
                    outcome: GrantOutcome::Peer(_) | GrantOutcome::Signals { .. },
                    ..
                }) => Some(CUresult::ERROR_MPS_RPC_FAILURE),
                Ok(DeliveredGrant { outcome: GrantOutcome::Refused(code), .. }) => {
                    return Err(Failure::Cuda(CUresult(code)));
                }
                Err(RecvTimeoutError::Disconnected) => Some(CUresult::ERROR_MPS_RPC_FAILURE),
                Err(RecvTimeoutError::Timeout) => self.gives_up(),
            };
            let unanswered = !must_wait && asked.elapsed() > ANSWER_TIMEOUT;
            if let Some(code) = failure.or(unanswered.then_some(CUresult::ERROR_MPS_RPC_FAILURE)) {
                self.shared.tell(&FromExecutor::GaveUp { session: self.handle.id });
                return Err(Failure::Cuda(code));
            }
            if self.handle.moves.is_any() {
                self.move_out();
            }
            if self.handle.mailbox.has_mail() {
                self.see_to_shares();
            }
            if asked.elapsed() > PATIENCE && !std::mem::replace(&mut complained, true) {
                log_server!("{} waits for device memory", self.handle.label);
            }
        }
    }

    /// Whether the session is to take no command: its memory is wanted, and it has worked for long
    /// enough.
    pub(crate) fn must_pause(&self) -> bool {
        self.handle.moves.pauses() && self.gives_up().is_none()
    }

    /// Why the session need not wait any longer.
    fn gives_up(&self) -> Option<CUresult> {
        let stopped = self.handle.stopped().then_some(CUresult::ERROR_MPS_RPC_FAILURE);
        stopped.or(self.handle.ended()).or(self.context().lost())
    }

    /// Before a command: brings back what was moved out, unless the command can do without.
    pub(crate) fn bring_back(&mut self, opcode: u16) -> Result<(), Failure> {
        if self.moved.copies.is_empty() {
            self.remake_stale_graphs();
            return Ok(());
        }
        if does_without_memory(opcode) {
            return Ok(());
        }
        self.step_away();
        self.ask(&FromExecutor::Return { session: self.handle.id });
        let returned = self.await_memory(Awaited::Return);
        self.come_back();
        if returned?.is_some() {
            // Nothing else was asked for.
            return Err(Failure::Cuda(CUresult::ERROR_MPS_RPC_FAILURE));
        }
        self.remake_stale_graphs();
        Ok(())
    }

    /// Asks for new memory: its address or key, its length and its descriptor.
    pub(crate) fn ask_for_memory(
        &mut self,
        size_bytes: u64,
        placement: Placement,
    ) -> Result<(u64, u64, OwnedFd), Failure> {
        self.ask(&FromExecutor::Grant { session: self.handle.id, size_bytes, placement });
        let granted = self.await_memory(Awaited::New)?;
        granted.ok_or(Failure::Cuda(CUresult::ERROR_MPS_RPC_FAILURE))
    }

    fn put_back(&mut self, at: u64, size_bytes: u64, file: &OwnedFd) -> Result<(), Failure> {
        let Some(mut copy) = self.moved.copies.remove(&at) else {
            return Err(Failure::Cuda(CUresult::ERROR_MPS_RPC_FAILURE));
        };
        let back = match self.memory.grants.get(&at) == Some(&size_bytes) {
            true => self.map_grant(file, at, size_bytes).and_then(|()| {
                self.transfer(&mut copy, at, size_bytes, Direction::Back).inspect_err(|_| {
                    // SAFETY: mapped just now, and nothing of the session is in flight.
                    let _ = unsafe { self.driver().cuMemUnmap(at, size_bytes as usize) };
                })
            }),
            false => self.put_piece_back(at, size_bytes, file, &mut copy),
        };
        back.map_err(|code| {
            self.moved.copies.insert(at, copy);
            let session = self.handle.id;
            let (done, stayed, fixed) = (vec![at], Vec::new(), Vec::new());
            self.shared.tell(&FromExecutor::MovedOut { session, done, stayed, fixed });
            self.shared.tell(&FromExecutor::GaveUp { session });
            Failure::Cuda(code)
        })
    }

    /// Does what was ordered, if nothing of the session is in flight; says whether it was so.
    pub(crate) fn move_out(&mut self) -> bool {
        let is_vain = self.handle.moves.is_called_off() || self.gives_up().is_some();
        if !is_vain && !self.is_quiet() {
            return false;
        }
        // That may take long, and nothing of it is on the device.
        self.stop_contending();
        let (mut done, mut stayed, mut fixed) = (Vec::new(), Vec::new(), Vec::new());
        for (at, size_bytes) in self.handle.moves.take() {
            match self.move_one(at, size_bytes) {
                Fate::Done => done.push(at),
                Fate::Stayed => stayed.push(at),
                Fate::Fixed => fixed.push(at),
            }
        }
        let session = self.handle.id;
        self.shared.tell(&FromExecutor::MovedOut { session, done, stayed, fixed });
        true
    }

    fn move_one(&mut self, at: u64, size_bytes: u64) -> Fate {
        let is_grant = self.memory.grants.get(&at) == Some(&size_bytes);
        let is_known = is_grant || self.virtual_memory.piece_of(at).is_some();
        if !is_known || self.gives_up().is_some() || self.moved.copies.contains_key(&at) {
            return Fate::Stayed;
        }
        if self.is_open_to_others(at, size_bytes)
            || self.virtual_memory.is_shareable(at)
            || self.peers.shown.contains(&at)
        {
            return Fate::Fixed;
        }
        let Some(mut copy) = HostCopy::new(size_bytes) else {
            log_server!("The host has no {size_bytes} bytes for idle device memory");
            return Fate::Stayed;
        };
        let moved = match is_grant {
            true => self.take_grant_out(at, size_bytes, &mut copy),
            false => self.take_piece_out(at, size_bytes, &mut copy),
        };
        match moved {
            Ok(()) => {
                self.moved.copies.insert(at, copy);
                Fate::Done
            }
            Err(code) => {
                log_server!("{}: memory was not moved out: {code}", self.handle.label);
                Fate::Stayed
            }
        }
    }

    fn take_grant_out(
        &mut self,
        at: u64,
        size_bytes: u64,
        copy: &mut HostCopy,
    ) -> Result<(), CUresult> {
        self.transfer(copy, at, size_bytes, Direction::Out)?;
        // SAFETY: mapped by this session, which has nothing in flight and takes no command.
        self.context().check(unsafe { self.driver().cuMemUnmap(at, size_bytes as usize) })
    }

    /// Whether the device does nothing for this session, and nothing waits here to be done.
    fn is_quiet(&self) -> bool {
        let is_done = |stream| {
            // SAFETY: a live stream of this session.
            let result = unsafe { self.driver().cuStreamQuery(stream) };
            self.context().check(result).is_ok()
        };
        self.holding.is_empty()
            && self.batch_is_empty()
            && !self.printing.is_active()
            && self.streams.handles().chain(self.side_stream).all(is_done)
    }

    /// Copies a whole grant or piece that is mapped at `at`, and waits for it.
    pub(crate) fn transfer(
        &mut self,
        copy: &mut HostCopy,
        at: u64,
        size_bytes: u64,
        direction: Direction,
    ) -> Result<(), CUresult> {
        let stream = self.moving_stream()?;
        let (driver, size_bytes) = (self.driver(), size_bytes as usize);
        let mut offset = 0;
        while offset < size_bytes {
            if let Some(code) = self.gives_up() {
                return Err(code);
            }
            let (length, from) = (COPY_BYTES.min(size_bytes - offset), at + offset as u64);
            let host = copy.at(offset);
            // SAFETY: the memory is mapped and that long, as is the host's copy, which lives until
            // the wait below.
            unsafe {
                let submitted = match direction {
                    Direction::Out => driver.cuMemcpyDtoHAsync_v2(host, from, length, stream),
                    Direction::Back => driver.cuMemcpyHtoDAsync_v2(from, host, length, stream),
                };
                let waited = driver.cuStreamSynchronize(stream);
                self.context().check(submitted)?;
                self.context().check(waited)?;
            }
            offset += length;
        }
        Ok(())
    }

    /// A stream of the session for copies of whole grants.
    pub(crate) fn moving_stream(&mut self) -> Result<CUstream, CUresult> {
        Ok(match self.moved.stream {
            Some(stream) => stream,
            None => *self.moved.stream.insert(self.shared.context.new_stream(0)?),
        })
    }

    /// Forgets what is in host memory, at the session's end: nothing is mapped there.
    pub(crate) fn clear_moved(&mut self) {
        for at in std::mem::take(&mut self.moved.copies).into_keys() {
            self.memory.grants.remove(&at);
        }
        if let Some(stream) = self.moved.stream.take() {
            let _ = self.context().end_stream(stream);
        }
    }
}
