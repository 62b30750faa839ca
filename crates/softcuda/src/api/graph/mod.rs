//! Graphs: work that is described once and launched many times, and the capture of streams into
//! them.
//!
//! The rules of shape, capture and update are [`cuda_abi::graph`]'s, shared with the client
//! runtime.
//!
//! | file | concept |
//! |---|---|
//! | [`kinds`], [`params`] | what a node does; its parameters in C |
//! | [`structure`], [`nodes`] | the C functions on graphs and nodes |
//! | [`executable`], [`section`], [`update`], [`launching`] | executable graphs: their state, what a launch does, changes in place, their C functions |
//! | [`conditions`] | values that decide about conditional nodes |
//! | [`capturing`], [`thread_mode`] | stream capture in C |
//! | [`memory`] | memory that graphs allocate |
//! | [`user_object`] | resources that graphs hold |
//!
//! External semaphores are absent (801). Codes follow the driver API's documentation and what was
//! measured of NVIDIA's driver 580.

mod capturing;
mod conditions;
mod executable;
mod kinds;
mod launching;
pub(crate) mod memory;
mod nodes;
mod params;
mod section;
mod structure;
mod thread_mode;
mod update;
mod user_object;

pub(crate) use capturing::*;
pub(crate) use conditions::*;
pub(crate) use executable::Executable;
pub(crate) use kinds::{EventWork, MemoryOpsWork, NodeKind};
pub(crate) use launching::*;
pub(crate) use memory::{GraphMemories, HighWater};
pub(crate) use nodes::*;
pub(crate) use structure::*;
pub(crate) use user_object::*;

/// A graph of this driver.
pub(crate) type Graph = cuda_abi::graph::model::Graph<NodeKind>;
