//! PTX text: a hand-written parser from text to syntax tree.
//!
//! Accepts the syntax of PTX ISA 3.x to 9.x as nvcc, NVRTC, libNVVM, Triton and vendor libraries write it. Meaning is
//! `exec`'s business: an unknown opcode parses, and is refused when its kernel is lowered.

mod error;

pub use error::ParseError;
