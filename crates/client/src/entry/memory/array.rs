//! Arrays, mipmapped arrays, and copies of contiguous bytes of arrays.

use crate::client::{Client, run};
use crate::copy::Timing;
use crate::copy::array::Corner;
use crate::copy::array_copy::{Side, copy};
use crate::copy::arrays;
use crate::copy::shape::{End, Extent};
use crate::entry::arguments::not_null;
use crate::result::Result;
use crate::stream::targets;
use core::ffi::c_void;
use cuda_abi::types::*;
use link::wire::array::ArrayMemoryReply;

/// # Safety
/// `out` is null or valid.
unsafe fn create(out: *mut CUarray, descriptor: Option<CUDA_ARRAY3D_DESCRIPTOR>) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        not_null(out)?;
        let descriptor = descriptor.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        put!(out, CUarray(arrays::create(client, descriptor)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuArrayCreate_v2(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR,
) -> CUresult {
    // SAFETY: the caller's structure, if any.
    let asked = unsafe { pAllocateArray.as_ref() };
    let descriptor = asked.map(|asked| CUDA_ARRAY3D_DESCRIPTOR {
        Width: asked.Width,
        Height: asked.Height,
        Format: asked.Format,
        NumChannels: asked.NumChannels,
        ..Default::default()
    });
    // SAFETY: the caller's pointer.
    unsafe { create(pHandle, descriptor) }
}

pub(crate) unsafe fn cuArrayCreate(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR_v1,
) -> CUresult {
    // SAFETY: the caller's structure, if any.
    let asked = unsafe { pAllocateArray.as_ref() };
    let descriptor = asked.map(|asked| CUDA_ARRAY3D_DESCRIPTOR {
        Width: asked.Width as usize,
        Height: asked.Height as usize,
        Format: asked.Format,
        NumChannels: asked.NumChannels,
        ..Default::default()
    });
    // SAFETY: the caller's pointer.
    unsafe { create(pHandle, descriptor) }
}

pub(crate) unsafe fn cuArray3DCreate_v2(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    // SAFETY: the caller's structure, if any, and pointer.
    unsafe { create(pHandle, pAllocateArray.as_ref().copied()) }
}

pub(crate) unsafe fn cuArray3DCreate(
    pHandle: *mut CUarray,
    pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CUresult {
    // SAFETY: the caller's structure, if any.
    let asked = unsafe { pAllocateArray.as_ref() };
    let descriptor = asked.map(|asked| CUDA_ARRAY3D_DESCRIPTOR {
        Width: asked.Width as usize,
        Height: asked.Height as usize,
        Depth: asked.Depth as usize,
        Format: asked.Format,
        NumChannels: asked.NumChannels,
        Flags: asked.Flags,
    });
    // SAFETY: the caller's pointer.
    unsafe { create(pHandle, descriptor) }
}

pub(crate) unsafe fn cuArrayDestroy(hArray: CUarray) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        arrays::destroy(client, hArray.0)
    })
}

pub(crate) unsafe fn cuArrayGetDescriptor_v2(
    pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR,
    hArray: CUarray,
) -> CUresult {
    run(|client| {
        let whole = arrays::get(client, hArray.0)?.descriptor;
        let flat = CUDA_ARRAY_DESCRIPTOR {
            Width: whole.Width,
            Height: whole.Height,
            Format: whole.Format,
            NumChannels: whole.NumChannels,
        };
        put!(pArrayDescriptor, flat);
        Ok(())
    })
}

pub(crate) unsafe fn cuArray3DGetDescriptor_v2(
    pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR,
    hArray: CUarray,
) -> CUresult {
    run(|client| {
        put!(pArrayDescriptor, arrays::get(client, hArray.0)?.descriptor);
        Ok(())
    })
}

pub(crate) unsafe fn cuArrayGetDescriptor(
    pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1,
    hArray: CUarray,
) -> CUresult {
    run(|client| {
        let whole = arrays::get(client, hArray.0)?.descriptor;
        let flat = CUDA_ARRAY_DESCRIPTOR_v1 {
            Width: short(whole.Width)?,
            Height: short(whole.Height)?,
            Format: whole.Format,
            NumChannels: whole.NumChannels,
        };
        put!(pArrayDescriptor, flat);
        Ok(())
    })
}

pub(crate) unsafe fn cuArray3DGetDescriptor(
    pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1,
    hArray: CUarray,
) -> CUresult {
    run(|client| {
        let whole = arrays::get(client, hArray.0)?.descriptor;
        let old = CUDA_ARRAY3D_DESCRIPTOR_v1 {
            Width: short(whole.Width)?,
            Height: short(whole.Height)?,
            Depth: short(whole.Depth)?,
            Format: whole.Format,
            NumChannels: whole.NumChannels,
            Flags: whole.Flags,
        };
        put!(pArrayDescriptor, old);
        Ok(())
    })
}

/// An extent for a program of 32 bits' time.
fn short(extent: usize) -> Result<u32> {
    u32::try_from(extent).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

fn requirements(needed: ArrayMemoryReply) -> CUDA_ARRAY_MEMORY_REQUIREMENTS {
    CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: needed.size_bytes as usize,
        alignment: needed.alignment_bytes as usize,
        ..Default::default()
    }
}

pub(crate) unsafe fn cuArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> CUresult {
    run(|client| {
        not_null(memoryRequirements)?;
        let needed = arrays::get(client, array.0)?.memory(client, device)?;
        put!(memoryRequirements, requirements(needed));
        Ok(())
    })
}

pub(crate) unsafe fn cuMipmappedArrayGetMemoryRequirements(
    memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> CUresult {
    run(|client| {
        not_null(memoryRequirements)?;
        let needed = arrays::get_mipmapped(client, mipmap.0)?.memory(client, device)?;
        put!(memoryRequirements, requirements(needed));
        Ok(())
    })
}

pub(crate) unsafe fn cuMipmappedArrayCreate(
    pHandle: *mut CUmipmappedArray,
    pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR,
    numMipmapLevels: u32,
) -> CUresult {
    run(|client| {
        not_null(pHandle)?;
        not_null(pMipmappedArrayDesc)?;
        // SAFETY: not null; the caller's structure.
        let descriptor = unsafe { pMipmappedArrayDesc.read() };
        let made = arrays::create_mipmapped(client, descriptor, numMipmapLevels)?;
        put!(pHandle, CUmipmappedArray(made.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuMipmappedArrayDestroy(hMipmappedArray: CUmipmappedArray) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        arrays::destroy_mipmapped(client, hMipmappedArray.0)
    })
}

pub(crate) unsafe fn cuMipmappedArrayGetLevel(
    pLevelArray: *mut CUarray,
    hMipmappedArray: CUmipmappedArray,
    level: u32,
) -> CUresult {
    run(|client| {
        not_null(pLevelArray)?;
        let array = arrays::get_mipmapped(client, hMipmappedArray.0)?;
        put!(pLevelArray, CUarray(array.level(client, level)?.token));
        Ok(())
    })
}

/// An end of a copy of contiguous bytes.
enum Place {
    Memory(u64),
    Array(CUarray, usize),
}

impl Place {
    fn host(pointer: *const c_void) -> Self {
        Self::Memory(pointer.addr() as u64)
    }

    fn side(&self, client: &Client) -> Result<Side> {
        Ok(match *self {
            Self::Memory(address) => Side::Memory(End::linear(address)),
            Self::Array(array, offset) => Side::Array(
                arrays::get(client, array.0)?,
                Corner { x_bytes: offset as u64, y: 0, z: 0 },
            ),
        })
    }
}

/// # Safety
/// The caller's host memory is as long as it says.
unsafe fn linear(
    to: Place,
    from: Place,
    size_bytes: usize,
    hStream: CUstream,
    timing: Timing,
) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        let (to, from) = (to.side(client)?, from.side(client)?);
        // SAFETY: the caller's promise.
        unsafe { copy(client, &target, &to, &from, Extent::linear(size_bytes as u64), timing) }
    })
}

/// A synchronous function and its variant for the thread's default stream.
macro_rules! on_both_defaults {
    ($($name:ident / $per_thread:ident($to:ident: $to_type:ty $(, $to_offset:ident)?; $from:ident: $from_type:ty $(, $from_offset:ident)?) = $to_place:expr, $from_place:expr;)*) => {$(
        pub(crate) unsafe fn $name($to: $to_type, $($to_offset: usize,)? $from: $from_type, $($from_offset: usize,)? ByteCount: usize) -> CUresult {
            // SAFETY: the caller's memory.
            unsafe { linear($to_place, $from_place, ByteCount, CUstream::LEGACY, Timing::Synchronous) }
        }
        pub(crate) unsafe fn $per_thread($to: $to_type, $($to_offset: usize,)? $from: $from_type, $($from_offset: usize,)? ByteCount: usize) -> CUresult {
            // SAFETY: the caller's memory.
            unsafe { linear($to_place, $from_place, ByteCount, CUstream::PER_THREAD, Timing::Synchronous) }
        }
    )*};
}

on_both_defaults! {
    cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds(dstArray: CUarray, dstOffset; srcHost: *const c_void) =
        Place::Array(dstArray, dstOffset), Place::host(srcHost);
    cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds(dstHost: *mut c_void; srcArray: CUarray, srcOffset) =
        Place::host(dstHost), Place::Array(srcArray, srcOffset);
    cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds(dstArray: CUarray, dstOffset; srcDevice: CUdeviceptr) =
        Place::Array(dstArray, dstOffset), Place::Memory(srcDevice);
    cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds(dstDevice: CUdeviceptr; srcArray: CUarray, srcOffset) =
        Place::Memory(dstDevice), Place::Array(srcArray, srcOffset);
    cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds(dstArray: CUarray, dstOffset; srcArray: CUarray, srcOffset) =
        Place::Array(dstArray, dstOffset), Place::Array(srcArray, srcOffset);
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    dstArray: CUarray,
    dstOffset: usize,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    let (to, from) = (Place::Array(dstArray, dstOffset), Place::host(srcHost));
    // SAFETY: the caller's memory.
    unsafe { linear(to, from, ByteCount, hStream, Timing::Asynchronous) }
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    dstHost: *mut c_void,
    srcArray: CUarray,
    srcOffset: usize,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    let (to, from) = (Place::host(dstHost), Place::Array(srcArray, srcOffset));
    // SAFETY: the caller's memory.
    unsafe { linear(to, from, ByteCount, hStream, Timing::Asynchronous) }
}
