//! What a standby prepares: memory and code of another executor's sessions.

pub(crate) mod ahead;
pub(crate) mod warming;
