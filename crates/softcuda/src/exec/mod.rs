//! Execution of PTX on the CPU: lowering to an executor-neutral form and a warp-vectorised
//! interpreter.
//!
//! `device` loads a [`Program`], places its globals, looks kernels up, and runs each block of a
//! [`Launch`] as a [`BlockRun`] in slices on its workers. `exec` knows nothing of streams, contexts
//! or SMs; what it needs from them is the [`Machine`] trait. Device memory is identity-mapped: a
//! device pointer is a host address of this process.
//!
//! Behaviour follows the PTX ISA; divergence is scheduled by fragments, not by a reconvergence
//! stack (see `schedule`), so that locks between lanes of a warp make progress.

pub mod alu;
mod assign;
mod code;
mod context;
mod emit;
mod fault;
mod fill;
mod global;
mod interpret;
mod ir;
mod kernel;
mod lanes;
mod launch;
mod lower;
mod machine;
mod memory;
mod op;
mod optimise;
mod prepare;
mod program;
mod run;
mod schedule;
mod simd;
mod symbols;
pub(crate) mod sync;
mod tensor;
pub(crate) mod tensor_map;
mod warp;
mod window;

pub use fault::{Access, Fault, FaultKind, ThreadPosition, WaitingAt};
pub use global::{GlobalLinkage, GlobalSpace, GlobalSymbol, Relocation, RelocationTarget};
pub use kernel::{Kernel, KernelError, KernelParam};
pub use launch::Launch;
pub use machine::{
    Machine, SurfaceBounds, TextureCoordinates, TextureGeometry, TextureLevel, Textures,
};
pub use program::{LoadEnv, LoadError, Program};
pub use run::{Arena, BlockRun, Progress};
pub use simd::SimdLevel;
pub use symbols::SymbolError;
