//! Green contexts, and the descriptions of SMs that they are made of.

use crate::context::Context;
use crate::result::Result;
use cuda_abi::types::{CUdevResourceDesc, CUdevice, CUresult};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A green context: `CUgreenCtx`.
pub(crate) struct Green {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
}

/// SMs of a device, ready for a green context: `CUdevResourceDesc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) device: CUdevice,
    /// The executor's number.
    pub(crate) number: u32,
}

/// All descriptions of the process, by handle, from 1. Nothing destroys them.
#[derive(Debug, Default)]
pub(crate) struct Descriptions(Mutex<Vec<Description>>);

impl Descriptions {
    fn lock(&self) -> MutexGuard<'_, Vec<Description>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of a description; equal ones are one.
    pub(crate) fn add(&self, made: Description) -> CUdevResourceDesc {
        let mut known = self.lock();
        let place = known.iter().position(|other| *other == made).unwrap_or_else(|| {
            known.push(made);
            known.len() - 1
        });
        CUdevResourceDesc(place + 1)
    }

    /// The description of a handle; CUDA_ERROR_INVALID_VALUE for what is none.
    pub(crate) fn get(&self, handle: CUdevResourceDesc) -> Result<Description> {
        let known = self.lock();
        let found = handle.0.checked_sub(1).and_then(|place| known.get(place).copied());
        found.ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
