//! The `mmap` calls of device memory: everything that changes the process's address space is here.

use std::os::fd::AsFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::device::error::{DeviceError, Result};

/// Reserves `size_bytes` at exactly `address` without access; fails if anything is mapped there.
pub(crate) fn reserve_at(address: u64, size_bytes: u64) -> Result<()> {
    // SAFETY: FIXED_NOREPLACE never replaces an existing mapping, so no memory in use is touched.
    let got = unsafe {
        mmap_anonymous(
            address as *mut _,
            size_bytes as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
        )
    }?;
    if got as u64 != address {
        // Kernels before 4.17 take the address as a hint.
        // SAFETY: the mapping was made just now and nobody knows of it.
        let _ = unsafe { munmap(got, size_bytes as usize) };
        return Err(DeviceError::WrongState);
    }
    Ok(())
}

/// Gives a reservation back to the operating system.
///
/// The caller (`AddressSpace`) owns the range: it was reserved with [`reserve_at`] and no slice or
/// copy uses it.
pub(crate) fn release(address: u64, size_bytes: u64) -> Result<()> {
    // SAFETY: the range is ours by `reserve_at`, and the caller has waited for its users.
    unsafe { munmap(address as *mut _, size_bytes as usize) }?;
    Ok(())
}

/// Maps `fd` readable and writable over a part of a reservation.
pub(crate) fn map_at(address: u64, size_bytes: u64, fd: impl AsFd, offset: u64) -> Result<()> {
    // SAFETY: the range lies inside one of our reservations, which holds no Rust object.
    unsafe {
        mmap(
            address as *mut _,
            size_bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
            fd,
            offset,
        )
    }?;
    Ok(())
}

/// Puts a range of a reservation back to "no access", dropping what was mapped there.
pub(crate) fn clear(address: u64, size_bytes: u64) -> Result<()> {
    // SAFETY: the range lies inside one of our reservations, and the caller has waited for its
    // users.
    unsafe {
        mmap_anonymous(
            address as *mut _,
            size_bytes as usize,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )
    }?;
    Ok(())
}
