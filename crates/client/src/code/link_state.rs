//! `cuLink*`: pieces of PTX, or one cubin, go in.
//!
//! One input comes out as it is. Several pieces of PTX come out as one text in which a comment
//! separates them: the native driver of the executor links them when that text is loaded
//! ([`link::wire::command::LINKED_TEXTS`]), which is when an unresolved name is reported. Machine
//! code among several inputs is refused.

use crate::result::Result;
use cuda_abi::image::Code;
use cuda_abi::types::CUresult;
use link::wire::command::LINKED_TEXTS;
use std::sync::Mutex;

/// A link in progress.
pub(crate) struct LinkState {
    pub(crate) token: usize,
    inputs: Mutex<Inputs>,
    /// What `cuLinkComplete` handed out; lives as long as the link.
    output: Mutex<Option<Box<[u8]>>>,
}

#[derive(Default)]
struct Inputs {
    count: usize,
    are_text: bool,
    bytes: Vec<u8>,
}

impl LinkState {
    pub(crate) fn new(token: usize) -> Self {
        Self { token, inputs: Mutex::default(), output: Mutex::default() }
    }

    /// Adds an input.
    pub(crate) fn add(&self, code: &Code<'_>) -> Result {
        let mut inputs = self.inputs.lock().unwrap_or_else(|e| e.into_inner());
        let is_text = matches!(code, Code::Ptx(_));
        if inputs.count > 0 {
            if !(is_text && inputs.are_text) {
                crate::warn!("cuLinkAddData: machine code cannot be linked with other inputs");
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            inputs.bytes.extend_from_slice(LINKED_TEXTS.as_bytes());
        }
        inputs.count += 1;
        inputs.are_text = is_text;
        let text = code.bytes();
        // A NUL would end the text before its other parts.
        let end = if is_text { text.iter().position(|&byte| byte == 0) } else { None };
        inputs.bytes.extend_from_slice(&text[..end.unwrap_or(text.len())]);
        Ok(())
    }

    /// Address and length of the linked image.
    pub(crate) fn complete(&self) -> Result<(*const u8, usize)> {
        let mut output = self.output.lock().unwrap_or_else(|e| e.into_inner());
        if output.is_none() {
            let inputs = self.inputs.lock().unwrap_or_else(|e| e.into_inner());
            if inputs.count == 0 {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            // Ended by NUL, as PTX text is when it is given by address.
            *output = Some(inputs.bytes.iter().copied().chain([0]).collect());
        }
        output
            .as_ref()
            .map(|image| (image.as_ptr(), image.len()))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}
