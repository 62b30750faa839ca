//! Threads and records that watch work: completions, and traces.

pub(crate) mod monitor;
pub(crate) mod tracing;
