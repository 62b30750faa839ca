//! Which sessions have work on the device, for whoever needs to know it: work is bounded only in company ([`super::pacing`]), and what stalls a
//! context waits for an idle moment.
//!
//! A session is *busy* from its first piece of work on until its own thread has seen that all of it has ended. That thread looks when it has
//! nothing to do: at the completion words, and, where a stream has had work since its last signal, by asking the driver. A session alone
//! looks once in a second, since nobody wants to know; in company, or while somebody waits for an idle device, every millisecond.
//! So a launch of a session that is busy costs one load, and none is followed by a call to the driver.

use super::state::State;
use crate::policy::priorities::Class;
use link::session_memory::SessionMemory;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks of a session whose work may have ended, while somebody wants to know.
const LOOK: Duration = Duration::from_millis(1);

/// All sessions of an executor.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    /// How many are busy.
    busy: AtomicU32,
    /// How many of those are of the latency class.
    latency_busy: AtomicU32,
    /// How many threads wait for an idle device.
    waiting: AtomicU32,
    flights: Mutex<Vec<Arc<Flight>>>,
    /// Told, with the lock above, when a session is busy no more and somebody waits.
    settled: Condvar,
}

/// One session's part.
#[derive(Debug)]
pub(crate) struct Flight {
    memory: Arc<SessionMemory>,
    class: Class,
    /// Written by the session's thread alone.
    busy: AtomicBool,
}

impl Flights {
    /// A session begins.
    pub(crate) fn open(&self, memory: Arc<SessionMemory>, class: Class) -> Arc<Flight> {
        let flight = Arc::new(Flight { memory, class, busy: AtomicBool::new(false) });
        self.lock().push(Arc::clone(&flight));
        flight
    }

    /// It has ended, and its work with it.
    pub(crate) fn close(&self, flight: &Arc<Flight>) {
        self.set_idle(flight);
        self.lock().retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// How many sessions may have work on the device.
    pub(crate) fn busy(&self) -> u32 {
        // SeqCst: partner of `set_idle`.
        self.busy.load(Ordering::SeqCst)
    }

    /// Whether a session of the latency class may have work on the device.
    pub(crate) fn is_latency_busy(&self) -> bool {
        // Relaxed: for decisions that may be late; no data travels with it.
        self.latency_busy.load(Ordering::Relaxed) > 0
    }

    /// Whether another session than this one may have work on the device.
    pub(crate) fn in_company(&self, flight: &Flight) -> bool {
        self.busy() > u32::from(flight.is_busy())
    }

    /// The session is about to submit work.
    pub(crate) fn set_busy(&self, flight: &Flight) {
        // Relaxed: written by this thread alone.
        if flight.is_busy() {
            return;
        }
        flight.busy.store(true, Ordering::Relaxed);
        if flight.class == Class::Latency {
            self.latency_busy.fetch_add(1, Ordering::Relaxed);
        }
        if self.busy.fetch_add(1, Ordering::Relaxed) > 0 {
            self.ask();
        }
    }

    /// All work of the session has ended.
    pub(crate) fn set_idle(&self, flight: &Flight) {
        if !flight.is_busy() {
            return;
        }
        flight.busy.store(false, Ordering::Relaxed);
        if flight.class == Class::Latency {
            self.latency_busy.fetch_sub(1, Ordering::Relaxed);
        }
        // SeqCst: with the look at `waiting`, partner of the increment and the look at `busy` in `wait_until_alone`.
        self.busy.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.settled.notify_all();
        }
    }

    /// Waits until no other session than `flight`'s has work on the device; says whether that came within `limit`. New work may come at any
    /// time, so this finds a good moment, and promises nothing.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for module loads, which will wait for an idle moment")
    )]
    pub(crate) fn wait_until_alone(&self, flight: &Flight, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.ask();
        let mut flights = self.lock();
        let alone = loop {
            if !self.in_company(flight) {
                break true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            let waited = self.settled.wait_timeout(flights, left);
            flights = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(flights);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        alone
    }

    /// Makes busy sessions that sleep look whether their work has ended.
    fn ask(&self) {
        for flight in self.lock().iter().filter(|flight| flight.is_busy()) {
            flight.memory.wake_consumer();
        }
    }

    /// Whether somebody wants to know when a session's work ends.
    fn is_watched(&self) -> bool {
        self.busy() > 1 || self.waiting.load(Ordering::Relaxed) > 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Whether the session may have work on the device.
    pub(crate) fn is_busy(&self) -> bool {
        // Relaxed: others use it for decisions that may be late; no data travels with it.
        self.busy.load(Ordering::Relaxed)
    }
}

impl State {
    /// Before work is submitted.
    pub(super) fn note_work(&self) {
        self.shared.flights.set_busy(&self.flight);
    }

    /// How long the session's thread may sleep, as far as its own work matters to others.
    pub(super) fn sleep_limit(&self, longest: Duration) -> Duration {
        let is_wanted = self.shared.flights.is_watched() || self.modules.have_variables();
        match self.flight.is_busy() && is_wanted {
            true => longest.min(LOOK),
            false => longest,
        }
    }

    /// After a sleep in which nothing was posted: finds out whether all work has ended.
    pub(super) fn look_whether_idle(&mut self) {
        if !self.flight.is_busy() {
            return;
        }
        let words = &self.handle.words;
        let copied = self.side_stream.is_none_or(|stream| {
            // SAFETY: a live stream of this session.
            unsafe { self.driver().cuStreamQuery(stream) }.is_success()
        });
        if copied {
            self.standing.note_side_work(false);
        }
        if copied && self.streams.have_ended(&self.shared.context, |slot| words.completed(slot)) {
            self.shared.flights.set_idle(&self.flight);
            self.history().settle();
            self.pace_settled();
            self.save_variables();
            self.repeating.settle(self.records.position + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    fn memory() -> Arc<SessionMemory> {
        let file = SessionMemory::create_file().unwrap();
        Arc::new(SessionMemory::map(file.as_fd()).unwrap())
    }

    #[test]
    fn a_session_is_alone_when_the_others_have_ended_their_work() {
        let flights = Arc::new(Flights::default());
        let [one, other] =
            [flights.open(memory(), Class::Throughput), flights.open(memory(), Class::Latency)];
        assert!(!flights.in_company(&one));
        flights.set_busy(&one);
        flights.set_busy(&one);
        assert!(!flights.in_company(&one) && flights.in_company(&other));
        flights.set_busy(&other);
        assert_eq!(flights.busy(), 2);
        assert!(flights.is_latency_busy());
        assert!(!flights.wait_until_alone(&one, Duration::ZERO));
        let ends = std::thread::spawn({
            let flights = Arc::clone(&flights);
            move || flights.close(&other)
        });
        assert!(flights.wait_until_alone(&one, Duration::from_secs(60)));
        ends.join().unwrap();
        flights.close(&one);
        assert_eq!(flights.busy(), 0);
        assert!(!flights.is_latency_busy());
    }
}
