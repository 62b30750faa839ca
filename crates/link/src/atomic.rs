//! The atomics of this crate, in one place so that the model checker can stand in for them.
//!
//! With the feature `shuttle`, every access is a point where the checker may switch threads
//! (`tests/model.rs`). Such builds cannot map shared memory: the model's atomics have another
//! layout.

#[cfg(not(feature = "shuttle"))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "shuttle")]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
