//! Device and managed memory.

use super::not_null;
use crate::client::run;
use crate::current;
use crate::memory::{self, allocate};
use crate::memory_map::Kind;
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
        current::context()?.backend()?.0.session.check()?;
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
            area.filter(|area| area.is_shared()).map(|area| (area.base, area.size_bytes))
        });
        let (base, size_bytes) = found.ok_or(CUresult::ERROR_NOT_FOUND)?;
        put_optional!(pbase, base);
        put_optional!(psize, size_bytes as usize);
        Ok(())
    })
}

/// Hints about managed memory are checked, and have no effect: it is on the device, but for what the
/// host has touched since work was posted last.
pub(crate) unsafe fn cuMemPrefetchAsync(
    devPtr: CUdeviceptr,
    count: usize,
    dstDevice: CUdevice,
    hStream: CUstream,
) -> CUresult {
    managed_hint(devPtr, count, hStream, Place::of_device(dstDevice))
}

pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    devPtr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    hStream: CUstream,
) -> CUresult {
    if flags != 0 {
        return CUresult::ERROR_INVALID_VALUE;
    }
    managed_hint(devPtr, count, hStream, Place::of_location(&location))
}

pub(crate) unsafe fn cuMemAdvise(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    advise(devPtr, count, advice, Place::of_device(device))
}

pub(crate) unsafe fn cuMemAdvise_v2(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    advise(devPtr, count, advice, Place::of_location(&location))
}

/// Whom a hint about managed memory is about.
enum Place {
    Host,
    Device(CUdevice),
    Unknown,
}

impl Place {
    fn of_device(device: CUdevice) -> Self {
        /// `CU_DEVICE_CPU`.
        const CPU: CUdevice = -1;
        if device == CPU { Self::Host } else { Self::Device(device) }
    }

    fn of_location(location: &CUmemLocation) -> Self {
        use CUmemLocationType as Type;
        match location.type_ {
            Type::DEVICE => Self::Device(location.id),
            Type::HOST | Type::HOST_NUMA | Type::HOST_NUMA_CURRENT => Self::Host,
            _ => Self::Unknown,
        }
    }
}

/// `CU_MEM_ADVISE_UNSET_ACCESSED_BY`, the last one.
const LAST_ADVICE: u32 = 6;

fn advise(address: CUdeviceptr, size_bytes: usize, advice: CUmem_advise, place: Place) -> CUresult {
    if !(1..=LAST_ADVICE).contains(&advice.0) {
        return CUresult::ERROR_INVALID_VALUE;
    }
    managed_hint(address, size_bytes, CUstream::NULL, place)
}

fn managed_hint(
    address: CUdeviceptr,
    size_bytes: usize,
    hStream: CUstream,
    place: Place,
) -> CUresult {
    run(|client| {
        match place {
            Place::Host => {}
            Place::Device(device) => drop(client.device(device)?),
            Place::Unknown => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        crate::stream::target(client, hStream)?;
        let area = client.memory.device_reach(address, size_bytes as u64)?;
        if area.is_managed() && size_bytes > 0 {
            Ok(())
        } else {
            Err(CUresult::ERROR_INVALID_VALUE)
        }
    })
}
