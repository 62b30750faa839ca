//! Chains that no session has, and who makes more.
//!
//! To make one holds the driver's lock for some 70 us, and others' launches with it; sixteen
//! threads that make chains at once make fewer than one does. So one at a time is made, by a thread
//! of its own: a session that wants one orders it, goes on without, and finds it here when it looks
//! again. What sessions give up lies here for the next: the driver does not give back to the device
//! what it took for a chain, so to destroy one spares nothing. Chains of a part of the SMs name
//! that, so their sessions make them, and end them.

use super::chain::{Chain, Kind};
use super::lengths::{Lack, MOST_CHAINS, StreamChains};
use crate::Shared;
use crate::session::state::State;
use crate::sms::partition::Partition;
use executor_link::driver::Driver;
use executor_link::log::log_server;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Chains that lie here, the oldest first to go.
const MOST_IDLE: usize = 256;
/// Orders that wait. Who finds no room orders later.
const MOST_ORDERS: usize = 1024;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct ChainStock {
    shelves: Mutex<Shelves>,
    ordered: Condvar,
    /// Held while one is made.
    making: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shelves {
    idle: VecDeque<Chain>,
    orders: VecDeque<Kind>,
    has_maker: bool,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordered {
    /// It will be made.
    Noted,
    /// Nobody makes chains for others.
    Refused,
}

/// How likely it is that somebody wants a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The next session wants what the last one had.
    Likely,
    /// A session has one that it wants more: one such chain is enough for all, as each takes memory
    /// of the device.
    Little,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ChainStock {
    /// A chain of this kind, if there is one.
    pub(crate) fn take(&self, kind: Kind) -> Option<Chain> {
        let mut shelves = lock(&self.shelves);
        let place = shelves.idle.iter().rposition(|chain| chain.kind == kind)?;
        shelves.idle.remove(place)
    }

    /// Puts a chain here that nobody uses and that names nothing of a session's.
    pub(crate) fn give(&self, driver: Driver, chain: Chain, wanted: Wanted) {
        let mut shelves = lock(&self.shelves);
        let is_there = || shelves.idle.iter().any(|idle| idle.kind == chain.kind);
        if wanted == Wanted::Little && is_there() {
            drop(shelves);
            return chain.destroy(driver);
        }
        shelves.idle.push_back(chain);
        let oldest = if shelves.idle.len() > MOST_IDLE { shelves.idle.pop_front() } else { None };
        drop(shelves);
        if let Some(oldest) = oldest {
            oldest.destroy(driver);
        }
    }

    /// Has a chain of this kind made.
    pub(crate) fn order(&self, kind: Kind) -> Ordered {
        let mut shelves = lock(&self.shelves);
        if !shelves.has_maker {
            return Ordered::Refused;
        }
        if shelves.orders.len() < MOST_ORDERS {
            shelves.orders.push_back(kind);
            self.ordered.notify_one();
        }
        Ordered::Noted
    }

    /// Makes a chain here and now, if nobody else makes one.
    pub(crate) fn unless_busy<R>(&self, make: impl FnOnce() -> R) -> Option<R> {
        let _making = self.making.try_lock().ok()?;
        Some(make())
    }

    fn next_order(&self) -> Kind {
        let mut shelves = lock(&self.shelves);
        loop {
            if let Some(kind) = shelves.orders.pop_front() {
                return kind;
            }
            shelves = self.ordered.wait(shelves).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Starts the thread that makes what is ordered; it ends with the process.
pub(crate) fn start_maker(shared: &Arc<Shared>) -> Result<(), String> {
    if shared.own_kernels.is_none() {
        return Ok(());
    }
    let maker = Arc::clone(shared);
    std::thread::Builder::new()
        .name("chains".into())
        .spawn(move || make_all(&maker))
        .map_err(|error| format!("cannot start the thread that makes chains: {error}"))?;
    lock(&shared.chain_stock.shelves).has_maker = true;
    Ok(())
}

fn make_all(shared: &Shared) {
    let stock = &shared.chain_stock;
    if let Err(code) = shared.context.make_current() {
        lock(&stock.shelves).has_maker = false;
        return log_server!("No chains are made ahead: {code}");
    }
    let Some(own_kernels) = &shared.own_kernels else { return };
    loop {
        let kind = stock.next_order();
        let made = {
            let _making = lock(&stock.making);
            Chain::make(&shared.context, own_kernels, None, kind)
        };
        // Who ordered what cannot be made goes on without, and orders again.
        if let Ok(chain) = made {
            stock.give(shared.context.driver(), chain, Wanted::Likely);
        }
    }
}

impl State {
    /// Wishes for a chain of this kind on a stream that has chains, or could have; what is wished
    /// for often enough comes.
    pub(crate) fn wish_for_chain(&mut self, slot: u32, kind: Kind) {
        let Some(chains) = self.batches.chains(slot) else { return };
        if let Some(lack) = chains.wish(kind) {
            self.get_chain(slot, kind, lack);
        }
    }

    #[cold]
    fn get_chain(&mut self, slot: u32, kind: Kind, lack: Lack) {
        let shared = Arc::clone(&self.shared);
        let (stock, Some(own_kernels)) = (&shared.chain_stock, &shared.own_kernels) else { return };
        if !self.has_room_for_chain(slot, kind) {
            if let Some(chains) = self.batches.chains(slot) {
                chains.ignore(kind);
            }
            return;
        }
        let partition = self.streams.partition(slot).clone();
        let is_shared = partition.is_none();
        let mut found = if is_shared { stock.take(kind) } else { None };
        let is_to_be_made = found.is_none() && lack == Lack::WorthMaking;
        if found.is_none() && !is_to_be_made {
            return;
        }
        let is_ordered = is_to_be_made && is_shared && stock.order(kind) == Ordered::Noted;
        if is_to_be_made && !is_ordered {
            let make =
                || Chain::make(&shared.context, own_kernels, partition.as_deref(), kind).ok();
            found = stock.unless_busy(make).flatten();
        }
        if found.is_some() {
            // No sooner: nothing goes for what is not there.
            self.make_room_for_chain();
        }
        if let Some(chains) = self.batches.chains(slot) {
            match found {
                Some(chain) => chains.put(chain),
                None => chains.be_patient(kind),
            }
        }
    }

    /// Whether the session may have one more chain: in the place of another one, perhaps.
    fn has_room_for_chain(&mut self, slot: u32, kind: Kind) -> bool {
        let Some((wanted, _)) = self.least_wanted_chain() else { return true };
        self.batches.chains(slot).is_some_and(|chains| chains.is_worth(kind, wanted))
    }

    /// The chain that goes for the next one, where the session has as many as it may: how often it
    /// is wanted, and on which stream.
    fn least_wanted_chain(&mut self) -> Option<(u32, u32)> {
        let streams = &mut self.batches.streams;
        if streams.iter_mut().map(StreamChains::count).sum::<usize>() < MOST_CHAINS {
            return None;
        }
        let least =
            streams.iter_mut().filter_map(|chains| Some((chains.least_wanted()?, chains.slot)));
        least.min()
    }

    fn make_room_for_chain(&mut self) {
        if let Some((wanted, least)) = self.least_wanted_chain()
            && let Some(chains) = self.batches.chains(least)
        {
            let (partition, chain) = (chains.partition.clone(), chains.give_up(wanted));
            if let Some(chain) = chain {
                self.retire_chain(least, partition.as_ref(), chain, Wanted::Little);
            }
        }
    }

    /// A chain that a stream has no use for goes to the stock, unless it may still run there or
    /// names a part of the SMs.
    fn retire_chain(
        &mut self,
        slot: u32,
        partition: Option<&Arc<Partition>>,
        mut chain: Chain,
        wanted: Wanted,
    ) {
        let driver = self.driver();
        let is_free = partition.is_none() && chain.has_ended(self.handle.words.completed(slot));
        let own_kernels = self.shared.own_kernels.as_ref();
        if is_free && own_kernels.is_some_and(|own| chain.reset(driver, own.word_writer.code(None)))
        {
            self.shared.chain_stock.give(driver, chain, wanted);
        } else {
            self.drop_chain(slot, chain);
        }
    }

    /// Destroys a chain that was submitted on this stream, when it has ended.
    pub(crate) fn drop_chain(&mut self, slot: u32, chain: Chain) {
        let (driver, completed) = (self.driver(), self.handle.words.completed(slot));
        match chain.has_ended(completed) {
            true => chain.destroy(driver),
            false => self.retire_executable(chain.into_executable(driver)),
        }
    }

    fn retire_all(&mut self, chains: StreamChains) {
        let (slot, partition) = (chains.slot, chains.partition.clone());
        for chain in chains.into_chains() {
            self.retire_chain(slot, partition.as_ref(), chain, Wanted::Likely);
        }
    }

    /// The chains of a stream that is closed are no longer its own.
    pub(crate) fn forget_stream_chains(&mut self, slot: u32) {
        if let Some(at) = self.batches.streams.iter().position(|chains| chains.slot == slot) {
            let chains = self.batches.streams.swap_remove(at);
            self.retire_all(chains);
        }
    }

    /// The session ends, and its work has.
    pub(crate) fn end_chains(&mut self) {
        for mut chains in std::mem::take(&mut self.batches.streams) {
            chains.have_ended();
            self.retire_all(chains);
        }
    }

    /// Chains name functions of this module no longer.
    pub(crate) fn forget_module_in_chains(&mut self, module: u32) {
        let driver = self.driver();
        let modules = &self.modules;
        let is_gone =
            |number: u32| modules.function(number).is_ok_and(|function| function.module == module);
        let own_kernels = self.shared.own_kernels.as_ref();
        let mut gone = Vec::new();
        for chains in &mut self.batches.streams {
            let slot = chains.slot;
            let completed = self.handle.words.completed(slot);
            let code = own_kernels.map(|own| own.word_writer.code(chains.partition.as_deref()));
            // What may still run is not waited for.
            let out = chains.take_out(|chain| {
                chain.names(is_gone)
                    && !(chain.has_ended(completed)
                        && code.is_some_and(|code| chain.forget(driver, code, is_gone)))
            });
            gone.extend(out.into_iter().map(|chain| (slot, chain)));
        }
        for (slot, chain) in gone {
            self.drop_chain(slot, chain);
        }
        self.batches.declined.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Ending;
    use super::super::waiting::MOST_WAITING;
    use super::*;
    use crate::session::Step;
    use crate::testbed::{Bed, Client, Takes, Work, graphs, set_work, submitted, take};
    use std::time::{Duration, Instant};

    /// Posts so many launches that wait together, the last of them with a signal; says how many
    /// submissions they took.
    fn burst(client: &mut Client, launches: usize, value: u64) -> u32 {
        let before = submitted();
        (0..launches).for_each(|_| client.post_launch());
        client.post_signal(value);
        assert_eq!(client.serve(), Step::Nothing);
        submitted() - before
    }

    fn chains_of(client: &mut Client) -> usize {
        client.session.state().batches.streams.iter_mut().map(StreamChains::count).sum()
    }

    /// Bursts of one length, until each is one submission: nothing is known of the kernel at first.
    fn settle(client: &mut Client, launches: usize) -> u64 {
        let began = Instant::now();
        let done = (1..).find(|&value| {
            assert!(began.elapsed() < Duration::from_secs(60));
            burst(client, launches, value) == 1
        });
        done.unwrap_or_default()
    }

    /// Bursts of all lengths, until the session has as many chains as it may; says what its last
    /// signal was.
    fn launch_all_lengths(client: &mut Client) -> u64 {
        let mut value = settle(client, 3);
        for length in (1..=MOST_WAITING).cycle().take(4000) {
            value += 1;
            burst(client, length, value);
            assert!(chains_of(client) <= MOST_CHAINS);
        }
        assert_eq!(chains_of(client), MOST_CHAINS);
        value
    }

    fn writes() {
        take(Takes { between_events_ms: 0.001, launch: Duration::ZERO });
    }

    #[test]
    fn a_session_has_few_chains_whatever_it_launches() {
        writes();
        let bed = Bed::new();
        let mut client = bed.open();
        let mut value = launch_all_lengths(&mut client);
        let (made, _) = graphs();
        for _ in 0..100 {
            value += 1;
            burst(&mut client, 11, value);
        }
        assert_eq!(burst(&mut client, 11, value + 1), 1, "what has become usual has its chain");
        assert!(graphs().0 - made < 4);
    }

    #[test]
    fn a_chain_goes_only_for_one_that_is_there() {
        writes();
        let bed = Bed::new();
        let mut client = bed.open();
        let mut value = launch_all_lengths(&mut client);
        // Somebody who takes orders and makes nothing.
        lock(&bed.shared.chain_stock.shelves).has_maker = true;
        for length in [11, 13] {
            for _ in 0..400 {
                value += 1;
                burst(&mut client, length, value);
                assert_eq!(chains_of(&mut client), MOST_CHAINS);
            }
        }
        assert!(!lock(&bed.shared.chain_stock.shelves).orders.is_empty());
    }

    #[test]
    fn a_lone_launch_is_no_chain() {
        writes();
        let bed = Bed::new();
        let mut client = bed.open();
        for _ in 0..400 {
            client.post_launch();
            assert_eq!(client.serve(), Step::Nothing);
        }
        assert_eq!(graphs(), (0, 0));
    }

    #[test]
    fn chains_go_from_one_session_to_the_next() {
        writes();
        let bed = Bed::new();
        let mut first = bed.open();
        settle(&mut first, 5);
        let chains = chains_of(&mut first);
        let (made, ended) = graphs();
        first.session.state().end_chains();
        assert_eq!(lock(&bed.shared.chain_stock.shelves).idle.len(), chains);
        let mut second = bed.open();
        settle(&mut second, 5);
        assert_eq!(graphs(), (made, ended), "it had those of the first one");
    }

    #[test]
    fn what_may_still_run_goes_to_nobody() {
        // Completion words are not written here.
        let bed = Bed::new();
        let mut client = bed.open();
        settle(&mut client, 5);
        let (_, before) = graphs();
        let chains = chains_of(&mut client);
        set_work(Work::Lasts);
        client.session.state().forget_stream_chains(0);
        let unused = lock(&bed.shared.chain_stock.shelves).idle.len();
        assert!(unused < chains, "none of {chains} may run");
        client.session.state().look_whether_idle();
        assert_eq!(graphs().1, before, "who runs is not ended");
        client.session.state().end_retired();
        assert_eq!((graphs().1 - before) as usize, chains - unused);
    }

    #[test]
    fn chains_name_no_functions_of_a_module_that_is_unloaded() {
        writes();
        let bed = Bed::new();
        let mut client = bed.open();
        settle(&mut client, 5);
        let names = |client: &mut Client, function| {
            let mut named = 0;
            for chains in &mut client.session.state().batches.streams {
                chains.take_out(|chain| {
                    named += u32::from(chain.names(|number| number == function));
                    false
                });
            }
            named
        };
        assert!(names(&mut client, 0) > 0);
        let chains = chains_of(&mut client);
        client.session.state().forget_module_in_chains(1);
        assert!(names(&mut client, 0) > 0, "that was another one");
        client.session.state().forget_module_in_chains(0);
        assert_eq!(names(&mut client, 0), 0);
        assert_eq!(chains_of(&mut client), chains);
    }

    #[test]
    fn a_thread_makes_what_is_ordered() {
        writes();
        let bed = Bed::new();
        start_maker(&bed.shared).unwrap();
        let mut client = bed.open();
        settle(&mut client, 6);
        assert_eq!(graphs(), (0, 0), "the session made none itself");
        let stock = &bed.shared.chain_stock;
        let kind = Kind { length: 9, ending: Ending::Open };
        assert_eq!(stock.order(kind), Ordered::Noted);
        let began = Instant::now();
        while stock.take(kind).is_none() {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn of_what_is_wanted_little_one_is_kept() {
        let bed = Bed::new();
        let stock = &bed.shared.chain_stock;
        let kind = Kind { length: 3, ending: Ending::Open };
        let give =
            |wanted| stock.give(bed.shared.context.driver(), Chain::of_nothing(kind), wanted);
        (0..2).for_each(|_| give(Wanted::Little));
        assert!(stock.take(kind).is_some() && stock.take(kind).is_none());
        (0..2).for_each(|_| give(Wanted::Likely));
        give(Wanted::Little);
        assert!((0..2).all(|_| stock.take(kind).is_some()) && stock.take(kind).is_none());
    }

    #[test]
    fn old_chains_go_where_there_are_too_many() {
        let bed = Bed::new();
        let stock = &bed.shared.chain_stock;
        let driver = bed.shared.context.driver();
        let kind = |length| Kind { length, ending: Ending::Open };
        let give = |length| stock.give(driver, Chain::of_nothing(kind(length)), Wanted::Likely);
        (0..=MOST_IDLE).for_each(give);
        assert!(stock.take(kind(0)).is_none());
        assert!(stock.take(kind(1)).is_some() && stock.take(kind(MOST_IDLE)).is_some());
        assert!(stock.take(kind(1)).is_none());
    }
}
