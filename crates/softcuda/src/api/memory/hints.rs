//! Hints about managed memory: where it will be used. It is always everywhere, so they are checked
//! and change nothing.

use cuda_abi::types::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmemLocation, CUmemLocationType as Place, CUresult,
    CUstream,
};

use crate::api::Answer;
use crate::api::driver::{Driver, driver};
use crate::api::stream::find;
use crate::device::memory::AllocationKind;

/// The host, in the functions of before locations.
const CPU: CUdevice = -1;
/// Advice runs from 1 to this.
const LAST_ADVICE: u32 = 6;

api! {
    fn cuMemPrefetchAsync(devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        if dstDevice != CPU {
            driver.device(dstDevice)?;
        }
        check(driver, devPtr, count)
    }

    fn cuMemPrefetchAsync_v2(devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, hStream: CUstream) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        check_place(driver, &location)?;
        check(driver, devPtr, count)
    }

    fn cuMemAdvise(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) {
        let driver = driver()?;
        if device != CPU {
            driver.device(device)?;
        }
        advise(driver, devPtr, count, advice)
    }

    fn cuMemAdvise_v2(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) {
        let driver = driver()?;
        check_place(driver, &location)?;
        advise(driver, devPtr, count, advice)
    }
}

fn advise(driver: &Driver, address: u64, size_bytes: usize, advice: CUmem_advise) -> Answer {
    if !(1..=LAST_ADVICE).contains(&advice.0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check(driver, address, size_bytes)
}

fn check_place(driver: &Driver, location: &CUmemLocation) -> Answer {
    match location.type_ {
        Place::DEVICE => driver.device(location.id).map(|_| ()),
        Place::HOST | Place::HOST_NUMA | Place::HOST_NUMA_CURRENT => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Managed memory only.
fn check(driver: &Driver, address: u64, size_bytes: usize) -> Answer {
    let found = driver.space.allocation_at(address);
    let found = found.filter(|found| found.kind == AllocationKind::Managed);
    let end = address.checked_add(size_bytes as u64);
    match (found, end) {
        (Some(found), Some(end)) if size_bytes > 0 && end <= found.range().end => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
