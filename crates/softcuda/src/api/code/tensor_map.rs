//! Tensor maps of the tiled mode. Interleaved layouts, packed elements of 4 and 6 bits and the
//! im2col modes are absent (801).

use core::ffi::c_void;

use cuda_abi::types::{
    CUresult, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, cuuint32_t, cuuint64_t,
};

use crate::api::answer::Answer;
use crate::api::out;
use crate::exec::tensor_map::{DIMENSIONS, Outside, Swizzle, TensorElement, TensorMap};

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

api! {
    fn cuTensorMapEncodeTiled(tensorMap: *mut CUtensorMap, tensorDataType: CUtensorMapDataType, tensorRank: cuuint32_t, globalAddress: *mut c_void, globalDim: *const cuuint64_t, globalStrides: *const cuuint64_t, boxDim: *const cuuint32_t, elementStrides: *const cuuint32_t, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle, l2Promotion: CUtensorMapL2promotion, oobFill: CUtensorMapFloatOOBfill) {
        crate::api::driver::driver()?;
        let rank = tensorRank as usize;
        if !(1..=DIMENSIONS).contains(&rank) || l2Promotion.0 > 3 {
            return Err(INVALID);
        }
        let is_known = tensorDataType.0 <= 15 && interleave.0 <= 2 && swizzle.0 <= 6;
        let is_here = tensorDataType.0 <= 12 && interleave == CUtensorMapInterleave::NONE && swizzle.0 <= 3;
        if !is_known || !is_here {
            return Err(if is_known { CUresult::ERROR_NOT_SUPPORTED } else { INVALID });
        }
        // SAFETY: the caller's arrays, as long as the rank says.
        let (extent, stride_bytes, span, mut step) = unsafe {
            (
                read(globalDim, rank)?,
                read(globalStrides, rank - 1)?,
                read(boxDim, rank)?,
                read(elementStrides, rank)?,
            )
        };
        // Elements of the first dimension follow each other, whatever its step.
        if step[0] == 0 || step[0] > 8 {
            return Err(INVALID);
        }
        step[0] = 1;
        let map = TensorMap {
            address: globalAddress as u64,
            element: TensorElement::from_number(tensorDataType.0).ok_or(INVALID)?,
            rank,
            extent,
            stride_bytes,
            span,
            step,
            swizzle: Swizzle::from_number(swizzle.0).ok_or(INVALID)?,
            outside: match oobFill {
                CUtensorMapFloatOOBfill::NONE => Outside::Zero,
                CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA => Outside::Nan,
                _ => return Err(INVALID),
            },
        };
        if !map.is_valid() {
            return Err(INVALID);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(tensorMap, CUtensorMap { opaque: map.encode() }) }
    }

    fn cuTensorMapReplaceAddress(tensorMap: *mut CUtensorMap, globalAddress: *mut c_void) {
        crate::api::driver::driver()?;
        // SAFETY: the caller's pointer.
        let encoded = unsafe { out::read(tensorMap)? };
        let mut map = TensorMap::decode(&encoded.opaque).ok_or(INVALID)?;
        map.address = globalAddress as u64;
        if !map.is_valid() {
            return Err(INVALID);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(tensorMap, CUtensorMap { opaque: map.encode() }) }
    }
}

/// An array that C gives, with zeros behind it.
///
/// # Safety
/// `from` is null or has `count` elements.
unsafe fn read<T: Copy + Default, const N: usize>(from: *const T, count: usize) -> Answer<[T; N]> {
    // SAFETY: by the caller's promise.
    let elements = unsafe { out::read_array(from, count)? };
    Ok(std::array::from_fn(|index| elements.get(index).copied().unwrap_or_default()))
}
