//! The linker: PTX in, PTX out. The "cubin" that it gives is the inputs' PTX in one text container.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, PoisonError};

use cuda_abi::types::{CUjit_option, CUjitInputType, CUlinkState, CUresult};

use super::image::{PtxTexts, SEPARATOR};
use super::module::JitLog;
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, driver};
use crate::api::out;
use crate::api::table::fresh_handle;

api! {
    fn cuLinkCreate_v2(numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void, stateOut: *mut CUlinkState) {
        let (driver, _) = current()?;
        // SAFETY: the caller's arrays and pointer. Options do not matter to an interpreter.
        unsafe {
            JitLog::read(numOptions, options, optionValues)?;
            let handle = fresh_handle();
            out::write(stateOut, CUlinkState(handle))?;
            driver.links.insert(handle, Arc::default());
        }
        Ok(())
    }

    fn cuLinkAddData_v2(
        state: CUlinkState, type_: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void,
    ) {
        let driver = driver()?;
        let _ = (name, numOptions, options, optionValues);
        if data.is_null() || size == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's data of `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>().cast_const(), size) };
        add(driver, state, type_, bytes)
    }

    fn cuLinkAddFile_v2(
        state: CUlinkState, type_: CUjitInputType, path: *const c_char,
        numOptions: u32, options: *mut CUjit_option, optionValues: *mut *mut c_void,
    ) {
        let driver = driver()?;
        let _ = (numOptions, options, optionValues);
        // SAFETY: the caller's string.
        let bytes = std::fs::read(unsafe { out::string(path)? }).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
        add(driver, state, type_, &bytes)
    }

    fn cuLinkComplete(state: CUlinkState, cubinOut: *mut *mut c_void, sizeOut: *mut usize) {
        let driver = driver()?;
        let state = driver.links.get(state.0)?;
        let texts = PtxTexts(state.texts.lock().unwrap_or_else(PoisonError::into_inner).clone());
        // Symbols must resolve now, as a linker's do.
        texts.load(&driver.config).map_err(|refusal| refusal.code)?;
        let mut bytes = texts.0.join(SEPARATOR).into_bytes();
        bytes.push(0);
        let mut output = state.output.lock().unwrap_or_else(PoisonError::into_inner);
        let lent = output.insert(bytes.into());
        // SAFETY: the caller's pointers; the size may be NULL.
        unsafe {
            out::write_optional(sizeOut, lent.len());
            out::write(cubinOut, lent.as_mut_ptr().cast())
        }
    }

    fn cuLinkDestroy(state: CUlinkState) {
        driver()?.links.remove(state.0).map(|_| ())
    }
}

fn add(driver: &Driver, state: CUlinkState, kind: CUjitInputType, bytes: &[u8]) -> Answer {
    let state = driver.links.get(state.0)?;
    match kind {
        CUjitInputType::INPUT_PTX | CUjitInputType::INPUT_FATBINARY => {
            let texts =
                PtxTexts::from_bytes(&driver.config, bytes).map_err(|refusal| refusal.code)?;
            state.texts.lock().unwrap_or_else(PoisonError::into_inner).extend(texts.0);
            Ok(())
        }
        // Machine code and libraries of it.
        _ => Err(CUresult::ERROR_NO_BINARY_FOR_GPU),
    }
}
