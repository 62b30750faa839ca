//! Shared tools of the black-box tests: real processes, natively and under OpenMPS.
//!
//! A test makes a [`Sandbox`] (directories of its own, nothing inherited from the caller's CUDA
//! settings), starts a [`Daemon`] in it if it needs one, runs [`process`]es or talks to a
//! [`Puppet`], a CUDA program that does as it is told, and reads the server's own counters
//! ([`Daemon::state`]). Everything that a test started ends with it: see [`Sandbox`].
//!
//! The tests need what `cargo xtask programs` builds; `cargo xtask test` does that first.

pub mod batching;
pub mod container;
pub mod daemon;
pub mod executable;
pub mod installation;
pub mod liar;
pub mod process;
pub mod prometheus;
pub mod puppet;
pub mod recording;
pub mod sandbox;
pub mod schema;
pub mod slurm;
pub mod terminal;
pub mod trace;
pub mod tracer;
pub mod wait;

pub use daemon::Daemon;
pub use installation::Installation;
pub use liar::Liar;
pub use puppet::Puppet;
pub use sandbox::{Runtime, Sandbox};
pub use terminal::Terminal;
