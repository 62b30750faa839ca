//! Allocations without addresses: what their handles stand for.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::device::memory::Physical;

/// An allocation as programs hold it: `CUmemGenericAllocationHandle`.
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    pub(crate) physical: Arc<Physical>,
    pub(crate) sharing: MemorySharing,
    /// How often it was made or retained, less releases.
    pub(crate) references: AtomicU32,
}

/// Whether other processes can be given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemorySharing {
    Private,
    Exportable,
}
