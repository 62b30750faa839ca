//! Memsets.
//!
//! The synchronous forms are asynchronous too, except on memory that the host can look at.

use crate::client::run;
use crate::copy::Timing;
use crate::memory::fill::fill;
use crate::memory::pattern::{Pattern, Rows};
use crate::stream::targets;
use cuda_abi::types::*;

fn rows(rows: Rows, pattern: Pattern, hStream: CUstream, timing: Timing) -> CUresult {
    run(|client| fill(client, &targets::target(client, hStream)?, rows, pattern, timing))
}

fn line(address: CUdeviceptr, count: usize) -> Rows {
    Rows { address, pitch_bytes: 0, width: count as u64, height: 1 }
}

fn plane(address: CUdeviceptr, pitch: usize, width: usize, height: usize) -> Rows {
    Rows { address, pitch_bytes: pitch as u64, width: width as u64, height: height as u64 }
}

pub(crate) unsafe fn cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: u8, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 1, value: uc.into() },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD8_v2_ptds(dstDevice: CUdeviceptr, uc: u8, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 1, value: uc.into() },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD8Async(
    dstDevice: CUdeviceptr,
    uc: u8,
    N: usize,
    hStream: CUstream,
) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 1, value: uc.into() },
        hStream,
        Timing::Asynchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D8_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    uc: u8,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 1, value: uc.into() },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D8_v2_ptds(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    uc: u8,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 1, value: uc.into() },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D8Async(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    uc: u8,
    Width: usize,
    Height: usize,
    hStream: CUstream,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 1, value: uc.into() },
        hStream,
        Timing::Asynchronous,
    )
}

pub(crate) unsafe fn cuMemsetD16_v2(dstDevice: CUdeviceptr, us: u16, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 2, value: us.into() },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD16_v2_ptds(dstDevice: CUdeviceptr, us: u16, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 2, value: us.into() },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD16Async(
    dstDevice: CUdeviceptr,
    us: u16,
    N: usize,
    hStream: CUstream,
) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 2, value: us.into() },
        hStream,
        Timing::Asynchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D16_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    us: u16,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 2, value: us.into() },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D16_v2_ptds(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    us: u16,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 2, value: us.into() },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D16Async(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    us: u16,
    Width: usize,
    Height: usize,
    hStream: CUstream,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 2, value: us.into() },
        hStream,
        Timing::Asynchronous,
    )
}

pub(crate) unsafe fn cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: u32, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 4, value: ui },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD32_v2_ptds(dstDevice: CUdeviceptr, ui: u32, N: usize) -> CUresult {
    rows(
        line(dstDevice, N),
        Pattern { element_bytes: 4, value: ui },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD32Async(
    dstDevice: CUdeviceptr,
    ui: u32,
    N: usize,
    hStream: CUstream,
) -> CUresult {
    rows(line(dstDevice, N), Pattern { element_bytes: 4, value: ui }, hStream, Timing::Asynchronous)
}

pub(crate) unsafe fn cuMemsetD2D32_v2(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    ui: u32,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 4, value: ui },
        CUstream::LEGACY,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D32_v2_ptds(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    ui: u32,
    Width: usize,
    Height: usize,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 4, value: ui },
        CUstream::PER_THREAD,
        Timing::Synchronous,
    )
}

pub(crate) unsafe fn cuMemsetD2D32Async(
    dstDevice: CUdeviceptr,
    dstPitch: usize,
    ui: u32,
    Width: usize,
    Height: usize,
    hStream: CUstream,
) -> CUresult {
    rows(
        plane(dstDevice, dstPitch, Width, Height),
        Pattern { element_bytes: 4, value: ui },
        hStream,
        Timing::Asynchronous,
    )
}
