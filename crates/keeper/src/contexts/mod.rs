//! A device's second context: who goes there, and who comes back.

pub(crate) mod relocation;
pub(crate) mod reunion;
