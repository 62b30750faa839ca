//! Hints about managed memory, and what was hinted.

use crate::client::{Client, run};
use crate::entry::not_null;
use crate::session::Result;
use crate::stream;
use crate::two_sided::managed::{Advice, Place};
use core::ffi::c_void;
use cuda_abi::types::*;
use std::ops::Range;

/// `CU_DEVICE_CPU`.
const CPU: i32 = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: i32 = -2;

pub(crate) unsafe fn cuMemPrefetchAsync(
    devPtr: CUdeviceptr,
    count: usize,
    dstDevice: CUdevice,
    hStream: CUstream,
) -> CUresult {
    run(|client| prefetch(client, devPtr, count, of_device(client, dstDevice)?, hStream))
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
        prefetch(client, devPtr, count, of_location(client, &location)?, hStream)
    })
}

pub(crate) unsafe fn cuMemAdvise(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    run(|client| advise(client, devPtr, count, advice, of_device(client, device)?))
}

pub(crate) unsafe fn cuMemAdvise_v2(
    devPtr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> CUresult {
    run(|client| advise(client, devPtr, count, advice, of_location(client, &location)?))
}

fn of_device(client: &Client, device: CUdevice) -> Result<Place> {
    if device == CPU {
        return Ok(Place::Host);
    }
    client.device(device).map(|_| Place::Device(device))
}

fn of_location(client: &Client, location: &CUmemLocation) -> Result<Place> {
    use CUmemLocationType as Type;
    match location.type_ {
        Type::DEVICE => client.device(location.id).map(|_| Place::Device(location.id)),
        Type::HOST | Type::HOST_NUMA | Type::HOST_NUMA_CURRENT => Ok(Place::Host),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
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
/// when it is touched.
fn prefetch(
    client: &Client,
    address: CUdeviceptr,
    size_bytes: usize,
    to: Place,
    stream: CUstream,
) -> Result {
    let target = stream::target(client, stream)?;
    let range = range_of(client, address, size_bytes)?;
    client.advices.change(range, |advice| advice.prefetched = Some(to));
    match to {
        Place::Host => Ok(()),
        Place::Device(_) => target.backend.session.announce().map(drop),
    }
}

fn advise(
    client: &Client,
    address: CUdeviceptr,
    size_bytes: usize,
    advice: CUmem_advise,
    place: Place,
) -> Result {
    use CUmem_advise as Said;
    let change: fn(&mut Advice, Place) = match advice {
        Said::SET_READ_MOSTLY => |advice, _| advice.is_read_mostly = true,
        Said::UNSET_READ_MOSTLY => |advice, _| advice.is_read_mostly = false,
        Said::SET_PREFERRED_LOCATION => |advice, place| advice.preferred = Some(place),
        Said::UNSET_PREFERRED_LOCATION => |advice, _| advice.preferred = None,
        Said::SET_ACCESSED_BY => |advice, place| _ = advice.accessed_by.insert(place),
        Said::UNSET_ACCESSED_BY => |advice, place| _ = advice.accessed_by.remove(&place),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    stream::target(client, CUstream::NULL)?;
    let range = range_of(client, address, size_bytes)?;
    client.advices.change(range, |advice| change(advice, place));
    Ok(())
}

fn number(place: Option<Place>) -> i32 {
    match place {
        None => NOWHERE,
        Some(Place::Host) => CPU,
        Some(Place::Device(device)) => device,
    }
}

fn type_of(place: Option<Place>) -> i32 {
    let kind = match place {
        None => CUmemLocationType::INVALID,
        Some(Place::Host) => CUmemLocationType::HOST,
        Some(Place::Device(_)) => CUmemLocationType::DEVICE,
    };
    kind.0.cast_signed()
}

/// The numbers that an attribute consists of; where they are a list, those that are there.
fn answer(advice: &Advice, attribute: CUmem_range_attribute) -> Result<Vec<i32>> {
    use CUmem_range_attribute as A;
    Ok(match attribute {
        A::READ_MOSTLY => vec![advice.is_read_mostly.into()],
        A::PREFERRED_LOCATION | A::PREFERRED_LOCATION_ID => vec![number(advice.preferred)],
        A::PREFERRED_LOCATION_TYPE => vec![type_of(advice.preferred)],
        A::ACCESSED_BY => advice.accessed_by.iter().map(|&place| number(Some(place))).collect(),
        A::LAST_PREFETCH_LOCATION | A::LAST_PREFETCH_LOCATION_ID => {
            vec![number(advice.prefetched)]
        }
        A::LAST_PREFETCH_LOCATION_TYPE => vec![type_of(advice.prefetched)],
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// Writes an attribute: a number, or a list with as many numbers as there is room for.
///
/// # Safety
/// `data` has room for `size_bytes`.
unsafe fn write(
    data: *mut c_void,
    size_bytes: usize,
    advice: &Advice,
    attribute: CUmem_range_attribute,
) -> Result {
    not_null(data)?;
    let numbers = answer(advice, attribute)?;
    let room = size_bytes / size_of::<i32>();
    let is_list = attribute == CUmem_range_attribute::ACCESSED_BY;
    if room == 0 || !size_bytes.is_multiple_of(size_of::<i32>()) || (!is_list && room != 1) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for at in 0..room {
        let value = numbers.get(at).copied().unwrap_or(NOWHERE);
        // SAFETY: inside the caller's variable, which may have any alignment.
        unsafe { data.cast::<i32>().add(at).write_unaligned(value) };
    }
    Ok(())
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
        unsafe { write(data, dataSize, &advice, attribute) }
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
        not_null(data)?;
        not_null(dataSizes)?;
        not_null(attributes)?;
        if numAttributes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let advice = client.advices.of(range_of(client, devPtr, count)?);
        (0..numAttributes).try_for_each(|i| {
            // SAFETY: inside the caller's arrays, for an index below their length; the caller's
            // variable for this attribute.
            unsafe {
                let (place, size_bytes) = (data.add(i).read(), dataSizes.add(i).read());
                write(place, size_bytes, &advice, attributes.add(i).read())
            }
        })
    })
}
