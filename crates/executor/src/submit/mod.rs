//! How work gets to the driver: launches and copies, alone or as chains, and what holds them back.

pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod chain;
pub(crate) mod chain_stock;
pub(crate) mod chain_submission;
pub(crate) mod copy;
pub(crate) mod gathering;
pub(crate) mod holding;
pub(crate) mod launch;
pub(crate) mod lengths;
pub(crate) mod nearness;
pub(crate) mod own_kernels;
pub(crate) mod probe;
pub(crate) mod retired;
pub(crate) mod small_copies;
pub(crate) mod waiting;
pub(crate) mod watching;
