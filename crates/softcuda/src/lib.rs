//! softcuda: a CUDA driver that executes PTX on the CPU.
//!
//! `ptx` reads PTX text, `exec` runs it, `device` is the software GPU (memory, streams, SMs) and `api` its C ABI.

pub mod exec;
pub mod ptx;
