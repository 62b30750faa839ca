//! Copies as programs describe them, the copies of bytes that they come to, and the check of both
//! ends.

use cuda_abi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUmemorytype, CUresult};

use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::device::transfer::{Copy, End, Side};

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
    pub(crate) fn from_plane(d: &CUDA_MEMCPY2D) -> Self {
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

    /// A copy of one row.
    pub(crate) fn row(from: Corner, to: Corner, width_bytes: usize) -> Self {
        Volume { from, to, width_bytes, height: 1, depth: 1 }
    }

    /// A plain copy of one row.
    pub(crate) fn linear(copy: &Copy) -> Self {
        let corner = |end: &End| match end.side {
            Side::Host => Corner::host(end.address as *const u8),
            Side::Device => Corner::device(end.address),
        };
        Volume::row(corner(&copy.from), corner(&copy.to), copy.width_bytes as usize)
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
            from: self.from.end(driver, self.extent())?,
            to: self.to.end(driver, self.extent())?,
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
    /// The begin of something.
    fn at(kind: CUmemorytype, address: u64, array: CUarray, x_bytes: usize) -> Self {
        let (host, device) = (address, address);
        Corner { kind, host, device, array, x_bytes, y: 0, z: 0, pitch: 0, height: 0 }
    }

    pub(crate) fn host<T>(pointer: *const T) -> Self {
        Corner::at(CUmemorytype::HOST, pointer as u64, CUarray::NULL, 0)
    }

    pub(crate) fn device(address: u64) -> Self {
        Corner::at(CUmemorytype::DEVICE, address, CUarray::NULL, 0)
    }

    /// A byte of an array's first row.
    pub(crate) fn array(array: CUarray, offset_bytes: usize) -> Self {
        Corner::at(CUmemorytype::ARRAY, 0, array, offset_bytes)
    }

    fn end(&self, driver: &Driver, [width, rows, slices]: [usize; 3]) -> Answer<End> {
        let end = match self.kind {
            CUmemorytype::HOST => End::linear(self.host, Side::Host),
            CUmemorytype::DEVICE => End::linear(self.device, Side::Device),
            CUmemorytype::UNIFIED => side_of(driver, self.device),
            CUmemorytype::ARRAY => return self.array_end(driver, [width, rows, slices]),
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

    /// An end in an array, all of it inside.
    fn array_end(&self, driver: &Driver, size: [usize; 3]) -> Answer<End> {
        let image = driver.arrays.get(self.array.0)?.image;
        let have = [image.row_bytes, u64::from(image.extent[1]), u64::from(image.extent[2])];
        let at = [self.x_bytes, self.y, self.z];
        let is_inside = (0..3).all(|axis| {
            at[axis].checked_add(size[axis]).is_some_and(|end| end as u64 <= have[axis])
        });
        if !is_inside {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let [x, y, z] = at.map(|at| at as u64);
        Ok(End {
            address: image.base + z * image.slice_bytes + y * image.row_bytes + x,
            side: Side::Device,
            row_bytes: image.row_bytes,
            slice_bytes: image.slice_bytes,
        })
    }
}

/// An end of which only the address says what it is.
pub(crate) fn side_of(driver: &Driver, address: u64) -> End {
    let is_known = driver.space.allocation_at(address).is_some();
    End::linear(address, if is_known { Side::Device } else { Side::Host })
}

/// Checks a copy's addresses: CUDA_ERROR_INVALID_VALUE. Returns it with host memory that the driver
/// knows taken as device memory, and which ends it does not know.
pub(crate) fn check(driver: &Driver, mut copy: Copy) -> Answer<(Copy, [bool; 2])> {
    let mut is_pageable = [false; 2];
    for (end, pageable) in [&mut copy.from, &mut copy.to].into_iter().zip(&mut is_pageable) {
        if end.address == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if end.side == Side::Host {
            // Pinned, registered and managed memory is checked like device memory.
            match driver.space.allocation_at(end.address) {
                Some(_) => end.side = Side::Device,
                None => *pageable = true,
            }
        }
    }
    // Memory of a graph is there only while the graph runs.
    let is_fine = copy.is_accessible(&driver.space)
        || [copy.from, copy.to].iter().any(|end| driver.graph_memory.covers(end.address));
    if is_fine { Ok((copy, is_pageable)) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
