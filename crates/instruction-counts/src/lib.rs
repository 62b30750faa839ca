//! A bench in instructions instead of seconds: they are the same on a busy machine, so that a test
//! can hold them.
//!
//! [`counting`] counts what something takes; a [`Stored`] is what was counted when it last changed
//! on purpose, and why.

pub mod counting;
pub mod stored;

pub use counting::{Code, count};
pub use stored::Stored;
