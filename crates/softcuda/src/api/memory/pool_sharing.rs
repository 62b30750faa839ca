//! Pools of one process in another, who may access a pool, and pools by location.
//!
//! An exported pool is a descriptor that says which device it is on; memory of it travels pointer
//! by pointer, like memory of [`super::ipc`]. Devices share one address space here, so access is
//! always there; what was set is remembered and told.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;

use cuda_abi::types::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType as HandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType as Place, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult,
};

use super::ipc::open_memory;
use super::pool::get;
use crate::api::answer::Answer;
use crate::api::driver::{Device, Driver, driver};
use crate::api::objects::{Pool, Reference};
use crate::api::out;
use crate::api::table::fresh_handle;
use crate::device::memory::{GRANULARITY_BYTES, Physical};

const READ_WRITE: u32 = 3;

api! {
    fn cuMemPoolExportToShareableHandle(handle_out: *mut c_void, pool: CUmemoryPool, handleType: HandleType, flags: u64) {
        let pool = get(driver()?, pool)?;
        let is_asked = handleType == HandleType::POSIX_FILE_DESCRIPTOR && pool.is_exportable();
        if handle_out.is_null() || flags != 0 || !is_asked {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let fd = Physical::token(pool.device())?.export()?;
        // SAFETY: the caller's pointer to an int, which then owns the descriptor.
        unsafe { out::write(handle_out.cast::<RawFd>(), fd.into_raw_fd()) }
    }

    fn cuMemPoolImportFromShareableHandle(pool_out: *mut CUmemoryPool, handle: *mut c_void, handleType: HandleType, flags: u64) {
        let driver = driver()?;
        let fd = RawFd::try_from(handle as usize).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if pool_out.is_null() || flags != 0 || handleType != HandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: only used for system calls that fail for a closed descriptor; -1 cannot come out
        // of a usize.
        let token = Physical::import(unsafe { BorrowedFd::borrow_raw(fd) }, |_| None)?;
        let device = token.device().filter(|_| token.size_bytes() == GRANULARITY_BYTES);
        let device = device.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        driver.device(device as i32)?;
        let handle = fresh_handle();
        driver.pools.insert(handle, Arc::new(Pool::imported(device)));
        // SAFETY: the caller's pointer.
        unsafe { out::write(pool_out, CUmemoryPool(handle)) }
    }

    fn cuMemPoolExportPointer(shareData_out: *mut CUmemPoolPtrExportData, ptr: CUdeviceptr) {
        let reference = Reference::of_memory(&driver()?.space, ptr)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(shareData_out, CUmemPoolPtrExportData { reserved: reference.to_bytes() }) }
    }

    fn cuMemPoolImportPointer(ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, shareData: *mut CUmemPoolPtrExportData) {
        let driver = driver()?;
        if !get(driver, pool)?.is_imported() || ptr_out.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's structure and pointer.
        unsafe {
            let reference = Reference::from_bytes(out::read(shareData)?.reserved)?;
            out::write(ptr_out, open_memory(driver, reference)?)
        }
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) {
        let driver = driver()?;
        let pool = get(driver, pool)?;
        // SAFETY: the caller's array of `count`.
        for desc in unsafe { out::read_array(map, count)? } {
            if desc.location.type_ != Place::DEVICE || !matches!(desc.flags.0, 0 | READ_WRITE) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            driver.device(desc.location.id)?;
            let is_own = desc.location.id as u32 == pool.device();
            if is_own && desc.flags.0 == 0 {
                // Its own device cannot be shut out.
                return Err(CUresult::ERROR_INVALID_DEVICE);
            }
            pool.set_access(&driver.space, desc.location.id as u32, desc.flags.0);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, memPool: CUmemoryPool, location: *mut CUmemLocation) {
        let driver = driver()?;
        let pool = get(driver, memPool)?;
        // SAFETY: the caller's structure and pointer.
        unsafe {
            let location = out::read(location)?;
            driver.device(location.id)?;
            let device = location.id as u32;
            let access = if device == pool.device() { READ_WRITE } else { pool.access(device) };
            out::write(flags, CUmemAccess_flags(access))
        }
    }

    fn cuMemGetDefaultMemPool(pool_out: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType) {
        // SAFETY: the caller's structure and pointer.
        unsafe { out::write(pool_out, CUmemoryPool(place(driver()?, location, type_)?.default_pool)) }
    }

    fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut CUmemLocation, type_: CUmemAllocationType) {
        // SAFETY: the caller's structure and pointer.
        unsafe { out::write(pool, CUmemoryPool(place(driver()?, location, type_)?.current_pool())) }
    }

    fn cuMemSetMemPool(location: *mut CUmemLocation, type_: CUmemAllocationType, pool: CUmemoryPool) {
        let driver = driver()?;
        get(driver, pool)?;
        // SAFETY: the caller's structure.
        unsafe { place(driver, location, type_)?.set_pool(pool.0) };
        Ok(())
    }
}

/// The device of a location; pools exist for pinned device memory only.
///
/// # Safety
/// As for [`out::read`].
unsafe fn place(
    driver: &Driver,
    location: *mut CUmemLocation,
    type_: CUmemAllocationType,
) -> Answer<&Device> {
    // SAFETY: by the caller's promise.
    let location = unsafe { out::read(location)? };
    if type_ != CUmemAllocationType::PINNED || location.type_ != Place::DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    driver.device(location.id)
}
