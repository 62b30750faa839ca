//! Reading and writing device-accessible memory for copies, memsets and stream memory operations.
//!
//! Device memory is shared with running kernels by design: what they write at the same time is the
//! program's race, not ours; only whole words of stream memory operations are atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::ranges::Entered;
use crate::device::ops::Width;

/// Atomically reads a word; `None`: not accessible or misaligned.
pub(crate) fn read_value(memory: &Entered<'_>, address: u64, width: Width) -> Option<u64> {
    if !is_word(memory, address, width) {
        return None;
    }
    // Acquire: partner of whoever wrote the value (`write_value`, a kernel's or the host's
    // release).
    Some(match width {
        Width::Bits32 => {
            // SAFETY: aligned, and mapped for as long as `memory` is held; accessed through atomics
            // only here.
            let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            word.load(Ordering::Acquire).into()
        }
        Width::Bits64 => {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            word.load(Ordering::Acquire)
        }
    })
}

/// Atomically writes a word after everything before; `false`: not accessible or misaligned.
pub(crate) fn write_value(memory: &Entered<'_>, address: u64, value: u64, width: Width) -> bool {
    if !is_word(memory, address, width) {
        return false;
    }
    // Release: partner of `read_value` and of the host's or another process's acquire.
    match width {
        Width::Bits32 => {
            // SAFETY: aligned, and mapped for as long as `memory` is held.
            let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
            word.store(value as u32, Ordering::Release);
        }
        Width::Bits64 => {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
            word.store(value, Ordering::Release);
        }
    }
    true
}

fn is_word(memory: &Entered<'_>, address: u64, width: Width) -> bool {
    let size_bytes = match width {
        Width::Bits32 => 4,
        Width::Bits64 => 8,
    };
    address.is_multiple_of(size_bytes) && memory.covers(address, size_bytes)
}

/// Copies bytes; ranges may overlap.
///
/// # Safety
/// Both ranges must be mapped (device-accessible under a held `Entered`, or the program's own host
/// memory).
pub(crate) unsafe fn copy(from: u64, to: u64, size_bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size_bytes) };
}

/// Fills `count` elements of 1, 2 or 4 bytes with the low bytes of `value`.
///
/// # Safety
/// The range must be mapped as for [`copy`], and `address` aligned to `element_bytes`.
pub(crate) unsafe fn fill(address: u64, value: u32, element_bytes: usize, count: usize) {
    // SAFETY: by the caller's promise.
    unsafe {
        match element_bytes {
            1 => std::ptr::write_bytes(address as *mut u8, value as u8, count),
            2 => std::slice::from_raw_parts_mut(address as *mut u16, count).fill(value as u16),
            _ => std::slice::from_raw_parts_mut(address as *mut u32, count).fill(value),
        }
    }
}
