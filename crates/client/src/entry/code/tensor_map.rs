//! Tensor maps: 128 bytes that only the driver knows how to write. Each thread knows what it asked
//! for ([`crate::code::tensor_maps`]).

use crate::client::run;
use crate::code::tensor_maps::TensorMaps;
use crate::entry::arguments::not_null;
use crate::result::Result;
use crate::thread::current;
use core::ffi::c_void;
use cuda_abi::types::*;
use link::wire::command::Opcode;
use link::wire::query::{
    TENSOR_IM2COL, TENSOR_IM2COL_WIDE, TENSOR_TILED, TensorMapAddress, TensorMapEncode,
    TensorMapReply,
};
use std::cell::RefCell;
use zerocopy::IntoBytes;

const MOST_DIMENSIONS: u32 = 5;

thread_local! {
    /// In a box: all thread-locals of this library together must stay below the 512 bytes that
    /// loaders keep for libraries that come late, else each look at any of them takes longer
    /// ([`crate::thread::here`]).
    static MAPS: RefCell<Option<Box<TensorMaps>>> = const { RefCell::new(None) };
}

/// Reads `count` elements into the begin of an array.
///
/// # Safety
/// `from` is null or has so many elements.
unsafe fn read<T: Copy, const N: usize>(to: &mut [T; N], from: *const T, count: u32) -> Result {
    for (i, place) in to.iter_mut().enumerate().take(count as usize) {
        not_null(from)?;
        // SAFETY: the caller's promise.
        *place = unsafe { from.add(i).read() };
    }
    Ok(())
}

fn encode(question: TensorMapEncode) -> Result<CUtensorMap> {
    let known = MAPS.try_with(|maps| maps.borrow().as_ref().and_then(|maps| maps.find(&question)));
    if let Ok(Some(opaque)) = known {
        return Ok(CUtensorMap { opaque });
    }
    let (backend, id) = current::context()?.backend()?;
    let reply: TensorMapReply =
        backend.session.call_for(id, Opcode::TensorMapEncode, &[question.as_bytes()])?;
    // A thread that is ending remembers nothing.
    let _ = MAPS.try_with(|maps| {
        maps.borrow_mut().get_or_insert_default().note(&question, reply.bytes);
    });
    Ok(CUtensorMap { opaque: reply.bytes })
}

/// What all three forms take.
///
/// # Safety
/// The arrays have as many elements as the rank says, the strides one less.
unsafe fn common(
    data_type: CUtensorMapDataType,
    rank: u32,
    address: *mut c_void,
    dimensions: *const u64,
    strides: *const u64,
    element_strides: *const u32,
) -> Result<TensorMapEncode> {
    if rank == 0 || rank > MOST_DIMENSIONS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut question = TensorMapEncode {
        address: address.addr() as u64,
        data_type: data_type.0,
        rank,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe {
        read(&mut question.dimensions, dimensions, rank)?;
        read(&mut question.strides_bytes, strides, rank - 1)?;
        read(&mut question.element_strides, element_strides, rank)?;
    }
    Ok(question)
}

pub(crate) unsafe fn cuTensorMapEncodeTiled(
    tensorMap: *mut CUtensorMap,
    tensorDataType: CUtensorMapDataType,
    tensorRank: cuuint32_t,
    globalAddress: *mut c_void,
    globalDim: *const cuuint64_t,
    globalStrides: *const cuuint64_t,
    boxDim: *const cuuint32_t,
    elementStrides: *const cuuint32_t,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2Promotion: CUtensorMapL2promotion,
    oobFill: CUtensorMapFloatOOBfill,
) -> CUresult {
    run(|_| {
        // SAFETY: the caller's arrays, which `common` has checked the rank of.
        let mut question = unsafe {
            let mut question = common(
                tensorDataType,
                tensorRank,
                globalAddress,
                globalDim,
                globalStrides,
                elementStrides,
            )?;
            read(&mut question.box_dimensions, boxDim, tensorRank)?;
            question
        };
        question.mode = TENSOR_TILED;
        question.interleave = interleave.0;
        question.swizzle = swizzle.0;
        question.l2_promotion = l2Promotion.0;
        question.fill = oobFill.0;
        put!(tensorMap, encode(question)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuTensorMapEncodeIm2col(
    tensorMap: *mut CUtensorMap,
    tensorDataType: CUtensorMapDataType,
    tensorRank: cuuint32_t,
    globalAddress: *mut c_void,
    globalDim: *const cuuint64_t,
    globalStrides: *const cuuint64_t,
    pixelBoxLowerCorner: *const i32,
    pixelBoxUpperCorner: *const i32,
    channelsPerPixel: cuuint32_t,
    pixelsPerColumn: cuuint32_t,
    elementStrides: *const cuuint32_t,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2Promotion: CUtensorMapL2promotion,
    oobFill: CUtensorMapFloatOOBfill,
) -> CUresult {
    run(|_| {
        // SAFETY: the caller's arrays; the corners leave out channels and images.
        let mut question = unsafe {
            let mut question = common(
                tensorDataType,
                tensorRank,
                globalAddress,
                globalDim,
                globalStrides,
                elementStrides,
            )?;
            let corners = tensorRank.saturating_sub(2);
            read(&mut question.lower_corner, pixelBoxLowerCorner, corners)?;
            read(&mut question.upper_corner, pixelBoxUpperCorner, corners)?;
            question
        };
        question.mode = TENSOR_IM2COL;
        question.channels_per_pixel = channelsPerPixel;
        question.pixels_per_column = pixelsPerColumn;
        question.interleave = interleave.0;
        question.swizzle = swizzle.0;
        question.l2_promotion = l2Promotion.0;
        question.fill = oobFill.0;
        put!(tensorMap, encode(question)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuTensorMapEncodeIm2colWide(
    tensorMap: *mut CUtensorMap,
    tensorDataType: CUtensorMapDataType,
    tensorRank: cuuint32_t,
    globalAddress: *mut c_void,
    globalDim: *const cuuint64_t,
    globalStrides: *const cuuint64_t,
    pixelBoxLowerCornerWidth: i32,
    pixelBoxUpperCornerWidth: i32,
    channelsPerPixel: cuuint32_t,
    pixelsPerColumn: cuuint32_t,
    elementStrides: *const cuuint32_t,
    interleave: CUtensorMapInterleave,
    mode: CUtensorMapIm2ColWideMode,
    swizzle: CUtensorMapSwizzle,
    l2Promotion: CUtensorMapL2promotion,
    oobFill: CUtensorMapFloatOOBfill,
) -> CUresult {
    run(|_| {
        // SAFETY: the caller's arrays.
        let mut question = unsafe {
            common(
                tensorDataType,
                tensorRank,
                globalAddress,
                globalDim,
                globalStrides,
                elementStrides,
            )
        }?;
        question.mode = TENSOR_IM2COL_WIDE;
        question.lower_corner[0] = pixelBoxLowerCornerWidth;
        question.upper_corner[0] = pixelBoxUpperCornerWidth;
        question.channels_per_pixel = channelsPerPixel;
        question.pixels_per_column = pixelsPerColumn;
        question.interleave = interleave.0;
        question.wide_mode = mode.0;
        question.swizzle = swizzle.0;
        question.l2_promotion = l2Promotion.0;
        question.fill = oobFill.0;
        put!(tensorMap, encode(question)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuTensorMapReplaceAddress(
    tensorMap: *mut CUtensorMap,
    globalAddress: *mut c_void,
) -> CUresult {
    run(|_| {
        not_null(tensorMap)?;
        // SAFETY: not null; the caller's structure.
        let bytes = unsafe { tensorMap.read() }.opaque;
        let question = TensorMapAddress { bytes, address: globalAddress.addr() as u64 };
        let (backend, id) = current::context()?.backend()?;
        let reply: TensorMapReply =
            backend.session.call_for(id, Opcode::TensorMapAddress, &[question.as_bytes()])?;
        put!(tensorMap, CUtensorMap { opaque: reply.bytes });
        Ok(())
    })
}
