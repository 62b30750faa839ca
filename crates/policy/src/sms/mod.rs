//! Which SMs of a device go to whom.

pub mod partitions;
pub mod sm_sets;
