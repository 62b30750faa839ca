//! How work comes to the driver: one sequence for kernels, graphs and chains, which need credit and
//! a place in the queue, are sampled and may print; and a short one for copies and fills, which
//! only pass the gate.

use super::submitted::Submission;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::{CUresult, CUstream};
use executor_link::driver::Driver;

impl State {
    /// Has the driver do work, by `call`. What it may change has been told
    /// ([`Self::touch_variables`]).
    pub(crate) fn submit(
        &mut self,
        submission: &Submission<'_>,
        call: impl FnOnce(&Self, CUstream) -> CUresult,
    ) -> Result<(), Failure> {
        let Submission { slot, submitted, prints, frame_bytes, waited, signal } = *submission;
        self.refresh_guard()?;
        self.begin_launches(slot, submitted);
        let stream = self.stream_for_work(slot)?;
        if let Some(value) = signal {
            self.streams.check_signal(slot, value)?;
        }
        let given_up = || self.handle.gives_up();
        self.streams.admit_launches(&self.shared.context, slot, submitted.launches(), given_up)?;
        if self.handle.gives_up() {
            return Err(self.ending());
        }
        if prints {
            self.begin_printing()?;
        }
        // Work of the stream's own, perhaps, so before the signal.
        let traced = waited.and_then(|launches| self.trace_batch_begins(slot, launches));
        let last_signal = self.streams.last_signal(slot);
        if let Some(value) = signal {
            self.streams.for_signal(&self.shared.context, slot, value)?;
            self.handle.note_streams(self.streams.slots());
            // All of it, and before it can have ended: what has ended is not to be done again, and
            // what is not reached is known to be in flight.
            self.standing.commit(self.records.position);
        }
        let paced = self.pace(slot, stream, submitted);
        let measured = self.measure_launches(stream, submitted);
        let entry = self.enter_with_frame(slot, frame_bytes)?;
        let result = call(self, stream);
        drop(entry);
        self.launch_measured(measured, stream);
        self.paced(paced);
        if prints {
            self.printing_launched(stream)?;
        }
        if signal.is_some() && !result.is_success() {
            self.streams.take_signal_back(slot, last_signal);
        }
        self.check(result)?;
        if let Some(launches) = waited {
            self.trace_batch_began(traced, launches);
            match signal {
                None => self.note_ahead(slot, launches),
                Some(_) => self.batches.gathering.end(),
            }
        }
        Ok(())
    }

    /// Has the driver do a copy or a fill of a stream's, by `call`, that writes so many bytes from
    /// an address on, as the client names it; what it names was checked.
    pub(crate) fn submit_copy(
        &mut self,
        slot: u32,
        (address, size_bytes): (u64, u64),
        copied_bytes: u64,
        call: impl FnOnce(Driver) -> CUresult,
    ) -> Result<(), Failure> {
        self.touch_written(address, size_bytes);
        let _pass = self.enter(slot);
        self.check(call(self.driver()))?;
        self.counters().count_copy(copied_bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
