//! A chain is set to the launches that go as it, and submitted.

use super::chain::{Chain, Ending, Kind};
use super::own_kernels::COPIER;
use super::submitted::{Submission, Submitted};
use super::waiting::Together;
use crate::code::module::Touch;
use crate::session::state::State;
use link::wire::command::Opcode;

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
        launches.kernels().for_each(|function| self.touch_variables(Touch::Function(function)));
        let (submitted, waited) = (Submitted::Chain(launches), Some(launches));
        let submission =
            Submission { slot, submitted, prints: false, frame_bytes: 0, waited, signal };
        let done = self.submit(&submission, |state, stream| {
            for (launch, _) in launches.iter() {
                match launch.function {
                    COPIER => state.history().call(Opcode::Copy),
                    _ => state.note_launch(launch),
                }
            }
            if let Some(value) = signal {
                state.history().signal(slot, value);
            }
            chain.submitted(signal.unwrap_or_else(|| state.streams.last_signal(slot)));
            // SAFETY: a live executable graph whose nodes were all checked just now.
            unsafe { state.driver().cuGraphLaunch(chain.executable, stream) }
        });
        match done {
            // What a client that has left had queued is never run.
            Err(_) if self.handle.gives_up() => return Ok(()),
            Err(_) => return Err(Unsubmitted::IsWhole),
            Ok(()) => {}
        }
        self.last_function = launches.kernels().last().or(self.last_function);
        let (counters, kernels) = (self.counters(), launches.kernel_count());
        match launches.len() {
            1 => counters.count_kernels(kernels as u64),
            _ => counters.count_chain(kernels as u64),
        }
        if kernels < launches.len() {
            launches.copies().for_each(|copy| counters.count_chained_copy(copy.size_bytes()));
        }
        if signal.is_some() {
            counters.count_chained_signal();
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
