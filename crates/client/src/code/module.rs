//! A module, as the executor knows it: loaded into one context, and forgotten with it.

use crate::code::function::Function;
use crate::code::names::Names;
use crate::context::Context;
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::wire::command::{ModuleKernels, NamesReply, Opcode};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

/// A loaded module.
pub(crate) struct Module {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    pub(super) wire_id: u32,
    pub(super) number: u32,
    pub(super) functions: Names<Arc<Function>>,
    pub(super) globals: Mutex<HashMap<CString, (u64, u64)>>,
}

impl Module {
    /// The names of all kernels.
    pub(crate) fn kernel_names(&self) -> Result<Vec<CString>> {
        let (backend, id) = self.context.backend()?;
        let body = ModuleKernels { module: self.number, reserved: 0 };
        let reply = backend.session.call(id, Opcode::ModuleKernels, &[body.as_bytes()])?;
        let broken = CUresult::ERROR_MPS_RPC_FAILURE;
        let (count, names) = NamesReply::read_from_prefix(&reply).map_err(|_| broken)?;
        let names: Vec<_> = names
            .split_inclusive(|byte| *byte == 0)
            .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
            .take(count.names as usize)
            .map(CStr::to_owned)
            .collect();
        if names.len() == count.names as usize {
            Ok(names)
        } else {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
    }
}
