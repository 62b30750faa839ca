//! A chain is set to the launches that go as it, and submitted.

use super::chain::{Chain, Ending, Kind};
use super::own_kernels::COPIER;
use super::waiting::Together;
use crate::code::module::Touch;
use crate::session::failure::Failure;
use crate::session::state::State;
use crate::turns::meter::Submitted;

impl State {
    /// Submits launches as a chain of just so many, if there is one.
    pub(crate) fn submit_as_chain(
        &mut self,
        slot: u32,
        launches: Together<'_>,
        signal: Option<u64>,
    ) -> Option<()> {
        let ending = if signal.is_some() { Ending::Signalled } else { Ending::Open };
        let kind = Kind { length: launches.len(), ending };
        let completed = self.handle.words.completed(slot);
        let mut chain = self.batches.chains(slot)?.take(kind, completed)?;
        let submitted = self.run_chain(&mut chain, slot, launches, signal);
        match self.batches.chains(slot) {
            Some(chains) if submitted != Err(Unsubmitted::IsSpoiled) => chains.put(chain),
            _ => self.drop_chain(slot, chain),
        }
        submitted.ok()
    }

    /// Gives the chain's nodes these launches and submits it.
    fn run_chain(
        &mut self,
        chain: &mut Chain,
        slot: u32,
        launches: Together<'_>,
        signal: Option<u64>,
    ) -> Result<(), Unsubmitted> {
        for ((launch, parameters), link) in launches.iter().zip(&mut chain.links) {
            if !self.set_link(chain.executable, link, slot, launch, parameters) {
                self.batches.declined.insert(launch.function);
                return Err(Unsubmitted::IsSpoiled);
            }
        }
        if let Some(value) = signal
            && self.set_signal(chain, slot, value).is_none()
        {
            self.batches.signals_declined = true;
            return Err(Unsubmitted::IsSpoiled);
        }
        let kernels = launches.kernel_count();
        self.refresh_guard()?;
        self.begin_launches(slot, Submitted::Chain(launches));
        let stream = self.stream_for_work(slot)?;
        if let Some(value) = signal {
            self.streams.check_signal(slot, value)?;
        }
        launches.functions().for_each(|function| self.touch_variables(Touch::Function(function)));
        let session = &self.handle;
        let given_up = || session.gives_up();
        let count = launches.len() as u32;
        self.streams.admit_launches(&self.shared.context, slot, count, given_up)?;
        if self.handle.gives_up() {
            // What a client that has left had queued is never run.
            return Ok(());
        }
        if let Some(value) = signal {
            self.streams.for_signal(&self.shared.context, slot, value)?;
            self.handle.note_streams(self.streams.slots());
            // All of it, and before it can have ended: what has ended is not to be done again, and
            // what is not reached is known to be in flight.
            self.standing.commit(self.records.position);
        }
        let traced = self.trace_batch_begins(slot, launches);
        let paced = self.pace_chain(slot, stream, launches);
        let measured = self.measure_launches(stream, Submitted::Chain(launches));
        let pass = self.enter(slot);
        for (launch, parameters) in launches.iter() {
            match launch.function {
                COPIER => self.note_chained_copy(parameters),
                _ => self.note_launch(launch),
            }
        }
        if let Some(value) = signal {
            self.history().signal(slot, value);
        }
        chain.submitted(self.streams.last_signal(slot));
        // SAFETY: a live executable graph whose nodes were all checked just now.
        let result = unsafe { self.driver().cuGraphLaunch(chain.executable, stream) };
        drop(pass);
        self.launch_measured(measured, stream);
        self.paced(paced);
        self.check(result)?;
        self.trace_batch_began(traced, launches);
        match signal {
            None => self.note_ahead(slot, launches),
            Some(_) => self.batches.gathering.end(),
        }
        self.last_function = launches.kernels().last().or(self.last_function);
        match launches.len() {
            1 => self.counters().count_kernels(kernels as u64),
            _ => self.counters().count_chain(kernels as u64),
        }
        if signal.is_some() {
            self.counters().count_chained_signal();
        }
        Ok(())
    }
}

/// Why a chain was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsubmitted {
    /// Its nodes may be anything now.
    IsSpoiled,
    /// It is as it was.
    IsWhole,
}

impl<E: Into<Failure>> From<E> for Unsubmitted {
    fn from(_: E) -> Self {
        Self::IsWhole
    }
}
