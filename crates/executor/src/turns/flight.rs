//! Which sessions have work on the device: work is bounded only in company ([`super::pacing`]).
//!
//! A session is *busy* from its first piece of work on until its own thread has seen that all of it
//! has ended. That thread looks when it has nothing to do: at the completion words, and, where a
//! stream has had work since its last signal, by asking the driver. A session alone looks once in a
//! second, since nobody wants to know; two look every millisecond, and many the more rarely the
//! more they are, so that what all of them take for it does not grow with their number. So a launch
//! of a session that is busy costs one load, and none is followed by a call to the driver.

use link::session_memory::SessionMemory;
use link::spin::{self, Cores};
use policy::turns::priorities::Class;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks of a session whose work may have ended, while one other wants to know.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// As long as others are busy, it makes no difference to them when one of many is no more.
const LOOK_RAREST: u32 = 32;

/// How many clients may be busy before there are no cores for threads that spin. Each of them has
/// two: its own, and its session's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinClients(u32);

/// Where there are so many for each client there are plenty: its two threads that spin leave half.
const CORES_OF_PLENTY: u32 = 4;

impl Default for SpinClients {
    /// As many as there are cores: then one thread of each client computes, and the other waits for
    /// it.
    fn default() -> Self {
        Self(u32::try_from(spin::cores()).unwrap_or(u32::MAX))
    }
}

impl SpinClients {
    /// What the environment says when an executor starts.
    fn from_environment() -> Self {
        let number = |text: &str| settings::SPIN_CLIENTS.number(text);
        let set = crate::setting(|variables| variables.value(&settings::SPIN_CLIENTS, number));
        set.map_or_else(Self::default, |clients| Self(clients as u32))
    }

    /// Of so many cores. Who sets more clients than there are does not have plenty for them.
    fn cores(self, busy: u32, of: usize) -> Cores {
        // Who is about to have work looks at it, too.
        let needed = busy.max(1).saturating_mul(CORES_OF_PLENTY);
        match busy {
            _ if busy > self.0 => Cores::Wanted,
            _ if needed <= self.0 && needed as usize <= of => Cores::Plenty,
            _ => Cores::Spare,
        }
    }
}

/// All sessions of an executor.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    spin_clients: SpinClients,
    /// How many are busy.
    busy: AtomicU32,
    /// How many of those are of the latency class.
    latency_busy: AtomicU32,
    flights: Mutex<Vec<Arc<Flight>>>,
}

/// One session's part.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Flight {
    memory: Arc<SessionMemory>,
    class: Class,
    /// Written by the session's thread alone.
    busy: AtomicBool,
}

impl Flights {
    /// No sessions, with the environment's settings.
    pub(crate) fn from_environment() -> Self {
        Self { spin_clients: SpinClients::from_environment(), ..Self::default() }
    }

    /// Whether there are cores for threads that spin.
    pub(crate) fn cores(&self) -> Cores {
        // Relaxed: may be late.
        self.spin_clients.cores(self.busy.load(Ordering::Relaxed), spin::cores())
    }

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
        // SeqCst: partner of the increment in `set_busy`, for a thread that is about to sleep.
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
        // SeqCst: before the ring in `ask`; partner of the look in `State::sleep_limit` after a
        // sleep is announced.
        if self.busy.fetch_add(1, Ordering::SeqCst) == 1 {
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
        // Relaxed: others use the number for decisions that may be late.
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes the busy session that was alone until now look whether its work has ended: it may
    /// sleep for long. If there are more, they look anyway.
    fn ask(&self) {
        for flight in self.lock().iter().filter(|flight| flight.is_busy()) {
            flight.memory.wake_consumer();
        }
    }

    /// How long a busy session may sleep, if another one wants to know when its work ends.
    pub(crate) fn look_interval(&self) -> Option<Duration> {
        match self.busy() {
            0 | 1 => None,
            busy => Some(LOOK * (busy - 1).min(LOOK_RAREST)),
        }
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
        flights.close(&other);
        assert!(!flights.in_company(&one));
        flights.close(&one);
        assert_eq!(flights.busy(), 0);
        assert!(!flights.is_latency_busy());
    }

    #[test]
    fn nobody_spins_where_more_clients_are_busy_than_there_are_cores() {
        let flights = Flights { spin_clients: SpinClients(2), ..Flights::default() };
        let sessions: Vec<_> = (0..3).map(|_| flights.open(memory(), Class::Throughput)).collect();
        assert_eq!(flights.cores(), Cores::Spare, "idle clients do not count");
        flights.set_busy(&sessions[0]);
        flights.set_busy(&sessions[1]);
        assert_eq!(flights.cores(), Cores::Spare);
        flights.set_busy(&sessions[2]);
        assert_eq!(flights.cores(), Cores::Wanted);
        flights.set_idle(&sessions[0]);
        assert_eq!(flights.cores(), Cores::Spare);
    }

    #[test]
    fn there_are_cores_in_plenty_for_few_clients_of_a_large_machine() {
        let of = |clients, busy| SpinClients(clients).cores(busy, 16);
        assert_eq!([of(16, 0), of(16, 4), of(16, 5)], [Cores::Plenty, Cores::Plenty, Cores::Spare]);
        assert_eq!([of(2, 0), of(2, 1), of(0, 0)], [Cores::Spare; 3]);
        assert_eq!(of(0, 1), Cores::Wanted);
        assert_eq!([of(1000, 4), of(1000, 5)], [Cores::Plenty, Cores::Spare]);
    }

    #[test]
    fn only_who_was_alone_is_woken_by_company() {
        let flights = Flights::default();
        let memories: Vec<_> = (0..200).map(|_| memory()).collect();
        let asleep =
            |memory: &SessionMemory| memory.shared().consumer_asleep.0.load(Ordering::SeqCst);
        let mut woken = 0;
        for memory in &memories {
            memories.iter().for_each(|it| it.shared().consumer_asleep.0.store(1, Ordering::SeqCst));
            let flight = flights.open(Arc::clone(memory), Class::Throughput);
            flights.set_busy(&flight);
            let others = memories.iter().filter(|other| !Arc::ptr_eq(other, memory));
            woken += others.filter(|other| asleep(other) == 0).count();
        }
        assert_eq!(woken, 1, "the first, by the second");
        let looks_per_ms: f64 = [2, 8, 200]
            .map(|busy: u32| {
                let flights = Flights::default();
                flights.busy.store(busy, Ordering::SeqCst);
                let interval = flights.look_interval().unwrap();
                f64::from(busy) * LOOK.as_secs_f64() / interval.as_secs_f64()
            })
            .into_iter()
            .fold(0.0, f64::max);
        assert!(looks_per_ms < 7.0, "{looks_per_ms} looks in a millisecond, by all together");
    }
}
