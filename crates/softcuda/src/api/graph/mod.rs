//! Graphs: work that is described once and launched many times, and the capture of streams into them.
//!
//! | file | concept |
//! |---|---|
//! | [`model`] | nodes and edges |
//! | [`kinds`], [`params`] | what a node does; its parameters in C |
//! | [`structure`], [`nodes`] | the C functions on graphs and nodes |
//! | [`executable`], [`update`], [`launching`] | executable graphs: lanes and markers, changes in place, their C functions |
//! | [`capture`], [`capturing`] | stream capture; its C functions |
//! | [`memory`] | memory that graphs allocate |
//! | [`user_object`], [`dot`] | resources that graphs hold; graphs as text |
//!
//! Conditional nodes and external semaphores are absent (801). Codes follow the driver API's documentation and what was measured of NVIDIA's driver 580.

pub(crate) mod capture;
mod capturing;
mod dot;
mod executable;
pub(crate) mod kinds;
mod launching;
pub(crate) mod memory;
mod model;
mod nodes;
mod params;
mod structure;
mod update;
mod user_object;

pub(crate) use capture::Captures;
pub(crate) use capturing::*;
pub(crate) use dot::*;
pub(crate) use executable::Executable;
pub(crate) use launching::*;
pub(crate) use memory::{GraphMemory, HighWater};
pub(crate) use model::Graph;
pub(crate) use nodes::*;
pub(crate) use structure::*;
pub(crate) use user_object::*;
