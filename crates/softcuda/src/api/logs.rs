//! The driver's log of errors: there is one, and nothing is ever in it. What softcuda has to say
//! goes to standard error.

use std::ffi::{c_char, c_void};

use cuda_abi::types::{CUlogIterator, CUlogsCallback, CUlogsCallbackHandle, CUresult};

use super::driver::driver;
use super::out;

api! {
    fn cuLogsRegisterCallback(
        callbackFunc: CUlogsCallback,
        _userData: *mut c_void,
        callback_out: *mut CUlogsCallbackHandle,
    ) {
        driver()?;
        if callbackFunc.is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if callback_out.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's pointer, not NULL.
        unsafe { out::write(callback_out, CUlogsCallbackHandle(1)) }
    }

    fn cuLogsUnregisterCallback(_callback: CUlogsCallbackHandle) {
        driver().map(drop)
    }

    fn cuLogsCurrent(iterator_out: *mut CUlogIterator, _flags: u32) {
        driver()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(iterator_out, 0) }
    }

    fn cuLogsDumpToMemory(_iterator: *mut CUlogIterator, buffer: *mut c_char, size: *mut usize, _flags: u32) {
        driver()?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(buffer, 0)?;
            out::write(size, 0)
        }
    }
}
