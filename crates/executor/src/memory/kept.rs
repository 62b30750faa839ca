//! Grants that a client has given up, kept mapped for its next allocation of that size.
//!
//! A grant that goes back to the keeper and a new one cost eight messages and five driver calls: a
//! `cuMemAlloc` and `cuMemFree` of 64 MiB took thirteen times what a native driver takes. What is
//! kept counts for no limit and is not the client's to address. It goes back when the client
//! allocates something else and has no room, when it is too much, after a while, and, whoever it
//! was, when the keeper says that memory is short: then nothing is kept until it says otherwise. No
//! other client ever sees its bytes: the keeper's memory is new for whoever gets it.

mod keeping;

use crate::Shared;
use crate::session::session_handle::SessionHandle;
use executor_link::messages::{FromExecutor, Keeping};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One session keeps at most such a part of the device, and all together four times as much.
const SESSION_PART: u64 = 64;
/// Grants that one session keeps.
const MOST_GRANTS: usize = 32;
/// A kept grant may be longer than what is wanted by such a part.
const WASTE_PART: u64 = 8;
/// What nobody has wanted for so long goes back.
const LONGEST: Duration = Duration::from_secs(3);
/// How often the executor looks for that.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// What an executor's sessions keep together.
#[derive(Debug)]
pub(crate) struct KeptTotal {
    is_forbidden: AtomicBool,
    bytes: AtomicU64,
    device_bytes: u64,
}

impl KeptTotal {
    /// Nothing yet, of a device with so much memory.
    pub(crate) fn new(device_bytes: u64) -> Self {
        Self { is_forbidden: AtomicBool::new(false), bytes: AtomicU64::new(0), device_bytes }
    }

    /// Bytes that are kept. Relaxed, here and where they are counted: a number for people, and a
    /// bound that need not be exact.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptGrant {
    address: u64,
    size_bytes: u64,
    since: Instant,
}

/// What one session keeps, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<VecDeque<KeptGrant>>);

impl Kept {
    /// Takes a grant that is long enough and not much longer, the shortest such: its address and
    /// length.
    fn take(&self, total: &KeptTotal, size_bytes: u64) -> Option<(u64, u64)> {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = size_bytes.saturating_add(size_bytes / WASTE_PART);
        let fits = |grant: &KeptGrant| (size_bytes..=most).contains(&grant.size_bytes);
        let fitting = grants.iter().enumerate().filter(|(_, grant)| fits(grant));
        let (place, _) = fitting.min_by_key(|(_, grant)| grant.size_bytes)?;
        let grant = grants.remove(place)?;
        total.bytes.fetch_sub(grant.size_bytes, Ordering::Relaxed);
        Some((grant.address, grant.size_bytes))
    }

    /// Keeps a grant if that is allowed now; says whether it is kept. `give_back` gets those that
    /// are too much.
    fn put(
        &self,
        total: &KeptTotal,
        address: u64,
        size_bytes: u64,
        give_back: impl FnMut(u64, u64),
    ) -> bool {
        let most = total.device_bytes / SESSION_PART;
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SeqCst: with the store in `obey_keeping` and the lock, a grant is either refused here or
        // found by the look that follows the store.
        let is_refused = total.is_forbidden.load(Ordering::SeqCst)
            || size_bytes > most
            || total.bytes().saturating_add(size_bytes) > most.saturating_mul(4);
        if is_refused {
            return false;
        }
        grants.push_back(KeptGrant { address, size_bytes, since: Instant::now() });
        total.bytes.fetch_add(size_bytes, Ordering::Relaxed);
        let mut sum: u64 = grants.iter().map(|grant| grant.size_bytes).sum();
        let mut count = grants.len();
        let too_much = |grant: &KeptGrant| {
            let is_too_much = sum > most || count > MOST_GRANTS;
            if is_too_much {
                sum -= grant.size_bytes;
                count -= 1;
            }
            is_too_much
        };
        drain(&mut grants, total, too_much, give_back);
        true
    }

    /// Gives back what fulfils a condition, while nobody else takes or adds any.
    fn give_back(
        &self,
        total: &KeptTotal,
        condition: impl FnMut(&KeptGrant) -> bool,
        give_back: impl FnMut(u64, u64),
    ) {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drain(&mut grants, total, condition, give_back);
    }

    fn bytes(&self) -> u64 {
        let grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants.iter().map(|grant| grant.size_bytes).sum()
    }
}

fn drain(
    grants: &mut VecDeque<KeptGrant>,
    total: &KeptTotal,
    mut condition: impl FnMut(&KeptGrant) -> bool,
    mut give_back: impl FnMut(u64, u64),
) {
    grants.retain(|grant| {
        let goes = condition(grant);
        if goes {
            give_back(grant.address, grant.size_bytes);
            total.bytes.fetch_sub(grant.size_bytes, Ordering::Relaxed);
        }
        !goes
    });
}

impl Shared {
    /// Unmaps a kept grant and gives it to the keeper.
    fn return_kept(&self, session: u64, address: u64, size_bytes: u64) {
        // SAFETY: mapped by that session, whose client has waited for its work and cannot name it
        // any more.
        let unmapped = unsafe { self.context.driver().cuMemUnmap(address, size_bytes as usize) };
        if self.context.check(unmapped).is_ok() {
            self.tell(&FromExecutor::Released { session, address });
        }
    }

    /// What the keeper says about keeping, for all sessions.
    pub(crate) fn obey_keeping<'a>(
        self: &std::sync::Arc<Self>,
        keeping: Keeping,
        sessions: impl Iterator<Item = &'a std::sync::Arc<SessionHandle>>,
    ) {
        // SeqCst: see `Kept::put`.
        self.kept.is_forbidden.store(keeping == Keeping::Forbidden, Ordering::SeqCst);
        if keeping == Keeping::Forbidden {
            sessions.for_each(|session| self.sweep(session, |_| true));
            self.give_up_spares();
        } else {
            self.spares.open();
        }
    }

    /// Gives back what nobody has wanted for a while.
    pub(crate) fn sweep_old<'a>(
        &self,
        sessions: impl Iterator<Item = &'a std::sync::Arc<SessionHandle>>,
    ) {
        if self.kept.bytes() > 0 {
            sessions
                .for_each(|session| self.sweep(session, |grant| grant.since.elapsed() > LONGEST));
        }
    }

    fn sweep(&self, session: &SessionHandle, condition: impl FnMut(&KeptGrant) -> bool) {
        session.kept.give_back(&self.kept, condition, |address, size_bytes| {
            self.return_kept(session.id, address, size_bytes);
        });
        self.counters.slot(session.counter_slot).set_kept(session.kept.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn none(_: u64, _: u64) {
        panic!("nothing goes back");
    }

    #[test]
    fn the_shortest_that_fits_is_taken_and_nothing_much_longer() {
        let (kept, total) = (Kept::default(), KeptTotal::new(6400 * MIB));
        assert!(kept.put(&total, 1, 16 * MIB, none));
        assert!(kept.put(&total, 2, 10 * MIB, none));
        assert!(kept.put(&total, 3, 9 * MIB, none));
        assert_eq!(kept.take(&total, 17 * MIB), None);
        assert_eq!(kept.take(&total, 12 * MIB), None, "16 is too much for 12");
        assert_eq!(kept.take(&total, 9 * MIB), Some((3, 9 * MIB)));
        assert_eq!(kept.take(&total, 9 * MIB), Some((2, 10 * MIB)));
        assert_eq!(total.bytes(), 16 * MIB);
    }

    #[test]
    fn the_oldest_go_when_it_is_too_much() {
        let (kept, total) = (Kept::default(), KeptTotal::new(6400 * MIB));
        let mut gone = Vec::new();
        for address in 1..=4 {
            assert!(kept.put(&total, address, 40 * MIB, |at, _| gone.push(at)));
        }
        assert_eq!(gone, [1, 2]);
        assert_eq!((kept.bytes(), total.bytes()), (80 * MIB, 80 * MIB));
        assert!(!kept.put(&total, 9, 101 * MIB, none), "more than a session's part");
    }

    #[test]
    fn nothing_is_kept_while_it_is_forbidden() {
        let (kept, total) = (Kept::default(), KeptTotal::new(6400 * MIB));
        total.is_forbidden.store(true, Ordering::SeqCst);
        assert!(!kept.put(&total, 1, MIB, none));
        assert_eq!(total.bytes(), 0);
    }
}
