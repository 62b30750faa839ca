//! Pinned and registered host memory.

use crate::client::run;
use crate::entry::arguments::not_null;
use crate::memory;
use crate::memory::memory_map::Kind;
use core::ffi::c_void;
use cuda_abi::types::*;

fn address_of(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

pub(crate) unsafe fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: u32) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        not_null(pp)?;
        let address = memory::allocate_pinned(client, bytesize as u64, Flags)?;
        put!(pp, address as *mut c_void);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CUresult {
    // SAFETY: the same function without flags.
    unsafe { cuMemHostAlloc(pp, bytesize, 0) }
}

pub(crate) unsafe fn cuMemFreeHost(p: *mut c_void) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        memory::free_pinned(client, address_of(p))
    })
}

pub(crate) unsafe fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: u32) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        memory::register(client, address_of(p), bytesize as u64, Flags)
    })
}

pub(crate) unsafe fn cuMemHostRegister(p: *mut c_void, bytesize: usize, Flags: u32) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuMemHostRegister_v2(p, bytesize, Flags) }
}

pub(crate) unsafe fn cuMemHostUnregister(p: *mut c_void) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        memory::unregister(client, address_of(p))
    })
}

pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    Flags: u32,
) -> CUresult {
    run(|client| {
        not_null(pdptr)?;
        if Flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(pdptr, memory::device_address(client, address_of(p))?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemHostGetFlags(pFlags: *mut u32, p: *mut c_void) -> CUresult {
    run(|client| {
        not_null(pFlags)?;
        let area = client.memory.find(address_of(p)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // Memory is mapped for the device in any case: CU_MEMHOSTALLOC_DEVICEMAP.
        let flags = match area.kind {
            Kind::Pinned(flags) => flags | 2,
            Kind::Registered { flags, .. } => flags,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        put!(pFlags, flags);
        Ok(())
    })
}
