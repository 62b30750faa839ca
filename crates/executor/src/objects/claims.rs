//! Values that a driver makes up and kernels are given as they are: texture and surface objects,
//! conditions of graphs. A session that goes on in another executor must come to the same ones, as
//! its client has them anywhere.
//!
//! Nobody can ask a driver for a value. So objects are made until the wanted one comes, while the
//! others stay, and those are destroyed afterwards: that comes to an end where a driver gives
//! values again that have become free. What sessions had in the executor before is claimed before
//! any of them takes commands, so that none is given what another one had.
//!
//! An H200's driver goes through the values of textures and surfaces by groups of 64, upwards, and
//! comes to a group again only after a million others. So all sessions make theirs of one group
//! before any makes those of a higher one, and who makes new ones waits for all of them.

use crate::Shared;
use crate::session::failure::Failure;
use link::wire::array::TextureHandle;
use link::wire::command::Opcode;
use link::wire::graph::GraphConditionReply;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Texture or surface objects that are made in vain before a value is given up: as many as a
/// session may have had, within reason.
pub(crate) const MOST_OBJECTS_TRIED: usize = 1 << 16;
/// The same for conditions, each of which needs a graph.
pub(crate) const MOST_CONDITIONS_TRIED: usize = 1 << 12;

/// How long a session waits for others to make what comes before its own. After that it tries its
/// luck.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Between two looks whether all sessions are there.
const LOOK: Duration = Duration::from_millis(1);

/// The group of an object's value.
pub(crate) fn group_of(handle: u64) -> u64 {
    handle.saturating_sub(1) / 64
}

/// What a value stands for. One driver may number them together, another apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A texture or surface object, as [`TextureHandle::object`] says.
    Object(u32),
    Condition,
}

/// A value of the driver's.
pub(crate) type Value = (Kind, u64);

/// The claims of all sessions that are not fulfilled yet.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    values: Mutex<HashSet<Value>>,
    /// Values of objects that are still to be made.
    pending: Mutex<BTreeSet<u64>>,
    made: Condvar,
}

impl Claims {
    /// Nobody else makes objects meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashSet<Value>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody is still to make an object of a lower group. The caller has not locked
    /// them.
    pub(crate) fn await_lower(&self, group: u64, longest: Duration) {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let is_behind = |pending: &mut BTreeSet<u64>| {
            pending.first().is_some_and(|&lowest| group_of(lowest) < group)
        };
        drop(self.made.wait_timeout_while(pending, longest, is_behind));
    }

    fn change_pending(&self, change: impl FnOnce(&mut BTreeSet<u64>)) {
        change(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.made.notify_all();
    }
}

/// The values of the objects among these.
fn handles(values: &HashSet<Value>) -> impl Iterator<Item = u64> {
    values.iter().filter(|(kind, _)| matches!(kind, Kind::Object(_))).map(|(_, handle)| *handle)
}

impl Shared {
    /// Waits until it is a group's turn, once all sessions are there that come from another
    /// executor.
    pub(crate) fn await_turn(&self, group: u64) {
        let until = Instant::now() + LONGEST_WAIT;
        // Relaxed: who opens sessions has said so before.
        while self.quiescing.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        self.claims.await_lower(group, until.saturating_duration_since(Instant::now()));
    }
}

/// What one session claims; given up with it.
pub(crate) struct Claimed {
    shared: Arc<Shared>,
    values: HashSet<Value>,
}

impl Claimed {
    /// Claims what a session has had, by its journal.
    pub(crate) fn new<'a>(
        shared: &Arc<Shared>,
        entries: impl Iterator<Item = (u16, &'a [u8])>,
    ) -> Self {
        let values: HashSet<Value> = entries.filter_map(value_of).collect();
        shared.claims.lock().extend(&values);
        shared.claims.change_pending(|pending| pending.extend(handles(&values)));
        Self { shared: Arc::clone(shared), values }
    }

    /// The value is there again, or no longer wanted.
    pub(crate) fn settle(&mut self, claims: &mut HashSet<Value>, value: Value) {
        if self.values.remove(&value) {
            claims.remove(&value);
        }
        self.pass_over(value);
    }

    /// The value is not to be made again, and nobody else's either.
    pub(crate) fn pass_over(&self, (_, handle): Value) {
        self.shared.claims.change_pending(|pending| {
            pending.remove(&handle);
        });
    }

    /// Nothing of it is wanted any more.
    pub(crate) fn give_up(&mut self) {
        let values = std::mem::take(&mut self.values);
        if values.is_empty() {
            return;
        }
        self.shared.claims.change_pending(|pending| {
            handles(&values).for_each(|handle| {
                pending.remove(&handle);
            });
        });
        let mut claims = self.shared.claims.lock();
        values.iter().for_each(|value| {
            claims.remove(value);
        });
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The value that an entry of a journal ends with.
fn value_of((opcode, body): (u16, &[u8])) -> Option<Value> {
    match Opcode::from_number(opcode)? {
        Opcode::TextureCreate => {
            let (_, object) = TextureHandle::read_from_suffix(body).ok()?;
            Some((Kind::Object(object.object), object.handle))
        }
        Opcode::GraphCondition => {
            let (_, condition) = GraphConditionReply::read_from_suffix(body).ok()?;
            Some((Kind::Condition, condition.handle))
        }
        _ => None,
    }
}

/// Makes objects until one has a value that is accepted; the others are added to `fillers`. `None`
/// after so many others.
pub(crate) fn make_until(
    most: usize,
    accepts: impl Fn(u64) -> bool,
    fillers: &mut Vec<u64>,
    mut make: impl FnMut() -> Result<u64, Failure>,
) -> Result<Option<u64>, Failure> {
    while fillers.len() < most {
        let value = make()?;
        if accepts(value) {
            return Ok(Some(value));
        }
        fillers.push(value);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::array::SURFACE;
    use zerocopy::IntoBytes;

    #[test]
    fn objects_are_made_until_the_value_comes() {
        let (mut next, mut fillers) = (0, Vec::new());
        let mut make = || {
            next += 1;
            Ok(next)
        };
        assert!(matches!(make_until(9, |value| value == 4, &mut fillers, &mut make), Ok(Some(4))));
        assert_eq!(fillers, [1, 2, 3]);
        assert!(matches!(make_until(9, |value| value == 4, &mut fillers, &mut make), Ok(None)));
        assert_eq!(fillers.len(), 9);
    }

    #[test]
    fn who_makes_objects_of_a_higher_group_waits_for_the_lower_ones() {
        let bed = crate::testbed::Bed::new();
        let body = |handle| {
            let object = TextureHandle { handle, object: SURFACE, reserved: 0 };
            [&[0; 300][..], object.as_bytes()].concat()
        };
        let claim = |handle| {
            let body = body(handle);
            let entry = (Opcode::TextureCreate as u16, body.as_slice());
            Claimed::new(&bed.shared, std::iter::once(entry))
        };
        let (mut low, high) = (claim(64), claim(65));
        let lasts = |group, longest| {
            let began = Instant::now();
            bed.shared.claims.await_lower(group, longest);
            began.elapsed() >= longest
        };
        let waits = |group| lasts(group, Duration::from_millis(50));
        // However late the thread is run again: a wait would take longer still.
        let goes_on = |group| !lasts(group, Duration::from_secs(60));
        assert!(goes_on(0) && waits(1) && waits(2));
        low.pass_over((Kind::Object(SURFACE), 64));
        assert!(goes_on(1) && waits(2));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| bed.shared.claims.await_lower(2, Duration::from_secs(600)));
            drop(high);
            waiter.join().unwrap();
        });
        low.give_up();
        assert!(bed.shared.claims.lock().is_empty());
    }

    #[test]
    fn a_journal_says_which_values_a_session_had() {
        let handle = TextureHandle { handle: 7, object: SURFACE, reserved: 0 };
        let body = [&[0; 300][..], handle.as_bytes()].concat();
        let value = value_of((Opcode::TextureCreate as u16, &body));
        assert_eq!(value, Some((Kind::Object(SURFACE), 7)));
        let body = [0_u64, 0, 9].map(u64::to_le_bytes).concat();
        assert_eq!(value_of((Opcode::GraphCondition as u16, &body)), Some((Kind::Condition, 9)));
        assert_eq!(value_of((Opcode::Launch as u16, &body)), None);
        assert_eq!(value_of((Opcode::TextureCreate as u16, &[])), None);
    }
}
