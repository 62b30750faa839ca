//! Calls that wait for all kernels of their context. A real driver keeps other threads of the
//! context from submitting meanwhile (observed on an H200: loads of code, unloads, the release of
//! arrays and of host memory). Here they do so when `OPENMPS_SOFT_STALLS=1`, so that what must not
//! hang there can be tested here; and then loads wait, too, which need not here.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::api::driver::Driver;
use crate::device::config::StallMode;

/// Locked by whoever submits, for reading, and by whoever waits in such a call, for writing.
#[derive(Debug, Default)]
pub(crate) struct Stalls(RwLock<()>);

impl Driver {
    /// To be held while work is submitted.
    pub(crate) fn submission(&self) -> Option<RwLockReadGuard<'_, ()>> {
        (self.config.stalls == StallMode::AsHardware)
            .then(|| self.stalls.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for all work of a context. What is returned is to be held to the end of the call.
    pub(crate) fn wait_for_work(&self, context: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let stall = self.stall();
        // What failed there is for those to hear who wait for it.
        let _ = self.engine.synchronize_context(context);
        stall
    }

    /// The same for calls that wait only where others' work is held meanwhile.
    pub(crate) fn wait_if_stalling(&self, context: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.config.stalls {
            StallMode::None => None,
            StallMode::AsHardware => self.wait_for_work(context),
        }
    }

    fn stall(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        (self.config.stalls == StallMode::AsHardware)
            .then(|| self.stalls.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
