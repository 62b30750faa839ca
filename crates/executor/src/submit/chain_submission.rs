//! A chain is set to the launches that go as it, and submitted.

use super::chain::{Chain, Ending, Kind, Link};
use super::own_kernels::{COPIER, WORD_SHAPE, WordParameters};
use super::submitted::{Submission, Submitted};
use super::waiting::Together;
use crate::code::module::Touch;
use crate::objects::graph::{Code, with_kernel};
use crate::session::state::State;
use cuda_abi::types::CUgraphExec;
use link::wire::command::{Launch, Opcode};
use zerocopy::IntoBytes;

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

    /// A launch's function as a node names it, if its parameters are all there.
    fn code(&self, launch: &Launch, slot: u32) -> Option<Code> {
        if launch.function == COPIER {
            let partition = self.streams.partition(slot).as_deref();
            return Some(self.shared.own_kernels.as_ref()?.copier.code(partition));
        }
        let function = self.modules.function(launch.function).ok()?;
        if launch.parameter_bytes < function.parameter_bytes {
            return None;
        }
        Some(match self.streams.partition(slot) {
            Some(partition) => Code::Kernel(function.kernel, partition.context()),
            None => Code::Function(function.handle),
        })
    }

    /// Sets the node that signals to this value of the slot's completion word.
    pub(crate) fn set_signal(&self, chain: &Chain, slot: u32, value: u64) -> Option<()> {
        let node = chain.signal?;
        let partition = self.streams.partition(slot).as_deref();
        let code = self.shared.own_kernels.as_ref()?.word_writer.code(partition);
        let parameters = WordParameters { address: self.memory.completion_address(slot), value };
        let set = with_kernel(&WORD_SHAPE, code, parameters.as_bytes(), |kernel| {
            let driver = self.driver();
            // SAFETY: live handles of this session and parameters as long as the kernel's, which
            // the driver copies.
            unsafe { driver.cuGraphExecKernelNodeSetParams_v2(chain.executable, node, kernel) }
        });
        set.is_success().then_some(())
    }

    /// Makes a node of a chain this launch; says whether the driver took it.
    pub(crate) fn set_link(
        &self,
        executable: CUgraphExec,
        link: &mut Link,
        slot: u32,
        launch: &Launch,
        parameters: &[u8],
    ) -> bool {
        let Some(parameters) = parameters.get(..launch.parameter_bytes as usize) else {
            return false;
        };
        let (head, kept) = link.set_to.split_at_checked(size_of::<Launch>()).unwrap_or_default();
        // Functions keep their numbers, and streams their share, as long as the chain lives.
        if head == launch.as_bytes() && kept == parameters {
            return true;
        }
        link.set_to.clear();
        let Some(code) = self.code(launch, slot) else { return false };
        let driver = self.driver();
        let set = with_kernel(launch, code, parameters, |kernel| {
            // SAFETY: live handles of this session and parameters as long as the kernel's, which
            // the driver copies.
            unsafe { driver.cuGraphExecKernelNodeSetParams_v2(executable, link.node, kernel) }
        });
        if set.is_success() {
            link.set_to.extend_from_slice(launch.as_bytes());
            link.set_to.extend_from_slice(parameters);
        }
        set.is_success()
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
