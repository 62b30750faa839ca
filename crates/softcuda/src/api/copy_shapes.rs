//! Two- and three-dimensional copies of linear memory. Arrays are not there yet: 801.

use cuda_abi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUmemorytype, CUresult, CUstream};

use super::copy::{Mode, on_both_defaults, side_of, submit};
use super::driver::{Driver, driver};
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

/// One side of a copy, as the program describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Corner {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    x_bytes: usize,
    y: usize,
    z: usize,
    /// 0: rows follow one another.
    pitch: usize,
    /// Rows per slice; 0: as many as are copied.
    height: usize,
}

/// A copy as the program describes it: a `CUDA_MEMCPY3D` without pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Volume {
    from: Corner,
    to: Corner,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

impl Volume {
    /// A three-dimensional descriptor.
    pub(crate) fn from_c(d: &CUDA_MEMCPY3D) -> Self {
        let from = Corner {
            kind: d.srcMemoryType,
            host: d.srcHost as u64,
            device: d.srcDevice,
            array: d.srcArray,
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
            array: d.dstArray,
            x_bytes: d.dstXInBytes,
            y: d.dstY,
            z: d.dstZ,
            pitch: d.dstPitch,
            height: d.dstHeight,
        };
        Volume { from, to, width_bytes: d.WidthInBytes, height: d.Height, depth: d.Depth }
    }

    /// A two-dimensional descriptor.
    fn from_plane(d: &CUDA_MEMCPY2D) -> Self {
        let from = Corner {
            kind: d.srcMemoryType,
            host: d.srcHost as u64,
            device: d.srcDevice,
            array: d.srcArray,
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
            array: d.dstArray,
            x_bytes: d.dstXInBytes,
            y: d.dstY,
            z: 0,
            pitch: d.dstPitch,
            height: 0,
        };
        Volume { from, to, width_bytes: d.WidthInBytes, height: d.Height, depth: 1 }
    }

    /// A plain copy of one row.
    pub(crate) fn linear(copy: &Copy) -> Self {
        let corner = |end: &End| {
            let kind = match end.side {
                Side::Host => CUmemorytype::HOST,
                Side::Device => CUmemorytype::DEVICE,
            };
            Corner {
                kind,
                host: end.address,
                device: end.address,
                array: CUarray::NULL,
                x_bytes: 0,
                y: 0,
                z: 0,
                pitch: 0,
                height: 0,
            }
        };
        let (from, to) = (corner(&copy.from), corner(&copy.to));
        Volume { from, to, width_bytes: copy.width_bytes as usize, height: 1, depth: 1 }
    }

    /// The descriptor in C.
    pub(crate) fn to_c(self) -> CUDA_MEMCPY3D {
        let (from, to) = (&self.from, &self.to);
        CUDA_MEMCPY3D {
            srcXInBytes: from.x_bytes,
            srcY: from.y,
            srcZ: from.z,
            srcMemoryType: from.kind,
            srcHost: if from.kind == CUmemorytype::HOST { from.host } else { 0 } as *const _,
            srcDevice: if from.kind == CUmemorytype::HOST { 0 } else { from.device },
            srcArray: from.array,
            srcPitch: from.pitch,
            srcHeight: from.height,
            dstXInBytes: to.x_bytes,
            dstY: to.y,
            dstZ: to.z,
            dstMemoryType: to.kind,
            dstHost: if to.kind == CUmemorytype::HOST { to.host } else { 0 } as *mut _,
            dstDevice: if to.kind == CUmemorytype::HOST { 0 } else { to.device },
            dstArray: to.array,
            dstPitch: to.pitch,
            dstHeight: to.height,
            WidthInBytes: self.width_bytes,
            Height: self.height,
            Depth: self.depth,
            ..CUDA_MEMCPY3D::default()
        }
    }

    /// The copy of bytes that this comes to.
    pub(crate) fn copy(&self, driver: &Driver) -> Answer<Copy> {
        Ok(Copy {
            from: self.from.end(driver, self.width_bytes, self.height)?,
            to: self.to.end(driver, self.width_bytes, self.height)?,
            width_bytes: self.width_bytes as u64,
            height: self.height as u64,
            depth: self.depth as u64,
        })
    }

    /// Whether it is one row.
    pub(crate) fn is_linear(&self) -> bool {
        self.height == 1 && self.depth == 1
    }

    /// Kinds of memory of source and destination.
    pub(crate) fn kinds(&self) -> (CUmemorytype, CUmemorytype) {
        (self.from.kind, self.to.kind)
    }

    /// Bytes of a row, rows, slices.
    pub(crate) fn extent(&self) -> [usize; 3] {
        [self.width_bytes, self.height, self.depth]
    }
}

impl Corner {
    fn end(&self, driver: &Driver, width: usize, rows: usize) -> Answer<End> {
        let end = match self.kind {
            CUmemorytype::HOST => End::linear(self.host, Side::Host),
            CUmemorytype::DEVICE => End::linear(self.device, Side::Device),
            CUmemorytype::UNIFIED => side_of(driver, self.device),
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
    let volume = Volume::from_plane(&unsafe { out::read(descriptor)? });
    submit(stream, volume.copy(driver()?)?, |_| volume, mode)
}

fn volume(stream: CUstream, descriptor: *const CUDA_MEMCPY3D, mode: Mode) -> Answer {
    // SAFETY: the caller's structure.
    let volume = Volume::from_c(&unsafe { out::read(descriptor)? });
    submit(stream, volume.copy(driver()?)?, |_| volume, mode)
}
