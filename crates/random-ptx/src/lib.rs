//! PTX programs at random, and what they compute.
//!
//! The oracle of softcuda's random tests. It depends on nothing, least of all on softcuda:
//! [`generate`] makes valid programs, [`module`] writes them as PTX, and [`evaluate`] computes
//! their results one thread at a time with plain integers. A mismatch is made small by
//! [`minimise`].
//!
//! The meaning of each instruction is written from the text of the PTX ISA; `examples/gpu.rs` holds
//! the oracle against a real GPU.

mod evaluate;
mod float;
mod gather;
mod generate;
mod minimise;
mod operation;
mod operations;
mod print;
mod program;
mod random;
mod wide;

pub use evaluate::{NoResult, evaluate};
pub use generate::generate;
pub use minimise::minimise;
pub use print::{kernel_name, module};
pub use program::Program;
pub use random::Random;
