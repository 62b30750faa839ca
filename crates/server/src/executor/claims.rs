//! Values that a driver makes up and kernels are given as they are: texture and surface objects, conditions of graphs. A session that goes on in another executor
//! must come to the same ones, as its client has them anywhere.
//!
//! Nobody can ask a driver for a value. So objects are made until the wanted one comes, while the others stay, and those are destroyed afterwards: that comes to an
//! end where a driver gives values again that have become free. What sessions had in the executor before is claimed before any of them takes commands, so that none is given
//! what another one had.

use super::Shared;
use super::failure::Failure;
use link::wire::array::TextureHandle;
use link::wire::command::Opcode;
use link::wire::graph::GraphConditionReply;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::FromBytes;

/// Texture or surface objects that are made in vain before a value is given up: as many as a session may have had, within reason.
pub(super) const MOST_OBJECTS_TRIED: usize = 1 << 16;
/// The same for conditions, each of which needs a graph.
pub(super) const MOST_CONDITIONS_TRIED: usize = 1 << 12;

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
pub(crate) struct Claims(Mutex<HashSet<Value>>);

impl Claims {
    /// Nobody else makes objects meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, HashSet<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one session claims; given up with it.
pub(crate) struct Claimed {
    shared: Arc<Shared>,
    values: HashSet<Value>,
}

impl Claimed {
    /// Claims what a session has had, by its journal.
    pub(super) fn new<'a>(
        shared: &Arc<Shared>,
        entries: impl Iterator<Item = (u16, &'a [u8])>,
    ) -> Self {
        let values: HashSet<Value> = entries.filter_map(value_of).collect();
        shared.claims.lock().extend(&values);
        Self { shared: Arc::clone(shared), values }
    }

    /// The value is there again, or no longer wanted.
    pub(super) fn settle(&mut self, claims: &mut HashSet<Value>, value: Value) {
        if self.values.remove(&value) {
            claims.remove(&value);
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !self.values.is_empty() {
            let mut claims = self.shared.claims.lock();
            self.values.iter().for_each(|value| {
                claims.remove(value);
            });
        }
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

/// Makes objects until one has a value that is accepted; the others are added to `fillers`. `None` after so many others.
pub(super) fn make_until(
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
