//! What an executor prepares that stands by for another one.

pub(crate) mod ahead;
pub(crate) mod warming;
