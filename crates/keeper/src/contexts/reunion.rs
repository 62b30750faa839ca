//! Sessions of a second context go back to the first one when things are calm: contexts have the
//! device in turns, so programs in two of them are slower than in one.
//!
//! It is calm when no kernel has run for long and nobody waited for one. The keeper then asks one
//! session after the other; each leaves between two commands, once what it has in flight has ended,
//! as it left the first one ([`super::relocation`]). Who cannot is not asked again for a while, and
//! who has gone to and fro is left alone for longer each time.

use crate::Keeper;
use crate::executors::place::{Place, Side, Stage};
use crate::sessions::session::Session;
use executor_link::messages::ToExecutor;
use policy::domains::SHARED;
use std::time::{Duration, Instant};

/// It has been calm for so long.
const CALM: Duration = Duration::from_secs(5);
/// A session that has relocated is left alone for so long, and for twice as long each time.
const FIRST_REST: Duration = Duration::from_secs(4);
const MOST_DOUBLINGS: u64 = 8;
/// A session that has not left by then has work, or something that keeps it.
const OBEYS_WITHIN: Duration = Duration::from_secs(1);

impl Keeper {
    /// From time to time: asks a session of a second context to go back.
    pub(crate) fn see_to_reunions(&mut self) {
        for device in 0..self.devices.len() {
            let first = Place::first(device, SHARED);
            let second = Place { side: Side::Second, ..first };
            if !self.devices[device].executors.contains_key(&second.seat()) {
                self.devices[device].calm_since = None;
                continue;
            }
            let is_calm = self.is_calm(first, second);
            let slot = &mut self.devices[device];
            slot.calm_since = is_calm.then(|| slot.calm_since.unwrap_or_else(Instant::now));
            let has_been_calm = slot.calm_since.is_some_and(|since| since.elapsed() >= CALM);
            let asked = self.sessions.iter().find_map(|(id, session)| {
                Some((*id, session.asked_back?)).filter(|_| session.place() == second)
            });
            match asked {
                Some((id, asked)) if !has_been_calm || asked.elapsed() >= OBEYS_WITHIN => {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        (session.asked_back, session.stayed) = (None, Some(Instant::now()));
                    }
                }
                // Who comes next would wait for what the last one has left behind.
                None if has_been_calm && self.clearing.is_empty() => {
                    let mut there = self
                        .sessions
                        .iter()
                        .filter(|(id, it)| it.place() == second && !self.moves.contains_key(id));
                    let next = there.find(|(_, session)| session.may_go_back()).map(|(id, _)| *id);
                    next.into_iter().for_each(|id| self.ask_back(id));
                }
                Some(_) | None => {}
            }
        }
    }

    fn is_calm(&self, first: Place, second: Place) -> bool {
        let is_at_peace = |place: Place| {
            let executor = self.devices[place.device].executors.get(&place.seat());
            executor.is_some_and(|executor| executor.stage == Stage::Ready)
                && !self.is_recovering(place)
                && !self.killings.contains_key(&place)
                && !self.has_long_kernel(place)
        };
        is_at_peace(first) && is_at_peace(second) && self.stuck.is_empty()
    }

    fn ask_back(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.asked_back = Some(Instant::now());
            session.destination = Some(Place::first(session.device, SHARED));
        }
        if let Some(executor) = self.executor_of(id) {
            executor.tell(&ToExecutor::ComeBack { session: id }, &[]);
        }
    }
}

impl Session {
    /// Whether it has been where it is for long enough.
    fn may_go_back(&self) -> bool {
        let rest = FIRST_REST * (1 << self.relocations.min(MOST_DOUBLINGS));
        let rested = |since: Option<Instant>| since.is_none_or(|then| then.elapsed() >= rest);
        self.is_served() && rested(self.relocated) && rested(self.stayed)
    }
}
