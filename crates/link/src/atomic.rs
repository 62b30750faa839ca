//! The atomics of this crate, in one place so that a model checker can stand in for them.
//!
//! With the feature `loom` they are loom's: every access is a point where the checker may switch
//! threads, and a load may see whatever the orderings allow (`tests/model.rs`). Such builds cannot
//! map shared memory: the model's atomics have another layout.

#[cfg(feature = "loom")]
pub mod model;

#[cfg(not(feature = "loom"))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(feature = "loom")]
pub use model::{AtomicU32, AtomicU64, Ordering, fence};

/// A word of data that other atomics publish. It is an atomic since the other process may write at
/// any time; between two sides that keep to the protocol nobody reads while another writes, and
/// that is what the model checks.
#[cfg(not(feature = "loom"))]
pub type DataWord = AtomicU64;
#[cfg(feature = "loom")]
pub use model::DataWord;
