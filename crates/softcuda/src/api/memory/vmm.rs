//! Virtual memory management: allocations without addresses, reservations, mappings, sharing by
//! descriptor.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::types::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType as HandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType as Place, CUresult,
};

use crate::api::answer::Answer;
use crate::api::driver::{Driver, driver};
use crate::api::objects::{MemoryHandle, MemorySharing};
use crate::api::out;
use crate::api::table::fresh_handle;
use crate::device::memory::space::Access;
use crate::device::memory::{GRANULARITY_BYTES, Physical};

api! {
    fn cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) {
        // SAFETY: the caller's pointers.
        unsafe {
            place_of(driver()?, &out::read(prop)?)?;
            let _ = option;
            out::write(granularity, GRANULARITY_BYTES as usize)
        }
    }

    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: u64) {
        let driver = driver()?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(prop)? };
        let place = place_of(driver, &asked)?;
        if handle.is_null() || size == 0 || !(size as u64).is_multiple_of(GRANULARITY_BYTES) || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let physical = match place {
            Memory::Device(ordinal) => {
                Physical::on_device(ordinal, &driver.device(ordinal as i32)?.account, size as u64)?
            }
            Memory::Host => Physical::on_host(size as u64)?,
        };
        let sharing = match asked.requestedHandleTypes.0 {
            0 => MemorySharing::Private,
            _ => MemorySharing::Exportable,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, register(driver, Arc::new(physical), sharing)) }
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let driver = driver()?;
        // AcqRel: the count alone; the last one takes the handle out.
        if find(driver, handle)?.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = driver.physicals.remove(handle as usize);
        }
        Ok(())
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
        let physical = find(driver, handle)?.physical.clone();
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
            let devices = match desc.location.type_ {
                Place::DEVICE => {
                    driver.device(desc.location.id)?;
                    1 << desc.location.id
                }
                // The host reaches everything as it is.
                _ => u32::MAX,
            };
            let access = match desc.flags.0 {
                0 => Access::None,
                3 => Access::ReadWrite,
                // Read-only mappings are not enforced, so they are not promised.
                1 => return Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            };
            driver.space.set_access(ptr, size as u64, devices, access)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, ptr: CUdeviceptr) {
        let driver = driver()?;
        // SAFETY: the caller's pointers.
        unsafe {
            let device = out::read(location)?.id;
            driver.device(device)?;
            let access = driver.space.access_at(ptr, device as u32)?;
            out::write(flags, if access == Access::ReadWrite { 3 } else { 0 })
        }
    }

    fn cuMemExportToShareableHandle(shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: HandleType, flags: u64) {
        let driver = driver()?;
        let found = find(driver, handle)?;
        let is_asked = handleType == HandleType::POSIX_FILE_DESCRIPTOR && found.sharing == MemorySharing::Exportable;
        if shareableHandle.is_null() || flags != 0 || !is_asked {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let fd = found.physical.export()?;
        // SAFETY: the caller's pointer to an int, which then owns the descriptor.
        unsafe { out::write(shareableHandle.cast::<RawFd>(), fd.into_raw_fd()) }
    }

    fn cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: HandleType) {
        let driver = driver()?;
        if shHandleType != HandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let fd = RawFd::try_from(osHandle as usize).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        // Whether it is open is the first thing that the import finds out. SAFETY: only used for
        // system calls that fail for a closed descriptor; -1 cannot come out of a usize.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let physical = Physical::import(fd, |device| driver.account(device))?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, register(driver, Arc::new(physical), MemorySharing::Exportable)) }
    }

    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) {
        let driver = driver()?;
        let physical = driver.space.physical_at(addr as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(handle, retain(driver, physical)) }
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        let found = find(driver()?, handle)?;
        let location = match found.physical.device() {
            Some(ordinal) => CUmemLocation { type_: Place::DEVICE, id: ordinal as i32 },
            None => CUmemLocation { type_: Place::HOST_NUMA, id: 0 },
        };
        let requestedHandleTypes = match found.sharing {
            MemorySharing::Private => HandleType::NONE,
            MemorySharing::Exportable => HandleType::POSIX_FILE_DESCRIPTOR,
        };
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            requestedHandleTypes,
            location,
            ..CUmemAllocationProp::default()
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(prop, properties) }
    }
}

/// Where an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Device(u32),
    Host,
}

fn register(
    driver: &Driver,
    physical: Arc<Physical>,
    sharing: MemorySharing,
) -> CUmemGenericAllocationHandle {
    let handle = fresh_handle();
    let held = MemoryHandle { physical, sharing, references: AtomicU32::new(1) };
    driver.physicals.insert(handle, Arc::new(held));
    handle as u64
}

/// The handle of an allocation once more; a new one if it was released.
fn retain(driver: &Driver, physical: Arc<Physical>) -> CUmemGenericAllocationHandle {
    let known = driver.physicals.find_handle(|held| {
        let is_same = Arc::ptr_eq(&held.physical, &physical);
        // AcqRel: the count alone; zero stays zero.
        is_same
            && held
                .references
                .try_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                    (count > 0).then_some(count + 1)
                })
                .is_ok()
    });
    known.map_or_else(
        || register(driver, physical, MemorySharing::Exportable),
        |handle| handle as u64,
    )
}

fn find(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer<Arc<MemoryHandle>> {
    driver.physicals.find(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Where a property structure wants memory: pinned, on a device or in the host's one NUMA node,
/// private or shared by descriptor.
fn place_of(driver: &Driver, properties: &CUmemAllocationProp) -> Answer<Memory> {
    if properties.type_ != CUmemAllocationType::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if properties.requestedHandleTypes.0 & !1 != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    match properties.location.type_ {
        Place::DEVICE => {
            driver.device(properties.location.id)?;
            Ok(Memory::Device(properties.location.id as u32))
        }
        Place::HOST_NUMA if properties.location.id == 0 => Ok(Memory::Host),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
