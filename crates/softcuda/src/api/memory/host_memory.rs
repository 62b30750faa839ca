//! Pinned and registered host memory.

use std::ffi::c_void;

use cuda_abi::types::{CUdeviceptr, CUresult};

use crate::api::driver::current;
use crate::api::out;
use crate::device::memory::AllocationKind;

api! {
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: u32) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        if pp.is_null() || Flags & !7 != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let kind = AllocationKind::Host { flags: Flags };
        let address = driver.space.allocate_host(bytesize as u64, kind, context.device, context.id)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pp, address as *mut c_void) }
    }

    fn cuMemFreeHost(p: *mut c_void) {
        let (driver, _) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        if p.is_null() {
            return Ok(());
        }
        let is_host = |kind| matches!(kind, AllocationKind::Host { .. });
        let address = p as u64;
        let found = driver.space.allocation_at(address).filter(|a| a.base == address && is_host(a.kind));
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let _stall = driver.wait_for_work(found.context);
        driver.space.free(address, is_host)?;
        Ok(())
    }

    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: u32) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        if Flags & !0xf != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if Flags & 4 != 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Ok(driver.space.register(p as u64, bytesize as u64, Flags, context.device, context.id)?)
    }

    fn cuMemHostUnregister(p: *mut c_void) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let _stall = driver.wait_for_work(context.id);
        Ok(driver.space.unregister(p as u64)?)
    }

    fn cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, Flags: u32) {
        let (driver, _) = current()?;
        let found = driver.space.allocation_at(p as u64).filter(|found| {
            matches!(found.kind, AllocationKind::Host { .. } | AllocationKind::Registered { .. } | AllocationKind::Managed)
        });
        if Flags != 0 || found.is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(pdptr, p as u64) }
    }

    fn cuMemHostGetFlags(pFlags: *mut u32, p: *mut c_void) {
        let (driver, _) = current()?;
        let flags = match driver.space.allocation_at(p as u64).map(|found| found.kind) {
            // Unified addressing maps everything.
            Some(AllocationKind::Host { flags } | AllocationKind::Registered { flags }) => flags | 2,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(pFlags, flags) }
    }
}

alias! {
    cuMemHostRegister(p: *mut c_void, bytesize: usize, Flags: u32) = cuMemHostRegister_v2;
}

/// Pinned memory with default flags.
#[allow(non_snake_case)]
pub(crate) unsafe fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CUresult {
    // SAFETY: the caller's pointer.
    unsafe { cuMemHostAlloc(pp, bytesize, 0) }
}
