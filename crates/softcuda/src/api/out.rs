//! Pointers of C callers: results written, structures and strings read, NULL refused.

use std::ffi::{CStr, c_char};

use cuda_abi::types::CUresult;

use super::answer::Answer;

/// Writes a result through a caller's pointer; NULL is CUDA_ERROR_INVALID_VALUE.
///
/// # Safety
/// A non-NULL pointer must be valid for writing a `T`, as the C API demands of its callers.
pub(crate) unsafe fn write<T>(pointer: *mut T, value: T) -> Answer {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, valid by the caller's promise; C callers may not align packed fields.
    unsafe { pointer.write_unaligned(value) };
    Ok(())
}

/// Writes a result if the caller wants it.
///
/// # Safety
/// As for [`write`].
pub(crate) unsafe fn write_optional<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: as for `write`.
        unsafe { pointer.write_unaligned(value) };
    }
}

/// Reads a structure from a caller's pointer; NULL is CUDA_ERROR_INVALID_VALUE.
///
/// # Safety
/// A non-NULL pointer must be valid for reading a `T`.
pub(crate) unsafe fn read<T: Copy>(pointer: *const T) -> Answer<T> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, valid by the caller's promise.
    Ok(unsafe { pointer.read_unaligned() })
}

/// Reads a C array; a NULL pointer is fine only for no elements.
///
/// # Safety
/// `pointer` must be valid for `count` elements.
pub(crate) unsafe fn read_array<T: Copy>(pointer: *const T, count: usize) -> Answer<Vec<T>> {
    // SAFETY: by the caller's promise.
    (0..count)
        .map(|index| unsafe { read(if pointer.is_null() { pointer } else { pointer.add(index) }) })
        .collect()
}

/// Reads a C string; NULL and what is no UTF-8 are CUDA_ERROR_INVALID_VALUE.
///
/// # Safety
/// A non-NULL pointer must point to a NUL-terminated string that outlives `'a`.
pub(crate) unsafe fn string<'a>(pointer: *const c_char) -> Answer<&'a str> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// Copies text into a caller's buffer of `length` bytes, cut and NUL-terminated.
///
/// # Safety
/// `buffer` must be valid for writing `length` bytes.
pub(crate) unsafe fn write_text(buffer: *mut c_char, length: i32, text: &str) -> Answer {
    let length = usize::try_from(length).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    if buffer.is_null() || length == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let kept = text.len().min(length - 1);
    // SAFETY: `kept` + 1 <= `length` bytes, valid by the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), kept);
        buffer.add(kept).write(0);
    }
    Ok(())
}
