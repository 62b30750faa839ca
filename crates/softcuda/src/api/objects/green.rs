//! Green contexts and the resources that they are made of: what their handles stand for.

use std::sync::Arc;

use cuda_abi::types::CUdevice;

use super::context::Context;
use crate::device::grid::SmMask;

/// SMs of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmResource {
    pub(crate) device: u32,
    pub(crate) mask: SmMask,
}

/// A green context: `CUgreenCtx`.
#[derive(Debug)]
pub(crate) struct GreenContext {
    pub(crate) device: CUdevice,
    /// The context that it is as a `CUcontext`.
    pub(crate) context: Arc<Context>,
}

/// SMs of one device, ready for a green context: `CUdevResourceDesc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourceDescription {
    pub(crate) resource: SmResource,
}
