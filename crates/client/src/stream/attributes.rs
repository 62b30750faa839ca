//! Attributes of streams: kept and told; in the executor they change nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value's bytes.
pub(crate) type Stored = [u64; 8];

/// Attributes that the program has set, by the ids of streams and attributes.
#[derive(Debug, Default)]
pub(crate) struct StreamAttributes(Mutex<HashMap<(u64, u32), Stored>>);

impl StreamAttributes {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u32), Stored>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attribute of a stream, if it was set.
    pub(crate) fn get(&self, stream: u64, attribute: u32) -> Option<Stored> {
        self.lock().get(&(stream, attribute)).copied()
    }

    /// Sets an attribute of a stream.
    pub(crate) fn set(&self, stream: u64, attribute: u32, value: Stored) {
        self.lock().insert((stream, attribute), value);
    }

    /// Gives a stream what another one has.
    pub(crate) fn copy(&self, to: u64, from: u64) {
        let mut known = self.lock();
        let of_source = known.iter().filter(|((stream, _), _)| *stream == from);
        let copied: Vec<_> =
            of_source.map(|((_, attribute), value)| ((to, *attribute), *value)).collect();
        known.extend(copied);
    }

    /// Forgets what a stream that ends was told.
    pub(crate) fn forget(&self, stream: u64) {
        self.lock().retain(|(of, _), _| *of != stream);
    }
}
