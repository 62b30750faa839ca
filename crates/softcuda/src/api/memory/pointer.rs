//! Pointer attributes.

use std::ffi::c_void;

use cuda_abi::types::{
    CU_DEVICE_INVALID, CUdeviceptr, CUmemorytype, CUpointer_attribute as Attribute, CUresult,
};

use crate::api::answer::Answer;
use crate::api::driver::driver;
use crate::api::out;
use crate::device::memory::{Allocation, AllocationKind};

api! {
    fn cuPointerGetAttribute(data: *mut c_void, attribute: Attribute, ptr: CUdeviceptr) {
        let driver = driver()?;
        let found = driver.space.allocation_at(ptr).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's buffer, large enough for this attribute.
        unsafe { store(data, attribute, ptr, Some(&found)) }
    }

    fn cuPointerGetAttributes(numAttributes: u32, attributes: *mut Attribute, data: *mut *mut c_void, ptr: CUdeviceptr) {
        let driver = driver()?;
        let found = driver.space.allocation_at(ptr);
        // SAFETY: the caller's arrays of `numAttributes`.
        unsafe {
            let attributes = out::read_array(attributes, numAttributes as usize)?;
            for (attribute, data) in attributes.into_iter().zip(out::read_array(data, numAttributes as usize)?) {
                // What this memory has not, like a host address, is stored as zero here, where the
                // single query fails.
                store(data, attribute, ptr, found.as_ref()).or_else(|_| store(data, attribute, ptr, None))?;
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: *const c_void, attribute: Attribute, ptr: CUdeviceptr) {
        // SYNC_MEMOPS: synchronous copies always are.
        let is_known = driver()?.space.allocation_at(ptr).is_some();
        if attribute == Attribute::SYNC_MEMOPS && is_known && !value.is_null() { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }
}

/// Stores one attribute; for unknown memory the value that says so.
///
/// # Safety
/// `data` is a buffer for this attribute.
unsafe fn store(
    data: *mut c_void,
    attribute: Attribute,
    pointer: u64,
    found: Option<&Allocation>,
) -> Answer {
    let is_host =
        |kind| matches!(kind, AllocationKind::Host { .. } | AllocationKind::Registered { .. });
    let word = |value: u64| {
        // SAFETY: by the caller's promise; this attribute has 8 bytes.
        unsafe { out::write(data.cast::<u64>(), value) }
    };
    let int = |value: u32| {
        // SAFETY: by the caller's promise; this attribute has 4 bytes.
        unsafe { out::write(data.cast::<u32>(), value) }
    };
    let flag = |value: bool| {
        // SAFETY: by the caller's promise; an `int`, which the runtime has not cleared.
        unsafe { out::write(data.cast::<u32>(), value.into()) }
    };
    match (attribute, found) {
        (Attribute::DEVICE_ORDINAL, found) => {
            int(found.map_or(CU_DEVICE_INVALID as u32, |found| found.device))
        }
        (Attribute::MEMORY_TYPE, None) | (Attribute::ACCESS_FLAGS, None) => int(0),
        (
            Attribute::IS_MANAGED
            | Attribute::MAPPED
            | Attribute::SYNC_MEMOPS
            | Attribute::IS_LEGACY_CUDA_IPC_CAPABLE
            | Attribute::IS_GPU_DIRECT_RDMA_CAPABLE
            | Attribute::IS_HW_DECOMPRESS_CAPABLE,
            None,
        ) => flag(false),
        (Attribute(1..=22), None) => word(0),
        (Attribute::CONTEXT, Some(found)) => {
            let driver = driver()?;
            let context = driver
                .devices
                .get(found.device as usize)
                .and_then(|_| driver.context_by_id(found.context));
            word(context.map_or(0, |context| context.handle.0 as u64))
        }
        (Attribute::MEMORY_TYPE, Some(found)) => {
            int(if is_host(found.kind) { CUmemorytype::HOST.0 } else { CUmemorytype::DEVICE.0 })
        }
        (Attribute::DEVICE_POINTER, Some(_)) => word(pointer),
        (Attribute::HOST_POINTER, Some(found)) => {
            if is_host(found.kind) || found.kind == AllocationKind::Managed {
                word(pointer)
            } else {
                Err(CUresult::ERROR_INVALID_VALUE)
            }
        }
        (Attribute::BUFFER_ID | Attribute::MEMORY_BLOCK_ID, Some(found)) => word(found.buffer_id),
        (Attribute::IS_MANAGED, Some(found)) => flag(found.kind == AllocationKind::Managed),
        (Attribute::RANGE_START_ADDR | Attribute::MAPPING_BASE_ADDR, Some(found)) => {
            word(found.base)
        }
        (Attribute::RANGE_SIZE | Attribute::MAPPING_SIZE, Some(found)) => word(found.size_bytes),
        (Attribute::MAPPED, Some(_)) => flag(true),
        (Attribute::SYNC_MEMOPS, Some(_)) => flag(true),
        (
            Attribute::IS_LEGACY_CUDA_IPC_CAPABLE
            | Attribute::IS_GPU_DIRECT_RDMA_CAPABLE
            | Attribute::IS_HW_DECOMPRESS_CAPABLE,
            Some(_),
        ) => flag(false),
        (Attribute::ALLOWED_HANDLE_TYPES, Some(found)) => {
            word(u64::from(found.kind == AllocationKind::Mapped))
        }
        (Attribute::ACCESS_FLAGS, Some(_)) => int(3),
        (Attribute::MEMPOOL_HANDLE, Some(_)) => word(0),
        // 22 came with CUDA 13.5: whether the memory can be decompressed into.
        (Attribute(22), Some(_)) => word(0),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
