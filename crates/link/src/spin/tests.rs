//! Spins by a clock of the test's own: what a waiter does depends on the waits that it is given,
//! and on nothing else.

use super::*;
use std::cell::Cell;

/// The longest spin, as on a machine with many cores.
const MOST: Duration = us(200);
/// A pause between two looks.
const PAUSE: Duration = Duration::from_nanos(45);
/// A call that lets others have a core that nobody wants.
const CALL: Duration = Duration::from_nanos(500);

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// Time that passes only by what a spin does.
struct Virtual {
    now: Cell<Duration>,
    /// How long the others keep the core that they are given.
    kept: Duration,
}

impl Clock for Virtual {
    fn elapsed(&self) -> Duration {
        self.now.get()
    }

    fn pause(&self) {
        self.now.set(self.now.get() + PAUSE);
    }

    fn give_way(&self) {
        self.now.set(self.now.get() + self.kept);
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Awake,
    Asleep,
}

/// A waiter whose sleeps end late.
struct Waiter {
    spin: Spin,
    woken_late: Duration,
    naps_late: Duration,
    kept: Duration,
}

impl Waiter {
    fn woken_late(woken_late: Duration) -> Self {
        let naps_late = Duration::ZERO;
        Self { spin: Spin::with_longest(MOST), woken_late, naps_late, kept: CALL }
    }

    /// Waits for something that comes after so long, as `completion::wait` does.
    fn wait(&mut self, comes: Duration) -> Met {
        self.wait_for(comes).0
    }

    /// The same; says how long it took, too.
    fn wait_for(&mut self, comes: Duration) -> (Met, Duration) {
        let clock = Virtual { now: Cell::new(Duration::ZERO), kept: self.kept };
        if self.spin.spin(|| clock.now.get() >= comes, &clock) {
            return (Met::Awake, clock.now.get());
        }
        loop {
            let now = clock.now.get();
            if let Some(nap) = self.spin.nap(now)
                && now + nap < comes + self.woken_late
            {
                clock.now.set(now + nap + self.naps_late);
                self.spin.napped(nap, nap + self.naps_late);
                if clock.now.get() >= comes {
                    self.spin.overslept(clock.now.get());
                    return (Met::Asleep, clock.now.get());
                }
                let began = Virtual { now: Cell::new(Duration::ZERO), kept: self.kept };
                let is_over = || clock.now.get() + began.now.get() >= comes;
                let met = Spin::with_longest(MOST).spin(is_over, &began);
                clock.now.set(clock.now.get() + began.now.get());
                if !met {
                    continue;
                }
            } else {
                clock.now.set(now.max(comes + self.woken_late));
            }
            self.spin.came_after(clock.now.get());
            self.spin.took(clock.now.get());
            return (Met::Asleep, clock.now.get());
        }
    }

    /// How many of these waits it slept through.
    fn asleep(&mut self, waits: impl IntoIterator<Item = Duration>) -> usize {
        waits.into_iter().filter(|&comes| self.wait(comes) == Met::Asleep).count()
    }
}

#[test]
fn after_a_stall_a_waiter_spins_again_however_late_it_is_woken() {
    for late in [5, 30, 60, 100, 150, 300, 600] {
        for stall in [us(150), us(250), us(1_000), us(5_000), us(100_000)] {
            for stalls in 1..6 {
                let mut waiter = Waiter::woken_late(us(late));
                assert_eq!(waiter.asleep([us(108); 50]), 0);
                waiter.asleep((0..stalls).map(|_| stall));
                let slept = waiter.asleep([us(108); 20]);
                assert!(slept <= 3, "{slept} of 20 after {stalls} of {stall:?}, {late} us late");
                assert_eq!(waiter.asleep([us(108); 50]), 0, "and it stays so");
            }
        }
    }
}

#[test]
fn a_waiter_that_was_always_woken_late_finds_out() {
    // Waits of a millisecond have taught it to nap; then they are short, and it cannot see that
    // they are.
    let mut waiter = Waiter::woken_late(us(110));
    waiter.asleep([us(1_000); 100]);
    let slept = waiter.asleep([us(108); 20]);
    assert!(slept <= 6, "{slept}");
    assert_eq!(waiter.asleep([us(108); 50]), 0);
}

#[test]
fn a_stall_now_and_then_costs_few_sleeps() {
    // As beside a client whose loads hold the device every two milliseconds.
    let mut waiter = Waiter::woken_late(us(110));
    let waits = (0..1_800).map(|at| if at % 18 == 17 { us(500) } else { us(108) });
    let slept = waiter.asleep(waits);
    assert!(slept <= 3 * 100, "{slept} of 1800, of which 100 were long");
}

#[test]
fn waits_that_no_spin_meets_are_tried_more_and_more_rarely() {
    let mut waiter = Waiter::woken_late(us(100));
    let mut spun = Duration::ZERO;
    // Long and of no usual length, so that no nap helps.
    for at in 0..2_000 {
        let clock = Virtual { now: Cell::new(Duration::ZERO), kept: CALL };
        let comes = us(if at % 2 == 0 { 300 } else { 690 });
        assert!(!waiter.spin.spin(|| false, &clock));
        spun += clock.now.get();
        waiter.spin.came_after(comes + waiter.woken_late);
        waiter.spin.took(comes + waiter.woken_late);
    }
    assert!(spun < us(2_000 * 20), "{:?} in each wait", spun / 2_000);
}

#[test]
fn a_core_that_another_keeps_ends_a_spin_and_teaches_nothing() {
    let mut waiter = Waiter::woken_late(us(20));
    waiter.kept = us(3_000);
    let before = waiter.spin.limit;
    for _ in 0..20 {
        waiter.wait(us(108));
    }
    assert_eq!(waiter.spin.limit, before);
    waiter.kept = CALL;
    assert_eq!(waiter.asleep([us(108); 20]), 0);
}

#[test]
fn where_cores_are_wanted_nobody_spins_or_learns() {
    let mut waiter = Waiter::woken_late(us(20));
    waiter.spin.cores = Cores::Wanted;
    for _ in 0..20 {
        let clock = Virtual { now: Cell::new(Duration::ZERO), kept: us(1_000) };
        assert!(!waiter.spin.spin(|| false, &clock));
        assert!(clock.now.get() <= WANTED + 32 * PAUSE, "it neither spins nor waits for its turn");
        assert_eq!(waiter.spin.nap(clock.now.get()), None);
        waiter.spin.came_after(us(100));
        waiter.spin.took(us(1_000));
    }
    assert_eq!(waiter.spin.nap(Duration::ZERO), None);
    waiter.spin.cores = Cores::Spare;
    assert_eq!(waiter.spin.limit, MOST);
}

#[test]
fn where_cores_are_in_plenty_waits_of_a_millisecond_are_met_awake() {
    let mut waiter = Waiter::woken_late(us(100));
    waiter.asleep([us(50); 20]);
    waiter.spin.cores = Cores::Plenty;
    let waits = |turn: u64| us(600 + turn * 7_919 % 900);
    assert!(waiter.asleep((0..20).map(waits)) <= 2);
    assert_eq!(waiter.asleep((20..200).map(waits)), 0, "of whatever length");
    // Far longer ones do not hold a core for that.
    waiter.asleep([us(50_000); 12]);
    let before = waiter.wait_for(us(50_000));
    assert!(before.0 == Met::Asleep && waiter.spin.limit <= us(200), "{:?}", waiter.spin.limit);
    // When others come, spins are as short as ever.
    waiter.asleep((0..20).map(waits));
    waiter.spin.cores = Cores::Spare;
    let clock = Virtual { now: Cell::new(Duration::ZERO), kept: CALL };
    assert!(!waiter.spin.spin(|| false, &clock));
    assert!(clock.now.get() <= MOST + us(3), "{:?}", clock.now.get());
}

#[test]
fn a_single_core_never_spins() {
    assert_eq!(longest_us(1), 0);
    let mut looks = 0;
    let met = Spin::never().until(Cores::Spare, || {
        looks += 1;
        false
    });
    assert!(!met);
    assert_eq!(looks, 1);
}

#[test]
fn waits_of_one_length_are_slept_through_until_shortly_before_their_end() {
    let mut spin = Spin::with_longest(MOST);
    let usual = us(1000);
    assert_eq!(spin.nap(Duration::ZERO), None);
    spin.took(usual + us(20));
    assert_eq!(spin.nap(Duration::ZERO), None, "one wait says nothing");
    spin.took(usual);
    let nap = spin.nap(us(200)).unwrap();
    assert!(nap > usual / 2 && nap + us(200) + LATE <= usual, "{nap:?}");
    assert_eq!(spin.nap(usual), None, "it is late already");
    let early = usual - spin.nap(Duration::ZERO).unwrap();
    spin.napped(nap, nap + LATE + us(20));
    spin.overslept(usual);
    let nap = spin.nap(Duration::ZERO).unwrap();
    assert_eq!(usual - nap, early + us(20), "naps end later here: the next one is shorter");
    spin.napped(nap, nap + us(30));
    for _ in 0..MOST_OVERSLEEPS {
        assert!(spin.nap(Duration::ZERO).is_some());
        spin.overslept(usual);
    }
    assert_eq!(spin.nap(Duration::ZERO), None, "it may have ended long before");
    for _ in 0..40 {
        spin.took(us(190));
    }
    assert_eq!(spin.nap(Duration::ZERO), None, "a spin is long enough");
    for _ in 0..40 {
        spin.took(usual * 3);
        spin.took(usual);
    }
    assert_eq!(spin.nap(Duration::ZERO), None, "nobody knows when it ends");
    assert_eq!(Spin::never().nap(Duration::ZERO), None);
}

#[test]
fn whose_sleeps_and_naps_end_late_is_soon_in_time() {
    for (woken_late, naps_late) in [(50, 40), (300, 60), (250, 90), (400, 10)] {
        let mut waiter = Waiter::woken_late(us(woken_late));
        waiter.naps_late = us(naps_late);
        // Now and then one is far longer.
        let length = |turn: u64| us(930 + turn * 7 % 20 + if turn % 17 == 16 { 300 } else { 0 });
        let took: Vec<_> = (0..50).map(|turn| waiter.wait_for(length(turn)).1).collect();
        let late = took.iter().filter(|took| **took > us(990)).count();
        assert!(late < 12, "{woken_late}, {naps_late}: {took:?}");
    }
}

#[test]
fn waits_that_differ_by_more_than_a_spin_are_not_napped_through() {
    let mut spin = Spin::with_longest(MOST);
    let mut naps = 0;
    for turn in 0..200_u64 {
        naps += usize::from(turn > 20 && spin.nap(Duration::ZERO).is_some());
        spin.took(us(3_000 + turn * 7_919 % 1_000));
    }
    assert!(naps < 10, "{naps}");
}

#[test]
fn the_limit_shrinks_on_failure_to_a_floor_and_grows_on_success() {
    let mut waiter = Waiter::woken_late(Duration::ZERO);
    waiter.asleep([us(100_000); 10]);
    assert_eq!(waiter.spin.limit, MOST / 16);
    assert_eq!(waiter.asleep([us(1); 10]), 0);
    assert_eq!(waiter.spin.limit, MOST);
}

#[test]
fn what_is_announced_is_looked_for_as_long_as_may_be_whatever_was_learned() {
    let mut waiter = Waiter::woken_late(Duration::ZERO);
    waiter.asleep([us(100_000); 10]);
    waiter.spin.announced();
    assert_eq!(waiter.wait(MOST * 8), Met::Asleep);
    assert_eq!(waiter.spin.limit, MOST / 16, "it taught nothing");
    waiter.spin.announced();
    assert_eq!(waiter.wait(MOST * 3 / 4), Met::Awake);
}
