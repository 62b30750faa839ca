//! When work ran: what is learned of kernels, and how the time between two events is divided among
//! what lies between them. Plain, without driver or clock.

use link::trace::Work;

/// Kernels that are known to take less than this are timed together, as long as those before it in
/// the same span are expected to take less.
pub(super) const TOGETHER_NS: u64 = 100_000;
/// Of each function one kernel in so many is timed alone, at first and when that shows another
/// length than before.
const ALONE_EVERY: u32 = 64;
/// And where it always shows the same, one in so many.
const ALONE_SELDOM: u32 = 1024;
/// An event that is reached so soon after it was recorded may have found its stream without work.
const AT_ONCE_NS: u64 = 20_000;

/// What is known of a function's kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Number of the name's text, 0 if it was not told.
    pub(super) text: u64,
    /// What one takes; 0 before the first was timed.
    pub(super) kernel_ns: u64,
    since_alone: u32,
    alone_every: u32,
}

/// How a piece of work is to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// With what follows it and came before it.
    Together,
    /// Between events of its own.
    Alone,
}

/// What lies at the beginning of the time that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// An event of its own.
    Own,
    /// The event that ended the span before: a pause between may be in it.
    Shared,
}

impl Known {
    /// How the next kernel is to be timed.
    pub(super) fn timing(&self) -> Timing {
        let is_due = self.since_alone >= self.alone_every;
        match self.kernel_ns == 0 || self.kernel_ns >= TOGETHER_NS || is_due {
            true => Timing::Alone,
            false => Timing::Together,
        }
    }

    /// A kernel was submitted.
    pub(super) fn submitted(&mut self, timing: Timing) {
        self.since_alone = match timing {
            Timing::Alone => 0,
            Timing::Together => self.since_alone + 1,
        };
    }

    /// One that was timed alone took so long.
    pub(super) fn learn(&mut self, lasted_ns: u64, beginning: Beginning) {
        let known_ns = self.kernel_ns;
        if known_ns != 0 && beginning == Beginning::Shared && lasted_ns >= known_ns {
            return;
        }
        self.kernel_ns = lasted_ns.max(1);
        let is_as_before = known_ns.abs_diff(lasted_ns) <= known_ns / 4;
        self.alone_every = match is_as_before {
            true => (self.alone_every * 2).clamp(ALONE_EVERY, ALONE_SELDOM),
            false => ALONE_EVERY,
        };
    }
}

/// Work that the driver has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submitted {
    pub(super) work: Work,
    pub(super) function: Option<u32>,
    pub(super) expected_ns: u64,
    /// When the driver was asked for it.
    pub(super) submitted_ns: u64,
}

/// The time between two events, by the host's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// When the first was reached.
    pub(super) start_ns: u64,
    /// How much later the second was.
    pub(super) lasted_ns: u64,
    /// When the second was recorded.
    pub(super) closed_ns: u64,
}

/// When each of several pieces of work ran that lie between two events: none before it was
/// submitted, one after the other.
///
/// Where the device had them all before it began, and was still at them when the second event was
/// recorded, they fill the time between, each in proportion to what it is expected to take.
/// Otherwise the device has waited for some of them, or nobody knows for how long it had nothing to
/// do at the end: each takes what it is expected to take.
pub(super) fn parts<'a>(
    works: &'a [Submitted],
    measured: &Measured,
) -> impl Iterator<Item = (u64, u64, &'a Submitted)> {
    let &Measured { start_ns, lasted_ns, closed_ns } = measured;
    let end_ns = start_ns.saturating_add(lasted_ns);
    let expected: u64 =
        works.iter().fold(0, |sum: u64, one| sum.saturating_add(one.expected_ns.max(1)));
    let is_ahead = works.last().is_none_or(|last| last.submitted_ns <= start_ns);
    let was_at_work = end_ns > closed_ns.saturating_add(AT_ONCE_NS);
    let is_full = works.len() == 1 || (is_ahead && was_at_work);
    let total = if is_full { lasted_ns } else { expected.min(lasted_ns) };
    let mut at = start_ns;
    works.iter().map(move |submitted| {
        let share = u128::from(submitted.expected_ns.max(1)) * u128::from(total);
        let length = (share / u128::from(expected.max(1))) as u64;
        let begins = if is_full { at } else { at.max(submitted.submitted_ns).min(end_ns) };
        at = begins.saturating_add(length).min(end_ns);
        (begins, at, submitted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tracing::work::kernel;
    use link::wire::command::Launch;
    use zerocopy::FromZeros;

    fn submitted(submitted_ns: u64, expected_ns: u64) -> Submitted {
        let work = kernel(&Launch::new_zeroed());
        Submitted { work, function: Some(0), expected_ns, submitted_ns }
    }

    fn places(
        works: &[Submitted],
        start_ns: u64,
        lasted_ns: u64,
        closed_ns: u64,
    ) -> Vec<(u64, u64)> {
        let measured = Measured { start_ns, lasted_ns, closed_ns };
        parts(works, &measured).map(|(start, end, _)| (start, end)).collect()
    }

    #[test]
    fn what_was_submitted_ahead_shares_the_time_in_proportion() {
        let works = [submitted(10, 100), submitted(20, 300)];
        assert_eq!(places(&works, 1000, 80_000, 30), [(1000, 21_000), (21_000, 81_000)]);
    }

    #[test]
    fn nothing_begins_before_it_was_submitted_or_ends_after_the_end() {
        let works = [submitted(900, 100), submitted(1500, 100), submitted(1990, 100)];
        assert_eq!(places(&works, 1000, 1000, 2000), [(1000, 1100), (1500, 1600), (1990, 2000)]);
    }

    #[test]
    fn an_event_that_found_nothing_to_wait_for_stretches_no_kernel() {
        let works = [submitted(10, 100), submitted(20, 300)];
        assert_eq!(places(&works, 1000, 50_000, 45_000), [(1000, 1100), (1100, 1400)]);
        // One alone has its own events.
        assert_eq!(places(&works[..1], 1000, 50_000, 45_000), [(1000, 51_000)]);
    }

    #[test]
    fn times_without_estimates_add_up() {
        let works = [submitted(0, 0), submitted(0, 0)];
        assert_eq!(places(&works, 100, 50_000, 0), [(100, 25_100), (25_100, 50_100)]);
        assert_eq!(places(&works, 100, 0, 0), [(100, 100), (100, 100)]);
        assert_eq!(places(&[], 100, 10, 0), []);
        let late = [submitted(u64::MAX, u64::MAX), submitted(u64::MAX, u64::MAX)];
        assert_eq!(places(&late, u64::MAX, 10, u64::MAX), [(u64::MAX, u64::MAX); 2]);
    }

    #[test]
    fn what_always_takes_as_long_is_timed_alone_less_and_less_often() {
        let mut known = Known::default();
        let alone_in = |known: &mut Known, launches: u32, lasted_ns: u64| {
            let mut alone = 0;
            for _ in 0..launches {
                let timing = known.timing();
                known.submitted(timing);
                if timing == Timing::Alone {
                    alone += 1;
                    known.learn(lasted_ns, Beginning::Own);
                }
            }
            alone
        };
        let steady = alone_in(&mut known, 100_000, 5_000);
        assert!((90..200).contains(&steady), "{steady}");
        // Another length shows, and is looked at closely until it is steady, too.
        let other = alone_in(&mut known, 2048, 20_000);
        assert!(other > 2048 / ALONE_SELDOM + 2, "{other}");
        assert_eq!(known.kernel_ns, 20_000);
        // What is long has events of its own.
        assert!(alone_in(&mut known, 10_000, TOGETHER_NS) > 1000);
        known.learn(TOGETHER_NS * 2, Beginning::Shared);
        assert_eq!(known.kernel_ns, TOGETHER_NS, "a pause may be in it");
    }
}
