//! Linking: an image of several PTX texts becomes one that the driver can load.
//!
//! The client puts a comment between the inputs of `cuLinkAddData` ([`LINKED_TEXTS`]); the native
//! driver's own linker does the rest.

use super::jit_options::JitOptions;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::command::LINKED_TEXTS;
use std::ffi::c_void;
use std::ptr;

/// A link of the driver's, which is destroyed with this.
struct Link<'a> {
    state: &'a State,
    handle: CUlinkState,
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: a live link, used nowhere else.
        let _ = unsafe { self.state.driver().cuLinkDestroy(self.handle) };
    }
}

/// Whether an image is several texts.
pub(crate) fn is_linked(image: &[u8]) -> bool {
    let mark = LINKED_TEXTS.as_bytes();
    image.windows(mark.len()).any(|here| here == mark)
}

impl State {
    /// What the driver makes of the texts in `image`; `None` if there is but one.
    ///
    /// # Errors
    /// What the driver's linker says.
    pub(crate) fn link(
        &self,
        image: &[u8],
        options: &mut JitOptions,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let end = image.iter().position(|&byte| byte == 0).unwrap_or(image.len());
        let Ok(text) = str::from_utf8(&image[..end]) else { return Ok(None) };
        if !text.contains(LINKED_TEXTS) {
            return Ok(None);
        }
        let driver = self.driver();
        let mut handle = CUlinkState(0);
        // SAFETY: the options are arrays of one length whose logs outlive the link, which ends
        // here; the result is written.
        self.check(unsafe {
            driver.cuLinkCreate_v2(
                options.names.len() as u32,
                options.names.as_mut_ptr(),
                options.values.as_mut_ptr(),
                &mut handle,
            )
        })?;
        let link = Link { state: self, handle };
        for part in text.split(LINKED_TEXTS) {
            let mut part = [part.as_bytes(), &[0]].concat();
            // SAFETY: a text that ends with NUL, which the driver reads during the call.
            self.check(unsafe {
                driver.cuLinkAddData_v2(
                    link.handle,
                    CUjitInputType::INPUT_PTX,
                    part.as_mut_ptr().cast(),
                    part.len(),
                    c"linked".as_ptr(),
                    0,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            })?;
        }
        let (mut cubin, mut size_bytes) = (ptr::null_mut::<c_void>(), 0);
        // SAFETY: a live link; both results are written.
        self.check(unsafe { driver.cuLinkComplete(link.handle, &mut cubin, &mut size_bytes) })?;
        if cubin.is_null() {
            return Err(Failure::Cuda(CUresult::ERROR_UNKNOWN));
        }
        // SAFETY: the driver's own output of that length, alive until the link is destroyed.
        let bytes =
            unsafe { std::slice::from_raw_parts(cubin.cast::<u8>().cast_const(), size_bytes) };
        let mut code = bytes.to_vec();
        // As for what clients send: drivers read images without knowing their length.
        code.resize(code.len() + 64, 0);
        Ok(Some(code))
    }
}
