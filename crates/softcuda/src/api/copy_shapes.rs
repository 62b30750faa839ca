//! Two- and three-dimensional copies of linear memory. Arrays are not there yet: 801.

use cuda_abi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUmemorytype, CUresult, CUstream};

use super::copy::{Mode, any, on_both_defaults, submit};
use super::{Answer, out};
use crate::device::transfer::{Copy, End, Side};

on_both_defaults! {
    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds(pCopy: *const CUDA_MEMCPY2D)
        |stream| plane(stream, pCopy, Mode::Synchronous);
    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds(pCopy: *const CUDA_MEMCPY2D)
        |stream| plane(stream, pCopy, Mode::Synchronous);
    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds(pCopy: *const CUDA_MEMCPY3D)
        |stream| volume(stream, pCopy, Mode::Synchronous);
}

api! {
    fn cuMemcpy2DAsync_v2(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) {
        plane(hStream, pCopy, Mode::Asynchronous)
    }
    fn cuMemcpy3DAsync_v2(pCopy: *const CUDA_MEMCPY3D, hStream: CUstream) {
        volume(hStream, pCopy, Mode::Asynchronous)
    }
}

/// One side of a descriptor.
struct Corner {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    x_bytes: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Corner {
    fn end(&self, width: usize, rows: usize) -> Answer<End> {
        let end = match self.kind {
            CUmemorytype::HOST => End::linear(self.host, Side::Host),
            CUmemorytype::DEVICE => End::linear(self.device, Side::Device),
            CUmemorytype::UNIFIED => any(self.device)?,
            CUmemorytype::ARRAY => return Err(CUresult::ERROR_NOT_SUPPORTED),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        let width_end = self.x_bytes.checked_add(width).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let pitch = if self.pitch == 0 { width_end } else { self.pitch } as u64;
        if pitch < width_end as u64 && rows > 1 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let height = if self.height == 0 { self.y + rows } else { self.height } as u64;
        let slice_bytes = pitch.checked_mul(height).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let offset = (self.z as u64)
            .checked_mul(slice_bytes)
            .and_then(|z| z.checked_add((self.y as u64).checked_mul(pitch)?))
            .and_then(|at| at.checked_add(self.x_bytes as u64))
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(End {
            address: end.address.wrapping_add(offset),
            side: end.side,
            row_bytes: pitch,
            slice_bytes,
        })
    }
}

fn plane(stream: CUstream, descriptor: *const CUDA_MEMCPY2D, mode: Mode) -> Answer {
    // SAFETY: the caller's structure.
    let d = unsafe { out::read(descriptor)? };
    let from = Corner {
        kind: d.srcMemoryType,
        host: d.srcHost as u64,
        device: d.srcDevice,
        x_bytes: d.srcXInBytes,
        y: d.srcY,
        z: 0,
        pitch: d.srcPitch,
        height: 0,
    };
    let to = Corner {
        kind: d.dstMemoryType,
        host: d.dstHost as u64,
        device: d.dstDevice,
        x_bytes: d.dstXInBytes,
        y: d.dstY,
        z: 0,
        pitch: d.dstPitch,
        height: 0,
    };
    shaped(stream, &from, &to, [d.WidthInBytes, d.Height, 1], mode)
}

fn volume(stream: CUstream, descriptor: *const CUDA_MEMCPY3D, mode: Mode) -> Answer {
    // SAFETY: the caller's structure.
    let d = unsafe { out::read(descriptor)? };
    let from = Corner {
        kind: d.srcMemoryType,
        host: d.srcHost as u64,
        device: d.srcDevice,
        x_bytes: d.srcXInBytes,
        y: d.srcY,
        z: d.srcZ,
        pitch: d.srcPitch,
        height: d.srcHeight,
    };
    let to = Corner {
        kind: d.dstMemoryType,
        host: d.dstHost as u64,
        device: d.dstDevice,
        x_bytes: d.dstXInBytes,
        y: d.dstY,
        z: d.dstZ,
        pitch: d.dstPitch,
        height: d.dstHeight,
    };
    shaped(stream, &from, &to, [d.WidthInBytes, d.Height, d.Depth], mode)
}

fn shaped(
    stream: CUstream,
    from: &Corner,
    to: &Corner,
    [width, height, depth]: [usize; 3],
    mode: Mode,
) -> Answer {
    let copy = Copy {
        from: from.end(width, height)?,
        to: to.end(width, height)?,
        width_bytes: width as u64,
        height: height as u64,
        depth: depth as u64,
    };
    submit(stream, copy, mode)
}
