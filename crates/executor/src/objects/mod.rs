//! What a session has besides memory and code: streams, events, graphs, arrays, textures.

pub(crate) mod array;
pub(crate) mod array_contents;
pub(crate) mod claims;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod printing;
pub(crate) mod query;
pub(crate) mod sharing;
pub(crate) mod stream;
pub(crate) mod texture;
