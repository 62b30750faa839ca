//! The gate through which work goes to the device, and quiet moments for calls that would stall
//! others; see [`policy::faults::quiet`].
//!
//! A session passes the gate for each piece of work: while it is open that costs two writes and a
//! look, no lock. Who needs a quiet moment closes it, waits until nobody is inside and the driver
//! says that all streams with work are idle, makes the call, and opens it. One who comes meanwhile
//! takes the moment over, as long as it has not lasted long. Streams of the executor's own (copies,
//! probes) do not count: their work ends by itself.
//!
//! Calls that wait for who submits, and not for what runs, are made [`between`] submissions.

mod between;
mod entering;

use crate::context::Context;
use cuda_abi::types::*;
use executor_link::counters::monotonic_ns;
use executor_link::log::log_server;
use policy::faults::quiet::{Busy, Gap, Windows};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const OPEN: u32 = 0;
/// Open for as much work as each session's quota says: none, at first.
const CLOSED: u32 = 1;
/// Shut for one call of the driver: see [`between`].
const SHUT: u32 = 2;

/// A moment may be taken over for so long; then held work goes first.
const LONGEST_MOMENT: Duration = Duration::from_millis(1);
/// Between two moments, if somebody was held.
const BREATH: Duration = Duration::from_micros(300);
/// So long after the gate was closed, and then after twice the time again and again, a session
/// whose work has not ended may submit one more piece: what runs may be waiting for it.
const FIRST_GRANT: Duration = Duration::from_micros(300);
/// Looks at the gate, or at the device, before a thread sleeps.
const SPINS: u32 = 200;
const POLL_SHORTEST: Duration = Duration::from_micros(10);
const POLL_LONGEST: Duration = Duration::from_micros(200);
const ENDLESS_POLL: Duration = Duration::from_millis(1);
/// Bounds waits whose end could be missed.
const LOOK: Duration = Duration::from_millis(20);
/// After so long the log says what is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// One stream's work. Written at each launch, so in cache lines of its own, as what follows.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Track {
    stream: CUstream,
    /// Written by its session's thread, inside the gate.
    submitted: AtomicU64,
    /// [`Self::submitted`] when the stream was last seen idle in a closed gate.
    idle_at: AtomicU64,
}

impl Track {
    /// Counts a piece of work.
    pub(crate) fn count(&self) {
        // Relaxed: one writer; see `Turnstile::look`.
        self.submitted.store(self.submitted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// One session's part of the gate.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Turnstile {
    inside: AtomicBool,
    /// What it may still submit while the gate is closed.
    quota: AtomicU32,
    /// Locked by the session when it makes or ends a stream.
    tracks: Mutex<Vec<Arc<Track>>>,
}

impl Turnstile {
    /// A new stream of the session.
    pub(crate) fn track(&self, stream: CUstream) -> Arc<Track> {
        let (submitted, idle_at) = (AtomicU64::new(0), AtomicU64::new(0));
        let track = Arc::new(Track { stream, submitted, idle_at });
        lock(&self.tracks).push(Arc::clone(&track));
        track
    }

    /// Before a stream is destroyed.
    pub(crate) fn forget(&self, track: &Arc<Track>) {
        lock(&self.tracks).retain(|other| !Arc::ptr_eq(other, track));
    }

    /// Adds what has not ended to `busy`, while work may be submitted.
    fn peek(&self, context: &Context, busy: &mut Vec<Busy>) {
        for track in lock(&self.tracks).iter() {
            let submitted = track.submitted.load(Ordering::Relaxed);
            // SAFETY: a live stream: its session forgets it, under this lock, before it ends it.
            let asked = unsafe { context.driver().cuStreamQuery(track.stream) };
            if asked == CUresult::ERROR_NOT_READY {
                busy.push(Busy { stream: track.stream.0, submitted });
            }
        }
    }

    /// Adds what has not ended to `busy`. Nobody may be inside.
    fn look(&self, context: &Context, busy: &mut Vec<Busy>) {
        for track in lock(&self.tracks).iter() {
            // Relaxed: whoever wrote it has left the gate, which `inside` orders; `idle_at` belongs
            // to the gate's holder, whom a lock orders.
            let submitted = track.submitted.load(Ordering::Relaxed);
            if track.idle_at.load(Ordering::Relaxed) == submitted {
                continue;
            }
            // SAFETY: a live stream: its session forgets it, under this lock, before it ends it.
            match unsafe { context.driver().cuStreamQuery(track.stream) } {
                CUresult::ERROR_NOT_READY => busy.push(Busy { stream: track.stream.0, submitted }),
                other => {
                    let _ = context.check(other);
                    track.idle_at.store(submitted, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A session's thread submits; others are not in a quiet moment.
#[derive(Debug)]
pub(crate) struct Pass<'a>(&'a Turnstile);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        between::note_inside(false);
        // Release: pairs with the look in `drain`, which reads what was counted inside.
        self.0.inside.store(false, Ordering::Release);
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU32,
    turnstiles: Mutex<Vec<Arc<Turnstile>>>,
    turns: Mutex<Turns>,
    /// Told when the gate opens, and when a turn ends.
    changed: Condvar,
    between: between::Between,
    /// Local memory per thread that the device has made room for.
    frame_bytes: AtomicU32,
    /// Since when kernels have been waited for, by whomever, by [`monotonic_ns`]; 0: they are not.
    in_vain_since_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Turns {
    /// Somebody closes the gate, or is in a quiet moment.
    taken: bool,
    /// Those who wait to do so.
    waiting: u32,
    /// The gate is closed and the device idle, since then.
    quiet_since: Option<Instant>,
    /// Somebody has been held since the gate was last opened.
    held: bool,
    /// When it was opened to somebody who had been held.
    released: Option<Instant>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// A session begins.
    pub(crate) fn join(&self, turnstile: &Arc<Turnstile>) {
        lock(&self.turnstiles).push(Arc::clone(turnstile));
    }

    /// A session has ended.
    pub(crate) fn leave(&self, turnstile: &Arc<Turnstile>) {
        lock(&self.turnstiles).retain(|other| !Arc::ptr_eq(other, turnstile));
    }

    /// Before work is submitted to a stream: waits while work is held.
    pub(crate) fn enter<'a>(&self, turnstile: &'a Turnstile, track: Option<&Track>) -> Pass<'a> {
        // SeqCst, as the look that follows: with the closing and the look at `inside` in `drain`,
        // one of the two sees the other.
        turnstile.inside.store(true, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) != OPEN {
            self.wait_inside(turnstile);
        }
        let pass = Pass(turnstile);
        between::note_inside(true);
        if let Some(track) = track {
            track.count();
        }
        pass
    }

    #[cold]
    fn wait_inside(&self, turnstile: &Turnstile) {
        let mut spins = 0;
        loop {
            turnstile.inside.store(false, Ordering::SeqCst);
            if self.state.load(Ordering::SeqCst) == SHUT {
                self.between.wait(|| self.state.load(Ordering::SeqCst) == SHUT);
            }
            while !self.lets_in(turnstile) && spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            }
            let mut turns = lock(&self.turns);
            while !self.lets_in(turnstile) {
                turns.held = true;
                let woken = self.changed.wait_timeout(turns, LOOK);
                turns = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(turns);
            turnstile.inside.store(true, Ordering::SeqCst);
            // SeqCst, both: as the look in `enter`; the quota is taken back in `drain` before the
            // last look at `inside`. Who was shut out has waited for as long as it may.
            let take = |quota: u32| quota.checked_sub(1);
            if self.state.load(Ordering::SeqCst) != CLOSED
                || turnstile.quota.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
            {
                return;
            }
        }
    }

    fn lets_in(&self, turnstile: &Turnstile) -> bool {
        self.state.load(Ordering::SeqCst) != CLOSED || turnstile.quota.load(Ordering::SeqCst) > 0
    }

    /// Whether the device has room for kernels with so much local memory per thread.
    pub(crate) fn has_room_for(&self, frame_bytes: u32) -> bool {
        // Relaxed: raised in a quiet moment, in which the room is made and nobody else submits.
        frame_bytes <= self.frame_bytes.load(Ordering::Relaxed)
    }

    /// Waits for a quiet moment; `None` when `given_up` says so. To be called outside the gate.
    pub(crate) fn quiet(
        &self,
        context: &Context,
        label: &str,
        given_up: impl Fn() -> bool,
    ) -> Option<Quiet<'_>> {
        if self.take_turn(&given_up)? {
            return Some(Quiet { gate: self });
        }
        let _ = self.in_vain_since_ns.compare_exchange(
            0,
            monotonic_ns(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // Opens the gate if the wait is given up.
        let quiet = Quiet { gate: self };
        let (mut windows, mut busy) = (Windows::default(), Vec::new());
        let (started, complained) = (Instant::now(), Cell::new(false));
        let given_up = || {
            if started.elapsed() > PATIENCE && !complained.replace(true) {
                log_server!(
                    "{label} waits for kernels that do not end: its call needs an idle device"
                );
            }
            given_up()
        };
        loop {
            if given_up() {
                return None;
            }
            if let Some(endless) = windows.endless() {
                self.wait_for(context, endless, &given_up);
                windows.restart();
            }
            self.state.store(CLOSED, Ordering::SeqCst);
            self.drain(context, windows.length(), &mut busy, &given_up);
            if busy.is_empty() {
                lock(&self.turns).quiet_since = Some(Instant::now());
                self.in_vain_since_ns.store(0, Ordering::Relaxed);
                return Some(quiet);
            }
            self.let_go(windows.failed(&busy));
        }
    }

    /// Looks for a quiet moment for so long; `None`: something runs. What ran at the last look is
    /// in `seen`: nobody is held while it still does. To be called outside the gate.
    pub(crate) fn look_for_quiet(
        &self,
        context: &Context,
        longest: Duration,
        seen: &mut Vec<Busy>,
    ) -> Option<Quiet<'_>> {
        let turnstiles = lock(&self.turnstiles).clone();
        let mut runs = Vec::new();
        turnstiles.iter().for_each(|turnstile| turnstile.peek(context, &mut runs));
        let still_runs = runs.iter().any(|busy| seen.contains(busy));
        *seen = runs;
        let mut turns = lock(&self.turns);
        if still_runs || turns.taken || turns.waiting > 0 {
            return None;
        }
        turns.taken = true;
        drop(turns);
        // Opens the gate if it is in vain.
        let quiet = Quiet { gate: self };
        self.state.store(CLOSED, Ordering::SeqCst);
        let mut busy = Vec::new();
        self.drain(context, longest, &mut busy, &|| false);
        lock(&self.turns).quiet_since = busy.is_empty().then(Instant::now);
        busy.is_empty().then_some(quiet)
    }

    /// Waits for the right to close the gate; says whether a quiet moment came with it.
    fn take_turn(&self, given_up: &impl Fn() -> bool) -> Option<bool> {
        let mut turns = lock(&self.turns);
        if !turns.taken && turns.waiting == 0 {
            // What was waited for then may have ended long since.
            self.in_vain_since_ns.store(0, Ordering::Relaxed);
        }
        turns.waiting += 1;
        loop {
            let breath = turns.released.map_or(BREATH, |released| released.elapsed());
            let is_free = !turns.taken && (turns.quiet_since.is_some() || breath >= BREATH);
            if is_free || given_up() {
                turns.waiting -= 1;
                let took = is_free.then(|| turns.quiet_since.is_some());
                turns.taken |= is_free;
                if !is_free && !turns.taken && turns.quiet_since.is_some() && turns.waiting == 0 {
                    self.open(&mut turns);
                }
                return took;
            }
            let limit = if turns.taken { LOOK } else { BREATH.saturating_sub(breath) };
            let limit = limit.max(POLL_SHORTEST);
            let woken = self.changed.wait_timeout(turns, limit);
            turns = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// For how long those who want a quiet moment have waited for kernels. It does not count that
    /// they wait for each other.
    pub(crate) fn in_vain_for(&self) -> Duration {
        // Relaxed, as where it is written: the number is all that there is.
        match self.in_vain_since_ns.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_ns => Duration::from_nanos(monotonic_ns().saturating_sub(since_ns)),
        }
    }

    /// In the closed gate: waits until nobody is inside and nothing runs, for so long. What has not
    /// ended is then in `busy`.
    fn drain(
        &self,
        context: &Context,
        window: Duration,
        busy: &mut Vec<Busy>,
        given_up: &impl Fn() -> bool,
    ) {
        let (closed, mut looks, mut poll) = (Instant::now(), 0, POLL_SHORTEST);
        let turnstiles = lock(&self.turnstiles).clone();
        let (mut granted, mut next_grant) = (true, FIRST_GRANT);
        loop {
            busy.clear();
            let is_due = closed.elapsed() >= next_grant;
            for turnstile in &turnstiles {
                let before = busy.len();
                // SeqCst: see `enter`.
                match turnstile.inside.load(Ordering::SeqCst) {
                    true => busy.push(Busy { stream: 0, submitted: looks }),
                    false => turnstile.look(context, busy),
                }
                if is_due && busy.len() > before {
                    turnstile.quota.store(1, Ordering::SeqCst);
                }
            }
            if context.lost().is_some() {
                busy.clear();
            }
            let ends = busy.is_empty() || closed.elapsed() >= window || given_up();
            if ends && !std::mem::take(&mut granted) {
                return;
            }
            if ends {
                // Nobody may come in any more; who did meanwhile is seen by the next look.
                turnstiles.iter().for_each(|turnstile| turnstile.quota.store(0, Ordering::SeqCst));
                continue;
            }
            if is_due {
                granted = true;
                next_grant *= 2;
                drop(lock(&self.turns));
                self.changed.notify_all();
            }
            looks += 1;
            match looks {
                ..32 => std::hint::spin_loop(),
                _ => {
                    std::thread::sleep(poll);
                    poll = (poll * 2).min(POLL_LONGEST);
                }
            }
        }
    }

    /// Lets held work go on for a while.
    fn let_go(&self, gap: Gap) {
        for turnstile in lock(&self.turnstiles).iter() {
            turnstile.quota.store(gap.quota.unwrap_or(0), Ordering::SeqCst);
        }
        let turns = lock(&self.turns);
        if gap.quota.is_none() {
            self.state.store(OPEN, Ordering::SeqCst);
        }
        drop(turns);
        self.changed.notify_all();
        std::thread::sleep(gap.length);
    }

    /// With nothing held: waits until a stream's work has ended or it was given more.
    fn wait_for(&self, context: &Context, endless: Busy, given_up: &impl Fn() -> bool) {
        self.let_go(Gap { length: ENDLESS_POLL, quota: None });
        let turnstiles = lock(&self.turnstiles).clone();
        let still_runs = || {
            turnstiles.iter().any(|turnstile| {
                lock(&turnstile.tracks).iter().any(|track| {
                    track.stream.0 == endless.stream
                        && track.submitted.load(Ordering::Relaxed) == endless.submitted
                        // SAFETY: a live stream: its session forgets it, under this lock, before it
                        // ends it.
                        && unsafe { context.driver().cuStreamQuery(track.stream) }
                            == CUresult::ERROR_NOT_READY
                })
            })
        };
        while still_runs() && !given_up() && context.lost().is_none() {
            std::thread::sleep(ENDLESS_POLL);
        }
    }

    fn open(&self, turns: &mut Turns) {
        turns.quiet_since = None;
        turns.released = std::mem::take(&mut turns.held).then(Instant::now);
        self.state.store(OPEN, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// A moment in which nothing runs and nothing is submitted; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Quiet<'a> {
    gate: &'a Gate,
}

impl Quiet<'_> {
    /// Work was submitted in it: nobody may take it over.
    fn spoil(&self) {
        lock(&self.gate.turns).quiet_since = None;
    }

    /// Whether it has lasted so long that others should go on before more is done in it.
    pub(crate) fn is_long(&self) -> bool {
        let since = lock(&self.gate.turns).quiet_since;
        since.is_some_and(|since| since.elapsed() > LONGEST_MOMENT / 2)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        let mut turns = lock(&self.gate.turns);
        turns.taken = false;
        if turns.waiting == 0 {
            self.gate.in_vain_since_ns.store(0, Ordering::Relaxed);
        }
        let handed_on = turns.waiting > 0
            && turns.quiet_since.is_some_and(|since| since.elapsed() < LONGEST_MOMENT);
        if handed_on {
            self.gate.changed.notify_all();
        } else {
            self.gate.open(&mut turns);
        }
    }
}

/// What a submission holds.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    Pass { _pass: Pass<'a> },
    Quiet { _quiet: Quiet<'a> },
}
