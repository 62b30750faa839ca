//! Faults: what a thread did that ends its kernel, with enough detail to say who, where and at
//! which address.
//!
//! The device maps a [`FaultKind`] to the status a program sees (illegal address 700, misaligned
//! 716, trap 719, ...).

use std::fmt;

/// Position of one thread in its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadPosition {
    /// Block index in the grid (x, y, z).
    pub block: [u32; 3],
    /// Thread index in the block (x, y, z).
    pub thread: [u32; 3],
}

impl fmt::Display for ThreadPosition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(out, "block ({bx},{by},{bz}) thread ({tx},{ty},{tz})")
    }
}

/// What a memory instruction wanted to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Load.
    Read,
    /// Store.
    Write,
    /// Read-modify-write.
    Atomic,
}

/// Kinds of fault. The CUDA status each one stands for is named beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Address outside everything mapped for the device (700).
    IllegalAddress,
    /// Address not a multiple of the access size (716).
    MisalignedAddress,
    /// An instruction that the device cannot execute was reached (715).
    IllegalInstruction,
    /// Operation on a state space that does not support it, e.g. an atomic on local memory (717).
    InvalidAddressSpace,
    /// Shared-memory address beyond the block's shared memory (700).
    SharedOutOfRange,
    /// Local-memory address beyond the thread's local memory (700).
    LocalOutOfRange,
    /// Call or branch to something that is no function or label (718).
    InvalidProgramCounter,
    /// The thread's call depth exceeds its stack (700).
    StackOverflow,
    /// `trap` was executed (719).
    Trap,
    /// A device assertion failed (710).
    Assert,
}

/// One fault: the first that a block ran into; the block runs no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// What the instruction wanted to do, for memory faults.
    pub access: Option<Access>,
    /// Faulting address, for memory faults.
    pub address: Option<u64>,
    /// Size of the access, for memory faults; 0 otherwise.
    pub size_bytes: u32,
    /// The lowest faulting thread of the warp.
    pub position: ThreadPosition,
    /// Name of the function that contains the instruction.
    pub function: String,
    /// Line of the instruction in the PTX text (1-based; 0 when unknown).
    pub ptx_line: u32,
    /// Free text: the assertion's message, the reason of an illegal instruction.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::IllegalAddress => "illegal address",
            FaultKind::MisalignedAddress => "misaligned address",
            FaultKind::IllegalInstruction => "illegal instruction",
            FaultKind::InvalidAddressSpace => "operation not supported on this address space",
            FaultKind::SharedOutOfRange => "shared memory address out of range",
            FaultKind::LocalOutOfRange => "local memory address out of range",
            FaultKind::InvalidProgramCounter => "invalid program counter",
            FaultKind::StackOverflow => "stack overflow",
            FaultKind::Trap => "trap",
            FaultKind::Assert => "assertion failed",
        };
        write!(out, "{what}")?;
        if let Some(address) = self.address {
            let verb = match self.access {
                Some(Access::Read) => "reading",
                Some(Access::Write) => "writing",
                Some(Access::Atomic) => "updating",
                None => "accessing",
            };
            write!(out, " {verb} {} bytes at {address:#x}", self.size_bytes)?;
        }
        write!(out, ", {}, function {}, ptx line {}", self.position, self.function, self.ptx_line)?;
        if !self.detail.is_empty() {
            write!(out, ": {}", self.detail)?;
        }
        Ok(())
    }
}

/// Where a thread waits in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingAt {
    /// The lowest waiting thread of the group.
    pub position: ThreadPosition,
    /// How many threads of its warp wait there with it.
    pub threads: u32,
    /// Line in the PTX text.
    pub ptx_line: u32,
    /// What it waits for, e.g. `bar.sync 0`.
    pub reason: String,
}
