//! Work is noted, and done again on trial.

use super::*;
use crate::session::failure::Failure;
use crate::session::state::{Outcome, State};
use crate::submit::launch::split;
use executor_link::log::log_server;
use executor_link::redo::Unfinished;
use link::ring::Command;
use link::wire::command::{Copy, Header, NO_CALL, Opcode, Repeat, Request};
use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Others wait that long for what is done again.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_micros(100);

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
