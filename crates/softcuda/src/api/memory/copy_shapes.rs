//! Two- and three-dimensional copies of memory and arrays.

use cuda_abi::types::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUstream};

use super::copy::{Mode, on_both_defaults, submit};
use super::volume::{Corner, Volume};
use crate::api::answer::Answer;
use crate::api::driver::driver;
use crate::api::out;

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

on_both_defaults! {
    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds(pCopy: *const CUDA_MEMCPY3D_PEER)
        |stream| volume_of_peers(stream, pCopy, Mode::Synchronous);
}

api! {
    fn cuMemcpy3DPeerAsync(pCopy: *const CUDA_MEMCPY3D_PEER, hStream: CUstream) {
        volume_of_peers(hStream, pCopy, Mode::Asynchronous)
    }
}

/// Submits a copy of one row.
pub(crate) fn submit_volume(
    stream: CUstream,
    from: Corner,
    to: Corner,
    width_bytes: usize,
    mode: Mode,
) -> Answer {
    let volume = Volume::row(from, to, width_bytes);
    submit(stream, volume.copy(driver()?)?, |_| volume, mode)
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

/// All devices share one address space: the contexts need not be looked at.
fn volume_of_peers(stream: CUstream, descriptor: *const CUDA_MEMCPY3D_PEER, mode: Mode) -> Answer {
    // SAFETY: the caller's structure.
    let d = unsafe { out::read(descriptor)? };
    let plain = CUDA_MEMCPY3D {
        srcXInBytes: d.srcXInBytes,
        srcY: d.srcY,
        srcZ: d.srcZ,
        srcMemoryType: d.srcMemoryType,
        srcHost: d.srcHost,
        srcDevice: d.srcDevice,
        srcArray: d.srcArray,
        srcPitch: d.srcPitch,
        srcHeight: d.srcHeight,
        dstXInBytes: d.dstXInBytes,
        dstY: d.dstY,
        dstZ: d.dstZ,
        dstMemoryType: d.dstMemoryType,
        dstHost: d.dstHost,
        dstDevice: d.dstDevice,
        dstArray: d.dstArray,
        dstPitch: d.dstPitch,
        dstHeight: d.dstHeight,
        WidthInBytes: d.WidthInBytes,
        Height: d.Height,
        Depth: d.Depth,
        ..CUDA_MEMCPY3D::default()
    };
    let volume = Volume::from_c(&plain);
    submit(stream, volume.copy(driver()?)?, |_| volume, mode)
}
