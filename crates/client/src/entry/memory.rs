//! Device and managed memory; hints about the latter are in [`crate::entry::memory::managed`].

pub(crate) mod array;
pub(crate) mod copy;
pub(crate) mod copy_batch;
pub(crate) mod copy_shapes;
pub(crate) mod host_memory;
pub(crate) mod managed;
pub(crate) mod memset;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod sharing;
pub(crate) mod virtual_memory;

use super::arguments::not_null;
use crate::client::run;
use crate::memory::memory_map::Kind;
use crate::memory::{self, allocate};
use crate::thread::current;
use cuda_abi::types::*;
use link::wire::command::{MemoryInfoReply, Opcode};

pub(crate) unsafe fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        not_null(dptr)?;
        put!(dptr, allocate(client, bytesize as u64, Kind::Device)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    pPitch: *mut usize,
    WidthInBytes: usize,
    Height: usize,
    ElementSizeBytes: u32,
) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        not_null(dptr)?;
        not_null(pPitch)?;
        let device = client.device(current::context()?.device)?;
        if !matches!(ElementSizeBytes, 4 | 8 | 16) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let alignment =
            device.limit(CUdevice_attribute::TEXTURE_PITCH_ALIGNMENT, 32).max(512) as usize;
        let pitch = WidthInBytes.checked_next_multiple_of(alignment);
        let size = pitch
            .and_then(|pitch| pitch.checked_mul(Height))
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        put!(dptr, allocate(client, size as u64, Kind::Device)?);
        put!(pPitch, pitch.unwrap_or(0));
        Ok(())
    })
}

pub(crate) unsafe fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    run(|client| {
        // Whoever frees need not have a context: finalizers run on threads of their own.
        let of_memory = || client.contexts.get(client.memory.find(dptr)?.context);
        if let Some(context) = current::top().or_else(of_memory) {
            context.backend()?.0.session.check()?;
        }
        client.graphs.registry.captures.refuse_unsafe_call()?;
        memory::free(client, dptr)
    })
}

pub(crate) unsafe fn cuMemAllocManaged(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        not_null(dptr)?;
        if !matches!(flags, 1 | 2) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(dptr, memory::allocate_managed(client, bytesize as u64)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    run(|_| {
        not_null(free)?;
        not_null(total)?;
        let (backend, id) = current::context()?.backend()?;
        let info: MemoryInfoReply = backend.session.call_for(id, Opcode::MemoryInfo, &[])?;
        let own = backend.device_heap.free_bytes() + backend.managed_heap.free_bytes();
        put!(free, (info.free_bytes + own).min(info.total_bytes) as usize);
        put!(total, info.total_bytes as usize);
        Ok(())
    })
}

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    pbase: *mut CUdeviceptr,
    psize: *mut usize,
    dptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        current::look_alive(|_| Ok(()))?;
        let found = client.memory.look(dptr, |area| {
            let area = area.filter(|area| area.is_shared())?;
            client.graphs.memory.allocated(area, dptr)
        });
        let (base, size_bytes) = found.ok_or(CUresult::ERROR_NOT_FOUND)?;
        put_optional!(pbase, base);
        put_optional!(psize, size_bytes as usize);
        Ok(())
    })
}
