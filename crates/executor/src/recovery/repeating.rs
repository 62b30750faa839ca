//! Work that can be done again ([`executor_link::redo`]): noted before it is submitted, for
//! sessions that have declared kernels repeatable, and done again by the next executor.
//!
//! Whose kernel faulted nobody knows when several clients had work in flight, and a declared kernel
//! may have. So what is done again is done on *trial*: one session at a time, while nobody else
//! submits anything. A second fault then has one culprit. A trial that does not end in [`PATIENCE`]
//! is over all the same.
//!
//! Launches of such a session go one by one: the word behind each of them says that it has ended.

use crate::Shared;
use crate::context::Context;
use crate::memory::address;
use crate::objects::stream::Streams;
use crate::session::failure::Failure;
use crate::session::state::{Outcome, State};
use crate::submit::launch::split;
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::redo::{Kind, PROGRESS_BYTES, Redo, Unfinished};
use link::ring::Command;
use link::wire::command::{Copy, Header, NO_CALL, Opcode, Repeat, Request};
use policy::turns::repeatable::Repeatable;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_FLAGS: u32 = 1 | 2;
/// Others wait that long for what is done again.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_micros(100);

/// Counts a session whose work is to be done again, until it is done.
struct Trial(Arc<Shared>);

impl Trial {
    fn announce(shared: &Arc<Shared>) -> Self {
        // SeqCst: partner of the look in `Shared::has_trials`.
        shared.trials.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.trials.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Whether work of some session is still to be done again, so that no other submits any.
    pub(crate) fn has_trials(&self) -> bool {
        // SeqCst: partner of `Trial`.
        self.trials.load(Ordering::SeqCst) > 0
    }
}

/// What of a session can be done again.
#[derive(Default)]
pub(crate) struct Repeating {
    declared: Repeatable,
    redo: Option<Redo>,
    /// Where the device finds the progress words.
    progress_base: CUdeviceptr,
    /// The command in hand: its stream and number.
    current: Option<(u32, u64)>,
    /// Work of the command in hand that cannot be done again.
    others: Vec<(u32, u64)>,
    trial: Option<Trial>,
}

impl Repeating {
    /// Whether the client has declared kernels.
    pub(crate) fn are_any_declared(&self) -> bool {
        !self.declared.is_empty()
    }

    /// Goes on in the session's file, if it has one. From now on until its trial nobody else
    /// submits anything, if something is to be done again.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        declared: Repeatable,
        file: Option<OwnedFd>,
    ) -> Result<Self, (CUresult, String)> {
        let Some(file) = file else { return Ok(Self::default()) };
        let redo = Redo::map(file.as_fd())
            .map_err(|error| (CUresult::ERROR_OUT_OF_MEMORY, error.to_string()))?;
        let base = redo.progress_address();
        let (context, mut progress_base) = (&shared.context, 0);
        let failed = |code| (code, format!("registering the progress words failed: {code}"));
        // SAFETY: the words are mapped as long as `redo` is, and unregistered before that ends; the
        // result is written.
        unsafe {
            let driver = context.driver();
            let registered =
                driver.cuMemHostRegister_v2(address(base), PROGRESS_BYTES, REGISTER_FLAGS);
            context.check(registered).map_err(failed)?;
            let found = driver.cuMemHostGetDevicePointer_v2(&mut progress_base, address(base), 0);
            if context.check(found).is_err() {
                progress_base = base;
            }
        }
        let trial = (!redo.unfinished().is_empty()).then(|| Trial::announce(shared));
        let (current, others) = (None, Vec::new());
        Ok(Self { declared, redo: Some(redo), progress_base, current, others, trial })
    }

    /// Whether anything is noted.
    pub(crate) fn is_on(&self) -> bool {
        self.redo.is_some()
    }

    /// Whether kernels of this name may be run again.
    pub(crate) fn has(&self, kernel: &str) -> bool {
        self.redo.is_some() && self.declared.has(kernel)
    }

    /// Work is about to be submitted that no noted command stands for.
    pub(crate) fn note_other(&mut self, stream: u32, position: u64) {
        let Some(redo) = &mut self.redo else { return };
        if self.current.is_none()
            && let Some(number) = redo.note(Kind::Once, stream, position, (0, &[]))
        {
            self.others.push((stream, number));
        }
    }

    /// All work has ended.
    pub(crate) fn settle(&mut self, position: u64) {
        if let Some(redo) = &mut self.redo
            && redo.is_unsettled()
            && self.trial.is_none()
            && !redo.has_any(position)
        {
            redo.settle();
        }
    }

    /// Takes the words out of the driver. Returns where they were.
    pub(crate) fn take_registered(&self) -> Option<u64> {
        self.redo.as_ref().map(Redo::progress_address)
    }

    fn write_progress(&self, context: &Context, streams: &Streams, (slot, number): (u32, u64)) {
        let Some(stream) = streams.handle(slot) else { return };
        let at = self.progress_base + u64::from(slot) * 8;
        // SAFETY: a live stream of this session and a registered word. What fails leaves the
        // command unfinished.
        let _ = context
            .check(unsafe { context.driver().cuStreamWriteValue64_v2(stream, at, number, 0) });
    }
}

impl State {
    /// Does one command, noted if it may have to be done again.
    pub(crate) fn perform_noted(
        &mut self,
        opcode: Opcode,
        command: &Command<'_>,
    ) -> Result<Outcome, Failure> {
        if !self.repeating.is_on() {
            return self.perform(opcode, command);
        }
        if self.repeating.current.is_none() {
            self.note_command(opcode, command);
        }
        let outcome = self.perform(opcode, command);
        let current = self.repeating.current.take();
        let others = std::mem::take(&mut self.repeating.others);
        match current {
            // In a context that is lost the command may have been submitted.
            Some((_, number)) if outcome.is_err() && self.context().lost().is_none() => {
                if let Some(redo) = &mut self.repeating.redo {
                    redo.strike(number);
                }
            }
            Some(noted) => {
                self.repeating.write_progress(&self.shared.context, &self.streams, noted);
            }
            None => {}
        }
        for other in others {
            self.repeating.write_progress(&self.shared.context, &self.streams, other);
        }
        outcome
    }

    fn note_command(&mut self, opcode: Opcode, command: &Command<'_>) {
        let position = self.records.position;
        let stream = match command.header.call_slot {
            NO_CALL => self.stream_if_repeatable(opcode, command.body),
            _ => None,
        };
        let ends = opcode.facts().repeat == Repeat::Ends;
        let Some(redo) = &mut self.repeating.redo else { return };
        if ends && redo.has_any(position) {
            let _ = redo.note(Kind::Ends, 0, position, (opcode as u16, &[]));
        }
        let Some(stream) = stream else { return };
        let noted = redo.note(Kind::Again, stream, position, (opcode as u16, command.body));
        if let Some(number) = noted {
            self.repeating.current = Some((stream, number));
            // From here on it is done from there and not from the ring.
            self.standing.commit(position);
        }
    }

    /// The stream of a command that can be done again.
    fn stream_if_repeatable(&self, opcode: Opcode, body: &[u8]) -> Option<u32> {
        if opcode.facts().repeat != Repeat::Again {
            return None;
        }
        let request = Request::read(opcode, body)?;
        let is_repeatable = match request {
            Request::Launch(launch, rest) => {
                let function = self.modules.function(launch.function).ok()?;
                let (attributes, _) = split(&launch, rest).ok()?;
                // Such a kernel may begin before the one before it has ended.
                let overlaps = attributes.iter().any(|attribute| {
                    attribute.id == CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION
                });
                function.repeatable && !function.prints && !overlaps
            }
            Request::Copy(Copy { destination, source, size_bytes, .. }, _) => {
                destination.abs_diff(source) >= size_bytes
            }
            _ => true,
        };
        request.order().stream().filter(|_| is_repeatable)
    }

    /// Does again what had not ended when the last executor did, and waits for its end. Says how
    /// each command went.
    pub(crate) fn repeat(&mut self) -> Vec<(Header, Result<Outcome, Failure>)> {
        // Until the end, so that nobody else submits anything.
        let Some(_trial) = self.repeating.trial.take() else { return Vec::new() };
        let shared = Arc::clone(&self.shared);
        let Some(_turn) = self.trial_turn(&shared) else { return Vec::new() };
        let unfinished = self.repeating.redo.as_ref().map_or_else(Vec::new, Redo::unfinished);
        let began = Instant::now();
        let mut results = Vec::new();
        for Unfinished { number, stream, opcode, body } in unfinished {
            let size_bytes = (size_of::<Header>() + body.len()) as u32;
            let header = Header { opcode, call_slot: NO_CALL, size_bytes, context: 0, reserved: 0 };
            self.repeating.current = Some((stream, number));
            let result = self.execute(&Command { header, body: &body });
            self.repeating.current = None;
            results.push((header, result));
        }
        while began.elapsed() < PATIENCE && !self.ends_trial() && !self.has_repeated() {
            std::thread::sleep(POLL);
        }
        if !self.ends_trial() {
            let (label, commands) = (&self.handle.label, results.len());
            log_server!("{label}: {commands} commands that had not ended were done again");
        }
        results
    }

    /// Waits until no other session is on trial; `None`: this one need not be any more.
    fn trial_turn<'a>(&self, shared: &'a Shared) -> Option<MutexGuard<'a, ()>> {
        while !self.ends_trial() {
            match shared.trial_turn.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL),
            }
        }
        None
    }

    fn ends_trial(&self) -> bool {
        self.handle.stopped() || self.ended().is_some()
    }

    /// Whether all that was done again has ended; notices when the context is lost.
    fn has_repeated(&mut self) -> bool {
        for stream in self.streams.handles() {
            // SAFETY: a live stream of this session.
            let asked = unsafe { self.driver().cuStreamQuery(stream) };
            if asked == CUresult::ERROR_NOT_READY {
                return false;
            }
            if self.check(asked).is_err() {
                return false;
            }
        }
        true
    }
}
