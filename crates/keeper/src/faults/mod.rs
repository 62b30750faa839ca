//! Faults and work that does not end: who is to blame, and what becomes of them.

pub(crate) mod blaming;
pub(crate) mod killing;
pub(crate) mod overtime;
pub(crate) mod quarantine;
