//! A session enters, or waits for a quiet moment.

use super::*;
use crate::session::failure::Failure;
use crate::session::state::State;

impl State {
    /// Before a driver call that waits for running kernels: waits for a quiet moment, here or in
    /// another context. Nothing of the command may be done yet.
    pub(crate) fn quiet(&self) -> Result<Quiet<'_>, Failure> {
        let stuck = self.wait_for_kernels();
        let ends = || self.is_given_up() || stuck.leaves();
        let quiet = self.shared.context.gate.quiet(self.context(), &self.handle.label, ends);
        quiet.ok_or_else(|| if self.is_given_up() { self.ending() } else { Failure::Elsewhere })
    }

    /// The same for a command of which something is done: it cannot be done elsewhere.
    pub(crate) fn quiet_here(&self) -> Result<Quiet<'_>, Failure> {
        let given_up = || self.is_given_up();
        let quiet = self.shared.context.gate.quiet(self.context(), &self.handle.label, given_up);
        quiet.ok_or_else(|| self.ending())
    }

    /// At the session's end: does something to each, in quiet moments of which none is long; what
    /// is left of a lost context is left.
    pub(crate) fn quietly_each<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut act: impl FnMut(T),
    ) {
        let context = self.context();
        let mut quiet = None;
        for item in items {
            if quiet.as_ref().is_none_or(Quiet::is_long) {
                drop(quiet.take());
                let given_up = || context.lost().is_some();
                quiet = match self.handle.has_left() {
                    // Nobody waits for that.
                    true => self.shared.await_calm(),
                    false => self.shared.context.gate.quiet(context, &self.handle.label, given_up),
                };
                if quiet.is_none() {
                    return;
                }
            }
            act(item);
        }
    }

    /// Before work goes to stream `slot`.
    pub(crate) fn enter(&self, slot: u32) -> Pass<'_> {
        self.shared.context.gate.enter(self.streams.turnstile(), self.streams.track(slot))
    }

    /// The same for kernels with so much local memory per thread: where the driver must make more
    /// room first, it waits for all kernels.
    pub(crate) fn enter_with_frame(
        &self,
        slot: u32,
        frame_bytes: u32,
    ) -> Result<Entry<'_>, Failure> {
        if self.shared.context.gate.has_room_for(frame_bytes) {
            return Ok(Entry::Pass { _pass: self.enter(slot) });
        }
        let quiet = self.quiet_here()?;
        self.shared.context.gate.frame_bytes.fetch_max(frame_bytes, Ordering::Relaxed);
        if let Some(track) = self.streams.track(slot) {
            track.count();
        }
        quiet.spoil();
        Ok(Entry::Quiet { _quiet: quiet })
    }
}
