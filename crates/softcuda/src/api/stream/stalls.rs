//! Calls that wait for all kernels of their context. A real driver keeps other threads of the
//! context from submitting meanwhile (observed on an H200: loads of code, unloads, the release of
//! arrays and of host memory). Here they do so when `OPENMPS_SOFT_STALLS=1`, so that what must not
//! hang there can be tested here; and then loads wait, too, which need not here.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::device::config::StallMode;

/// Locked by whoever submits, for reading, and by whoever waits in such a call, for writing.
#[derive(Debug)]
pub(crate) struct Stalls {
    mode: StallMode,
    lock: RwLock<()>,
}

impl Stalls {
    /// Nobody waits yet.
    pub(crate) fn new(mode: StallMode) -> Self {
        Stalls { mode, lock: RwLock::default() }
    }

    /// Whether calls wait that need not here.
    pub(crate) fn are_as_hardware(&self) -> bool {
        self.mode == StallMode::AsHardware
    }

    /// To be held while work is submitted.
    pub(crate) fn submission(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.are_as_hardware().then(|| self.lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// To be held by a call that waits, to its end.
    pub(crate) fn stall(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.are_as_hardware().then(|| self.lock.write().unwrap_or_else(PoisonError::into_inner))
    }
}
