//! Copies of contiguous bytes.
//!
//! A `_ptds` variant is the same function on the calling thread's default stream; the `_ptsz` ones
//! come from `cuda_abi::build`.

use crate::client::{Client, run};
use crate::copy::shape::{End, Extent};
use crate::copy::{Timing, copy};
use crate::result::Result;
use crate::stream::targets;
use core::ffi::c_void;
use cuda_abi::types::*;

/// What of an end the function's name promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Memory that the device reaches.
    Device(u64),
    /// Whatever the address is.
    Any(u64),
}

impl Place {
    fn host(pointer: *const c_void) -> Self {
        Self::Any(pointer.addr() as u64)
    }

    /// Checks the promise; returns the end.
    fn end(self, client: &Client, size_bytes: u64) -> Result<End> {
        match self {
            Self::Device(address) => {
                if size_bytes > 0 {
                    client.memory.device_reach(address, size_bytes)?;
                }
                Ok(End::linear(address))
            }
            Self::Any(address) => Ok(End::linear(address)),
        }
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
        let size_bytes = size_bytes as u64;
        let (to, from) = (to.end(client, size_bytes)?, from.end(client, size_bytes)?);
        // SAFETY: the caller's promise.
        unsafe { copy(client, &target, to, from, Extent::linear(size_bytes), timing) }?;
        match timing {
            Timing::Synchronous => target.backend.session.verdict(),
            Timing::Asynchronous => Ok(()),
        }
    })
}

pub(crate) unsafe fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(Place::Any(dst), Place::Any(src), ByteCount, CUstream::LEGACY, Timing::Synchronous)
    }
}

pub(crate) unsafe fn cuMemcpy_ptds(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Any(dst),
            Place::Any(src),
            ByteCount,
            CUstream::PER_THREAD,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe { linear(Place::Any(dst), Place::Any(src), ByteCount, hStream, Timing::Asynchronous) }
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::host(srcHost),
            ByteCount,
            CUstream::LEGACY,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyHtoD_v2_ptds(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::host(srcHost),
            ByteCount,
            CUstream::PER_THREAD,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    dstDevice: CUdeviceptr,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::host(srcHost),
            ByteCount,
            hStream,
            Timing::Asynchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::host(dstHost),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::LEGACY,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoH_v2_ptds(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::host(dstHost),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::PER_THREAD,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    dstHost: *mut c_void,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::host(dstHost),
            Place::Device(srcDevice),
            ByteCount,
            hStream,
            Timing::Asynchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(
    dstDevice: CUdeviceptr,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::LEGACY,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoD_v2_ptds(
    dstDevice: CUdeviceptr,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::PER_THREAD,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    dstDevice: CUdeviceptr,
    srcDevice: CUdeviceptr,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            hStream,
            Timing::Asynchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyPeer(
    dstDevice: CUdeviceptr,
    _dstContext: CUcontext,
    srcDevice: CUdeviceptr,
    _srcContext: CUcontext,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::LEGACY,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyPeer_ptds(
    dstDevice: CUdeviceptr,
    _dstContext: CUcontext,
    srcDevice: CUdeviceptr,
    _srcContext: CUcontext,
    ByteCount: usize,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            CUstream::PER_THREAD,
            Timing::Synchronous,
        )
    }
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    dstDevice: CUdeviceptr,
    _dstContext: CUcontext,
    srcDevice: CUdeviceptr,
    _srcContext: CUcontext,
    ByteCount: usize,
    hStream: CUstream,
) -> CUresult {
    // SAFETY: the caller's memory.
    unsafe {
        linear(
            Place::Device(dstDevice),
            Place::Device(srcDevice),
            ByteCount,
            hStream,
            Timing::Asynchronous,
        )
    }
}
