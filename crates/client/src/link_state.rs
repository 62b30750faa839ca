//! `cuLink*`: one piece of PTX or one cubin goes in, and comes out as it is.
//!
//! The linked image is loaded by this library again, so no linking has to happen here; several inputs would need a linker and are refused.

use crate::session::Result;
use cuda_abi::types::CUresult;
use std::sync::Mutex;

/// A link in progress.
pub(crate) struct LinkState {
    pub(crate) token: usize,
    input: Mutex<Option<Box<[u8]>>>,
    /// What `cuLinkComplete` handed out; lives as long as the link.
    output: Mutex<Option<Box<[u8]>>>,
}

impl LinkState {
    pub(crate) fn new(token: usize) -> Self {
        Self { token, input: Mutex::default(), output: Mutex::default() }
    }

    /// Adds an input.
    pub(crate) fn add(&self, code: &[u8]) -> Result {
        let mut input = self.input.lock().unwrap_or_else(|e| e.into_inner());
        if input.is_some() {
            crate::warn!("cuLinkAddData: linking several inputs is not supported");
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        // Ended by NUL, as PTX text is when it is given by address.
        *input = Some(code.iter().copied().chain([0]).collect());
        Ok(())
    }

    /// Address and length of the linked image.
    pub(crate) fn complete(&self) -> Result<(*const u8, usize)> {
        let mut output = self.output.lock().unwrap_or_else(|e| e.into_inner());
        if output.is_none() {
            let input = self.input.lock().unwrap_or_else(|e| e.into_inner()).clone();
            *output = Some(input.ok_or(CUresult::ERROR_INVALID_VALUE)?);
        }
        output
            .as_ref()
            .map(|image| (image.as_ptr(), image.len()))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
