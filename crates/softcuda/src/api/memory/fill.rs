//! Memsets.

use cuda_abi::types::{CUdeviceptr, CUresult, CUstream};

use super::copy::on_both_defaults;
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::graph::NodeKind;
use crate::api::stream::find;
use crate::api::stream::submit::submit;
use crate::device::memory::AllocationKind;
use crate::device::transfer::Fill;

on_both_defaults! {
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds(dstDevice: CUdeviceptr, uc: u8, N: usize)
        |stream| fill_now(stream, dstDevice, 0, uc.into(), 1, N, 1);
    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds(dstDevice: CUdeviceptr, us: u16, N: usize)
        |stream| fill_now(stream, dstDevice, 0, us.into(), 2, N, 1);
    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds(dstDevice: CUdeviceptr, ui: u32, N: usize)
        |stream| fill_now(stream, dstDevice, 0, ui, 4, N, 1);
    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds(dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize)
        |stream| fill_now(stream, dstDevice, dstPitch, uc.into(), 1, Width, Height);
    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds(dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize)
        |stream| fill_now(stream, dstDevice, dstPitch, us.into(), 2, Width, Height);
    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds(dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize)
        |stream| fill_now(stream, dstDevice, dstPitch, ui, 4, Width, Height);
}

api! {
    fn cuMemsetD8Async(dstDevice: CUdeviceptr, uc: u8, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, 0, uc.into(), 1, N, 1)
    }
    fn cuMemsetD16Async(dstDevice: CUdeviceptr, us: u16, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, 0, us.into(), 2, N, 1)
    }
    fn cuMemsetD32Async(dstDevice: CUdeviceptr, ui: u32, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, 0, ui, 4, N, 1)
    }
    fn cuMemsetD2D8Async(dstDevice: CUdeviceptr, dstPitch: usize, uc: u8, Width: usize, Height: usize, hStream: CUstream) {
        fill(hStream, dstDevice, dstPitch, uc.into(), 1, Width, Height)
    }
    fn cuMemsetD2D16Async(dstDevice: CUdeviceptr, dstPitch: usize, us: u16, Width: usize, Height: usize, hStream: CUstream) {
        fill(hStream, dstDevice, dstPitch, us.into(), 2, Width, Height)
    }
    fn cuMemsetD2D32Async(dstDevice: CUdeviceptr, dstPitch: usize, ui: u32, Width: usize, Height: usize, hStream: CUstream) {
        fill(hStream, dstDevice, dstPitch, ui, 4, Width, Height)
    }
}

/// A fill that the host may read when the call returns: one of memory that the host reaches waits,
/// one of device memory is merely ordered ("API synchronization behavior" of NVIDIA's documentation
/// of the driver API).
fn fill_now(
    stream: CUstream,
    address: u64,
    pitch: usize,
    value: u32,
    element_bytes: u64,
    width: usize,
    height: usize,
) -> Answer {
    fill(stream, address, pitch, value, element_bytes, width, height)?;
    let (driver, _, stream) = find(stream)?;
    let is_of_the_host = driver.space.allocation_at(address).is_some_and(|allocation| {
        use AllocationKind::{Host, Managed, Registered};
        matches!(allocation.kind, Host { .. } | Registered { .. } | Managed)
    });
    if is_of_the_host && !driver.is_capturing(&stream) {
        driver.engine.synchronize_stream(stream.id)?;
    }
    Ok(())
}

/// Submits a fill in its stream's order.
fn fill(
    stream: CUstream,
    address: u64,
    pitch: usize,
    value: u32,
    element_bytes: u64,
    width: usize,
    height: usize,
) -> Answer {
    let (driver, _, stream) = find(stream)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let fill = Fill {
        address,
        row_bytes: pitch as u64,
        value,
        element_bytes,
        width: width as u64,
        height: height as u64,
    };
    if !driver.graph_memory.covers(address) {
        check(driver, &fill)?;
    }
    submit(driver, &stream, NodeKind::Memset(fill))
}

/// CUDA_ERROR_INVALID_VALUE for a fill that is misaligned or leaves accessible memory.
pub(crate) fn check(driver: &Driver, fill: &Fill) -> Answer {
    let Fill { address, row_bytes: pitch, element_bytes, width, height, .. } = *fill;
    let row_bytes = width.checked_mul(element_bytes).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let last = pitch.checked_mul(height - 1).and_then(|at| at.checked_add(address));
    let table = driver.space.accessible().snapshot();
    let is_valid = address.is_multiple_of(element_bytes)
        && (height == 1 || (pitch >= row_bytes && pitch.is_multiple_of(element_bytes)))
        && table.covers(address, row_bytes)
        && last.is_some_and(|last| table.covers(last, row_bytes));
    if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}
