//! Several copies in one call. They are done one after the other, which is one of the orders that a
//! batch allows.

use cuda_abi::types::{CUdeviceptr, CUmemcpyAttributes, CUresult, CUstream};

use super::copy::{Mode, submit};
use super::volume::{Volume, side_of};
use crate::api::driver::current;
use crate::api::out;
use crate::device::transfer::Copy;

api! {
    fn cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, hStream: CUstream) {
        // SAFETY: the caller's arrays.
        unsafe { batch(dsts, srcs, sizes, count, (attrs, attrsIdxs, numAttrs), hStream) }.map_err(|(_, code)| code)
    }

    fn cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrsIdxs: *mut usize, numAttrs: usize, failIdx: *mut usize, hStream: CUstream) {
        // SAFETY: the caller's arrays and pointer.
        unsafe {
            batch(dsts, srcs, sizes, count, (attrs, attrsIdxs, numAttrs), hStream).map_err(|(place, code)| {
                out::write_optional(failIdx, place);
                code
            })
        }
    }
}

/// Submits the copies; an error comes with the place of the copy that it is about, or the largest
/// number if it is about none.
///
/// # Safety
/// The arrays have as many elements as is said.
unsafe fn batch(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    (attributes, places, attribute_count): (*const CUmemcpyAttributes, *const usize, usize),
    stream: CUstream,
) -> Result<(), (usize, CUresult)> {
    let whole = |code| (usize::MAX, code);
    // SAFETY: by the caller's promise.
    let read = || unsafe {
        out::read_array(attributes, attribute_count)?;
        let places = out::read_array(places, attribute_count)?;
        let is_ordered = places.first() == Some(&0) && places.windows(2).all(|two| two[0] < two[1]);
        if count == 0 || !is_ordered || places.last().is_some_and(|last| *last >= count) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok((
            out::read_array(to, count)?,
            out::read_array(from, count)?,
            out::read_array(sizes, count)?,
        ))
    };
    let (to, from, sizes) = read().map_err(whole)?;
    let (driver, _) = current().map_err(whole)?;
    for (place, ((to, from), size)) in to.into_iter().zip(from).zip(sizes).enumerate() {
        let copy = Copy::linear(side_of(driver, from), side_of(driver, to), size as u64);
        submit(stream, copy, Volume::linear, Mode::Asynchronous).map_err(|code| (place, code))?;
    }
    Ok(())
}
