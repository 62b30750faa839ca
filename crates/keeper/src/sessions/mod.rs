//! Sessions as the keeper sees them, and their memory.

pub(crate) mod keeping;
pub(crate) mod memory;
pub(crate) mod peers;
pub(crate) mod session;
