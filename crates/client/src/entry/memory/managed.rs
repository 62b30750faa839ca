//! Hints about managed memory, and what was hinted.

use crate::client::{Client, run};
use crate::result::Result;
use crate::stream::targets;
use crate::two_sided::managed::Attached;
use core::ffi::c_void;
use cuda_abi::managed_advice::Place;
use cuda_abi::types::*;
use link::wire::command::Opcode;
use std::ops::Range;

/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST`, `CU_MEM_ATTACH_SINGLE`.
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;
const ATTACH_SINGLE: u32 = 4;

pub(crate) unsafe fn cuMemPrefetchAsync(
    devPtr: CUdeviceptr,
    count: usize,
    dstDevice: CUdevice,
    hStream: CUstream,
) -> CUresult {
    run(|client| {
        prefetch(client, devPtr, count, known(client, Place::of_device(dstDevice))?, hStream)
    })
}

pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    devPtr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    hStream: CUstream,
) -> CUresult {
    run(|client| {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        prefetch(client, devPtr, count, known(client, Place::of_location(&location)?)?, hStream)
    })
}

pub(crate) unsafe fn cuMemAdvise(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    run(|client| advise(client, devPtr, count, advice, known(client, Place::of_device(device))?))
}

pub(crate) unsafe fn cuMemAdvise_v2(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    run(|client| {
        advise(client, devPtr, count, advice, known(client, Place::of_location(&location)?)?)
    })
}

fn known(client: &Client, place: Place) -> Result<Place> {
    if let Place::Device(ordinal) = place {
        client.device(ordinal)?;
    }
    Ok(place)
}

/// A range of managed memory.
fn range_of(client: &Client, address: CUdeviceptr, size_bytes: usize) -> Result<Range<u64>> {
    let area = client.memory.device_reach(address, size_bytes as u64)?;
    match area.is_managed() && size_bytes > 0 {
        true => Ok(address..address + size_bytes as u64),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// What the host has written goes to the device now, if it is to. What is to come to the host comes
/// as soon as nothing is in flight.
fn prefetch(
    client: &Client,
    address: CUdeviceptr,
    size_bytes: usize,
    to: Place,
    stream: CUstream,
) -> Result {
    let target = targets::target(client, stream)?;
    let range = range_of(client, address, size_bytes)?;
    client.advices.prefetch(range.clone(), to);
    let session = &target.backend.session;
    match to {
        Place::Host => {
            session.two_sided().managed.want(session, range);
            Ok(())
        }
        Place::Device(_) => session.announce(Opcode::Copy).map(drop),
    }
}

/// Whether kernels use an allocation. Streams are not told apart.
pub(crate) unsafe fn cuStreamAttachMemAsync(
    hStream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        target.refuse_capture(client)?;
        let attached = match flags {
            ATTACH_GLOBAL | ATTACH_SINGLE => Attached::Device,
            ATTACH_HOST => Attached::Host,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        let area = client.memory.find(dptr).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if length != 0 && (length as u64 != area.size_bytes || dptr != area.base) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if area.is_managed() {
            target.backend.session.two_sided().managed.attach(dptr, attached);
        }
        Ok(())
    })
}

fn advise(
    client: &Client,
    address: CUdeviceptr,
    size_bytes: usize,
    advice: CUmem_advise,
    place: Place,
) -> Result {
    targets::target(client, CUstream::NULL)?;
    client.advices.advise(range_of(client, address, size_bytes)?, advice, place)
}

pub(crate) unsafe fn cuMemRangeGetAttribute(
    data: *mut c_void,
    dataSize: usize,
    attribute: CUmem_range_attribute,
    devPtr: CUdeviceptr,
    count: usize,
) -> CUresult {
    run(|client| {
        let advice = client.advices.of(range_of(client, devPtr, count)?);
        // SAFETY: the caller's variable for this attribute.
        unsafe { advice.write(data, dataSize, attribute) }
    })
}

pub(crate) unsafe fn cuMemRangeGetAttributes(
    data: *mut *mut c_void,
    dataSizes: *mut usize,
    attributes: *mut CUmem_range_attribute,
    numAttributes: usize,
    devPtr: CUdeviceptr,
    count: usize,
) -> CUresult {
    run(|client| {
        let advice = client.advices.of(range_of(client, devPtr, count)?);
        // SAFETY: the caller's arrays and variables.
        unsafe { advice.write_all((data, dataSizes, attributes), numAttributes) }
    })
}
