//! Virtual memory management: allocations without addresses, reservations, mappings, sharing by descriptor.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;

use cuda_abi::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType as Place, CUresult,
};

use super::driver::{Driver, driver};
use super::table::fresh_handle;
use super::{Answer, out};
use crate::device::memory::space::Access;
use crate::device::memory::{GRANULARITY_BYTES, Physical};

api! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) {
        // SAFETY: the caller's pointers.
        unsafe {
            device_of(driver()?, &out::read(prop)?)?;
            let _ = option;
            out::write(granularity, GRANULARITY_BYTES as usize)
        }
    }

    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) {
        let driver = driver()?;
        // SAFETY: the caller's structure.
        let ordinal = device_of(driver, &unsafe { out::read(prop)? })?;
        if handle.is_null() || size == 0 || !(size as u64).is_multiple_of(GRANULARITY_BYTES) || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let account = &driver.device(ordinal as i32)?.account;
        let physical = Physical::on_device(ordinal, account, size as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, register(driver, Arc::new(physical))) }
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        driver()?.physicals.remove(handle as usize).map(|_| ()).map_err(|_| CUresult::ERROR_INVALID_VALUE)
    }

    fn cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: u64) {
        let driver = driver()?;
        if ptr.is_null() || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let base = driver.space.reserve(size as u64, alignment as u64, addr)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(ptr, base) }
    }

    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) {
        Ok(driver()?.space.unreserve(ptr, size as u64)?)
    }

    fn cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) {
        let driver = driver()?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let physical = find(driver, handle)?;
        Ok(driver.space.map(ptr, size as u64, physical, offset as u64)?)
    }

    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) {
        Ok(driver()?.space.unmap(ptr, size as u64)?)
    }

    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        let driver = driver()?;
        if count == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's array of `count`.
        for desc in unsafe { out::read_array(desc, count)? } {
            if desc.location.type_ == Place::DEVICE {
                driver.device(desc.location.id)?;
            }
            let access = match desc.flags.0 {
                0 => Access::None,
                3 => Access::ReadWrite,
                // Read-only mappings are not enforced, so they are not promised.
                1 => return Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            };
            driver.space.set_access(ptr, size as u64, access)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) {
        let driver = driver()?;
        // SAFETY: the caller's pointers.
        unsafe {
            driver.device(out::read(location)?.id)?;
            let access = driver.space.access_at(ptr)?;
            out::write(flags, if access == Access::ReadWrite { 3 } else { 0 })
        }
    }

    fn cuMemExportToShareableHandle(shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: HandleType, flags: u64) {
        let driver = driver()?;
        let physical = find(driver, handle)?;
        if shareableHandle.is_null() || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if handleType != HandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let fd = physical.export()?;
        // SAFETY: the caller's pointer to an int, which then owns the descriptor.
        unsafe { out::write(shareableHandle.cast::<RawFd>(), fd.into_raw_fd()) }
    }

    fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: HandleType) {
        let driver = driver()?;
        if shHandleType != HandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let fd = RawFd::try_from(osHandle as usize).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        // Whether it is open is the first thing that the import finds out.
        // SAFETY: only used for system calls that fail for a closed descriptor; -1 cannot come out of a usize.
        let physical = Physical::import(unsafe { BorrowedFd::borrow_raw(fd) }, |device| {
            driver.devices.get(device as usize).map(|device| &device.account)
        })?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, register(driver, Arc::new(physical))) }
    }

    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) {
        let driver = driver()?;
        let physical = driver.space.physical_at(addr as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, register(driver, physical)) }
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        let physical = find(driver()?, handle)?;
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            requestedHandleTypes: HandleType::POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation { type_: Place::DEVICE, id: physical.device().unwrap_or(0) as i32 },
            ..CUmemAllocationProp::default()
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(prop, properties) }
    }
}

fn register(driver: &Driver, physical: Arc<Physical>) -> CUmemGenericAllocationHandle {
    let handle = fresh_handle();
    driver.physicals.insert(handle, physical);
    handle as u64
}

fn find(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer<Arc<Physical>> {
    driver.physicals.find(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// The device of a property structure: pinned device memory, private or shared by descriptor.
fn device_of(driver: &Driver, properties: &CUmemAllocationProp) -> Answer<u32> {
    if properties.type_ != CUmemAllocationType::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if properties.location.type_ != Place::DEVICE || properties.requestedHandleTypes.0 & !1 != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    driver.device(properties.location.id)?;
    Ok(properties.location.id as u32)
}
