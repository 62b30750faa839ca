//! Memory pools and stream-ordered allocation.

use crate::client::{Client, run};
use crate::entry::arguments::not_null;
use crate::graph::kinds::NodeKind;
use crate::memory;
use crate::memory::peer;
use crate::memory::peer::Admission;
use crate::memory::pool::{Pool, Sharing, Width};
use crate::result::Result;
use crate::stream::{Target, targets};
use core::ffi::c_void;
use cuda_abi::graph::reuse::Site;
use cuda_abi::types::*;
use std::sync::{Arc, PoisonError};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`: read-only mappings are not made.
const READ_ONLY: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u32 = 3;

fn pool(client: &Client, handle: CUmemoryPool) -> Result<Arc<Pool>> {
    client.pools.get(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn cuDeviceGetDefaultMemPool(
    pool_out: *mut CUmemoryPool,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        put!(pool_out, CUmemoryPool(client.device(dev)?.default_pool.token));
        Ok(())
    })
}

fn current_pool(client: &Client, dev: CUdevice) -> Result<Arc<Pool>> {
    let device = client.device(dev)?;
    Ok(Arc::clone(&device.pool.lock().unwrap_or_else(PoisonError::into_inner)))
}

pub(crate) unsafe fn cuDeviceGetMemPool(out: *mut CUmemoryPool, dev: CUdevice) -> CUresult {
    run(|client| {
        put!(out, CUmemoryPool(current_pool(client, dev)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceSetMemPool(dev: CUdevice, handle: CUmemoryPool) -> CUresult {
    run(|client| {
        let pool = pool(client, handle)?;
        if pool.device != dev || pool.sharing == Sharing::Imported {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        *client.device(dev)?.pool.lock().unwrap_or_else(PoisonError::into_inner) = pool;
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolCreate(
    out: *mut CUmemoryPool,
    poolProps: *const CUmemPoolProps,
) -> CUresult {
    run(|client| {
        not_null(out)?;
        not_null(poolProps)?;
        // SAFETY: not null; the caller's structure.
        let properties = unsafe { poolProps.read() };
        if properties.location.type_.0 != LOCATION_DEVICE {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let sharing = match properties.handleTypes {
            CUmemAllocationHandleType::NONE => Sharing::Private,
            CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => Sharing::Exportable,
            _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
        };
        let device = client.device(properties.location.id)?.ordinal;
        let made = client.pools.insert_with(|token| Pool::new(token, device, sharing));
        put!(out, CUmemoryPool(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.token));
        Ok(())
    })
}

/// What was allocated from it stays.
pub(crate) unsafe fn cuMemPoolDestroy(handle: CUmemoryPool) -> CUresult {
    run(|client| {
        let pool = pool(client, handle)?;
        let device = client.device(pool.device)?;
        if Arc::ptr_eq(&pool, &device.default_pool) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut current = device.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&pool, &current) {
            *current = Arc::clone(&device.default_pool);
        }
        client.pools.remove(handle.0);
        drop(current);
        memory::trim(client, pool.device)
    })
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    handle: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(value)?;
        let pool = pool(client, handle)?;
        match Pool::width(attr)? {
            Width::Int => put!(value.cast::<u32>(), pool.get(attr) as u32),
            Width::Wide => put!(value.cast::<u64>(), pool.get(attr)),
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    handle: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(value)?;
        let pool = pool(client, handle)?;
        // SAFETY: not null; the caller's variable has this attribute's width.
        let value = unsafe {
            match Pool::width(attr)? {
                Width::Int => value.cast::<u32>().read().into(),
                Width::Wide => value.cast::<u64>().read(),
            }
        };
        pool.set(attr, value)
    })
}

pub(crate) unsafe fn cuMemPoolTrimTo(handle: CUmemoryPool, minBytesToKeep: usize) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        let pool = pool(client, handle)?;
        pool.trim_to(minBytesToKeep as u64);
        memory::trim(client, pool.device)
    })
}

pub(crate) unsafe fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    memPool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> CUresult {
    run(|client| {
        let pool = pool(client, memPool)?;
        not_null(location)?;
        // SAFETY: not null; the caller's structure.
        let location = unsafe { location.read() };
        let own = location.type_.0 == LOCATION_DEVICE && location.id == pool.device;
        let other = location.type_.0 == LOCATION_DEVICE && pool.admits(location.id);
        put!(flags, CUmemAccess_flags(if own || other { 3 } else { 0 }));
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolSetAccess(
    handle: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    run(|client| {
        let pool = pool(client, handle)?;
        for i in 0..count {
            not_null(map)?;
            // SAFETY: inside the caller's array.
            let access = unsafe { map.add(i).read() };
            if access.location.type_.0 != LOCATION_DEVICE {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            client.device(access.location.id)?;
            let admission = match access.flags.0 {
                0 => Admission::No,
                READ_WRITE => Admission::Yes,
                READ_ONLY => return Err(CUresult::ERROR_NOT_SUPPORTED),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            };
            peer::set_pool_access(client, &pool, access.location.id, admission)?;
        }
        Ok(())
    })
}

/// Allocates in stream order; while the stream is captured, as a node.
fn allocate(client: &Client, pool: &Pool, target: &Target, size_bytes: u64) -> Result<u64> {
    let Some(capture) = client.graphs.registry.captures.active(target.captured())? else {
        return memory::allocate_from(client, pool, target, size_bytes);
    };
    if size_bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let site = Site { graph: capture.graph.handle, after: &capture.tips(target.captured()) };
    let memory = client.graphs.memory.allocate(client, &target.context, site, size_bytes)?;
    let address = memory.address;
    target.capture(client, || Ok(NodeKind::MemAlloc(memory)))?;
    Ok(address)
}

pub(crate) unsafe fn cuMemAllocAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    hStream: CUstream,
) -> CUresult {
    run(|client| {
        not_null(dptr)?;
        let target = targets::target(client, hStream)?;
        let pool = current_pool(client, target.context.device)?;
        put!(dptr, allocate(client, &pool, &target, bytesize as u64)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    handle: CUmemoryPool,
    hStream: CUstream,
) -> CUresult {
    run(|client| {
        not_null(dptr)?;
        let target = targets::target(client, hStream)?;
        put!(dptr, allocate(client, &*pool(client, handle)?, &target, bytesize as u64)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        if let Ok(memory) = client.graphs.memory.at(dptr) {
            let Some(capture) = client.graphs.registry.captures.active(target.captured())? else {
                return memory::free_graph_memory(client, memory);
            };
            let graph = capture.graph.handle;
            let make =
                || client.graphs.memory.to_be_freed(client, graph, dptr).map(NodeKind::MemFree);
            return target.capture(client, make).map(drop);
        }
        target.refuse_capture(client)?;
        memory::free(client, dptr)
    })
}

/// The device of a location: pools are there for memory on a device only.
fn place(
    client: &'static Client,
    location: *const CUmemLocation,
    type_: CUmemAllocationType,
) -> Result<&'static crate::context::device::Device> {
    not_null(location)?;
    // SAFETY: not null; the caller's structure.
    let location = unsafe { location.read() };
    if type_ != CUmemAllocationType::PINNED || location.type_.0 != LOCATION_DEVICE {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    client.device(location.id)
}

pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool_out: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    type_: CUmemAllocationType,
) -> CUresult {
    run(|client| {
        put!(pool_out, CUmemoryPool(place(client, location, type_)?.default_pool.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuMemGetMemPool(
    out: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    type_: CUmemAllocationType,
) -> CUresult {
    run(|client| {
        let device = place(client, location, type_)?;
        put!(out, CUmemoryPool(current_pool(client, device.ordinal)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuMemSetMemPool(
    location: *mut CUmemLocation,
    type_: CUmemAllocationType,
    handle: CUmemoryPool,
) -> CUresult {
    run(|client| {
        let device = place(client, location, type_)?;
        let pool = pool(client, handle)?;
        if pool.device != device.ordinal {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        *device.pool.lock().unwrap_or_else(PoisonError::into_inner) = pool;
        Ok(())
    })
}
