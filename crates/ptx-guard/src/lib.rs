//! PTX in, PTX out: a program whose every access to global memory is checked first against a table
//! of ranges that the loader fills.
//!
//! What lies in no range is recorded (where, by whom), and the thread that was about to touch it
//! exits; the kernel ends as kernels do, and the context lives. Of several such threads the first
//! is recorded. Threads that have nothing to do with it run on, as do kernels behind.
//!
//! [`instrument`] rewrites a module's text; [`table`] says what is in the table and the record. The
//! text that comes out depends on the text that goes in alone, so that drivers can cache what they
//! compile. PTX is read as the PTX ISA 9.0 has it; nothing is assumed of the compiler that wrote
//! it.
//!
//! Checked: `ld`, `ldu`, `st`, `atom`, `red` with vectors, `cp.async`, `cp.async.bulk` and
//! `cp.reduce.async.bulk` (the end in global memory), of the state space `.global` or generic; of
//! `wmma.load` and `wmma.store` the first 16 bytes. An address that is a variable and a constant is
//! the program's own. Not checked, and counted: tensor copies (`cp.async.bulk.tensor`), textures
//! and surfaces, `multimem`, `discard`.
//!
//! A check costs a subtraction, a comparison and a branch, all in registers, as long as a thread
//! stays in the range that it last touched.

mod access;
mod emit;
mod rewrite;
mod scan;
pub mod table;

pub use emit::PREFIX;
pub use rewrite::{Guarded, Site, instrument};

/// Why a text cannot be guarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Addresses of 32 bits.
    #[error("its addresses are not of 64 bits")]
    NotWide,
    /// Memory of the device's own heap is in no range.
    #[error("it allocates memory on the device")]
    DeviceHeap,
    /// A variable in global memory that only one function sees has an address that no table can
    /// name.
    #[error("line {line}: a function has a variable in global memory of its own")]
    LocalVariable {
        /// Where.
        line: u32,
    },
    /// Nothing that PTX is.
    #[error("line {line}: {what}")]
    Malformed {
        /// Where.
        line: u32,
        /// What is wrong.
        what: String,
    },
}
