//! Launches that wait together are submitted together: as a chain of kernel nodes in an executable
//! graph that is kept and used again.
//!
//! On a real GPU a direct launch costs the driver 2 to 4 us, a node of such a chain 0.2 to 0.6 us,
//! and less where it is as it was: programs do the same again and again, so what a node was set to
//! is remembered. Launches that are in the ring already wait for each other, and any other command
//! ends the batch. What node parameters cannot say (attributes, clusters, output) is launched
//! directly.
//!
//! A launch that nothing waits behind is submitted at once, but for two looks at what is posted
//! meanwhile. In calm times one is looked behind for the signal by which its client waits, or a
//! copy: for 0.5 us, in company 1.5 us, and after some looks in vain behind one launch in 256
//! ([`super::nearness`]). And each submission is a turn of the driver's lock, so while the device
//! is at work on earlier launches of the stream, and only then, the others of a burst wait for
//! those behind them as long as these come within 1 us, for 20 us at most ([`super::gathering`]).
//! What begins a burst is as many as a power of two: the rest is as long the next time, and finds
//! its chain as it was.
//!
//! A chain of one is launched in half the time of a kernel and starts sooner. But where lone
//! launches went so on an H200, the same chain again while it ran, the device now and then stood
//! still for milliseconds; why is not known (docs/lab-notebook.md). So a lone launch goes as a
//! kernel, unless its signal goes with it.

use super::chain::{Ending, Kind};
use super::lengths::{SHORTEST_OPEN, StreamChains};
use super::own_kernels::{COPIER, ROOM_SHAPE};
use super::waiting::{Admission, MOST_WAITING, Together};
use crate::objects::stream::is_same;
use crate::session::failure::Failure;
use crate::session::state::State;
use crate::turns::costs::Piece;
use link::ring::Command;
use link::spin::Cores;
use link::wire::command::{Header, Launch, NO_CALL, Opcode};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Streams of a session that have chains.
const MOST_STREAMS: usize = 16;

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
    /// What the environment says when an executor starts.
    pub(crate) fn from_environment() -> Self {
        match crate::setting(|variables| variables.is_on(&settings::BATCHING)) {
            true => Self::On,
            false => Self::Off,
        }
    }
}

/// A launch that was not submitted, and why.
pub(crate) type Refused = (Header, Failure);

impl State {
    /// Keeps a launch that may go together with others.
    pub(crate) fn admit_to_batch(&mut self, command: &Command<'_>) -> Admission {
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
            && launch.parameter_bytes <= ROOM_SHAPE.parameter_bytes
            && batches.has_room_for(launch.stream)
            && batches.takes(launch.function)
            && self.may_be_batched(Piece::Function(launch.function))
            && self.trace_admits(launch.function) == Admission::Waits
            && !self.names_followed(rest)
            && self.modules.function(launch.function).is_ok_and(|function| {
                !function.prints && self.shared.context.gate.has_room_for(function.frame_bytes)
            });
        if !may_wait {
            return Admission::ByItself;
        }
        self.batches.add(header, launch, rest, self.records.position);
        self.trace_waits();
        Admission::Waits
    }

    /// Whether no more may wait.
    pub(crate) fn batch_is_full(&self) -> bool {
        self.batches.len() >= MOST_WAITING
    }

    /// What next command goes with what waits, if it comes soon: the signal by which the client
    /// waits, a copy; a launch behind a copy, since launches that come one by one are not to wait
    /// for each other.
    pub(crate) fn goes_with_batch(&self, opcode: u16) -> bool {
        opcode == Opcode::Signal as u16
            || opcode == Opcode::Copy as u16
            || (opcode == Opcode::Launch as u16 && self.batches.ends_with_copy())
    }

    pub(crate) fn batch_is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Submits what waits.
    pub(crate) fn submit_batch(&mut self) -> Vec<Refused> {
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

    /// Submits the first launches that wait, as many as are a power of two; says where the last of
    /// them ends in the ring.
    pub(crate) fn submit_beginning(&mut self) -> (Vec<Refused>, Option<u64>) {
        let mut refused = Vec::new();
        let done = self.with_waiting(|state, all| {
            let first = all.first(piece(all.len()));
            let mut rest = first;
            while rest.len() > 0 {
                rest = rest.without(state.submit_piece(rest, &mut refused));
            }
            first.len()
        });
        let position = done.checked_sub(1).and_then(|last| self.batches.position(last));
        self.batches.remove(done);
        (refused, position)
    }

    fn with_waiting<R>(&mut self, act: impl FnOnce(&mut Self, Together<'_>) -> R) -> R {
        let lent = self.batches.lend();
        let result = act(self, lent.all());
        self.batches.take_back(lent);
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
            if let (Err(failure), Some(header)) = (self.launch_one(one), one.header()) {
                refused.push((header, failure));
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
        self.launch(launch, parameters, Some(one))
    }

    /// Submits as many of the first launches as the longest chain has that they fill; says how
    /// many.
    ///
    /// # Errors
    /// How many are to be launched by themselves.
    fn submit_chain(&mut self, rest: Together<'_>) -> Result<usize, usize> {
        let slot = self.batches.stream();
        let taken = rest.functions().take_while(|&function| self.batches.takes(function));
        let launches = rest.first(taken.count());
        if launches.len() < SHORTEST_OPEN {
            return Err(launches.len().max(1));
        }
        let piece = piece(launches.len());
        self.wish(piece, Ending::Open);
        let longest = |chains: &mut StreamChains| chains.longest_open(launches.len());
        let length = self.batches.chains(slot).and_then(longest).ok_or(piece)?;
        self.submit_as_chain(slot, launches.first(length), None).map(|()| length).ok_or(1)
    }

    /// Whether the driver takes all of them into chains, as far as is known.
    fn takes_all(&self, launches: Together<'_>) -> bool {
        launches.functions().all(|function| self.batches.takes(function))
    }

    /// A chain of so many launches would be of use on the stream of those that wait.
    fn wish(&mut self, length: usize, ending: Ending) {
        let slot = self.batches.stream();
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

    /// Whether a signal may go together with the launches before it.
    pub(crate) fn may_take_signals(&self) -> bool {
        self.shared.batching == Batching::On
            && self.shared.own_kernels.is_some()
            && !self.batches.signals_declined
            && self.shared.pace.is_calm()
    }

    /// Submits what waits, with the signal that came behind it; says whether it did. If not, all of
    /// it still waits.
    pub(crate) fn submit_with_signal(&mut self, slot: u32, value: u64) -> bool {
        let is_possible = !self.batch_is_empty()
            && self.batches.stream() == slot
            && self.ended().is_none()
            && self.may_take_signals();
        if !is_possible {
            return false;
        }
        let (done, submitted) =
            self.with_waiting(|state, all| state.submit_signalled(slot, value, all));
        self.trace_waited(if submitted { self.batches.len() - done } else { 0 });
        match submitted {
            true => self.batches.clear(),
            false => self.batches.remove(done),
        }
        submitted
    }

    /// Submits launches, the last of them together with a signal; says how many went before those,
    /// and whether those went. The others wait still.
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

    /// Launches were submitted.
    pub(crate) fn note_ahead(&mut self, slot: u32, launches: Together<'_>) {
        let (mut last, mut each_ns, mut all_ns) = (None, 0, 0);
        for function in launches.kernels() {
            if last.replace(function) != Some(function) {
                each_ns = self.least_cost_ns(Piece::Function(function));
            }
            all_ns += each_ns;
        }
        self.batches.gathering.submitted(slot, Duration::from_nanos(all_ns));
    }

    /// Whether the launches that wait go together with something that is posted behind them soon
    /// enough.
    pub(crate) fn gathers(&mut self, is_posted: impl Fn() -> bool) -> bool {
        let has_cores = self.shared.flights.cores() != Cores::Wanted;
        let slot = self.batches.stream();
        has_cores
            && self.may_be_delayed()
            && self.batches.gathering.look(slot, Instant::now(), is_posted)
    }

    /// Whether more is to be expected behind what waits, and the device has nothing to do
    /// meanwhile, as far as is known.
    pub(crate) fn has_burst_begun(&self) -> bool {
        let (gathering, slot) = (&self.batches.gathering, self.batches.stream());
        gathering.are_bursts() && !gathering.is_ahead(slot, Instant::now())
    }
}

/// How many of so many launches go together where nothing is known of them.
fn piece(launches: usize) -> usize {
    launches.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests;
