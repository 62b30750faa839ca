//! Calls of the driver that change what the context has: between submissions.
//!
//! A driver keeps what a context has under a lock that all who submit share, and that such a call
//! wants for itself. Who shares it goes first. So the call waits until by chance nobody is inside:
//! 1 ms beside four threads that submit on an H200, and for ever beside fifteen
//! (`tests/gpu/probes/calls_beside_launches.cu`). Therefore sessions are kept from submitting for
//! as long as it takes. What runs on the device goes on.
//!
//! All waits have a bound, after which things are as they would be without this: who calls may have
//! been kept from running, and a submission, or another such call, may take long in the driver.

use super::{Gate, OPEN, SHUT, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

#[cfg(debug_assertions)]
std::thread_local! {
    /// Whether this thread is inside the gate.
    static INSIDE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// This thread has entered the gate, or left it.
#[inline]
pub(super) fn note_inside(_inside: bool) {
    #[cfg(debug_assertions)]
    INSIDE.set(_inside);
}

/// Waits for those inside, and for calls, are no longer.
const LONGEST: Duration = Duration::from_micros(300);
/// Who waits longer than this lets others have the core.
const POLITE_AFTER: Duration = Duration::from_micros(10);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Between {
    /// Each wait's bound.
    longest: Duration,
    /// Held during a call: until when others submit first.
    next: Mutex<Option<Instant>>,
    /// Somebody was kept from submitting since the last call began.
    has_held: AtomicBool,
}

impl Default for Between {
    fn default() -> Self {
        Self { longest: LONGEST, next: Mutex::default(), has_held: AtomicBool::new(false) }
    }
}

impl Between {
    /// Waits while the gate is shut.
    pub(super) fn wait(&self, is_shut: impl Fn() -> bool) {
        // Relaxed: it is about how long the next call waits.
        self.has_held.store(true, Ordering::Relaxed);
        wait_while(self.longest, is_shut);
    }
}

/// Opens the gate again, unless somebody has closed it for longer.
struct Shut<'a>(&'a Gate);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        let _ = self.0.state.compare_exchange(SHUT, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Gate {
    /// Makes a call of the driver that submissions would keep waiting. It need not wait for what
    /// runs. To be called outside the gate; in a quiet moment it is just made.
    pub(crate) fn between<R>(&self, call: impl FnOnce() -> R) -> R {
        #[cfg(debug_assertions)]
        assert!(!INSIDE.get(), "who is inside the gate would wait for itself");
        let longest = self.between.longest;
        let mut next = None;
        wait_while(longest, || {
            next = match self.between.next.try_lock() {
                Ok(free) => Some(free),
                Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            next.is_none()
        });
        let Some(mut next) = next else { return call() };
        if let Some(until) = next.take() {
            // What many such calls take of everybody's time is half, at most.
            wait_while(longest, || Instant::now() < until);
        }
        // Relaxed: as in `wait`.
        self.between.has_held.store(false, Ordering::Relaxed);
        let began = Instant::now();
        let shut = self
            .state
            .compare_exchange(OPEN, SHUT, Ordering::SeqCst, Ordering::SeqCst)
            .map(|_| Shut(self));
        if shut.is_ok() {
            // SeqCst: with the shutting, the partner of `enter`.
            let is_inside =
                || lock(&self.turnstiles).iter().any(|it| it.inside.load(Ordering::SeqCst));
            wait_while(longest, is_inside);
        }
        let result = call();
        drop(shut);
        if self.between.has_held.load(Ordering::Relaxed) {
            *next = Some(Instant::now() + began.elapsed().min(longest));
        }
        result
    }
}

/// Spins while something holds, for so long at most.
fn wait_while(longest: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    loop {
        for _ in 0..16 {
            if !holds() {
                return;
            }
            std::hint::spin_loop();
        }
        match began.elapsed() {
            waited if waited >= longest => return,
            waited if waited >= POLITE_AFTER => std::thread::yield_now(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Turnstile;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_is_inside_during_a_call() {
        const ROUNDS: u32 = 2_000;
        // Where threads lose their cores no bound is to decide.
        let between = Between { longest: LONG, ..Between::default() };
        let gate = Gate { between, ..Gate::default() };
        let (inside, wrong) = (AtomicU32::new(0), AtomicU32::new(0));
        let (calls_left, submissions) = (AtomicU32::new(ROUNDS), AtomicU32::new(0));
        let turnstiles: Vec<Arc<Turnstile>> = (0..3).map(|_| Arc::default()).collect();
        turnstiles.iter().for_each(|turnstile| gate.join(turnstile));
        std::thread::scope(|scope| {
            for turnstile in &turnstiles {
                scope.spawn(|| {
                    while calls_left.load(Ordering::SeqCst) > 0 {
                        let pass = gate.enter(turnstile, None);
                        inside.fetch_add(1, Ordering::SeqCst);
                        submissions.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(pass);
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    gate.between(|| {
                        wrong.fetch_add(inside.load(Ordering::SeqCst), Ordering::SeqCst);
                    });
                    calls_left.fetch_sub(1, Ordering::SeqCst);
                }
            });
        });
        assert_eq!(wrong.load(Ordering::SeqCst), 0, "of {ROUNDS}");
        assert!(submissions.load(Ordering::SeqCst) > 0);
        assert_eq!(gate.state.load(Ordering::SeqCst), OPEN);
    }

    #[test]
    fn who_does_not_come_out_is_not_waited_for() {
        let (gate, turnstile) = (Gate::default(), Arc::<Turnstile>::default());
        gate.join(&turnstile);
        let (is_inside, may_go) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _pass = gate.enter(&turnstile, None);
                is_inside.store(true, Ordering::SeqCst);
                wait_while(LONG, || !may_go.load(Ordering::SeqCst));
            });
            wait_while(LONG, || !is_inside.load(Ordering::SeqCst));
            assert_eq!(gate.between(|| 7), 7);
            may_go.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_call_that_lasts_holds_nobody_for_longer_than_the_bound() {
        let (gate, turnstile) = (Gate::default(), Arc::<Turnstile>::default());
        gate.join(&turnstile);
        let (entered, is_shut) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_while(LONG, || !is_shut.load(Ordering::SeqCst));
                drop(gate.enter(&turnstile, None));
                entered.store(true, Ordering::SeqCst);
            });
            gate.between(|| {
                is_shut.store(true, Ordering::SeqCst);
                wait_while(LONG, || !entered.load(Ordering::SeqCst));
            });
        });
        assert!(entered.load(Ordering::SeqCst));
    }

    #[test]
    fn a_call_that_does_not_end_keeps_no_other_call_waiting() {
        let gate = Gate::default();
        let (has_begun, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.between(|| {
                    has_begun.store(true, Ordering::SeqCst);
                    wait_while(LONG, || !may_end.load(Ordering::SeqCst));
                });
            });
            wait_while(LONG, || !has_begun.load(Ordering::SeqCst));
            let began = Instant::now();
            assert_eq!(gate.between(|| 7), 7);
            assert!(began.elapsed() < LONG / 2);
            may_end.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn in_a_closed_gate_a_call_is_just_made() {
        let gate = Gate::default();
        gate.state.store(super::super::CLOSED, Ordering::SeqCst);
        assert_eq!(gate.between(|| 7), 7);
        assert_eq!(gate.state.load(Ordering::SeqCst), super::super::CLOSED);
    }
}
