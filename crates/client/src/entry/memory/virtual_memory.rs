//! Virtual memory management: memory and addresses apart, and their descriptors.

use crate::client::{Client, run};
use crate::entry::arguments::not_null;
use crate::memory::virtual_memory as vmm;
use crate::memory::virtual_memory::Access;
use crate::memory::virtual_ranges::Sharing;
use crate::result::Result;
use crate::thread::current;
use core::ffi::c_void;
use cuda_abi::types::*;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};

/// `CU_MEM_ACCESS_FLAGS_PROT_READ`: read-only mappings are not made.
const READ_ONLY: u32 = 1;
const READ_WRITE: u32 = 3;

/// The device of the current context, or the first one.
fn device_here() -> CUdevice {
    current::context().map_or(0, |context| context.device)
}

/// Device and sharing that a property structure asks for.
fn asked(client: &Client, properties: &CUmemAllocationProp) -> Result<(CUdevice, Sharing)> {
    if properties.type_ != CUmemAllocationType::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match properties.location.type_ {
        CUmemLocationType::DEVICE => {}
        CUmemLocationType::HOST
        | CUmemLocationType::HOST_NUMA
        | CUmemLocationType::HOST_NUMA_CURRENT => {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    let sharing = match properties.requestedHandleTypes {
        CUmemAllocationHandleType::NONE => Sharing::None,
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => Sharing::Descriptor,
        _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
    };
    Ok((client.device(properties.location.id)?.ordinal, sharing))
}

pub(crate) unsafe fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> CUresult {
    run(|client| {
        not_null(prop)?;
        // SAFETY: not null; the caller's structure.
        let (device, _) = asked(client, &unsafe { prop.read() })?;
        let (minimum, recommended) = client.device(device)?.info.granularity_bytes;
        let granule = match option {
            CUmemAllocationGranularity_flags::MINIMUM => minimum,
            CUmemAllocationGranularity_flags::RECOMMENDED => recommended,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        put!(granularity, granule as usize);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(handle)?;
        not_null(prop)?;
        // SAFETY: not null; the caller's structure.
        let (device, sharing) = asked(client, &unsafe { prop.read() })?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(handle, vmm::create(client, device, size as u64, sharing)?.token as u64);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    run(|client| vmm::release(client, handle))
}

/// The wanted address is a hint, and other clients' addresses are none of it: the server chooses.
pub(crate) unsafe fn cuMemAddressReserve(
    ptr: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    _addr: CUdeviceptr,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(ptr)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(ptr, vmm::reserve(client, device_here(), size as u64, alignment as u64)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> CUresult {
    run(|client| vmm::free_range(client, ptr, size as u64))
}

pub(crate) unsafe fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    run(|client| {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        vmm::map(client, ptr, size as u64, offset as u64, handle)
    })
}

pub(crate) unsafe fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> CUresult {
    run(|client| vmm::unmap(client, ptr, size as u64))
}

pub(crate) unsafe fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    run(|client| {
        not_null(desc)?;
        if count == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for i in 0..count {
            // SAFETY: inside the caller's array.
            let CUmemAccessDesc { location, flags } = unsafe { desc.add(i).read() };
            let access = match flags.0 {
                0 => Access::None,
                READ_WRITE => Access::ReadWrite,
                READ_ONLY => return Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            };
            if location.type_ != CUmemLocationType::DEVICE {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            client.device(location.id)?;
            vmm::set_access(client, ptr, size as u64, location.id, access)?;
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemGetAccess(
    flags: *mut u64,
    location: *const CUmemLocation,
    ptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(location)?;
        // SAFETY: not null; the caller's structure.
        let location = unsafe { location.read() };
        if location.type_ != CUmemLocationType::DEVICE {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        client.device(location.id)?;
        put!(flags, vmm::access(client, ptr, location.id)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemExportToShareableHandle(
    shareableHandle: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(shareableHandle)?;
        if flags != 0 || handleType != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let file = vmm::export(client, handle)?;
        // The caller owns the descriptor from here on.
        put!(shareableHandle.cast::<RawFd>(), file.into_raw_fd());
        Ok(())
    })
}

pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    osHandle: *mut c_void,
    shHandleType: CUmemAllocationHandleType,
) -> CUresult {
    run(|client| {
        not_null(handle)?;
        if shHandleType != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let file = RawFd::try_from(osHandle.addr()).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: only passed to the kernel, which refuses what is not open; never -1, as it came
        // out of a usize.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        put!(handle, vmm::import(client, device_here(), file)?.token as u64);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(handle)?;
        put!(handle, vmm::retain(client, addr.addr() as u64)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    run(|client| {
        let found = vmm::get(client, handle)?;
        let properties = CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            requestedHandleTypes: match found.physical.sharing {
                Sharing::None => CUmemAllocationHandleType::NONE,
                Sharing::Descriptor => CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            },
            location: CUmemLocation { type_: CUmemLocationType::DEVICE, id: found.physical.device },
            ..Default::default()
        };
        put!(prop, properties);
        Ok(())
    })
}
