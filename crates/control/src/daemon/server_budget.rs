//! What users' servers may write to `server.log`: each user's, and all of them together, as one who
//! is harmful may have many ids.
//!
//! Lines that tell of faults have some room of their own, which no other lines use up: what a
//! client has a server say must not hide what it has done.

use std::collections::BTreeMap;
use std::time::Instant;

use super::rate::{Allowance, Rate};

/// What the servers of one user may write.
const OF_ONE: Rate = Rate { burst_bytes: 4 << 20, bytes_per_s: 64 << 10 };
/// What those of all users but the daemon's own may: the bursts of four.
const OF_ALL: Rate = Rate { burst_bytes: 16 << 20, bytes_per_s: 256 << 10 };
/// What is kept for lines of one user's faults: a fault with 48 suspects, and all their last calls,
/// takes less.
const FAULTS_OF_ONE: Rate = Rate { burst_bytes: 256 << 10, bytes_per_s: 1 << 10 };
/// What is kept for those of all users but the daemon's own.
const FAULTS_OF_ALL: Rate = Rate { burst_bytes: 4 << 20, bytes_per_s: 16 << 10 };

/// What a line tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// A fault, a kill or a takeover.
    Fault,
    /// Anything else.
    Other,
}

/// The room that is left.
#[derive(Debug)]
pub(super) struct Budget {
    /// The daemon's: what is for all leaves room for it, as for root's lines in `control.log`.
    own_uid: u32,
    of_each: BTreeMap<u32, Room>,
    of_all: Room,
}

/// One user's, or all users'.
#[derive(Debug)]
struct Room {
    lines: Allowance,
    faults: Allowance,
}

impl Room {
    fn new(lines: Rate, faults: Rate) -> Self {
        Self { lines: Allowance::new(lines), faults: Allowance::new(faults) }
    }

    fn allowance(&mut self, from: Subject) -> &mut Allowance {
        match from {
            Subject::Fault => &mut self.faults,
            Subject::Other => &mut self.lines,
        }
    }

    fn is_whole(&mut self, now: Instant) -> bool {
        self.lines.is_whole(now) && self.faults.is_whole(now)
    }
}

impl Budget {
    pub(super) fn new(own_uid: u32) -> Self {
        Self { own_uid, of_each: BTreeMap::new(), of_all: Room::new(OF_ALL, FAULTS_OF_ALL) }
    }

    /// Forgets users whose servers have long been silent.
    pub(super) fn tidy(&mut self, now: Instant) {
        self.of_each.retain(|_, room| !room.is_whole(now));
    }

    /// Takes room for so many bytes of a user's; what there is none for is counted.
    pub(super) fn take(&mut self, uid: u32, subject: Subject, bytes: u64, now: Instant) -> bool {
        let own = self.of_each.entry(uid).or_insert_with(|| Room::new(OF_ONE, FAULTS_OF_ONE));
        let mut of_all = (uid != self.own_uid).then_some(&mut self.of_all);
        let mut take = |from: Subject, of_all: Option<&mut Room>| {
            let own = own.allowance(from);
            let has = own.has(bytes, now)
                && of_all.is_none_or(|all| all.allowance(from).take(bytes, now));
            has && own.take(bytes, now)
        };
        let has = take(Subject::Other, of_all.as_deref_mut())
            || (subject == Subject::Fault && take(Subject::Fault, of_all));
        if !has {
            own.lines.drop_line();
        }
        has
    }

    /// Whether [`Self::notice`] has something to say.
    pub(super) fn has_dropped(&self, uid: u32) -> bool {
        self.of_each.get(&uid).is_some_and(|room| room.lines.dropped() > 0)
    }

    /// What was left out of a user's lines, if anything was and nobody has been told.
    pub(super) fn notice(&self, uid: u32) -> Option<String> {
        let dropped = self.of_each.get(&uid)?.lines.dropped();
        if dropped == 0 {
            return None;
        }
        let words = |rate: Rate| {
            format!(
                "{} MiB at once and {} KiB a second",
                rate.burst_bytes >> 20,
                rate.bytes_per_s >> 10
            )
        };
        Some(format!(
            "{dropped} lines of user {uid}'s servers were left out: more than {} of one user, and {} of all, are not written",
            words(OF_ONE),
            words(OF_ALL)
        ))
    }

    /// They are told.
    pub(super) fn told(&mut self, uid: u32) {
        if let Some(room) = self.of_each.get_mut(&uid) {
            room.lines.told();
        }
    }
}
