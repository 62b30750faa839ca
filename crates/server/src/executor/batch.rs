//! Launches that wait together are submitted together: as a chain of kernel nodes in an executable graph that is kept and used again.
//!
//! On a real GPU a direct launch costs the driver 2 to 4 us, a node of such a chain 0.2 to 0.6 us, and less where it is as it was: programs do the same again
//! and again, so what a node was set to is remembered. A launch that nothing waits behind goes to the driver at once; only launches that are in the ring
//! already wait for each other, and any other command ends the batch. What node parameters cannot say (attributes, clusters, output) is launched directly.
//!
//! Each submission is a turn of the driver's lock. So while the device is at work on the first launches of a burst the others wait for those behind them
//! ([`super::gathering`]), and what begins a burst is as many as a power of two: the rest is as long the next time, and finds its chain as it was.
//!
//! A chain of one is launched in half the time of a kernel and starts sooner. But where lone launches went so on an H200, the same chain again while it ran, the
//! device now and then stood still for milliseconds; why is not known (docs/performance.md). So a lone launch goes as a kernel, unless its signal goes with it.

use super::chain::{Chain, Ending, Kind};
use super::costs::Piece;
use super::failure::Failure;
use super::gathering::Gathering;
use super::lengths::StreamChains;
use super::meter::Submitted;
use super::module::Touch;
use super::own_kernels::COPIER;
use super::state::State;
use super::stream::is_same;
use crate::log::log_server;
use link::ring::Command;
use link::wire::command::{Header, Launch, NO_CALL, Opcode};
use std::collections::HashSet;
use zerocopy::FromBytes;

/// Launches that are submitted together at most.
pub(super) const MOST_WAITING: usize = 32;
/// Launches that go as a chain without a signal at least.
const SHORTEST: usize = 2;
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
    /// Where its command ends in the session's ring.
    position: u64,
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

    fn without(self, count: usize) -> Self {
        Self { waiting: &self.waiting[count.min(self.waiting.len())..], ..self }
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
    pub(super) streams: Vec<StreamChains>,
    pub(super) gathering: Gathering,
    /// Functions that the driver does not take into a chain.
    pub(super) declined: HashSet<u32>,
    /// The driver does not take signals into a chain.
    pub(super) signals_declined: bool,
}

/// A launch that was not submitted, and why.
pub(super) type Refused = (Header, Failure);

impl Batches {
    /// The chains of a stream.
    pub(super) fn chains(&mut self, slot: u32) -> Option<&mut StreamChains> {
        self.streams.iter_mut().find(|chains| chains.slot == slot)
    }

    /// Whether the driver takes a function into a chain, as far as is known.
    pub(super) fn takes(&self, function: u32) -> bool {
        !self.declined.contains(&function)
    }

    /// The stream that what waits is for.
    pub(super) fn stream(&self) -> u32 {
        self.stream
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
    pub(super) fn add(&mut self, header: Header, launch: Launch, parameters: &[u8], position: u64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(parameters);
        self.stream = launch.stream;
        self.copies += usize::from(launch.function == COPIER);
        self.waiting.push(Waiting { header, launch, position, start, end: self.bytes.len() });
    }

    /// The first ones wait no more; the others do.
    fn remove(&mut self, count: usize) {
        self.waiting.drain(..count);
        let begin = self.waiting.first().map_or(self.bytes.len(), |one| one.start);
        self.bytes.drain(..begin);
        for one in &mut self.waiting {
            one.start -= begin;
            one.end -= begin;
        }
        self.copies = self.waiting.iter().filter(|one| one.launch.function == COPIER).count();
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
        self.batches.add(header, launch, rest, self.records.position);
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
        self.with_waiting(|state, mut rest| {
            // Powers of two are wished for as they are submitted.
            if !rest.len().is_power_of_two() && state.takes_all(rest) {
                state.wish(rest.len(), Ending::Open);
            }
            while rest.len() > 0 {
                rest = rest.without(state.submit_piece(rest, &mut refused));
            }
        });
        self.batches.clear();
        refused
    }

    /// Submits the first launches that wait, as many as are a power of two; says where the last of them ends in the ring.
    pub(super) fn submit_beginning(&mut self) -> (Vec<Refused>, Option<u64>) {
        let mut refused = Vec::new();
        let done = self.with_waiting(|state, all| {
            let first = all.first(piece(all.len()));
            let mut rest = first;
            while rest.len() > 0 {
                rest = rest.without(state.submit_piece(rest, &mut refused));
            }
            first.len()
        });
        let last = done.checked_sub(1).and_then(|last| self.batches.waiting.get(last));
        let position = last.map(|last| last.position);
        self.batches.remove(done);
        (refused, position)
    }

    fn with_waiting<R>(&mut self, act: impl FnOnce(&mut Self, Together<'_>) -> R) -> R {
        let waiting = std::mem::take(&mut self.batches.waiting);
        let bytes = std::mem::take(&mut self.batches.bytes);
        let all = Together { waiting: &waiting, bytes: &bytes, copies: self.batches.copies };
        let result = act(self, all);
        self.batches.waiting = waiting;
        self.batches.bytes = bytes;
        result
    }

    /// Submits some of the first launches, together if there is a chain for them; says how many.
    fn submit_piece(&mut self, rest: Together<'_>, refused: &mut Vec<Refused>) -> usize {
        let launches = match self.submit_chain(rest) {
            Ok(done) => {
                self.trace_waited(done);
                return done;
            }
            Err(launches) => launches,
        };
        for one in (0..launches).map(|index| rest.without(index).first(1)) {
            if let (Err(failure), Some(first)) = (self.launch_one(one), one.waiting.first()) {
                refused.push((first.header, failure));
            }
            self.trace_waited(1);
        }
        launches
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
        self.note_ahead(launch.stream, one);
        Ok(())
    }

    /// Submits as many of the first launches as the longest chain has that they fill; says how many.
    ///
    /// # Errors
    /// How many are to be launched by themselves.
    fn submit_chain(&mut self, rest: Together<'_>) -> Result<usize, usize> {
        let slot = self.batches.stream;
        let taken = rest.functions().take_while(|&function| self.batches.takes(function));
        let launches = rest.first(taken.count());
        if launches.len() < SHORTEST {
            return Err(launches.len().max(1));
        }
        let piece = piece(launches.len());
        self.wish(piece, Ending::Open);
        let longest =
            |chains: &mut StreamChains| chains.longest(Ending::Open, launches.len(), SHORTEST);
        let length = self.batches.chains(slot).and_then(longest).ok_or(piece)?;
        self.submit_as_chain(slot, launches.first(length), None).map(|()| length).ok_or(1)
    }

    /// Whether the driver takes all of them into chains, as far as is known.
    fn takes_all(&self, launches: Together<'_>) -> bool {
        launches.functions().all(|function| self.batches.takes(function))
    }

    /// A chain of so many launches would be of use on the stream of those that wait.
    fn wish(&mut self, length: usize, ending: Ending) {
        let slot = self.batches.stream;
        let partition = self.streams.partition(slot);
        let known = self.batches.chains(slot);
        if known.is_none_or(|chains| !is_same(&chains.partition, partition)) {
            // Chains belong to one share of the SMs.
            self.forget_stream_chains(slot);
            if self.batches.streams.len() >= MOST_STREAMS {
                return;
            }
            let partition = self.streams.partition(slot).clone();
            self.batches.streams.push(StreamChains::new(slot, partition));
        }
        self.wish_for_chain(slot, Kind { length, ending });
    }

    /// Submits launches as a chain of just so many, if there is one.
    fn submit_as_chain(
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
            _ => chain.destroy(self.driver()),
        }
        submitted.ok()
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
        let (done, submitted) =
            self.with_waiting(|state, all| state.submit_signalled(slot, value, all));
        self.trace_waited(if submitted { self.batches.waiting.len() - done } else { 0 });
        match submitted {
            true => self.batches.clear(),
            false => self.batches.remove(done),
        }
        submitted
    }

    /// Submits launches, the last of them together with a signal; says how many went before those, and whether those went. The others wait still.
    fn submit_signalled(&mut self, slot: u32, value: u64, launches: Together<'_>) -> (usize, bool) {
        if !self.takes_all(launches) {
            return (0, false);
        }
        self.wish(launches.len(), Ending::Signalled);
        let mut done = 0;
        loop {
            let rest = launches.without(done);
            let Some(chains) = self.batches.chains(slot) else { return (done, false) };
            let Some(before) = chains.before_signal(rest.len()) else { return (done, false) };
            if before == 0 {
                return (done, self.submit_as_chain(slot, rest, Some(value)).is_some());
            }
            if self.submit_as_chain(slot, rest.first(before), None).is_none() {
                return (done, false);
            }
            self.trace_waited(before);
            done += before;
        }
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
        launches.functions().for_each(|function| self.touch_variables(Touch::Function(function)));
        let session = &self.handle;
        let given_up = || session.stopped();
        let count = launches.len() as u32;
        self.streams.admit_launches(&self.shared.context, slot, count, given_up)?;
        if self.handle.stopped() {
            // What a client that has left had queued is never run.
            return Ok(());
        }
        if let Some(value) = signal {
            self.streams.for_signal(&self.shared.context, slot, value)?;
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

/// How many of so many launches go together where nothing is known of them.
fn piece(launches: usize) -> usize {
    launches.checked_ilog2().map_or(0, |exponent| 1 << exponent)
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

#[cfg(test)]
mod tests {
    use super::super::testbed::{Bed, submitted};
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_piece_is_a_power_of_two() {
        assert_eq!([0, 1, 2, 3, 19, 32].map(piece), [0, 1, 2, 2, 16, 32]);
    }

    #[test]
    fn what_begins_a_burst_goes_and_the_rest_waits_as_it_was() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        for index in 0..7 {
            let launch = Launch { grid: [1; 3], block: [32, 1, 1], ..Launch::new_zeroed() };
            let header = Header { call_slot: NO_CALL, ..Header::new_zeroed() };
            let parameters = vec![index; 8 * usize::from(index)];
            state.batches.add(header, launch, &parameters, 64 * u64::from(index));
        }
        let before = submitted();
        let (refused, position) = state.submit_beginning();
        assert!(refused.is_empty());
        assert_eq!(position, Some(64 * 3));
        assert_eq!(submitted() - before, 4, "there is no chain yet");
        let left = state.with_waiting(|_, all| {
            all.iter().map(|(_, parameters)| parameters.to_vec()).collect::<Vec<_>>()
        });
        assert_eq!(left, [4, 5, 6].map(|index| vec![index; 8 * usize::from(index)]));
        state.submit_batch();
        assert!(state.batch_is_empty() && state.batches.bytes.is_empty());
        assert_eq!(submitted() - before, 7);
    }
}
