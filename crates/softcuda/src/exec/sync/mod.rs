//! How the warps of a block, and the blocks of a cluster, wait for each other.

pub(crate) mod barrier;
pub(crate) mod cluster;
pub(crate) mod rendezvous;
