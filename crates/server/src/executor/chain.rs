//! Chains: executable graphs of kernels in a row that are kept and used again ([`super::batch`] says for what).

use super::batch::Together;
use super::graph::{Code, with_kernel};
use super::own_kernels::{COPIER, WORD_SHAPE, WordParameters};
use super::partition::Partition;
use super::state::State;
use crate::driver::Driver;
use cuda_abi::types::*;
use link::wire::command::Launch;
use std::ptr;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// How often so many launches of a stream wait together before a chain of that length is made: to make one costs as much as a hundred launches.
const WORTH_A_CHAIN: u32 = 16;
/// Lengths that chains of one stream have, powers of two left out. A chain fits its length alone, since to switch a node off costs more than it
/// spares; a program that does the same again and again has few lengths.
const MOST_LENGTHS: usize = 8;
/// Chains of each length, used in turn: one that runs cannot be changed without waiting. One that signals has not ended when its client sees the signal.
const TURNS: usize = 2;

/// A node of a chain, and the launch that it was set to: as it came, parameters included.
#[derive(Debug)]
pub(super) struct Link {
    node: CUgraphNode,
    set_to: Vec<u8>,
}

/// An executable graph of kernels in a row.
#[derive(Debug)]
pub(super) struct Chain {
    graph: CUgraph,
    pub(super) executable: CUgraphExec,
    pub(super) links: Vec<Link>,
    /// The node that signals, in a chain that does.
    signal: Option<CUgraphNode>,
}

/// What comes after the launches of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Nothing.
    Open,
    /// Its stream's completion word is written.
    Signalled,
}

impl Chain {
    fn destroy(self, driver: Driver) {
        // SAFETY: live handles that nothing else names; the driver keeps what runs until it has ended.
        unsafe {
            if self.executable != CUgraphExec::NULL {
                let _ = driver.cuGraphExecDestroy(self.executable);
            }
            let _ = driver.cuGraphDestroy(self.graph);
        }
    }
}

/// The chains of one length.
#[derive(Debug, Default)]
pub(super) struct Length {
    /// How often so many launches waited.
    wanted: u32,
    chains: [Option<Chain>; TURNS],
    turn: usize,
}

impl Length {
    fn is_made(&self) -> bool {
        self.wanted >= WORTH_A_CHAIN
    }
}

/// The chains of one stream, by their lengths.
#[derive(Debug)]
pub(super) struct StreamChains {
    pub(super) slot: u32,
    pub(super) partition: Option<Arc<Partition>>,
    open: Vec<Length>,
    signalled: Vec<Length>,
}

impl StreamChains {
    /// None yet.
    pub(super) fn new(slot: u32) -> Self {
        Self { slot, partition: None, open: Vec::new(), signalled: Vec::new() }
    }

    fn lengths(&mut self, ending: Ending) -> &mut Vec<Length> {
        match ending {
            Ending::Open => &mut self.open,
            Ending::Signalled => &mut self.signalled,
        }
    }

    /// The length of the chain to be used for so many launches, `shortest` or more, if there is one or it is time to make it.
    pub(super) fn choose(
        &mut self,
        ending: Ending,
        launches: usize,
        shortest: usize,
    ) -> Option<usize> {
        if launches < shortest {
            return None;
        }
        let lengths = self.lengths(ending);
        if lengths.len() <= launches {
            lengths.resize_with(launches + 1, Length::default);
        }
        if !lengths[launches].is_made()
            && (launches.is_power_of_two() || odd_lengths(lengths) < MOST_LENGTHS)
        {
            lengths[launches].wanted += 1;
        }
        (shortest..=launches).rev().find(|&length| lengths[length].is_made())
    }

    pub(super) fn destroy(self, driver: Driver) {
        let lengths = self.open.into_iter().chain(self.signalled);
        lengths.flat_map(|length| length.chains).flatten().for_each(|chain| chain.destroy(driver));
    }

    /// Puts a chain back that was used.
    pub(super) fn put_back(&mut self, chain: Chain, ending: Ending, launches: usize) {
        if let Some(length) = self.lengths(ending).get_mut(launches) {
            let turn = length.turn % TURNS;
            length.turn += 1;
            length.chains[turn] = Some(chain);
        }
    }

    /// The chain whose turn it is, if it is made.
    fn take(&mut self, ending: Ending, launches: usize) -> Option<Chain> {
        let length = self.lengths(ending).get_mut(launches)?;
        length.chains[length.turn % TURNS].take()
    }
}

/// How many lengths that are no power of two have chains.
fn odd_lengths(lengths: &[Length]) -> usize {
    let odd = |(nodes, length): &(usize, &Length)| !nodes.is_power_of_two() && length.is_made();
    lengths.iter().enumerate().filter(odd).count()
}

impl State {
    /// The chain whose turn it is, made if need be.
    pub(super) fn take_chain(
        &mut self,
        slot: u32,
        launches: Together<'_>,
        ending: Ending,
    ) -> Option<Chain> {
        let chains = self.batches.chains(slot)?;
        if let Some(chain) = chains.take(ending, launches.len()) {
            return Some(chain);
        }
        let (launch, parameters) = launches.iter().next()?;
        let code = self.code(launch, slot)?;
        let parameters = parameters.get(..launch.parameter_bytes as usize)?;
        let made = self.make_chain(launches.len(), launch, code, parameters);
        let Some(mut chain) = made else {
            self.batches.declined.insert(launch.function);
            return None;
        };
        if ending == Ending::Signalled && self.add_signal(&mut chain, slot).is_none() {
            self.batches.signals_declined = true;
            chain.destroy(self.driver());
            return None;
        }
        let driver = self.driver();
        // SAFETY: a live graph; the result is written.
        let instantiated = self.check(unsafe {
            driver.cuGraphInstantiateWithFlags(&mut chain.executable, chain.graph, 0)
        });
        if instantiated.is_err() {
            chain.destroy(driver);
            self.batches.declined.insert(launch.function);
            return None;
        }
        Some(chain)
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

    fn make_chain(
        &self,
        length: usize,
        launch: &Launch,
        code: Code,
        parameters: &[u8],
    ) -> Option<Chain> {
        let driver = self.driver();
        let mut graph = CUgraph::NULL;
        // SAFETY: the result is written.
        self.check(unsafe { driver.cuGraphCreate(&mut graph, 0) }).ok()?;
        let (executable, links) = (CUgraphExec::NULL, Vec::new());
        let mut chain = Chain { graph, executable, links, signal: None };
        let mut made = Ok(());
        while made.is_ok() && chain.links.len() < length {
            let mut node = CUgraphNode::NULL;
            let before = chain.links.last().map_or(ptr::null(), |link| ptr::from_ref(&link.node));
            let count = chain.links.len().min(1);
            made = with_kernel(launch, code, parameters, |kernel| {
                // SAFETY: live handles of this session and parameters as long as the kernel's; the result is written.
                self.check(unsafe {
                    driver.cuGraphAddKernelNode_v2(&mut node, graph, before, count, kernel)
                })
            });
            chain.links.push(Link { node, set_to: Vec::new() });
        }
        if made.is_err() {
            chain.destroy(driver);
            return None;
        }
        Some(chain)
    }

    /// Adds the node that signals behind the last launch.
    fn add_signal(&self, chain: &mut Chain, slot: u32) -> Option<()> {
        let before = chain.links.last().map(|link| link.node)?;
        let mut node = CUgraphNode::NULL;
        self.with_signal(slot, 0, |kernel| {
            // SAFETY: live handles of this session and parameters as long as the kernel's; the result is written.
            self.check(unsafe {
                self.driver().cuGraphAddKernelNode_v2(&mut node, chain.graph, &before, 1, kernel)
            })
        })?
        .ok()?;
        chain.signal = Some(node);
        Some(())
    }

    /// Calls `body` with what a node takes to make the completion word of slot `slot` this value.
    fn with_signal<R>(
        &self,
        slot: u32,
        value: u64,
        body: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> R,
    ) -> Option<R> {
        let partition = self.streams.partition(slot).as_deref();
        let code = self.shared.own_kernels.as_ref()?.word_writer.code(partition);
        let parameters = WordParameters { address: self.memory.completion_address(slot), value };
        Some(with_kernel(&WORD_SHAPE, code, parameters.as_bytes(), body))
    }

    pub(super) fn set_signal(&self, chain: &Chain, slot: u32, value: u64) -> Option<()> {
        let node = chain.signal?;
        let set = self.with_signal(slot, value, |kernel| {
            let driver = self.driver();
            // SAFETY: live handles of this session and parameters as long as the kernel's, which the driver copies.
            unsafe { driver.cuGraphExecKernelNodeSetParams_v2(chain.executable, node, kernel) }
        });
        set.filter(|set| set.is_success()).map(|_| ())
    }

    /// Makes a node of a chain this launch; says whether the driver took it.
    pub(super) fn set_link(
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
            // SAFETY: live handles of this session and parameters as long as the kernel's, which the driver copies.
            unsafe { driver.cuGraphExecKernelNodeSetParams_v2(executable, link.node, kernel) }
        });
        if set.is_success() {
            link.set_to.extend_from_slice(launch.as_bytes());
            link.set_to.extend_from_slice(parameters);
        }
        set.is_success()
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::MOST_WAITING;
    use super::*;

    #[test]
    fn a_chain_is_made_for_what_comes_often() {
        let mut chains = StreamChains::new(0);
        for _ in 1..WORTH_A_CHAIN {
            assert_eq!(chains.choose(Ending::Open, 7, 2), None);
        }
        assert_eq!(chains.choose(Ending::Open, 7, 2), Some(7));
        assert_eq!(chains.choose(Ending::Open, 6, 2), None);
        assert_eq!(chains.choose(Ending::Open, 9, 2), Some(7), "the longest that is there");
    }

    #[test]
    fn one_launch_takes_a_chain_only_where_it_may() {
        let mut chains = StreamChains::new(0);
        assert!((0..100).all(|_| chains.choose(Ending::Open, 1, 2).is_none()));
        assert_eq!((1..=WORTH_A_CHAIN).find_map(|_| chains.choose(Ending::Open, 1, 1)), Some(1));
        assert!((0..100).all(|_| chains.choose(Ending::Open, 1, 2).is_none()));
        assert_eq!(chains.choose(Ending::Open, 3, 2), None, "nor in parts of one");
    }

    #[test]
    fn lengths_are_bounded() {
        let mut chains = StreamChains::new(0);
        for launches in 2..=MOST_WAITING {
            for _ in 0..WORTH_A_CHAIN {
                chains.choose(Ending::Open, launches, 2);
            }
        }
        assert_eq!(odd_lengths(&chains.open), MOST_LENGTHS);
        assert_eq!(chains.choose(Ending::Open, MOST_WAITING, 2), Some(MOST_WAITING));
    }
}
