//! Which chains a session has: for how many launches, on which of its streams.
//!
//! A program that does the same again and again has few numbers of launches that wait together, and
//! each has a chain of its own once it has come often. Until then, and for all others, launches go
//! in chains of powers of two, which are enough for any number and are got sooner. A session has
//! few chains, as the driver keeps each on the device: one that is used rarely makes room for one
//! that is wanted more.

use super::chain::{Chain, Ending, Kind};
use crate::sms::partition::Partition;
use std::sync::Arc;

/// Chains of one session: each takes an H200's memory, 133 KiB for two launches and 236 for 16,
/// which the driver never gives back.
pub(crate) const MOST_CHAINS: usize = 9;
/// Launches that go as a chain without a signal, at least.
pub(crate) const SHORTEST_OPEN: usize = 2;
/// How often a number of launches is wanted before a chain is got that another session had: it is
/// set to other launches, node by node.
const WORTH_TAKING: u32 = 2;
/// The same before one is made, which holds the driver's lock for as long as some thirty launches.
const WORTH_MAKING: u32 = 4;
/// Wishes that are not looked at where the session has too many chains.
const IGNORED: u32 = 16;
/// Wishes until what was ordered, or could not be made, is ordered again.
const PATIENCE: u32 = 64;
/// Where one is to go for it: how many times more often than that one.
const WORTH_ANOTHER: u32 = 2;
/// After so many wishes of a stream all of them count half.
const WINDOW: u32 = 1024;
/// Chains of each kind, used in turn where one may still run when the next is submitted: that could
/// be changed only by waiting.
const TURNS: usize = 2;

/// What is known of a kind of chain, on one stream.
#[derive(Debug, Default)]
struct Shelf {
    /// How often so many launches waited lately, or part of them was to go as such a chain.
    wanted: u32,
    /// How often none was there of which it was known that it does not run.
    missed: u32,
    /// Wishes that are not looked at, and wishes until one may be ordered.
    ignored: u32,
    orders_in: u32,
    /// The one that is used next is the first.
    chains: Vec<Chain>,
}

impl Shelf {
    /// What is to be done to get one more chain, if it is time for that.
    fn lacks(&mut self) -> Option<Lack> {
        let wishes = match self.chains.len() {
            0 => self.wanted,
            TURNS.. => return None,
            _ => self.missed,
        };
        self.orders_in = self.orders_in.saturating_sub(1);
        if self.ignored > 0 {
            self.ignored -= 1;
            return None;
        }
        match wishes {
            WORTH_MAKING.. if self.orders_in == 0 => Some(Lack::WorthMaking),
            WORTH_TAKING.. => Some(Lack::WorthTaking),
            _ => None,
        }
    }
}

/// A chain that a stream could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// If there is one.
    WorthTaking,
    /// If there is none, one is to be made.
    WorthMaking,
}

/// The chains of one stream.
#[derive(Debug)]
pub(crate) struct StreamChains {
    pub(crate) slot: u32,
    pub(crate) partition: Option<Arc<Partition>>,
    /// By length.
    open: Vec<Shelf>,
    signalled: Vec<Shelf>,
    wishes: u32,
    /// The number of the last submission of a chain.
    submissions: u64,
}

impl StreamChains {
    /// None yet.
    pub(crate) fn new(slot: u32, partition: Option<Arc<Partition>>) -> Self {
        Self { slot, partition, open: Vec::new(), signalled: Vec::new(), wishes: 0, submissions: 1 }
    }

    fn shelves(&mut self, ending: Ending) -> &mut Vec<Shelf> {
        match ending {
            Ending::Open => &mut self.open,
            Ending::Signalled => &mut self.signalled,
        }
    }

    fn shelf(&mut self, kind: Kind) -> &mut Shelf {
        let shelves = self.shelves(kind.ending);
        if shelves.len() <= kind.length {
            shelves.resize_with(kind.length + 1, Shelf::default);
        }
        &mut shelves[kind.length]
    }

    /// A chain of this kind would be of use. Says what is to be done to have one.
    pub(crate) fn wish(&mut self, kind: Kind) -> Option<Lack> {
        self.wishes += 1;
        if self.wishes == WINDOW {
            self.wishes = 0;
            for shelf in self.open.iter_mut().chain(&mut self.signalled) {
                shelf.wanted /= 2;
                shelf.missed /= 2;
            }
        }
        let shelf = self.shelf(kind);
        shelf.wanted += 1;
        shelf.lacks()
    }

    /// Whether there is a chain of this kind.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        let shelves = match kind.ending {
            Ending::Open => &self.open,
            Ending::Signalled => &self.signalled,
        };
        shelves.get(kind.length).is_some_and(|shelf| !shelf.chains.is_empty())
    }

    /// The longest chain there is that does not signal, for so many launches or fewer.
    pub(crate) fn longest_open(&self, launches: usize) -> Option<usize> {
        let is_there = |&length: &usize| self.has(Kind { length, ending: Ending::Open });
        (SHORTEST_OPEN..=launches).rev().find(is_there)
    }

    /// How many of so many launches are to go before the chain that signals: as one chain, or as
    /// the first of several. 0: all of them signal. `None`: there is no chain for it.
    pub(crate) fn before_signal(&self, launches: usize) -> Option<usize> {
        let signals = |length| self.has(Kind { length, ending: Ending::Signalled });
        if signals(launches) {
            return Some(0);
        }
        let is_open = |&length: &usize| self.has(Kind { length, ending: Ending::Open });
        let mut before = (1..launches).rev().filter(is_open);
        before
            .clone()
            .find(|&length| signals(launches - length))
            .or_else(|| before.find(|&length| self.before_signal(launches - length).is_some()))
    }

    /// The chain of this kind that is to be submitted next, to be put back after that. `completed`
    /// is the stream's completion word.
    pub(crate) fn take(&mut self, kind: Kind, completed: u64) -> Option<Chain> {
        let submission = self.submissions + 1;
        let shelf = self.shelves(kind.ending).get_mut(kind.length)?;
        if shelf.chains.is_empty() {
            return None;
        }
        let mut chain = shelf.chains.remove(0);
        // A signal is seen before its chain has quite ended.
        let may_run = !chain.has_ended(completed) || chain.submission + 1 == submission;
        shelf.missed += u32::from(may_run);
        chain.submission = submission;
        self.submissions = submission;
        Some(chain)
    }

    /// Puts a chain to the others of its kind.
    pub(crate) fn put(&mut self, chain: Chain) {
        self.shelf(chain.kind).chains.push(chain);
    }

    fn shelves_with_chains(&mut self) -> impl Iterator<Item = &mut Shelf> {
        let all = self.open.iter_mut().chain(&mut self.signalled);
        all.filter(|shelf| !shelf.chains.is_empty())
    }

    /// How many chains there are.
    pub(crate) fn count(&mut self) -> usize {
        self.shelves_with_chains().map(|shelf| shelf.chains.len()).sum()
    }

    /// How often the kind is wanted that is wanted least of those that have chains.
    pub(crate) fn least_wanted(&mut self) -> Option<u32> {
        self.shelves_with_chains().map(|shelf| shelf.wanted).min()
    }

    /// Takes a chain away that is wanted no more than so often.
    pub(crate) fn give_up(&mut self, wanted: u32) -> Option<Chain> {
        let mut shelves = self.shelves_with_chains();
        shelves.find(|shelf| shelf.wanted <= wanted).map(|shelf| shelf.chains.remove(0))
    }

    /// Whether a chain of this kind is worth one that is wanted so often.
    pub(crate) fn is_worth(&mut self, kind: Kind, wanted: u32) -> bool {
        let shelf = self.shelf(kind);
        // A second one is for when the first one runs.
        let wishes = if shelf.chains.is_empty() { shelf.wanted } else { shelf.missed };
        wishes >= wanted.saturating_mul(WORTH_ANOTHER).max(WORTH_MAKING)
    }

    /// There is no room for it.
    pub(crate) fn ignore(&mut self, kind: Kind) {
        self.shelf(kind).ignored = IGNORED;
    }

    /// One was ordered, or cannot be made.
    pub(crate) fn be_patient(&mut self, kind: Kind) {
        self.shelf(kind).orders_in = PATIENCE;
    }

    /// All work of the stream has ended.
    pub(crate) fn have_ended(&mut self) {
        self.shelves_with_chains()
            .flat_map(|shelf| &mut shelf.chains)
            .for_each(Chain::has_come_to_rest);
    }

    /// All chains.
    pub(crate) fn into_chains(self) -> impl Iterator<Item = Chain> {
        self.open.into_iter().chain(self.signalled).flat_map(|shelf| shelf.chains)
    }

    /// Takes those away of which `is_to_go` says so.
    pub(crate) fn take_out(&mut self, mut is_to_go: impl FnMut(&mut Chain) -> bool) -> Vec<Chain> {
        let mut out = Vec::new();
        for shelf in self.shelves_with_chains() {
            out.extend(shelf.chains.extract_if(.., &mut is_to_go));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn open(length: usize) -> Kind {
        Kind { length, ending: Ending::Open }
    }

    const fn signalled(length: usize) -> Kind {
        Kind { length, ending: Ending::Signalled }
    }

    fn with(kinds: &[Kind]) -> StreamChains {
        let mut chains = StreamChains::new(0, None);
        kinds.iter().for_each(|&kind| chains.put(Chain::of_nothing(kind)));
        chains
    }

    fn wish(chains: &mut StreamChains, kind: Kind, times: u32) {
        for _ in 0..times {
            chains.wish(kind);
        }
    }

    #[test]
    fn a_chain_comes_for_what_comes_often() {
        let mut chains = with(&[]);
        let lacks: Vec<_> = (0..6).map(|_| chains.wish(open(7))).collect();
        let (taking, making) = (Some(Lack::WorthTaking), Some(Lack::WorthMaking));
        assert_eq!(lacks, [None, taking, taking, making, making, making]);
        chains.be_patient(open(7));
        assert_eq!(chains.wish(open(7)), taking, "it is on its way");
        assert!((0..PATIENCE).any(|_| chains.wish(open(7)) == making), "or is not");
        chains.ignore(open(7));
        assert!((0..IGNORED).all(|_| chains.wish(open(7)).is_none()));
        assert!(chains.wish(open(7)).is_some());
    }

    #[test]
    fn the_longest_chain_is_used_that_is_there() {
        let chains = with(&[open(1), open(7), signalled(9)]);
        assert_eq!(chains.longest_open(9), Some(7));
        assert_eq!(chains.longest_open(6), None, "a chain of one is for a signal");
    }

    #[test]
    fn a_signal_goes_with_the_last_chain() {
        assert_eq!(with(&[open(16), signalled(3)]).before_signal(3), Some(0));
        assert_eq!(with(&[open(8), open(16), signalled(3)]).before_signal(19), Some(16));
        let powers = with(&[open(2), open(16), signalled(1)]);
        assert_eq!([19, 3, 1].map(|left| powers.before_signal(left)), [Some(16), Some(2), Some(0)]);
        assert_eq!(powers.before_signal(20), None, "one would be left over");
        assert_eq!(with(&[open(1), open(2)]).before_signal(3), None);
    }

    #[test]
    fn a_second_chain_comes_where_the_first_may_still_run() {
        let mut chains = with(&[open(4), signalled(4)]);
        let mut last = 0;
        let mut submit = |chains: &mut StreamChains, kind: Kind, completed| {
            let mut chain = chains.take(kind, completed).unwrap();
            last += u64::from(kind.ending == Ending::Signalled);
            chain.submitted(last);
            chains.put(chain);
            chains.wish(kind)
        };
        for round in 0..100 {
            assert_eq!(submit(&mut chains, open(4), round), None);
            assert_eq!(submit(&mut chains, signalled(4), round), None, "its turn was long ago");
        }
        let mut behind_itself =
            (0..100).map(|round| submit(&mut chains, signalled(4), 100 + round));
        assert!(behind_itself.any(|lack| lack.is_some()));
        drop(behind_itself);
        let mut unended = (0..100).map(|_| submit(&mut chains, open(4), 100));
        assert!(unended.any(|lack| lack.is_some()));
    }

    #[test]
    fn what_is_wanted_least_goes_for_what_is_wanted_twice_as_often() {
        let mut chains = with(&[open(2), open(5)]);
        wish(&mut chains, open(2), 10);
        wish(&mut chains, open(5), 6);
        assert_eq!(chains.least_wanted(), Some(6));
        wish(&mut chains, open(9), 11);
        assert!(!chains.is_worth(open(9), 6));
        chains.wish(open(9));
        assert!(chains.is_worth(open(9), 6));
        assert_eq!(chains.give_up(6).map(|chain| chain.kind), Some(open(5)));
        assert_eq!(chains.count(), 1);
    }

    #[test]
    fn old_wishes_count_less_and_less() {
        let mut chains = with(&[open(2)]);
        wish(&mut chains, open(2), 100);
        wish(&mut chains, open(3), 20 * WINDOW);
        assert_eq!(chains.least_wanted(), Some(0));
    }
}
