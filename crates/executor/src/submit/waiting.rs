//! The launches of one session that wait for those behind them, and the chains they go as.

use super::gathering::Gathering;
use super::lengths::StreamChains;
use super::own_kernels::{COPIER, CopyParameters};
use link::wire::command::{Header, Launch};
use std::collections::HashSet;
use zerocopy::FromBytes;

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It waits with the others.
    Waits,
    /// It is done by itself, after those that wait.
    ByItself,
}

/// Launches that are submitted together at most.
pub(crate) const MOST_WAITING: usize = 32;

/// A launch, or a small copy as one ([`super::small_copies`]), that waits for those behind it; its
/// parameters lie in [`Batches::bytes`].
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
pub(crate) struct Together<'a> {
    waiting: &'a [Waiting],
    bytes: &'a [u8],
    /// How many copies are among them, at most.
    copies: usize,
}

impl<'a> Together<'a> {
    pub(crate) fn len(self) -> usize {
        self.waiting.len()
    }

    /// Each launch, and what followed it in its command.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a Launch, &'a [u8])> + Clone {
        self.waiting
            .iter()
            .map(move |one| (&one.launch, self.bytes.get(one.start..one.end).unwrap_or_default()))
    }

    /// Their functions.
    pub(crate) fn functions(self) -> impl Iterator<Item = u32> + Clone {
        self.waiting.iter().map(|one| one.launch.function)
    }

    /// How many are not copies.
    pub(crate) fn kernel_count(self) -> usize {
        match self.copies {
            0 => self.len(),
            _ => self.kernels().count(),
        }
    }

    /// The functions of those that are not copies.
    pub(crate) fn kernels(self) -> impl Iterator<Item = u32> + Clone {
        self.functions().filter(|&function| function != COPIER)
    }

    /// What is copied by those that are copies.
    pub(crate) fn copies(self) -> impl Iterator<Item = CopyParameters> {
        let copies = self.iter().filter(|(launch, _)| launch.function == COPIER);
        copies.filter_map(|(_, bytes)| CopyParameters::read_from_prefix(bytes).ok()).map(|it| it.0)
    }

    /// The header of the first one's command.
    pub(crate) fn header(self) -> Option<Header> {
        self.waiting.first().map(|one| one.header)
    }

    pub(crate) fn first(self, count: usize) -> Self {
        Self { waiting: &self.waiting[..count.min(self.waiting.len())], ..self }
    }

    pub(crate) fn without(self, count: usize) -> Self {
        Self { waiting: &self.waiting[count.min(self.waiting.len())..], ..self }
    }
}

/// What waits, lent out by [`Batches::lend`].
#[derive(Debug)]
pub(crate) struct Lent {
    waiting: Vec<Waiting>,
    bytes: Vec<u8>,
    copies: usize,
}

impl Lent {
    pub(crate) fn all(&self) -> Together<'_> {
        Together { waiting: &self.waiting, bytes: &self.bytes, copies: self.copies }
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
    pub(crate) streams: Vec<StreamChains>,
    pub(crate) gathering: Gathering,
    /// Functions that the driver does not take into a chain.
    pub(crate) declined: HashSet<u32>,
    /// The driver does not take signals into a chain.
    pub(crate) signals_declined: bool,
}

impl Batches {
    /// The chains of a stream.
    pub(crate) fn chains(&mut self, slot: u32) -> Option<&mut StreamChains> {
        self.streams.iter_mut().find(|chains| chains.slot == slot)
    }

    /// Whether the driver takes a function into a chain, as far as is known.
    pub(crate) fn takes(&self, function: u32) -> bool {
        !self.declined.contains(&function)
    }

    /// The stream that what waits is for.
    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    /// Whether one more may wait that is for this stream.
    pub(crate) fn has_room_for(&self, stream: u32) -> bool {
        self.waiting.len() < MOST_WAITING && (self.waiting.is_empty() || self.stream == stream)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a copy is what waits last.
    pub(crate) fn ends_with_copy(&self) -> bool {
        self.waiting.last().is_some_and(|one| one.launch.function == COPIER)
    }

    /// Where the command of one that waits ends in the ring.
    pub(crate) fn position(&self, index: usize) -> Option<u64> {
        self.waiting.get(index).map(|one| one.position)
    }

    /// All that waits, to be given back: meanwhile its session is free to do something with it.
    pub(crate) fn lend(&mut self) -> Lent {
        let waiting = std::mem::take(&mut self.waiting);
        Lent { waiting, bytes: std::mem::take(&mut self.bytes), copies: self.copies }
    }

    /// After [`Self::lend`].
    pub(crate) fn take_back(&mut self, lent: Lent) {
        self.waiting = lent.waiting;
        self.bytes = lent.bytes;
    }

    /// Nothing waits any more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.bytes.clear();
        self.copies = 0;
    }

    /// One more waits.
    pub(crate) fn add(&mut self, header: Header, launch: Launch, parameters: &[u8], position: u64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(parameters);
        self.stream = launch.stream;
        self.copies += usize::from(launch.function == COPIER);
        self.waiting.push(Waiting { header, launch, position, start, end: self.bytes.len() });
    }

    /// The first ones wait no more; the others do.
    pub(crate) fn remove(&mut self, count: usize) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    /// The functions of those that wait, their parameters, and how many are no copies.
    fn waiting(batches: &mut Batches) -> (Vec<(u32, Vec<u8>)>, usize) {
        let lent = batches.lend();
        let each = |(launch, parameters): (&Launch, &[u8])| (launch.function, parameters.to_vec());
        let found = (lent.all().iter().map(each).collect(), lent.all().kernel_count());
        batches.take_back(lent);
        found
    }

    #[test]
    fn what_goes_takes_its_parameters_along() {
        let mut batches = Batches::default();
        for function in [COPIER, 2, 3] {
            let launch = Launch { function, stream: 5, ..Launch::new_zeroed() };
            let parameters = vec![function as u8; 8 * (function % 4) as usize];
            batches.add(Header::new_zeroed(), launch, &parameters, 64);
        }
        assert_eq!(waiting(&mut batches).1, 2);
        assert!(batches.has_room_for(5) && !batches.has_room_for(6));
        batches.remove(1);
        assert_eq!(waiting(&mut batches), (vec![(2, vec![2; 16]), (3, vec![3; 24])], 2));
        batches.remove(1);
        assert_eq!(waiting(&mut batches), (vec![(3, vec![3; 24])], 1));
        batches.remove(1);
        assert!(batches.is_empty() && batches.bytes.is_empty());
        assert!(batches.has_room_for(6));
    }
}
