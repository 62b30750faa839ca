//! When a session's thread looks how far its work has got ([`super::super::marks`]), and whether
//! that is overdue.
//!
//! A look costs a wake-up of some microseconds, and on a software GPU it is a kernel that gives its
//! core for it. So the thread looks often only where the device may be idle until it does: where
//! others wait for the end of its work, or where what is held in its ring has nothing left before
//! it on the device. Otherwise it looks when the next mark may have been reached, and seldom where
//! it makes no difference to anybody.

use super::super::marks::{InFlight, Look, Work};
use std::time::Duration;

/// Looks in the time that the work is thought to take, where its end matters.
const LOOKS: u32 = 32;
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_micros(500);
/// Between two looks that nobody waits for. Who begins to wakes the thread.
pub(super) const UNASKED: Duration = Duration::from_millis(1);
/// Work is overdue so long after twice the time that it should take; where that lets a launch
/// through and still nothing ends, after four times that.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Waiting is taken to last so many times longer than the device's work, at most.
const MOST_SLOWNESS: u32 = 1000;

/// For whom a session's thread looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// Others wait for the end of its work, or its client's calls do.
    End,
    /// What is held in its ring can be submitted when some of its work has ended.
    Credit,
    /// Nobody.
    Nobody,
}

/// One session's.
#[derive(Debug)]
pub(super) struct Looks {
    /// How long it has slept since a mark was reached.
    pub(super) waited: Duration,
    /// Launches that it got through since then although it was to wait.
    exceptions: u32,
    /// How many times longer it waits for its work than that takes by the device's clock: 1, but
    /// for a software's device, or a starved process.
    slowness: u32,
    /// What part its work takes of the time that it is thought to take, 1 at most; 0: not known.
    actual: f64,
}

impl Default for Looks {
    fn default() -> Self {
        Self { waited: Duration::ZERO, exceptions: 0, slowness: 1, actual: 0.0 }
    }
}

impl Looks {
    /// How long to sleep until the next look, `longest` at most. Longer and longer where the work
    /// takes longer than was thought.
    pub(super) fn next(
        &mut self,
        in_flight: InFlight,
        concern: Concern,
        longest: Duration,
    ) -> Duration {
        let due = Duration::from_nanos(in_flight.all.cost_ns);
        let often = due.max(self.waited.saturating_sub(due)) / LOOKS;
        let sleep = match concern {
            Concern::End => often.clamp(SHORTEST, LONGEST),
            Concern::Credit => {
                let behind_ns = in_flight.all.cost_ns.saturating_sub(in_flight.first_ns);
                // The device has work for so long, however late the first mark is seen.
                let busy = Duration::from_nanos(in_flight.first_ns.min(behind_ns));
                often.max(busy.mul_f64(self.actual)).clamp(SHORTEST, LONGEST)
            }
            Concern::Nobody => UNASKED,
        }
        .min(longest);
        self.waited += sleep;
        sleep
    }

    /// Marks were reached. Says whether launches had got through meanwhile that were to wait.
    pub(super) fn reached(&mut self, look: &Look) -> bool {
        let waited_ns = std::mem::take(&mut self.waited).as_nanos() as u64;
        if look.busy_ns > 0 {
            let seen = waited_ns.div_ceil(look.busy_ns).min(MOST_SLOWNESS.into()) as u32;
            self.slowness = seen.max(self.slowness - self.slowness / 8).max(1);
        }
        let seen = (look.busy_ns as f64 / look.cost_ns.max(1) as f64).min(1.0);
        // Less than was thought counts at once, more by and by.
        self.actual = seen.min((self.actual + seen) / 2.0);
        std::mem::take(&mut self.exceptions) > 0
    }

    /// All work has ended.
    pub(super) fn settle(&mut self) {
        self.waited = Duration::ZERO;
        self.exceptions = 0;
    }

    /// Whether the session has waited for its own work far longer than that should take; then it
    /// waits four times as long for the next such answer.
    pub(super) fn is_overdue(&mut self, in_flight: Work) -> bool {
        // As this process is run, and as the device's clock goes, which may be a software's.
        let due = 2 * Duration::from_nanos(in_flight.cost_ns) * self.slowness + PATIENCE;
        let is_overdue = in_flight.launches > 0
            && self.waited >= due.saturating_mul(4_u32.pow(self.exceptions.min(8)));
        self.exceptions += u32::from(is_overdue);
        is_overdue
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IN_COMPANY, MARKS};
    use super::*;
    use std::collections::VecDeque;

    const US: u64 = 1_000;
    const SECOND: u64 = 1_000_000_000;

    /// A client whose ring never runs empty, in company.
    #[derive(Clone, Copy, Debug)]
    struct Greedy {
        /// What a kernel is thought to take, and what it takes.
        cost_ns: u64,
        takes_ns: u64,
    }

    /// What a second was like.
    #[derive(Clone, Copy, Debug)]
    struct Ran {
        /// The part of the time in which the device had nothing to do.
        idle: f64,
        looks: u32,
    }

    /// Lets the session's thread feed the device for a second, in kernels that run one after the
    /// other.
    fn run(greedy: Greedy) -> Ran {
        let mut looks = Looks::default();
        let (mut now, mut device_ns, mut idle_ns, mut told_ns) = (0, 0, 0, 0);
        // When each is reached, and how many kernels end with it.
        let mut marks: VecDeque<(u64, u64)> = VecDeque::new();
        let (mut loose, mut launches, mut count) = (0, 0, 0);
        while now < SECOND {
            while launches * greedy.cost_ns < IN_COMPANY.cost_ns
                || launches < u64::from(IN_COMPANY.launches)
            {
                idle_ns += now.saturating_sub(device_ns);
                device_ns = device_ns.max(now) + greedy.takes_ns;
                launches += 1;
                loose += 1;
                if loose * greedy.cost_ns >= IN_COMPANY.cost_ns / MARKS {
                    marks.push_back((device_ns, std::mem::take(&mut loose)));
                }
            }
            let all = Work { cost_ns: launches * greedy.cost_ns, launches: launches as u32 };
            let first_ns = marks.front().map_or(all.cost_ns, |mark| mark.1 * greedy.cost_ns);
            now += looks.next(InFlight { all, first_ns }, Concern::Credit, Duration::MAX).as_nanos()
                as u64;
            count += 1;
            if loose > 0 {
                marks.push_back((device_ns, std::mem::take(&mut loose)));
            }
            let mut look = Look::default();
            while let Some((end_ns, kernels)) = marks.pop_front_if(|mark| mark.0 <= now) {
                launches -= kernels;
                look.reached += 1;
                look.cost_ns += kernels * greedy.cost_ns;
                // A span begins where all had ended.
                look.busy_ns += end_ns - told_ns.max(end_ns - kernels * greedy.takes_ns);
                told_ns = end_ns;
            }
            if look.reached > 0 {
                looks.reached(&look);
            }
        }
        Ran { idle: idle_ns as f64 / now as f64, looks: count }
    }

    #[test]
    fn a_device_with_held_work_is_not_idle_for_want_of_a_look() {
        for (cost_us, takes_us) in [
            (480, 480),
            (480, 1_920),
            (60, 60),
            (60, 240),
            (35, 5),
            (2_000, 100),
            (5_000, 5_000),
            (700, 90),
        ] {
            let ran = run(Greedy { cost_ns: cost_us * US, takes_ns: takes_us * US });
            assert!(ran.idle < 0.03, "{ran:?}: {cost_us} us, in truth {takes_us} us");
        }
    }

    #[test]
    fn whose_work_lasts_looks_no_more_often_than_its_marks_are_reached() {
        // Alone, and as one of four that share a device.
        for takes_us in [480, 1_920] {
            let ran = run(Greedy { cost_ns: 480 * US, takes_ns: takes_us * US });
            assert!(ran.looks < 2_600, "{ran:?}: {takes_us} us");
        }
    }

    #[test]
    fn who_has_submitted_all_looks_seldom_unless_others_wait_for_its_end() {
        // All the work before was as long as it was thought to be.
        let mut looks = Looks { actual: 1.0, ..Looks::default() };
        let mut next = |in_flight, concern| looks.next(in_flight, concern, Duration::MAX);
        let all = Work { cost_ns: 1_920 * US, launches: 4 };
        let in_flight = InFlight { all, first_ns: 960 * US };
        assert_eq!(next(in_flight, Concern::Nobody), UNASKED);
        assert_eq!(next(in_flight, Concern::End), Duration::from_micros(60));
        // One kernel: behind it there is nothing.
        let all = Work { cost_ns: 1_920 * US, launches: 1 };
        let in_flight = InFlight { all, first_ns: all.cost_ns };
        assert_eq!(next(in_flight, Concern::Credit), Duration::from_micros(60));
    }
}
