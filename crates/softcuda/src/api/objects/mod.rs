//! What handles stand for. Nothing here knows the driver, which has a table of each kind.

mod context;
mod event;
pub(crate) mod shared_event;
mod stream;

pub(crate) use context::{Context, ContextKind, ContextSettings};
pub(crate) use event::{Event, INTERPROCESS, NO_TIMING, Recorded};
pub(crate) use stream::{GREATEST_PRIORITY, LEAST_PRIORITY, StoredValue, Stream};
