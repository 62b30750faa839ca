//! What nearly every function does with the caller's pointers.

use crate::result::Result;
use core::ffi::{CStr, c_char};
use cuda_abi::types::CUresult;

/// Writes a result through a pointer of the caller's; null is CUDA_ERROR_INVALID_VALUE, returned
/// from the enclosing closure.
macro_rules! put {
    ($pointer:expr, $value:expr) => {{
        let pointer = $pointer;
        $crate::entry::arguments::not_null(pointer)?;
        let value = $value;
        // SAFETY: not null; an API function's caller vouches for its pointers.
        unsafe { pointer.write(value) };
    }};
}

/// Writes a result through a pointer of the caller's that may be null.
macro_rules! put_optional {
    ($pointer:expr, $value:expr) => {{
        let pointer = $pointer;
        if !pointer.is_null() {
            // SAFETY: not null; an API function's caller vouches for its pointers.
            unsafe { pointer.write($value) };
        }
    }};
}

/// CUDA_ERROR_INVALID_VALUE for null.
pub(super) fn not_null<T>(pointer: *const T) -> Result {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// A name that the caller passed.
///
/// # Safety
/// `name` is null or NUL-terminated, and outlives `'a`.
pub(super) unsafe fn c_name<'a>(name: *const c_char) -> Result<&'a CStr> {
    not_null(name)?;
    // SAFETY: not null; the caller's promise.
    Ok(unsafe { CStr::from_ptr(name) })
}
