//! What graphs are, before anything is executed: the rules that the client runtime and a driver share.
//!
//! | file | concept |
//! |---|---|
//! | [`shape`] | nodes, edges, order |
//! | [`pairing`] | which node of a graph becomes which of another, when an executable graph is updated |
//! | [`capture`] | streams whose work becomes nodes: who may do what meanwhile, and what ends a capture |
//! | [`arrays`] | nodes and edges in the arrays of C callers |
//!
//! Nothing here knows what a node does: that is the type parameter of a [`Shape`](shape::Shape). Codes follow the driver API's documentation and what
//! was measured of NVIDIA's driver 580.

pub mod arrays;
pub mod capture;
pub mod pairing;
pub mod shape;
