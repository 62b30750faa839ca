//! Launches that wait together are submitted together: as a chain of kernel nodes in an executable graph that is kept and used again.
//!
//! On a real GPU a direct launch costs the driver 2 to 4 us, a node of such a chain 0.2 to 0.6 us, and less where it is as it was: programs do the same again
//! and again, so what a node was set to is remembered. A launch that nothing waits behind goes to the driver at once; only launches that are in the ring
//! already wait for each other, and any other command ends the batch. What node parameters cannot say (attributes, clusters, output) is launched directly.
//!
//! A chain of one is launched in half the time of a kernel and starts sooner, but several threads that launch graphs hinder each other more than threads that
//! launch kernels; so lone launches take that way where few clients have work.

use super::chain::{Chain, Ending, StreamChains};
use super::costs::Piece;
use super::failure::Failure;
use super::meter::Submitted;
use super::module::Touch;
use super::own_kernels::COPIER;
use super::state::State;
use super::stream::is_same;
use crate::driver::Driver;
use crate::log::log_server;
use link::ring::Command;
use link::wire::command::{Header, Launch, NO_CALL, Opcode};
use std::collections::HashSet;
use zerocopy::FromBytes;

/// Launches that are submitted together at most.
pub(super) const MOST_WAITING: usize = 32;
/// Up to so many clients with work, a launch alone goes as a chain of one.
const FEW: u32 = 1;
/// Streams of a session that have chains.
const MOST_STREAMS: usize = 16;

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

/// A launch, or a small copy as one ([`super::small_copies`]), that waits for those behind it; its parameters lie in [`Batches::bytes`].
#[derive(Clone, Copy, Debug)]
struct Waiting {
    header: Header,
    launch: Launch,
    /// Where what follows the launch begins and ends.
    start: usize,
    end: usize,
}

/// Launches that are submitted together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together<'a> {
    waiting: &'a [Waiting],
    bytes: &'a [u8],
    /// How many copies are among them, at most.
    copies: usize,
}

impl<'a> Together<'a> {
    pub(super) fn len(self) -> usize {
        self.waiting.len()
    }

    /// Each launch, and what followed it in its command.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a Launch, &'a [u8])> + Clone {
        self.waiting
            .iter()
            .map(move |one| (&one.launch, self.bytes.get(one.start..one.end).unwrap_or_default()))
    }

    /// Their functions.
    pub(super) fn functions(self) -> impl Iterator<Item = u32> + Clone {
        self.waiting.iter().map(|one| one.launch.function)
    }

    /// How many are not copies.
    pub(super) fn kernel_count(self) -> usize {
        match self.copies {
            0 => self.len(),
            _ => self.kernels().count(),
        }
    }

    /// The functions of those that are not copies.
    pub(super) fn kernels(self) -> impl Iterator<Item = u32> + Clone {
        self.functions().filter(|&function| function != COPIER)
    }

    fn first(self, count: usize) -> Self {
        Self { waiting: &self.waiting[..count.min(self.waiting.len())], ..self }
    }
}

/// The launches of one session that wait, and its chains.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    waiting: Vec<Waiting>,
    bytes: Vec<u8>,
    /// How many of those that wait are copies.
    copies: usize,
    stream: u32,
    /// Of a few streams.
    streams: Vec<StreamChains>,
    /// Functions that the driver does not take into a chain.
    pub(super) declined: HashSet<u32>,
    /// The driver does not take signals into a chain.
    pub(super) signals_declined: bool,
}

/// A launch that was not submitted, and why.
pub(super) type Refused = (Header, Failure);

impl Batches {
    /// Destroys all chains: code that they name may be about to go.
    pub(super) fn clear_chains(&mut self, driver: Driver) {
        self.streams.drain(..).for_each(|chains| chains.destroy(driver));
        self.declined.clear();
    }

    /// Destroys the chains of a stream that is closed.
    pub(super) fn forget_stream(&mut self, driver: Driver, slot: u32) {
        if let Some(at) = self.streams.iter().position(|chains| chains.slot == slot) {
            self.streams.swap_remove(at).destroy(driver);
        }
    }

    /// The chains of a stream.
    pub(super) fn chains(&mut self, slot: u32) -> Option<&mut StreamChains> {
        self.streams.iter_mut().find(|chains| chains.slot == slot)
    }

    /// The same, for the first time perhaps; `None` where too many streams have chains.
    fn chains_or_new(&mut self, slot: u32) -> Option<&mut StreamChains> {
        let at = match self.streams.iter().position(|chains| chains.slot == slot) {
            Some(at) => at,
            None if self.streams.len() >= MOST_STREAMS => return None,
            None => {
                self.streams.push(StreamChains::new(slot));
                self.streams.len() - 1
            }
        };
        self.streams.get_mut(at)
    }

    /// Whether the driver takes a function into a chain, as far as is known.
    pub(super) fn takes(&self, function: u32) -> bool {
        !self.declined.contains(&function)
    }

    /// Whether one more may wait that is for this stream.
    pub(super) fn has_room_for(&self, stream: u32) -> bool {
        self.waiting.len() < MOST_WAITING && (self.waiting.is_empty() || self.stream == stream)
    }

    /// Nothing waits any more.
    fn clear(&mut self) {
        self.waiting.clear();
        self.bytes.clear();
        self.copies = 0;
    }

    /// One more waits.
    pub(super) fn add(&mut self, header: Header, launch: Launch, parameters: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(parameters);
        self.stream = launch.stream;
        self.copies += usize::from(launch.function == COPIER);
        self.waiting.push(Waiting { header, launch, start, end: self.bytes.len() });
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
            || self.repeating.is_on()
            || header.call_slot != NO_CALL
            || !self.holding.is_empty()
            || self.ended().is_some()
        {
            return Admission::ByItself;
        }
        if header.opcode == Opcode::Copy as u16 {
            return self.admit_copy(command);
        }
        let Ok((launch, rest)) = Launch::read_from_prefix(body) else { return Admission::ByItself };
        let batches = &self.batches;
        let may_wait = header.opcode == Opcode::Launch as u16
            && launch.attributes == 0
            && batches.has_room_for(launch.stream)
            && batches.takes(launch.function)
            && self.may_be_batched(Piece::Function(launch.function))
            && self.trace_admits(launch.function) == Admission::Waits
            && self.modules.function(launch.function).is_ok_and(|function| {
                !function.prints && self.shared.gate.has_room_for(function.frame_bytes)
            });
        if !may_wait {
            return Admission::ByItself;
        }
        self.batches.add(header, launch, rest);
        self.trace_waits();
        Admission::Waits
    }

    /// Whether no more may wait.
    pub(super) fn batch_is_full(&self) -> bool {
        self.batches.waiting.len() >= MOST_WAITING
    }

    /// What next command goes with what waits, if it comes soon: the signal by which the client waits, a copy; a launch behind a copy, since launches that come one
    /// by one are not to wait for each other.
    pub(super) fn goes_with_batch(&self, opcode: u16) -> bool {
        let is_copy = |one: &Waiting| one.launch.function == COPIER;
        opcode == Opcode::Signal as u16
            || opcode == Opcode::Copy as u16
            || (opcode == Opcode::Launch as u16 && self.batches.waiting.last().is_some_and(is_copy))
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
        let mut rest = Together { waiting: &waiting, bytes: &bytes, copies: self.batches.copies };
        while let Some(one) = rest.waiting.first() {
            let done = self.submit_chain(rest).unwrap_or_else(|| {
                if let Err(failure) = self.launch_one(rest.first(1)) {
                    refused.push((one.header, failure));
                }
                1
            });
            self.trace_waited(done);
            rest.waiting = &rest.waiting[done..];
        }
        self.batches.waiting = waiting;
        self.batches.bytes = bytes;
        self.batches.clear();
        refused
    }

    fn launch_one(&mut self, one: Together<'_>) -> Result<(), Failure> {
        if let Some(code) = self.ended() {
            return Err(Failure::Cuda(code));
        }
        let Some((launch, parameters)) = one.iter().next() else { return Ok(()) };
        if launch.function == COPIER {
            return self.copy_one(launch, parameters);
        }
        let traced = self.trace_batch_begins(launch.stream, one);
        self.launch(*launch, parameters)?;
        self.trace_batch_began(traced, one);
        Ok(())
    }

    /// Submits as many of the first launches as the longest chain has that they fill; says how many. `None`: the first one is to be launched
    /// by itself.
    fn submit_chain(&mut self, launches: Together<'_>) -> Option<usize> {
        let taken = launches.functions().take_while(|&function| self.batches.takes(function));
        let launches = launches.first(taken.count());
        let slot = self.batches.stream;
        let begins_with_copy = launches.functions().next() == Some(COPIER);
        let shortest = if begins_with_copy || self.shared.flights.busy() > FEW { 2 } else { 1 };
        let length = self.choose_chain(slot, Ending::Open, launches.len(), shortest)?;
        self.submit_as_chain(slot, launches.first(length), None).map(|()| length)
    }

    /// Submits launches as the chain that fits them, which is there or is made.
    fn submit_as_chain(
        &mut self,
        slot: u32,
        launches: Together<'_>,
        signal: Option<u64>,
    ) -> Option<()> {
        let ending = if signal.is_some() { Ending::Signalled } else { Ending::Open };
        let mut chain = self.take_chain(slot, launches, ending)?;
        let submitted = self.run_chain(&mut chain, slot, launches, signal);
        if let Some(chains) = self.batches.chains(slot) {
            chains.put_back(chain, ending, launches.len());
        }
        submitted
    }

    /// Whether a signal may go together with the launches before it.
    pub(super) fn may_take_signals(&self) -> bool {
        self.shared.batching == Batching::On
            && self.shared.own_kernels.is_some()
            && !self.batches.signals_declined
            && self.shared.pace.is_calm()
    }

    /// Submits what waits, with the signal that came behind it; says whether it did. If not, all of it still waits.
    pub(super) fn submit_with_signal(&mut self, slot: u32, value: u64) -> bool {
        let is_possible = !self.batch_is_empty()
            && self.batches.stream == slot
            && self.ended().is_none()
            && self.may_take_signals();
        if !is_possible {
            return false;
        }
        let waiting = std::mem::take(&mut self.batches.waiting);
        let bytes = std::mem::take(&mut self.batches.bytes);
        let launches = Together { waiting: &waiting, bytes: &bytes, copies: self.batches.copies };
        let submitted = self.submit_signalled(slot, value, launches).is_some();
        self.batches.waiting = waiting;
        self.batches.bytes = bytes;
        if submitted {
            self.trace_waited(self.batches.waiting.len());
            self.batches.clear();
        }
        submitted
    }

    fn submit_signalled(&mut self, slot: u32, value: u64, launches: Together<'_>) -> Option<()> {
        if !launches.functions().all(|function| self.batches.takes(function)) {
            return None;
        }
        // All of them or none: a signal ends one chain.
        self.choose_chain(slot, Ending::Signalled, launches.len(), launches.len())?;
        self.submit_as_chain(slot, launches, Some(value))
    }

    /// The length of the chain that is to take the first of so many launches on a stream.
    fn choose_chain(
        &mut self,
        slot: u32,
        ending: Ending,
        launches: usize,
        shortest: usize,
    ) -> Option<usize> {
        let driver = self.driver();
        let partition = self.streams.partition(slot);
        let chains = self.batches.chains_or_new(slot)?;
        if !is_same(&chains.partition, partition) {
            // Chains belong to one share of the SMs.
            let place = partition.clone();
            std::mem::replace(chains, StreamChains::new(slot)).destroy(driver);
            chains.partition = place;
        }
        chains.choose(ending, launches, shortest)
    }

    /// Gives the chain's nodes these launches and submits it. `None`: nothing was submitted.
    fn run_chain(
        &mut self,
        chain: &mut Chain,
        slot: u32,
        launches: Together<'_>,
        signal: Option<u64>,
    ) -> Option<()> {
        for ((launch, parameters), link) in launches.iter().zip(&mut chain.links) {
            if !self.set_link(chain.executable, link, slot, launch, parameters) {
                self.batches.declined.insert(launch.function);
                return None;
            }
        }
        if let Some(value) = signal
            && self.set_signal(chain, slot, value).is_none()
        {
            self.batches.signals_declined = true;
            return None;
        }
        let kernels = launches.kernel_count();
        self.refresh_guard().ok()?;
        self.begin_launches(slot, Submitted::Chain(launches));
        let stream = self.stream_for_work(slot).ok()?;
        launches.functions().for_each(|function| self.touch_variables(Touch::Function(function)));
        let session = &self.handle;
        let given_up = || session.stopped();
        let count = launches.len() as u32;
        self.streams.admit_launches(&self.shared.context, slot, count, given_up).ok()?;
        if self.handle.stopped() {
            // What a client that has left had queued is never run.
            return Some(());
        }
        if let Some(value) = signal {
            self.streams.for_signal(&self.shared.context, slot, value).ok()?;
            self.handle.note_streams(self.streams.slots());
            // All of it, and before it can have ended: what has ended is not to be done again, and what is not reached is known to be in flight.
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
        // SAFETY: a live executable graph whose nodes were all checked just now.
        let result = unsafe { self.driver().cuGraphLaunch(chain.executable, stream) };
        drop(pass);
        self.launch_measured(measured, stream);
        self.paced(paced);
        self.check(result).ok()?;
        self.trace_batch_began(traced, launches);
        self.last_function = launches.kernels().last().or(self.last_function);
        match launches.len() {
            1 => self.counters().count_kernels(kernels as u64),
            _ => self.counters().count_chain(kernels as u64),
        }
        if signal.is_some() {
            self.counters().count_chained_signal();
        }
        Some(())
    }
}
