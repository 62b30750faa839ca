//! Hints about managed memory: where it will be used. It is always everywhere, so they are checked,
//! kept and told again, and change nothing.

use std::ffi::c_void;
use std::ops::Range;

use cuda_abi::managed_advice::Place;
use cuda_abi::types::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUresult, CUstream,
};

use crate::api::answer::Answer;
use crate::api::driver::{Driver, current};
use crate::api::stream::find;
use crate::device::memory::AllocationKind;

api! {
    fn cuMemPrefetchAsync(devPtr: CUdeviceptr, count: usize, dstDevice: CUdevice, hStream: CUstream) {
        prefetch(devPtr, count, Place::of_device(dstDevice), hStream)
    }

    fn cuMemPrefetchAsync_v2(devPtr: CUdeviceptr, count: usize, location: CUmemLocation, flags: u32, hStream: CUstream) {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        prefetch(devPtr, count, Place::of_location(&location)?, hStream)
    }

    fn cuMemAdvise(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) {
        advise(devPtr, count, advice, Place::of_device(device))
    }

    fn cuMemAdvise_v2(devPtr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) {
        advise(devPtr, count, advice, Place::of_location(&location)?)
    }

    fn cuMemRangeGetAttribute(
        data: *mut c_void,
        dataSize: usize,
        attribute: CUmem_range_attribute,
        devPtr: CUdeviceptr,
        count: usize,
    ) {
        let (driver, _) = current()?;
        let advice = driver.advices.of(managed(driver, devPtr, count)?);
        // SAFETY: the caller's variable for this attribute.
        unsafe { advice.write(data, dataSize, attribute) }
    }

    fn cuMemRangeGetAttributes(
        data: *mut *mut c_void,
        dataSizes: *mut usize,
        attributes: *mut CUmem_range_attribute,
        numAttributes: usize,
        devPtr: CUdeviceptr,
        count: usize,
    ) {
        let (driver, _) = current()?;
        let advice = driver.advices.of(managed(driver, devPtr, count)?);
        // SAFETY: the caller's arrays and variables.
        unsafe { advice.write_all((data, dataSizes, attributes), numAttributes) }
    }
}

fn prefetch(address: u64, size_bytes: usize, to: Place, stream: CUstream) -> Answer {
    let (driver, _, stream) = find(stream)?;
    driver.graphs.captures.refuse(stream.captured())?;
    known(driver, to)?;
    driver.advices.prefetch(managed(driver, address, size_bytes)?, to);
    Ok(())
}

fn advise(address: u64, size_bytes: usize, advice: CUmem_advise, place: Place) -> Answer {
    let (driver, _) = current()?;
    known(driver, place)?;
    driver.advices.advise(managed(driver, address, size_bytes)?, advice, place)
}

fn known(driver: &Driver, place: Place) -> Answer {
    match place {
        Place::Device(ordinal) => driver.device(ordinal).map(drop),
        Place::Host => Ok(()),
    }
}

/// A range of managed memory.
fn managed(driver: &Driver, address: u64, size_bytes: usize) -> Answer<Range<u64>> {
    let found = driver.space.allocation_at(address);
    let found = found.filter(|found| found.kind == AllocationKind::Managed);
    let end = address.checked_add(size_bytes as u64);
    match (found, end) {
        (Some(found), Some(end)) if size_bytes > 0 && end <= found.range().end => Ok(address..end),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
