//! Arrays, texture and surface objects, and a kernel that executes one instruction on a handle.

#![allow(dead_code)]

use std::ffi::c_void;

use cuda_abi::types::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC,
    CUaddress_mode as Mode, CUarray, CUarray_format as Format, CUfilter_mode as Filter,
    CUmemorytype, CUresourcetype,
};

use crate::cu;
use crate::support::{allocate, function, launch};

pub(crate) const LAYERED: u32 = 1;
pub(crate) const SURFACE: u32 = 2;
pub(crate) const CUBEMAP: u32 = 4;
pub(crate) const GATHER: u32 = 8;

pub(crate) const AS_INTEGERS: u32 = 1;
pub(crate) const NORMALIZED: u32 = 2;

/// Size in bytes of a channel.
pub(crate) fn channel_bytes(format: Format) -> usize {
    match format {
        Format::UNSIGNED_INT8
        | Format::SIGNED_INT8
        | Format::UNORM_INT8X4
        | Format::SNORM_INT8X4 => 1,
        Format::UNSIGNED_INT16 | Format::SIGNED_INT16 | Format::HALF => 2,
        _ => 4,
    }
}

pub(crate) fn descriptor(
    format: Format,
    channels: u32,
    extent: [usize; 3],
    flags: u32,
) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent[0],
        Height: extent[1],
        Depth: extent[2],
        Format: format,
        NumChannels: channels,
        Flags: flags,
    }
}

/// A copy between all of an array and host memory at `bytes`.
pub(crate) fn whole(
    array: usize,
    texel_bytes: usize,
    extent: [usize; 3],
    bytes: *mut u8,
) -> CUDA_MEMCPY3D {
    let [width, height, depth] = extent.map(|n| n.max(1));
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: bytes.cast_const().cast(),
        srcPitch: width * texel_bytes,
        srcHeight: height,
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: CUarray(array),
        WidthInBytes: width * texel_bytes,
        Height: height,
        Depth: depth,
        ..CUDA_MEMCPY3D::default()
    }
}

pub(crate) fn fill(array: usize, texel_bytes: usize, extent: [usize; 3], bytes: &[u8]) {
    let count = extent.map(|n| n.max(1)).iter().product::<usize>();
    assert_eq!(bytes.len(), count * texel_bytes);
    let copy = whole(array, texel_bytes, extent, bytes.as_ptr().cast_mut());
    assert_eq!(cu!(cuMemcpy3D_v2(&copy => *const CUDA_MEMCPY3D)), 0);
}

/// An array that holds `bytes`.
pub(crate) fn array(
    format: Format,
    channels: u32,
    extent: [usize; 3],
    flags: u32,
    bytes: &[u8],
) -> usize {
    let asked = descriptor(format, channels, extent, flags);
    let mut array = 0usize;
    assert_eq!(
        cu!(cuArray3DCreate_v2(&mut array => *mut usize, &asked => *const CUDA_ARRAY3D_DESCRIPTOR)),
        0,
        "{asked:?}"
    );
    // Copies count layers and faces as depth.
    let layers =
        if extent[1] == 0 && flags & LAYERED != 0 { [extent[0], 1, extent[2]] } else { extent };
    fill(array, channels as usize * channel_bytes(format), layers, bytes);
    array
}

pub(crate) fn contents(array: usize, texel_bytes: usize, extent: [usize; 3]) -> Vec<u8> {
    let mut bytes = vec![0u8; extent.map(|n| n.max(1)).iter().product::<usize>() * texel_bytes];
    let to = whole(array, texel_bytes, extent, bytes.as_mut_ptr());
    let from = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::ARRAY,
        srcArray: CUarray(array),
        dstMemoryType: CUmemorytype::HOST,
        dstHost: bytes.as_mut_ptr().cast(),
        dstPitch: to.srcPitch,
        dstHeight: to.srcHeight,
        srcHost: std::ptr::null(),
        dstArray: CUarray(0),
        ..to
    };
    assert_eq!(cu!(cuMemcpy3D_v2(&from => *const CUDA_MEMCPY3D)), 0);
    bytes
}

pub(crate) fn of_array(array: usize) -> CUDA_RESOURCE_DESC {
    let mut resource =
        CUDA_RESOURCE_DESC { resType: CUresourcetype::ARRAY, ..CUDA_RESOURCE_DESC::default() };
    resource.res.array.hArray = CUarray(array);
    resource
}

pub(crate) fn sampling(mode: Mode, filter: Filter, flags: u32) -> CUDA_TEXTURE_DESC {
    CUDA_TEXTURE_DESC { addressMode: [mode; 3], filterMode: filter, flags, ..Default::default() }
}

pub(crate) fn texture(resource: &CUDA_RESOURCE_DESC, sampling: &CUDA_TEXTURE_DESC) -> u64 {
    let (mut texture, no_view) = (0u64, std::ptr::null::<c_void>());
    let code = cu!(cuTexObjectCreate(
        &mut texture => *mut u64, resource => *const CUDA_RESOURCE_DESC, sampling => *const CUDA_TEXTURE_DESC, no_view => *const c_void,
    ));
    assert_eq!(code, 0, "{sampling:?}");
    texture
}

pub(crate) fn surface(array: usize) -> u64 {
    let mut surface = 0u64;
    let resource = of_array(array);
    assert_eq!(
        cu!(cuSurfObjectCreate(&mut surface => *mut u64, &resource => *const CUDA_RESOURCE_DESC)),
        0
    );
    surface
}

/// A kernel whose threads read four words into `c0` to `c3`, execute `body` on handle `h`, and
/// write `r0` to `r3`.
pub(crate) fn kernel(body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64
.visible .entry k(.param .u64 pout, .param .u64 pin, .param .u64 ph, .param .u64 pn) {{
    .reg .pred p; .reg .b16 s<8>; .reg .b32 c<4>, r<4>, n, i, t; .reg .b64 h, out, in, x, w<2>;
    ld.param.u64 out, [pout]; ld.param.u64 in, [pin]; ld.param.u64 h, [ph]; ld.param.u32 n, [pn];
    mov.u32 i, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 i, i, 32, t; setp.ge.u32 p, i, n; @p bra E;
    mul.wide.u32 x, i, 16; add.u64 in, in, x; add.u64 out, out, x;
    ld.global.v4.b32 {{c0,c1,c2,c3}}, [in]; mov.u32 r0, 0; mov.u32 r1, 0; mov.u32 r2, 0; mov.u32 r3, 0;
    {body}
    st.global.v4.b32 [out], {{r0,r1,r2,r3}};
E:  ret;
}}
"
    )
}

/// Runs `body` for each input; the driver's code of the launch, and the results.
pub(crate) fn try_run(body: &str, handle: u64, inputs: &[[u32; 4]]) -> (u32, Vec<[u32; 4]>) {
    let count = inputs.len();
    let (input, output) = (allocate(count * 16), allocate(count * 16));
    assert_eq!(
        cu!(cuMemcpyHtoD_v2(input => u64, inputs.as_ptr() => *const [u32; 4], count * 16 => usize)),
        0
    );
    let function = function(&kernel(body), "k");
    let grid = count.div_ceil(32) as u32;
    assert_eq!(launch(function, grid, 32, 0, &[output, input, handle, count as u64]), 0);
    let code = cu!(cuCtxSynchronize());
    let mut results = vec![[0u32; 4]; count];
    if code == 0 {
        let code = cu!(cuMemcpyDtoH_v2(results.as_mut_ptr() => *mut [u32; 4], output => u64, count * 16 => usize));
        assert_eq!(code, 0);
    }
    (code, results)
}

pub(crate) fn run(body: &str, handle: u64, inputs: &[[u32; 4]]) -> Vec<[u32; 4]> {
    let (code, results) = try_run(body, handle, inputs);
    assert_eq!(code, 0, "{body}");
    results
}

pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: plain numbers without padding.
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)).to_vec()
    }
}

pub(crate) fn floats(results: &[[u32; 4]]) -> Vec<f32> {
    results.iter().map(|words| f32::from_bits(words[0])).collect()
}

pub(crate) fn at(coordinates: &[f32]) -> [u32; 4] {
    std::array::from_fn(|axis| coordinates.get(axis).copied().unwrap_or(0.0).to_bits())
}
