//! Copies of two and three dimensions, of linear memory and arrays.

use crate::client::{Client, run};
use crate::copy::array::Corner;
use crate::copy::array_copy::Side;
use crate::copy::shape::{End, Extent};
use crate::copy::{Timing, copy};
use crate::copy::{array_copy, arrays};
use crate::result::Result;
use crate::stream::targets;
use core::ffi::c_void;
use cuda_abi::types::*;

/// One end as the API's structures describe it.
struct Described {
    kind: CUmemorytype,
    host: *const c_void,
    device: CUdeviceptr,
    array: CUarray,
    x_bytes: usize,
    y: usize,
    z: usize,
    pitch: usize,
    /// Rows from slice to slice.
    height: usize,
}

impl Described {
    fn end(&self, extent: Extent) -> Result<End> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let base = match self.kind {
            CUmemorytype::HOST => self.host.addr() as u64,
            CUmemorytype::DEVICE | CUmemorytype::UNIFIED => self.device,
            _ => return Err(invalid),
        };
        let pitch_bytes = if self.pitch == 0 { extent.width_bytes } else { self.pitch as u64 };
        let height = if self.height == 0 { extent.height } else { self.height as u64 };
        let too_narrow = pitch_bytes < (self.x_bytes as u64).saturating_add(extent.width_bytes)
            && (extent.height > 1 || extent.depth > 1);
        if too_narrow || (height < extent.height && extent.depth > 1) {
            return Err(invalid);
        }
        let slice_bytes = pitch_bytes.checked_mul(height).ok_or(invalid)?;
        let start = (self.z as u64).checked_mul(slice_bytes).and_then(|z| {
            let y = (self.y as u64).checked_mul(pitch_bytes)?;
            base.checked_add(z)?.checked_add(y)?.checked_add(self.x_bytes as u64)
        });
        Ok(End { address: start.ok_or(invalid)?, pitch_bytes, slice_bytes })
    }
}

impl Described {
    fn is_array(&self) -> bool {
        self.kind == CUmemorytype::ARRAY
    }

    fn side(&self, client: &Client, extent: Extent) -> Result<Side> {
        if !self.is_array() {
            return Ok(Side::Memory(self.end(extent)?));
        }
        let corner = Corner { x_bytes: self.x_bytes as u64, y: self.y as u64, z: self.z as u64 };
        Ok(Side::Array(arrays::get(client, self.array.0)?, corner))
    }
}

/// Both ends of a volume, destination first, and its extent.
fn described_volume(c: &CUDA_MEMCPY3D) -> Result<(Described, Described, Extent)> {
    if c.srcLOD != 0 || c.dstLOD != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let extent = Extent {
        width_bytes: c.WidthInBytes as u64,
        height: c.Height as u64,
        depth: c.Depth as u64,
    };
    let to = Described {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x_bytes: c.dstXInBytes,
        y: c.dstY,
        z: c.dstZ,
        pitch: c.dstPitch,
        height: c.dstHeight,
    };
    let from = Described {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x_bytes: c.srcXInBytes,
        y: c.srcY,
        z: c.srcZ,
        pitch: c.srcPitch,
        height: c.srcHeight,
    };
    Ok((to, from, extent))
}

/// The same, of memory alone: arrays in graphs are absent.
pub(crate) fn copied_volume(c: &CUDA_MEMCPY3D) -> Result<(End, End, Extent)> {
    let (to, from, extent) = described_volume(c)?;
    Ok((to.end(extent)?, from.end(extent)?, extent))
}

/// # Safety
/// Host ends are the caller's memory, as large as the description says.
unsafe fn shaped(
    to: Described,
    from: Described,
    extent: Extent,
    hStream: CUstream,
    timing: Timing,
) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        if to.is_array() || from.is_array() {
            let (to, from) = (to.side(client, extent)?, from.side(client, extent)?);
            // SAFETY: the caller's promise.
            return unsafe { array_copy::copy(client, &target, &to, &from, extent, timing) };
        }
        let (to, from) = (to.end(extent)?, from.end(extent)?);
        // SAFETY: the caller's promise.
        unsafe { copy(client, &target, to, from, extent, timing) }
    })
}

/// # Safety
/// `description` is null or valid, and describes the caller's memory.
unsafe fn plane(description: *const CUDA_MEMCPY2D, hStream: CUstream, timing: Timing) -> CUresult {
    if description.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    let c = unsafe { description.read() };
    let extent = Extent { width_bytes: c.WidthInBytes as u64, height: c.Height as u64, depth: 1 };
    let to = Described {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x_bytes: c.dstXInBytes,
        y: c.dstY,
        z: 0,
        pitch: c.dstPitch,
        height: 0,
    };
    let from = Described {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x_bytes: c.srcXInBytes,
        y: c.srcY,
        z: 0,
        pitch: c.srcPitch,
        height: 0,
    };
    // SAFETY: the caller's promise.
    unsafe { shaped(to, from, extent, hStream, timing) }
}

/// # Safety
/// `description` is null or valid, and describes the caller's memory.
pub(in crate::entry) unsafe fn volume(
    description: *const CUDA_MEMCPY3D,
    hStream: CUstream,
    timing: Timing,
) -> CUresult {
    if description.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    let c = unsafe { description.read() };
    match described_volume(&c) {
        // SAFETY: the caller's promise.
        Ok((to, from, extent)) => unsafe { shaped(to, from, extent, hStream, timing) },
        Err(error) => error,
    }
}

pub(crate) unsafe fn cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { plane(pCopy, CUstream::LEGACY, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy2D_v2_ptds(pCopy: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { plane(pCopy, CUstream::PER_THREAD, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(pCopy: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { plane(pCopy, CUstream::LEGACY, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2_ptds(pCopy: *const CUDA_MEMCPY2D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { plane(pCopy, CUstream::PER_THREAD, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy3D_v2(pCopy: *const CUDA_MEMCPY3D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { volume(pCopy, CUstream::LEGACY, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy3D_v2_ptds(pCopy: *const CUDA_MEMCPY3D) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { volume(pCopy, CUstream::PER_THREAD, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(
    pCopy: *const CUDA_MEMCPY2D,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { plane(pCopy, hStream, Timing::Asynchronous) }
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(
    pCopy: *const CUDA_MEMCPY3D,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { volume(pCopy, hStream, Timing::Asynchronous) }
}
