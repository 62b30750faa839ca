//! Aligned memory for registers, shared and local memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of every buffer, bytes.
const ALIGN_BYTES: usize = 256;

/// Zero-initialised, aligned memory of a fixed size.
pub(super) struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a buffer is plain memory with one owner.
unsafe impl Send for Buffer {}
// SAFETY: shared references give out only the start address.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes.
    pub(super) fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { start: NonNull::<u128>::dangling().cast(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, len },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(len: usize) -> Layout {
        // Lengths are bounded by the limits of frames, shared and local memory, far below the
        // address space.
        match Layout::from_size_align(len, ALIGN_BYTES) {
            Ok(layout) => layout,
            Err(_) => handle_alloc_error(Layout::new::<u128>()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Makes the buffer at least `len` bytes long; contents are lost if it grows. Whether it grew.
    pub(super) fn reserve(&mut self, len: usize) -> bool {
        if self.len >= len {
            return false;
        }
        *self = Self::zeroed(len);
        true
    }

    /// Zeroes the first `len` bytes.
    pub(super) fn clear(&mut self, len: usize) {
        // SAFETY: the range lies inside the buffer.
        unsafe { self.start().write_bytes(0, len.min(self.len)) }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start(), Self::layout(self.len)) }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Buffer({} bytes)", self.len)
    }
}
