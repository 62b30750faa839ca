//! What the driver's compiler is told about a load, and what it says.

use cuda_abi::types::*;
use link::wire::command::{ModuleLoad, ModuleLoadReply};
use link::wire::layout::CALL_REPLY_BYTES;
use std::ffi::c_void;
use std::ptr;

/// As the driver takes them: arrays of one length. The logs live as long.
#[derive(Default)]
pub(crate) struct JitOptions {
    pub(crate) names: Vec<CUjit_option>,
    pub(crate) values: Vec<*mut c_void>,
    info: Vec<u8>,
    errors: Vec<u8>,
}

impl JitOptions {
    /// What a client wants of a load.
    pub(crate) fn new(wanted: &ModuleLoad) -> Self {
        let ModuleLoad { optimization_level, max_registers, log_bytes, .. } = *wanted;
        let most = (CALL_REPLY_BYTES - size_of::<ModuleLoadReply>()) as u32 / 2;
        let room = log_bytes.min(most) as usize;
        let mut options = Self { info: vec![0; room], errors: vec![0; room], ..Self::default() };
        if room > 0 {
            let [info, errors] = [options.info.as_mut_ptr(), options.errors.as_mut_ptr()];
            options.push(CUjit_option::INFO_LOG_BUFFER, info.cast());
            options.push_number(CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES, room);
            options.push(CUjit_option::ERROR_LOG_BUFFER, errors.cast());
            options.push_number(CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES, room);
        }
        if optimization_level != u32::MAX {
            options.push_number(CUjit_option::OPTIMIZATION_LEVEL, optimization_level as usize);
        }
        if max_registers != 0 {
            options.push_number(CUjit_option::MAX_REGISTERS, max_registers as usize);
        }
        options
    }

    fn push(&mut self, name: CUjit_option, value: *mut c_void) {
        self.names.push(name);
        self.values.push(value);
    }

    fn push_number(&mut self, name: CUjit_option, value: usize) {
        self.push(name, ptr::without_provenance_mut(value));
    }

    /// What the compiler has said: information, errors.
    pub(crate) fn logs(&self) -> [&[u8]; 2] {
        [until_nul(&self.info), until_nul(&self.errors)]
    }
}

fn until_nul(log: &[u8]) -> &[u8] {
    log.split(|&byte| byte == 0).next().unwrap_or_default()
}
