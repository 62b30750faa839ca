//! What outlives an executor or a context, and how a session is made again from it.

pub(crate) mod recording;
pub(crate) mod relocation;
pub(crate) mod repeating;
pub(crate) mod replay;
