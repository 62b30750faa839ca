//! How an idle moment of a device is come by that several clients use.
//!
//! Some driver calls wait for all running kernels and keep every other thread from submitting
//! meanwhile (`docs/lab-notebook.md` has the list). A kernel that waits for what its client
//! launches later never ends then. So such a call is made when nothing runs: new work is held for a
//! while, a *window*, until what runs has ended; when that does not happen the work goes on, so
//! that whoever waits for a later launch gets it, and the next window is longer. From some length
//! on only a little work gets in between two windows, so that even long queues shrink. A stream
//! whose work does not end though nothing was added to it in some windows is waited for with
//! nothing held: it would be in vain. Each time that was too early, or other work has come
//! meanwhile, it takes more windows to be taken for endless: a call gets its moment at last.

use std::collections::HashMap;
use std::time::Duration;

const FIRST_WINDOW: Duration = Duration::from_millis(4);
const LONGEST_WINDOW: Duration = Duration::from_secs(2);
/// From this length on a window is followed by a little work only.
const STRICT_WINDOW: Duration = Duration::from_millis(64);
/// Submissions of each session between two strict windows.
const STRICT_QUOTA: u32 = 32;
const SHORTEST_GAP: Duration = Duration::from_millis(2);
const LONGEST_GAP: Duration = Duration::from_millis(50);
/// Held so long in vain, a stream's work is taken for endless: at first, after which nobody has
/// been held for more than 16 ms, and at last.
const FIRST_ENDLESS: Duration = Duration::from_millis(24);
const LAST_ENDLESS: Duration = Duration::from_secs(1);

/// What comes between two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// How long it lasts.
    pub length: Duration,
    /// How much each session may submit; `None`: as much as it wants.
    pub quota: Option<u32>,
}

/// Work that did not end in a window: which stream, and how many pieces it had been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// The stream's handle, as a number.
    pub stream: usize,
    /// Pieces of work submitted to it so far.
    pub submitted: u64,
}

/// The windows of one attempt to find an idle moment.
#[derive(Debug)]
pub struct Windows {
    next: Duration,
    /// How long each stream has been held in vain, with the same work.
    in_vain: HashMap<Busy, Duration>,
    /// What is taken for endless.
    endless: Duration,
}

impl Default for Windows {
    fn default() -> Self {
        Self { next: FIRST_WINDOW, in_vain: HashMap::new(), endless: FIRST_ENDLESS }
    }
}

impl Windows {
    /// How long the next window may last.
    pub fn length(&self) -> Duration {
        self.next
    }

    /// After a window in which `busy` did not end.
    pub fn failed(&mut self, busy: &[Busy]) -> Gap {
        let held = self.next;
        let before = std::mem::take(&mut self.in_vain);
        self.in_vain = busy
            .iter()
            .map(|busy| (*busy, before.get(busy).map_or(Duration::ZERO, |so_far| *so_far + held)))
            .collect();
        self.next = (held * 2).min(LONGEST_WINDOW);
        Gap {
            length: (held / 4).clamp(SHORTEST_GAP, LONGEST_GAP),
            quota: (held >= STRICT_WINDOW).then_some(STRICT_QUOTA),
        }
    }

    /// Work that seems to have no end: to be waited for, until it ends or its stream is given more,
    /// with nothing held.
    pub fn endless(&self) -> Option<Busy> {
        self.in_vain.iter().find(|(_, held)| **held >= self.endless).map(|(busy, _)| *busy)
    }

    /// After such a wait.
    pub fn restart(&mut self) {
        let endless = (self.endless * 2).min(LAST_ENDLESS);
        *self = Self { endless, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_and_work_goes_on_between_them() {
        let mut windows = Windows::default();
        assert_eq!(windows.length(), FIRST_WINDOW);
        let (mut lengths, mut quotas) = (Vec::new(), Vec::new());
        for submitted in 1..=12 {
            lengths.push(windows.length());
            let gap = windows.failed(&[Busy { stream: 1, submitted }]);
            assert!(gap.length >= SHORTEST_GAP && gap.length <= LONGEST_GAP);
            quotas.push(gap.quota);
            assert_eq!(windows.endless(), None, "it is given work and may be making progress");
        }
        assert!(lengths.is_sorted() && lengths.last() == Some(&LONGEST_WINDOW));
        assert_eq!((quotas[0], quotas[11]), (None, Some(STRICT_QUOTA)));
    }

    #[test]
    fn what_does_not_end_with_nothing_added_is_endless_soon_and_each_time_later() {
        let mut windows = Windows::default();
        let (stuck, other) = (Busy { stream: 1, submitted: 7 }, Busy { stream: 2, submitted: 1 });
        let mut longest = Vec::new();
        for _ in 0..8 {
            let mut length = Duration::ZERO;
            while windows.endless().is_none() {
                length = windows.length();
                windows.failed(&[stuck, other]);
                assert!(length <= LONGEST_WINDOW);
            }
            longest.push(length);
            windows.restart();
            assert_eq!((windows.endless(), windows.length()), (None, FIRST_WINDOW));
        }
        assert_eq!(longest[0], Duration::from_millis(16));
        assert!(longest.is_sorted() && *longest.last().unwrap() >= LAST_ENDLESS / 4);
        windows.failed(&[stuck]);
        windows.failed(&[other]);
        assert_eq!(windows.in_vain.len(), 1, "what has ended is forgotten");
    }
}
