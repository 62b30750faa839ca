//! Device and managed memory.

pub(crate) mod array;
pub(crate) mod array_copy;
pub(crate) mod copy;
pub(crate) mod copy_batch;
pub(crate) mod copy_shapes;
pub(crate) mod fill;
pub(crate) mod hints;
pub(crate) mod host_memory;
pub(crate) mod ipc;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod pool_sharing;
pub(crate) mod texture;
pub(crate) mod vmm;
pub(crate) mod volume;

use cuda_abi::types::{CUdeviceptr, CUresult};

use super::answer::Answer;
use super::context::context_stack;
use super::driver::{current, driver};
use super::out;
use crate::device::memory::AllocationKind;

/// Row pitch of `cuMemAllocPitch`, bytes.
const PITCH_BYTES: usize = 512;

api! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (driver, context) = current()?;
        let account = &driver.device(context.device as i32)?.account;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(free, account.free_bytes() as usize)?;
            out::write(total, account.total_bytes() as usize)
        }
    }

    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) {
        if dptr.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let address = allocate(bytesize)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(dptr, address) }
    }

    fn cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: u32) {
        if dptr.is_null() || pPitch.is_null() || !matches!(ElementSizeBytes, 4 | 8 | 16) || WidthInBytes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let pitch = WidthInBytes.checked_next_multiple_of(PITCH_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let address = allocate(pitch.checked_mul(Height).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?)?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(dptr, address)?;
            out::write(pPitch, pitch)
        }
    }

    fn cuMemFree_v2(dptr: CUdeviceptr) {
        let driver = driver()?;
        // Whoever frees need not have a context.
        if !context_stack::current_handle().is_null() {
            current()?;
        }
        driver.graphs.captures.refuse_unsafe_call()?;
        if dptr == 0 {
            return Ok(());
        }
        if let Some(memory) = driver.graph_memory.at(dptr).filter(|memory| driver.graph_memory.is_live(memory)) {
            let (_, context) = current()?;
            let _stall = driver.wait_for_work(context.id);
            driver.graph_memory.free(&memory)?;
            return memory.unmap();
        }
        let is_freeable = |kind| matches!(kind, AllocationKind::Device | AllocationKind::Managed);
        let found = driver.space.allocation_at(dptr).filter(|found| found.base == dptr && is_freeable(found.kind));
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // Work that was submitted before may use it: programs rely on that.
        if found.context != 0 {
            let _stall = driver.wait_for_work(found.context);
        }
        driver.space.free(dptr, is_freeable)?;
        driver.advices.forget(found.range());
        Ok(())
    }

    fn cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) {
        let (driver, _) = current()?;
        let found = driver.space.allocation_at(dptr).ok_or(CUresult::ERROR_NOT_FOUND)?;
        // SAFETY: the caller's pointers; either may be NULL.
        unsafe {
            out::write_optional(pbase, found.base);
            out::write_optional(psize, found.size_bytes as usize);
        }
        Ok(())
    }

    fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: u32) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST
        if dptr.is_null() || !matches!(flags, 1 | 2) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let kind = AllocationKind::Managed;
        let address = driver.space.allocate_host(bytesize as u64, kind, context.device, context.id)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(dptr, address) }
    }
}

/// Device memory in the current context.
pub(crate) fn allocate(size_bytes: usize) -> Answer<u64> {
    let (driver, context) = current()?;
    driver.graphs.captures.refuse_unsafe_call()?;
    let account = &driver.device(context.device as i32)?.account;
    Ok(driver.space.allocate(context.device, account, context.id, size_bytes as u64)?)
}
