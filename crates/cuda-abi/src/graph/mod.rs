//! What graphs are, before anything is executed: the rules that the client runtime and a driver
//! share.
//!
//! | file | concept |
//! |---|---|
//! | [`shape`] | nodes, edges, order |
//! | [`model`] | a graph: its shape, what it holds, the graphs that are embedded in it |
//! | [`registry`] | all graphs of a process, by their handles; questions about them in C |
//! | [`reuse`] | memory that graphs allocate: who shares addresses, and what is live |
//! | [`conditional`] | nodes whose graphs are done once, again and again, or not at all |
//! | [`snapshot`] | a graph as it was when it was made executable, flat, and what an update makes of it |
//! | [`pairing`] | which node of a graph becomes which of another, when an executable graph is updated |
//! | [`capture`] | streams whose work becomes nodes: who may do what meanwhile, and what ends a capture |
//! | [`user_object`] | resources of the program that graphs hold; host functions |
//! | [`params`], [`arrays`] | parameters of nodes, nodes and edges as C callers give and get them |
//! | [`dot`] | graphs as text |
//!
//! Nothing here knows how a node is done: that is the type parameter, a [`Kind`](model::Kind).
//! Codes follow the driver API's documentation and what was measured of NVIDIA's driver 580.

pub mod arrays;
pub mod capture;
pub mod conditional;
pub mod dot;
pub mod model;
pub mod pairing;
pub mod params;
pub mod registry;
pub mod reuse;
pub mod shape;
pub mod snapshot;
pub mod user_object;

/// What a call that can be refused comes to.
type Answer<T = ()> = Result<T, crate::types::CUresult>;
