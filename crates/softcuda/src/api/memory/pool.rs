//! Memory pools and stream-ordered allocation. A pool keeps its attributes and counts; memory comes
//! from the device's heap and goes back to it in stream order.

use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

use cuda_abi::graph::reuse::Site;
use cuda_abi::types::{
    CUdevice, CUdeviceptr, CUmemAllocationHandleType, CUmemPool_attribute as Attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};

use super::ipc::close_memory;
use crate::api::answer::Answer;
use crate::api::context::device::checked;
use crate::api::driver::{Driver, driver};
use crate::api::graph::NodeKind;
use crate::api::graph::memory::{FreeWork, GraphAllocation, GraphMemory};
use crate::api::objects::{Pool, Stream};
use crate::api::out;
use crate::api::stream::find;
use crate::api::stream::submit::submit;
use crate::api::table::fresh_handle;
use crate::device::memory::{AddressSpace, AllocationKind};
use crate::device::ops::{Op, Step, Task};

api! {
    fn cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice) {
        let (_, device) = checked(dev)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pool_out, CUmemoryPool(device.default_pool)) }
    }

    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) {
        let (_, device) = checked(dev)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pool, CUmemoryPool(device.current_pool())) }
    }

    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) {
        let (driver, device) = checked(dev)?;
        get(driver, pool)?;
        device.set_pool(pool.0);
        Ok(())
    }

    fn cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) {
        let driver = driver()?;
        // SAFETY: the caller's structure.
        let properties = unsafe { out::read(poolProps)? };
        driver.device(properties.location.id)?;
        let device = properties.location.id as u32;
        let pool_made = match properties.handleTypes {
            CUmemAllocationHandleType::NONE => Pool::on(device),
            CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => Pool::exportable(device),
            _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
        };
        let handle = fresh_handle();
        // SAFETY: the caller's pointer.
        unsafe { out::write(pool, CUmemoryPool(handle))? };
        driver.pools.insert(handle, Arc::new(pool_made));
        Ok(())
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let driver = driver()?;
        if driver.devices.iter().any(|device| device.default_pool == pool.0) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        driver.pools.remove(pool.0).map(|_| ()).map_err(|_| CUresult::ERROR_INVALID_VALUE)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: Attribute, value: *mut c_void) {
        let pool = get(driver()?, pool)?;
        // SAFETY: the caller's value of the attribute's size.
        let value = unsafe {
            match attr.0 {
                1..=3 => u64::from(out::read(value.cast::<u32>())?),
                4..=8 => out::read(value.cast::<u64>())?,
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
        };
        if let Some(set) = pool.usage.set(attr, value) {
            return set;
        }
        pool.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(attr.0, value);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: Attribute, value: *mut c_void) {
        let pool = get(driver()?, pool)?;
        let set = pool.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(&attr.0).copied();
        // SAFETY: the caller's buffer of the attribute's size.
        unsafe {
            match attr.0 {
                1..=3 => out::write(value.cast::<u32>(), set.unwrap_or(1) as u32),
                4 => out::write(value.cast::<u64>(), set.unwrap_or(0)),
                _ => {
                    let count = pool.usage.get(attr).ok_or(CUresult::ERROR_INVALID_VALUE)?;
                    out::write(value.cast::<u64>(), count)
                }
            }
        }
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, minBytesToKeep: usize) {
        let driver = driver()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        // The memory itself is the device's again as soon as it is freed.
        get(driver, pool)?.usage.trim_to(minBytesToKeep as u64);
        Ok(())
    }

    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) {
        let (driver, context, _) = find(hStream)?;
        let pool = CUmemoryPool(driver.device(context.device as i32)?.current_pool());
        // SAFETY: the caller's pointer.
        unsafe { allocate(dptr, bytesize, pool, hStream) }
    }

    fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream) {
        // SAFETY: the caller's pointer.
        unsafe { allocate(dptr, bytesize, pool, hStream) }
    }

    fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) {
        let (driver, _, stream) = find(hStream)?;
        if let Some(memory) = driver.graph_memory.at(dptr) {
            return free_graph_memory(driver, &stream, memory);
        }
        driver.graphs.captures.refuse(stream.captured())?;
        if driver.opened.find(dptr as usize).is_some() {
            // Of another process's pool.
            driver.engine.synchronize_stream(stream.id)?;
            return close_memory(driver, dptr);
        }
        let found = driver.space.allocation_at(dptr).filter(|a| a.base == dptr && a.kind == AllocationKind::Device);
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let free = Free { space: driver.space.clone(), address: dptr };
        // Counted now, though the memory goes at its turn: that is what NVIDIA's driver says.
        if let Some(pool) = driver.pools.find_by(|pool| pool.forget(dptr)) {
            pool.usage.give(found.size_bytes);
        }
        Ok(driver.engine.enqueue(stream.id, Op::Task(Box::new(free)))?)
    }
}

/// Frees what an allocation node allocated, in stream order, or in the graph that is being
/// captured.
fn free_graph_memory(driver: &Driver, stream: &Arc<Stream>, memory: Arc<GraphMemory>) -> Answer {
    if let Some(capture) = driver.graphs.captures.active(stream.captured())? {
        let work = FreeWork::in_graph(driver, capture.graph.handle, memory.address)?;
        return submit(driver, stream, NodeKind::MemFree(work));
    }
    if !driver.graph_memory.is_live(&memory) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    driver.engine.enqueue(stream.id, memory.unmap_op())?;
    driver.graph_memory.free(&memory)
}

/// Frees memory at its turn in a stream.
struct Free {
    space: Arc<AddressSpace>,
    address: u64,
}

impl Task for Free {
    fn step(&mut self) -> Step {
        // What was freed before, by another call, is gone.
        let _ = self.space.free(self.address, |kind| kind == AllocationKind::Device);
        Step::Done
    }
}

/// The pool of a handle, or CUDA_ERROR_INVALID_VALUE.
pub(crate) fn get(driver: &Driver, pool: CUmemoryPool) -> Answer<Arc<Pool>> {
    driver.pools.find(pool.0).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// # Safety
/// As for [`out::write`].
unsafe fn allocate(
    dptr: *mut CUdeviceptr,
    size_bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    let (driver, context, stream) = find(stream)?;
    let pool = get(driver, pool)?;
    if dptr.is_null() || pool.is_imported() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if let Some(capture) = driver.graphs.captures.active(stream.captured())? {
        let size = size_bytes as u64;
        let site = Site { graph: capture.graph.handle, after: &capture.tips(stream.captured()) };
        let allocation = GraphAllocation::reserve(driver, context.id, site, pool.device(), size)?;
        let address = allocation.memory.address;
        submit(driver, &stream, NodeKind::MemAlloc(allocation))?;
        // SAFETY: by the caller's promise.
        return unsafe { out::write(dptr, address) };
    }
    // At once instead of in stream order: earlier than promised is allowed.
    let account = &driver.device(pool.device() as i32)?.account;
    let address = driver.space.allocate(pool.device(), account, context.id, size_bytes as u64)?;
    pool.allocated.lock().unwrap_or_else(PoisonError::into_inner).insert(address);
    pool.show(&driver.space, address);
    pool.usage.take(size_bytes as u64);
    // SAFETY: by the caller's promise.
    unsafe { out::write(dptr, address) }
}
