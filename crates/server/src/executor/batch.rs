//! Launches that wait together are submitted together: as a chain of kernel nodes in an executable graph that is kept and used again.
//!
//! On a real GPU a direct launch costs the driver 2 to 4 us, a node of such a chain 0.2 to 0.6 us. A launch that nothing waits behind goes to the
//! driver at once; only launches that are in the ring already wait for each other, and any other command ends the batch. What node parameters
//! cannot say (attributes, clusters, output) is launched directly.

use super::failure::Failure;
use super::graph::{Code, with_kernel};
use super::meter::Submitted;
use super::pacing::Piece;
use super::partition::Partition;
use super::state::State;
use super::stream::is_same;
use crate::driver::Driver;
use crate::log::log_server;
use cuda_abi::types::*;
use link::ring::Command;
use link::wire::command::{Header, Launch, NO_CALL, Opcode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Launches that are submitted together at most.
const MOST_WAITING: usize = 32;
/// How often so many launches of a stream wait together before a chain of that length is made: to make one costs as much as a hundred launches.
const WORTH_A_CHAIN: u32 = 16;
/// Lengths that chains of one stream have, powers of two left out. A chain fits its length alone, since to switch a node off costs more than it
/// spares; a program that does the same again and again has few lengths.
const MOST_LENGTHS: usize = 8;
/// Streams of a session that have chains.
const MOST_STREAMS: usize = 16;
/// Chains of each length, used in turn: one that runs cannot be changed without waiting.
const TURNS: usize = 2;

/// `on` or `off`, read when an executor starts.
const BATCHING_VARIABLE: &str = "OPENMPS_BATCHING";

/// Whether launches are submitted together at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Batching {
    /// Where it pays.
    #[default]
    On,
    /// Every launch by itself.
    Off,
}

impl Batching {
    /// What the environment says.
    pub(crate) fn from_environment() -> Self {
        let word = std::env::var_os(BATCHING_VARIABLE).unwrap_or_default();
        match word.as_encoded_bytes() {
            b"off" => Self::Off,
            b"on" | b"" => Self::On,
            _ => {
                log_server!("{BATCHING_VARIABLE} is {word:?}, but can be `on` or `off`; it is on");
                Self::On
            }
        }
    }
}

/// A launch that waits for those behind it; its body lies in [`Batches::bytes`].
#[derive(Clone, Copy, Debug)]
struct Waiting {
    header: Header,
    start: usize,
    end: usize,
}

/// An executable graph of kernels in a row.
#[derive(Debug)]
struct Chain {
    graph: CUgraph,
    executable: CUgraphExec,
    nodes: Vec<CUgraphNode>,
}

impl Chain {
    fn destroy(self, driver: Driver) {
        // SAFETY: live handles that nothing else names; the driver keeps what runs until it has ended.
        unsafe {
            let _ = driver.cuGraphExecDestroy(self.executable);
            let _ = driver.cuGraphDestroy(self.graph);
        }
    }
}

/// The chains of one length.
#[derive(Debug, Default)]
struct Length {
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
#[derive(Debug, Default)]
struct StreamChains {
    partition: Option<Arc<Partition>>,
    lengths: BTreeMap<usize, Length>,
}

impl StreamChains {
    /// The length of the chain to be used for so many launches, if there is one or it is time to make it.
    fn choose(&mut self, launches: usize) -> Option<usize> {
        if launches < 2 {
            return None;
        }
        let room = launches.is_power_of_two() || self.odd_lengths() < MOST_LENGTHS;
        let length = self.lengths.entry(launches).or_default();
        if room && !length.is_made() {
            length.wanted += 1;
        }
        let mut fitting = self.lengths.range(..=launches).rev();
        fitting.find(|(_, length)| length.is_made()).map(|(&length, _)| length)
    }

    fn odd_lengths(&self) -> usize {
        let odd =
            |(nodes, length): &(&usize, &Length)| !nodes.is_power_of_two() && length.is_made();
        self.lengths.iter().filter(odd).count()
    }

    fn destroy(self, driver: Driver) {
        let chains = self.lengths.into_values().flat_map(|length| length.chains).flatten();
        chains.for_each(|chain| chain.destroy(driver));
    }
}

/// The launches of one session that wait, and its chains.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    waiting: Vec<Waiting>,
    bytes: Vec<u8>,
    stream: u32,
    streams: HashMap<u32, StreamChains>,
    /// Functions that the driver does not take into a chain.
    declined: HashSet<u32>,
}

/// A launch that was not submitted, and why.
pub(super) type Refused = (Header, Failure);

impl Batches {
    /// Destroys all chains: code that they name may be about to go.
    pub(super) fn clear_chains(&mut self, driver: Driver) {
        self.streams.drain().for_each(|(_, chains)| chains.destroy(driver));
        self.declined.clear();
    }

    /// Destroys the chains of a stream that is closed.
    pub(super) fn forget_stream(&mut self, driver: Driver, slot: u32) {
        if let Some(chains) = self.streams.remove(&slot) {
            chains.destroy(driver);
        }
    }
}

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It waits with the others.
    Waits,
    /// It is done by itself, after those that wait.
    ByItself,
}

impl State {
    /// Keeps a launch that may go together with others.
    pub(super) fn admit_to_batch(&mut self, command: &Command<'_>) -> Admission {
        let Command { header, body } = *command;
        if self.shared.batching == Batching::Off
            || self.is_traced()
            || header.opcode != Opcode::Launch as u16
            || header.call_slot != NO_CALL
            || !self.holding.is_empty()
            || self.ended().is_some()
        {
            return Admission::ByItself;
        }
        let Ok((launch, _)) = Launch::read_from_prefix(body) else { return Admission::ByItself };
        let batches = &self.batches;
        let may_wait = launch.attributes == 0
            && (batches.waiting.is_empty() || batches.stream == launch.stream)
            && batches.waiting.len() < MOST_WAITING
            && !batches.declined.contains(&launch.function)
            && self.may_be_batched(Piece::Function(launch.function))
            && self.modules.function(launch.function).is_ok_and(|function| {
                !function.prints && self.shared.gate.has_room_for(function.frame_bytes)
            });
        if !may_wait {
            return Admission::ByItself;
        }
        let batches = &mut self.batches;
        let start = batches.bytes.len();
        batches.bytes.extend_from_slice(body);
        batches.waiting.push(Waiting { header, start, end: batches.bytes.len() });
        batches.stream = launch.stream;
        Admission::Waits
    }

    /// Whether no more may wait.
    pub(super) fn batch_is_full(&self) -> bool {
        self.batches.waiting.len() >= MOST_WAITING
    }

    pub(super) fn batch_is_empty(&self) -> bool {
        self.batches.waiting.is_empty()
    }

    /// Submits what waits.
    pub(super) fn submit_batch(&mut self) -> Vec<Refused> {
        let mut refused = Vec::new();
        if self.batch_is_empty() {
            return refused;
        }
        let waiting = std::mem::take(&mut self.batches.waiting);
        let bytes = std::mem::take(&mut self.batches.bytes);
        let mut rest = waiting.as_slice();
        while !rest.is_empty() {
            let done = self.submit_chain(rest, &bytes).unwrap_or_else(|| {
                let one = rest[0];
                if let Err(failure) = self.launch_one(&bytes[one.start..one.end]) {
                    refused.push((one.header, failure));
                }
                1
            });
            rest = &rest[done..];
        }
        self.batches.waiting = waiting;
        self.batches.waiting.clear();
        self.batches.bytes = bytes;
        self.batches.bytes.clear();
        refused
    }

    fn launch_one(&mut self, body: &[u8]) -> Result<(), Failure> {
        if let Some(code) = self.ended() {
            return Err(Failure::Cuda(code));
        }
        let (launch, parameters) = Launch::read_from_prefix(body)
            .map_err(|_| Failure::Protocol("a launch is too short".into()))?;
        self.launch(launch, parameters)
    }

    /// Submits as many of the first launches as the longest chain has that they fill; says how many. `None`: the first one is to be launched
    /// by itself.
    fn submit_chain(&mut self, launches: &[Waiting], bytes: &[u8]) -> Option<usize> {
        let launches: Vec<(Launch, &[u8])> = launches
            .iter()
            .map_while(|one| Launch::read_from_prefix(&bytes[one.start..one.end]).ok())
            .take_while(|(launch, _)| !self.batches.declined.contains(&launch.function))
            .collect();
        let slot = self.batches.stream;
        let length = self.choose_chain(slot, launches.len())?;
        let launches = &launches[..length];
        let chain = self.take_chain(slot, launches)?;
        let submitted = self.run_chain(&chain, slot, launches);
        let chains = self.batches.streams.get_mut(&slot);
        if let Some(length) = chains.and_then(|chains| chains.lengths.get_mut(&length)) {
            let turn = length.turn % TURNS;
            length.turn += 1;
            length.chains[turn] = Some(chain);
        }
        submitted.map(|()| launches.len())
    }

    /// The length of the chain that is to take the first of so many launches on a stream.
    fn choose_chain(&mut self, slot: u32, launches: usize) -> Option<usize> {
        let partition = self.streams.partition(slot);
        let driver = self.driver();
        let batches = &mut self.batches;
        if batches.streams.len() >= MOST_STREAMS && !batches.streams.contains_key(&slot) {
            return None;
        }
        let chains = batches.streams.entry(slot).or_default();
        if !is_same(&chains.partition, &partition) {
            // Chains belong to one share of the SMs.
            std::mem::take(chains).destroy(driver);
            chains.partition = partition;
        }
        chains.choose(launches)
    }

    /// The chain whose turn it is, made if need be.
    fn take_chain(&mut self, slot: u32, launches: &[(Launch, &[u8])]) -> Option<Chain> {
        let chains = self.batches.streams.get_mut(&slot)?;
        let length = chains.lengths.get_mut(&launches.len())?;
        let turn = length.turn % TURNS;
        if let Some(chain) = length.chains[turn].take() {
            return Some(chain);
        }
        let (launch, parameters) = launches.first()?;
        let code = self.code(launch, slot)?;
        let parameters = parameters.get(..launch.parameter_bytes as usize)?;
        let made = self.make_chain(launches.len(), launch, code, parameters);
        if made.is_none() {
            self.batches.declined.insert(launch.function);
        }
        made
    }

    /// A launch's function as a node names it, if its parameters are all there.
    fn code(&self, launch: &Launch, slot: u32) -> Option<Code> {
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
        let mut chain = Chain { graph, executable: CUgraphExec::NULL, nodes: Vec::new() };
        let mut made = Ok(());
        while made.is_ok() && chain.nodes.len() < length {
            let mut node = CUgraphNode::NULL;
            let before = chain.nodes.last().map_or(ptr::null(), ptr::from_ref);
            let count = chain.nodes.len().min(1);
            made = with_kernel(launch, code, parameters, |kernel| {
                // SAFETY: live handles of this session and parameters as long as the kernel's; the result is written.
                self.check(unsafe {
                    driver.cuGraphAddKernelNode_v2(&mut node, graph, before, count, kernel)
                })
            });
            chain.nodes.push(node);
        }
        let made = made.and_then(|()| {
            // SAFETY: a live graph; the result is written.
            self.check(unsafe {
                driver.cuGraphInstantiateWithFlags(&mut chain.executable, graph, 0)
            })
        });
        if made.is_err() {
            // SAFETY: a live graph that nothing names.
            let _ = unsafe { driver.cuGraphDestroy(graph) };
            return None;
        }
        Some(chain)
    }

    /// Gives the chain's nodes these launches and submits it. `None`: nothing was submitted.
    fn run_chain(&mut self, chain: &Chain, slot: u32, launches: &[(Launch, &[u8])]) -> Option<()> {
        let driver = self.driver();
        for ((launch, parameters), node) in launches.iter().zip(&chain.nodes) {
            let set =
                self.code(launch, slot).zip(parameters.get(..launch.parameter_bytes as usize));
            let set = set.is_some_and(|(code, parameters)| {
                with_kernel(launch, code, parameters, |kernel| {
                    // SAFETY: live handles of this session and parameters as long as the kernel's, which the driver copies.
                    unsafe {
                        driver.cuGraphExecKernelNodeSetParams_v2(chain.executable, *node, kernel)
                    }
                    .is_success()
                })
            });
            if !set {
                self.batches.declined.insert(launch.function);
                return None;
            }
        }
        let count = launches.len() as u32;
        let stream = self.stream_for_work(slot).ok()?;
        let session = &self.handle;
        let given_up = || session.stopped();
        self.streams.admit_launches(&self.shared.context, slot, count, given_up).ok()?;
        if self.handle.stopped() {
            // What a client that has left had queued is never run.
            return Some(());
        }
        let paced = self.pace_chain(slot, stream, launches);
        let measured = self.measure_launches(stream, Submitted::Chain(launches));
        let pass = self.enter(slot);
        launches.iter().for_each(|(launch, _)| self.note_launch(launch));
        // SAFETY: a live executable graph whose nodes were all checked just now.
        let result = unsafe { driver.cuGraphLaunch(chain.executable, stream) };
        drop(pass);
        self.launch_measured(measured, stream);
        self.paced(paced);
        self.check(result).ok()?;
        self.last_function = launches.last().map(|(launch, _)| launch.function);
        self.counters().count_chain(u64::from(count));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_LENGTHS, MOST_WAITING, StreamChains, WORTH_A_CHAIN};

    #[test]
    fn a_chain_is_made_for_what_comes_often() {
        let mut chains = StreamChains::default();
        for _ in 1..WORTH_A_CHAIN {
            assert_eq!(chains.choose(7), None);
        }
        assert_eq!(chains.choose(7), Some(7));
        assert_eq!(chains.choose(6), None);
        assert_eq!(chains.choose(9), Some(7), "the longest that is there");
    }

    #[test]
    fn one_launch_takes_no_chain() {
        let mut chains = StreamChains::default();
        assert!((0..100).all(|_| chains.choose(1).is_none()));
    }

    #[test]
    fn lengths_are_bounded() {
        let mut chains = StreamChains::default();
        for launches in 2..=MOST_WAITING {
            for _ in 0..WORTH_A_CHAIN {
                chains.choose(launches);
            }
        }
        assert_eq!(chains.odd_lengths(), MOST_LENGTHS);
        assert_eq!(chains.choose(MOST_WAITING), Some(MOST_WAITING));
    }
}
