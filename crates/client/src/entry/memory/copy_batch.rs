//! Several copies in one call, done one after the other, which is one of the orders that a batch
//! allows; and copies between contexts by structure.

use super::copy_shapes::volume;
use crate::client::run;
use crate::copy::shape::{End, Extent};
use crate::copy::{Timing, copy};
use crate::entry::arguments::not_null;
use crate::result::Result;
use crate::stream::targets;
use cuda_abi::types::*;

/// `CU_MEMCPY_SRC_ACCESS_ORDER_*`.
const ACCESS_ORDERS: core::ops::RangeInclusive<u32> = 1..=3;

/// The arrays of a batch.
struct Batch {
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    first_copies: *mut usize,
    attribute_count: usize,
}

impl Batch {
    /// # Safety
    /// The arrays have as many elements as is said.
    unsafe fn check(&self) -> Result {
        let invalid = Err(CUresult::ERROR_INVALID_VALUE);
        not_null(self.to)?;
        not_null(self.from)?;
        not_null(self.sizes)?;
        not_null(self.attributes)?;
        not_null(self.first_copies)?;
        if self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            return invalid;
        }
        let mut before = None;
        for i in 0..self.attribute_count {
            // SAFETY: the caller's promise.
            let (first, attributes) =
                unsafe { (self.first_copies.add(i).read(), self.attributes.add(i).read()) };
            let in_order = before.map_or(first == 0, |before| first > before);
            if !in_order
                || first >= self.count
                || !ACCESS_ORDERS.contains(&attributes.srcAccessOrder.0)
            {
                return invalid;
            }
            before = Some(first);
        }
        Ok(())
    }
}

/// Does the copies; an error comes with the place of the copy that it is about, if it is about one.
///
/// # Safety
/// The arrays have as many elements as is said, and the ends are the caller's memory.
unsafe fn batch(batch: &Batch, hStream: CUstream, fail_index: *mut usize) -> CUresult {
    run(|client| {
        put_optional!(fail_index, usize::MAX);
        let target = targets::target(client, hStream)?;
        // SAFETY: the caller's promise, here and below.
        unsafe { batch.check() }?;
        for i in 0..batch.count {
            // SAFETY: as above.
            let copied = unsafe {
                let to = End::linear(batch.to.add(i).read());
                let from = End::linear(batch.from.add(i).read());
                let extent = Extent::linear(batch.sizes.add(i).read() as u64);
                copy(client, &target, to, from, extent, Timing::Asynchronous)
            };
            if copied.is_err() {
                put_optional!(fail_index, i);
            }
            copied?;
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut CUmemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    failIdx: *mut usize,
    hStream: CUstream,
) -> CUresult {
    let all = Batch {
        to: dsts,
        from: srcs,
        sizes,
        count,
        attributes: attrs,
        first_copies: attrsIdxs,
        attribute_count: numAttrs,
    };
    // SAFETY: the caller's arrays.
    unsafe { batch(&all, hStream, failIdx) }
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut CUmemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    hStream: CUstream,
) -> CUresult {
    let none = core::ptr::null_mut();
    // SAFETY: the same function without a place for the copy that failed.
    unsafe {
        cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, none, hStream)
    }
}

/// # Safety
/// `description` is null or valid, and describes the caller's memory.
unsafe fn peer(
    description: *const CUDA_MEMCPY3D_PEER,
    hStream: CUstream,
    timing: Timing,
) -> CUresult {
    if description.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    let c = unsafe { description.read() };
    // Addresses say by themselves whose they are.
    let copy = CUDA_MEMCPY3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcZ: c.srcZ,
        srcLOD: c.srcLOD,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcPitch: c.srcPitch,
        srcHeight: c.srcHeight,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstZ: c.dstZ,
        dstLOD: c.dstLOD,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstPitch: c.dstPitch,
        dstHeight: c.dstHeight,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        Depth: c.Depth,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe { volume(&copy, hStream, timing) }
}

pub(crate) unsafe fn cuMemcpy3DPeer(pCopy: *const CUDA_MEMCPY3D_PEER) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { peer(pCopy, CUstream::LEGACY, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy3DPeer_ptds(pCopy: *const CUDA_MEMCPY3D_PEER) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { peer(pCopy, CUstream::PER_THREAD, Timing::Synchronous) }
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(
    pCopy: *const CUDA_MEMCPY3D_PEER,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { peer(pCopy, hStream, Timing::Asynchronous) }
}
