//! Memory of sessions, mapped ahead by those that stand by, so that a takeover needs no call of the
//! driver for it.
//!
//! What a session was granted is offered to each standby of its device once it has lasted for a
//! while, so that what comes and goes costs nobody anything. A standby is told a few pieces at a
//! time and answers before it is told more. What a mapping holds the device cannot give to others:
//! a standby is told of each piece that a session gives up before the keeper gives that back, and
//! to let go of everything, with an answer, before anybody is told that there is no memory
//! ([`crate::sessions::keeping`]). Where memory is short nothing is mapped ahead.

use crate::Keeper;
use crate::executors::place::{Place, Stage};
use crate::sessions::keeping::DeviceKeeping;
use crate::sessions::session::{Service, Session};
use executor_link::messages::ToExecutor;
use link::socket::MAX_DESCRIPTORS;
use policy::domains::SHARED;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A grant is mapped ahead after it has lasted so long.
const LASTING: Duration = Duration::from_secs(1);
/// Between two looks at what is to be mapped.
const PAUSE: Duration = Duration::from_millis(5);
/// Messages, of [`MAX_DESCRIPTORS`] pieces, that a standby is told at a look.
const ROUND: usize = 8;
/// So long after memory was short nothing is mapped ahead.
const AFTER_SHORTAGE: Duration = Duration::from_secs(10);
/// Pieces that may wait to be mapped; others are mapped by their session.
const MOST_WAITING: usize = 1 << 16;

/// A session, and the first address of memory that it has.
type Piece = (u64, u64);

/// What one standby was told to map.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    told: BTreeMap<Piece, Told>,
    /// What it is to be told, and when.
    waiting: VecDeque<(Instant, Piece)>,
    /// Told, and not answered.
    in_flight: Vec<Piece>,
    unanswered: usize,
    /// Whether all that sessions have was offered.
    is_filled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    size_bytes: u64,
    /// The standby has said so.
    is_mapped: bool,
}

impl Ahead {
    /// Whether a piece is known to be mapped.
    pub(crate) fn has(&self, session: u64, address: u64, size_bytes: u64) -> bool {
        self.told.get(&(session, address)) == Some(&Told { size_bytes, is_mapped: true })
    }

    /// Bytes that are known to be mapped.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        let mapped = self.told.values().filter(|told| told.is_mapped);
        mapped.map(|told| told.size_bytes).sum()
    }

    /// Whether anything is to be mapped now.
    fn is_due(&self) -> bool {
        self.unanswered == 0 && self.waiting.front().is_some_and(|(due, _)| *due <= Instant::now())
    }

    fn offer(&mut self, piece: Piece) {
        if self.is_filled && self.waiting.len() < MOST_WAITING {
            self.waiting.push_back((Instant::now() + LASTING, piece));
        }
    }

    /// What is due next, of one session.
    fn next(&mut self, session: Option<u64>) -> Option<Piece> {
        let (due, piece) = *self.waiting.front()?;
        let is_next = due <= Instant::now() && session.is_none_or(|session| session == piece.0);
        is_next.then(|| self.waiting.pop_front()).flatten().map(|_| piece)
    }

    fn tell(&mut self, session: u64, grants: &[(u64, u64)]) {
        for &(address, size_bytes) in grants {
            self.told.insert((session, address), Told { size_bytes, is_mapped: false });
            self.in_flight.push((session, address));
        }
        self.unanswered += 1;
    }

    /// A message is answered.
    fn answered(&mut self, session: u64, failed: &[u64]) {
        for &address in failed {
            self.told.remove(&(session, address));
        }
        self.unanswered = self.unanswered.saturating_sub(1);
        if self.unanswered == 0 {
            for piece in self.in_flight.drain(..) {
                // Else it is gone again.
                self.told.entry(piece).and_modify(|told| told.is_mapped = true);
            }
        }
    }

    /// The session gives this up. Whether the standby is to be told.
    fn withdraw(&mut self, piece: Piece) -> bool {
        self.told.remove(&piece).is_some()
    }

    /// The session is gone. Whether the standby is to be told.
    fn forget(&mut self, session: u64) -> bool {
        self.waiting.retain(|(_, piece)| piece.0 != session);
        let before = self.told.len();
        self.told.retain(|piece, _| piece.0 != session);
        self.told.len() < before
    }

    /// The standby maps nothing any more. Returns the sessions of what it had.
    pub(crate) fn clear(&mut self) -> BTreeSet<u64> {
        self.waiting.clear();
        self.is_filled = false;
        std::mem::take(&mut self.told).into_keys().map(|(session, _)| session).collect()
    }
}

/// Whether memory of a session lies where a standby can map it, which may become the executor of
/// any domain.
fn is_mappable(session: &Session, address: u64) -> bool {
    session.domain == SHARED && session.windows.device.contains(address, 1)
}

impl Keeper {
    /// A session was granted memory.
    pub(crate) fn offer_ahead(&mut self, id: u64, address: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        if is_mappable(session, address) {
            let standbys = self.devices[session.device].standby.executors.iter_mut();
            standbys.for_each(|standby| standby.ahead.offer((id, address)));
        }
    }

    /// A session gives memory up; to be told before the keeper gives it back.
    pub(crate) fn withdraw_ahead(&mut self, id: u64, address: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        for standby in &mut self.devices[session.device].standby.executors {
            if standby.ahead.withdraw((id, address)) {
                standby.process.tell(&ToExecutor::UnmapAhead { session: id, address }, &[]);
            }
        }
    }

    /// A session is gone, or about to be.
    pub(crate) fn forget_ahead(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else { return };
        for standby in &mut self.devices[session.device].standby.executors {
            if standby.ahead.forget(id) {
                standby.process.tell(&ToExecutor::ForgetAhead { session: id }, &[]);
            }
        }
    }

    /// A standby has done what it was told.
    pub(crate) fn mapped_ahead(&mut self, device: usize, pid: u32, session: u64, failed: &[u64]) {
        let mut standbys = self.devices[device].standby.executors.iter_mut();
        if let Some(standby) = standbys.find(|standby| standby.process.pid() == pid) {
            standby.ahead.answered(session, failed);
        }
    }

    /// Whether anything is to be mapped ahead now.
    pub(crate) fn is_anything_due_ahead(&self) -> bool {
        let mut standbys = self.devices.iter().flat_map(|device| &device.standby.executors);
        standbys.any(|standby| standby.ahead.is_due())
    }

    /// From time to time: tells those that stand by what to map, or to map nothing.
    pub(crate) fn see_to_ahead(&mut self) {
        for number in 0..self.devices.len() {
            let standby = &mut self.devices[number].standby;
            let is_early = standby.looked_ahead.is_some_and(|looked| looked.elapsed() < PAUSE);
            if is_early || standby.executors.is_empty() {
                continue;
            }
            standby.looked_ahead = Some(Instant::now());
            let may_map = self.may_map_ahead(number);
            for place in 0..self.devices[number].standby.executors.len() {
                match may_map {
                    true => self.map_ahead(number, place),
                    false => self.unmap_ahead(number, place),
                }
            }
        }
    }

    /// Not where memory is short, nor a while later: who needs memory is not to wait for it.
    fn may_map_ahead(&self, number: usize) -> bool {
        let device = &self.devices[number];
        let was_short = device.standby.short_since;
        device.keeping == DeviceKeeping::Allowed
            && was_short.is_none_or(|since| since.elapsed() >= AFTER_SHORTAGE)
            && self.has_room_for_contexts(number, 1)
    }

    fn map_ahead(&mut self, number: usize, place: usize) {
        let Self { devices, sessions, driver, .. } = self;
        let standby = &mut devices[number].standby.executors[place];
        if standby.stage != Stage::Ready {
            return;
        }
        let ahead = &mut standby.ahead;
        if !ahead.is_filled {
            ahead.is_filled = true;
            let there = sessions.iter().filter(|(_, session)| session.device == number);
            let pieces = there.flat_map(|(&id, session)| {
                let addresses = session.memory.keys().copied();
                addresses.filter(|at| is_mappable(session, *at)).map(move |at| (id, at))
            });
            ahead.waiting.extend(pieces.take(MOST_WAITING).map(|piece| (Instant::now(), piece)));
        }
        if ahead.unanswered > 0 {
            return;
        }
        for _ in 0..ROUND {
            let (mut of, mut grants, mut files) = (None, Vec::new(), Vec::<OwnedFd>::new());
            while files.len() < MAX_DESCRIPTORS
                && let Some((id, address)) = ahead.next(of)
            {
                let is_here = |it: &&Session| {
                    // It may have gone to another device since.
                    it.service == Service::Serving && it.device == number
                };
                let Some(session) = sessions.get(&id).filter(is_here) else { continue };
                let memory = session.memory.get(&address);
                let file = memory.and_then(|memory| memory.descriptor(*driver).ok());
                let is_new = !ahead.told.contains_key(&(id, address));
                if let Some((file, size_bytes)) = file.zip(session.grants.length(address))
                    && is_new
                {
                    of = Some(id);
                    grants.push((address, size_bytes));
                    files.push(file);
                }
            }
            let Some((id, session)) = of.and_then(|id| Some((id, sessions.get(&id)?))) else {
                return;
            };
            ahead.tell(id, &grants);
            let window = session.windows.device;
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            standby.process.tell(&ToExecutor::MapAhead { session: id, window, grants }, &files);
        }
    }

    /// An executor is about to take over: one for clients that are set apart has nothing of others
    /// mapped.
    pub(crate) fn keep_apart(&mut self, place: Place) {
        let executor = self.devices[place.device].executors.get_mut(&place.seat());
        if let Some(executor) = executor.filter(|_| place.domain != SHARED) {
            for session in executor.ahead.clear() {
                executor.process.tell(&ToExecutor::ForgetAhead { session }, &[]);
            }
        }
    }

    fn unmap_ahead(&mut self, number: usize, place: usize) {
        let standbys = &mut self.devices[number].standby;
        let standby = &mut standbys.executors[place];
        if !standby.ahead.is_filled {
            return;
        }
        standbys.short_since = Some(Instant::now());
        for session in standby.ahead.clear() {
            standby.process.tell(&ToExecutor::ForgetAhead { session }, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Ahead {
        Ahead { is_filled: true, ..Ahead::default() }
    }

    #[test]
    fn what_is_told_counts_when_all_is_answered() {
        let mut ahead = filled();
        ahead.tell(1, &[(10, 2), (20, 2)]);
        ahead.tell(2, &[(30, 4)]);
        ahead.answered(1, &[20]);
        assert!(!ahead.has(1, 10, 2), "a round counts as a whole");
        ahead.answered(2, &[]);
        assert!(ahead.has(1, 10, 2) && ahead.has(2, 30, 4));
        assert!(!ahead.has(1, 20, 2), "it failed");
        assert!(!ahead.has(1, 10, 4), "another length");
        assert_eq!(ahead.mapped_bytes(), 6);
    }

    #[test]
    fn nothing_of_a_session_that_has_gone_waits_to_be_told() {
        let mut ahead = filled();
        ahead.waiting.extend([1, 2].map(|session| (Instant::now(), (session, 10))));
        assert!(!ahead.forget(1), "it was told of nothing");
        assert_eq!(ahead.next(None), Some((2, 10)));
        assert_eq!(ahead.next(None), None);
    }

    #[test]
    fn what_is_given_up_before_the_answer_is_not_there() {
        let mut ahead = filled();
        ahead.tell(1, &[(10, 2)]);
        assert!(ahead.withdraw((1, 10)) && !ahead.withdraw((1, 10)));
        ahead.answered(1, &[]);
        assert!(!ahead.has(1, 10, 2));
        ahead.tell(1, &[(10, 2), (20, 2)]);
        ahead.tell(2, &[(10, 2)]);
        assert!(ahead.forget(1) && !ahead.forget(1));
        ahead.answered(1, &[]);
        ahead.answered(2, &[]);
        assert_eq!(ahead.mapped_bytes(), 2);
        assert_eq!(ahead.clear(), [2].into());
        assert_eq!(ahead.mapped_bytes(), 0);
    }

    #[test]
    fn pieces_wait_until_they_have_lasted_and_come_by_session() {
        let mut ahead = Ahead::default();
        ahead.offer((1, 10));
        assert!(ahead.waiting.is_empty(), "it will be found with the others");
        let now = Instant::now();
        let mut ahead = filled();
        ahead.waiting.extend([(now, (1, 10)), (now, (1, 20)), (now, (2, 10))]);
        ahead.offer((2, 20));
        assert!(ahead.is_due());
        assert_eq!(ahead.next(None), Some((1, 10)));
        assert_eq!(ahead.next(Some(1)), Some((1, 20)));
        assert_eq!(ahead.next(Some(1)), None, "another session's");
        assert_eq!(ahead.next(None), Some((2, 10)));
        assert_eq!(ahead.next(None), None, "it has not lasted");
        assert!(!ahead.is_due());
    }
}
