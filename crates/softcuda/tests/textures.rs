//! Texture and surface instructions in kernels, through the driver's texture and surface objects.
//!
//! Coordinates are chosen so that weights and sums are exact. The expected values were checked on an H200: there, with NVIDIA's driver
//! (580) in softcuda's place, this file passes test by test, but for those of dead handles and of texture variables.

mod support;

use std::ffi::{CString, c_char, c_void};

use cuda_abi::types::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_v1_res_pitch2D,
    CUDA_TEXTURE_DESC, CUaddress_mode as Mode, CUarray, CUarray_format as Format,
    CUfilter_mode as Filter, CUmemorytype, CUmipmappedArray, CUresourcetype,
};
use support::{allocate, context, function, launch};

const LAYERED: u32 = 1;
const SURFACE: u32 = 2;
const CUBEMAP: u32 = 4;
const GATHER: u32 = 8;

const AS_INTEGERS: u32 = 1;
const NORMALIZED: u32 = 2;

/// Size in bytes of a channel.
fn channel_bytes(format: Format) -> usize {
    match format {
        Format::UNSIGNED_INT8
        | Format::SIGNED_INT8
        | Format::UNORM_INT8X4
        | Format::SNORM_INT8X4 => 1,
        Format::UNSIGNED_INT16 | Format::SIGNED_INT16 | Format::HALF => 2,
        _ => 4,
    }
}

fn descriptor(
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
fn whole(array: usize, texel_bytes: usize, extent: [usize; 3], bytes: *mut u8) -> CUDA_MEMCPY3D {
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

fn fill(array: usize, texel_bytes: usize, extent: [usize; 3], bytes: &[u8]) {
    let count = extent.map(|n| n.max(1)).iter().product::<usize>();
    assert_eq!(bytes.len(), count * texel_bytes);
    let copy = whole(array, texel_bytes, extent, bytes.as_ptr().cast_mut());
    assert_eq!(cu!(cuMemcpy3D_v2(&copy => *const CUDA_MEMCPY3D)), 0);
}

/// An array that holds `bytes`.
fn array(format: Format, channels: u32, extent: [usize; 3], flags: u32, bytes: &[u8]) -> usize {
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

fn contents(array: usize, texel_bytes: usize, extent: [usize; 3]) -> Vec<u8> {
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

fn of_array(array: usize) -> CUDA_RESOURCE_DESC {
    let mut resource =
        CUDA_RESOURCE_DESC { resType: CUresourcetype::ARRAY, ..CUDA_RESOURCE_DESC::default() };
    resource.res.array.hArray = CUarray(array);
    resource
}

fn sampling(mode: Mode, filter: Filter, flags: u32) -> CUDA_TEXTURE_DESC {
    CUDA_TEXTURE_DESC { addressMode: [mode; 3], filterMode: filter, flags, ..Default::default() }
}

fn texture(resource: &CUDA_RESOURCE_DESC, sampling: &CUDA_TEXTURE_DESC) -> u64 {
    let (mut texture, no_view) = (0u64, std::ptr::null::<c_void>());
    let code = cu!(cuTexObjectCreate(
        &mut texture => *mut u64, resource => *const CUDA_RESOURCE_DESC, sampling => *const CUDA_TEXTURE_DESC, no_view => *const c_void,
    ));
    assert_eq!(code, 0, "{sampling:?}");
    texture
}

fn surface(array: usize) -> u64 {
    let mut surface = 0u64;
    let resource = of_array(array);
    assert_eq!(
        cu!(cuSurfObjectCreate(&mut surface => *mut u64, &resource => *const CUDA_RESOURCE_DESC)),
        0
    );
    surface
}

/// A kernel whose threads read four words into `c0` to `c3`, execute `body` on handle `h`, and write `r0` to `r3`.
fn kernel(body: &str) -> String {
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
fn try_run(body: &str, handle: u64, inputs: &[[u32; 4]]) -> (u32, Vec<[u32; 4]>) {
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

fn run(body: &str, handle: u64, inputs: &[[u32; 4]]) -> Vec<[u32; 4]> {
    let (code, results) = try_run(body, handle, inputs);
    assert_eq!(code, 0, "{body}");
    results
}

fn bytes_of<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: plain numbers without padding.
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)).to_vec()
    }
}

fn floats(results: &[[u32; 4]]) -> Vec<f32> {
    results.iter().map(|words| f32::from_bits(words[0])).collect()
}

fn at(coordinates: &[f32]) -> [u32; 4] {
    std::array::from_fn(|axis| coordinates.get(axis).copied().unwrap_or(0.0).to_bits())
}

/// A coordinate brought inside, as the programming guide's table of addressing modes has it.
fn inside(mode: Mode, index: i64, size: i64) -> Option<i64> {
    match mode {
        _ if (0..size).contains(&index) => Some(index),
        Mode::WRAP => Some(index.rem_euclid(size)),
        Mode::MIRROR => {
            let index = index.rem_euclid(2 * size);
            Some(index.min(2 * size - 1 - index))
        }
        Mode::CLAMP => Some(index.clamp(0, size - 1)),
        _ => None,
    }
}

const BORDER: f32 = -16.0;

/// A plane sampled at (x, y) in texels.
fn expected(
    texels: &[f32],
    [width, height]: [i64; 2],
    mode: Mode,
    filter: Filter,
    at: [f32; 2],
) -> f32 {
    let texel = |x: i64, y: i64| match (inside(mode, x, width), inside(mode, y, height)) {
        (Some(x), Some(y)) => texels[(y * width + x) as usize],
        _ => BORDER,
    };
    if filter == Filter::POINT {
        return texel(at[0].floor() as i64, at[1].floor() as i64);
    }
    let [x, y] = at.map(|c| c - 0.5);
    let (i, j) = (x.floor() as i64, y.floor() as i64);
    let (a, b) = (x - x.floor(), y - y.floor());
    let row = |j| (1.0 - a) * texel(i, j) + a * texel(i + 1, j);
    (1.0 - b) * row(j) + b * row(j + 1)
}

#[test]
fn planes_are_sampled_by_every_mode_filter_and_unit() {
    context();
    let (width, height) = (8usize, 4usize);
    let texels: Vec<f32> = (0..32).map(|i| ((i * 7 + 3) % 32) as f32 * 8.0).collect();
    let array = array(Format::FLOAT, 1, [width, height, 0], 0, &bytes_of(&texels));
    // Eighths of texels, in and around the plane.
    let places: Vec<[f32; 2]> =
        (0..512).map(|i| [(i % 29) as f32 * 0.625 - 5.0, (i % 23) as f32 * 0.375 - 2.5]).collect();
    let texture_of = |mode, filter, flags| {
        let sampling =
            CUDA_TEXTURE_DESC { borderColor: [BORDER; 4], ..sampling(mode, filter, flags) };
        texture(&of_array(array), &sampling)
    };
    for filter in [Filter::POINT, Filter::LINEAR] {
        for (mode, units) in [
            (Mode::CLAMP, 0),
            (Mode::BORDER, 0),
            (Mode::CLAMP, NORMALIZED),
            (Mode::BORDER, NORMALIZED),
            (Mode::WRAP, NORMALIZED),
            (Mode::MIRROR, NORMALIZED),
        ] {
            let (sx, sy) = if units == 0 { (1.0, 1.0) } else { (width as f32, height as f32) };
            let inputs: Vec<[u32; 4]> =
                places.iter().map(|p| at(&[p[0] / sx, p[1] / sy])).collect();
            let body = "tex.2d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1}];";
            let results = run(body, texture_of(mode, filter, units), &inputs);
            for (place, result) in places.iter().zip(&results) {
                let want = expected(&texels, [width as i64, height as i64], mode, filter, *place);
                let have = f32::from_bits(result[0]);
                assert_eq!(have, want, "{mode:?} {filter:?} {units} at {place:?}");
                assert_eq!(result[1..], [0, 0, 0], "channels that are not there");
            }
        }
    }
    // Integer coordinates are texels, whatever the filter; outside is zero.
    let inputs = [[3, 2, 0, 0], [7, 3, 0, 0], [100, 0, 0, 0], [u32::MAX, 1, 0, 0]];
    for mode in [Mode::BORDER, Mode::CLAMP] {
        let handle = texture_of(mode, Filter::LINEAR, 0);
        let results = run("tex.2d.v4.f32.s32 {r0,r1,r2,r3}, [h, {c0,c1}];", handle, &inputs);
        assert_eq!(floats(&results), [texels[19], texels[31], 0.0, 0.0]);
    }
    let handle = texture_of(Mode::CLAMP, Filter::POINT, 0);
    let halves = run("tex.2d.v2.f16x2.s32 {r0,r1}, [h, {c0,c1}];", handle, &[[0, 0, 0, 0]]);
    assert_eq!(halves[0], [0x4e00, 0, 0, 0], "24 and zeros");
}

#[test]
fn rows_and_buffers_are_sampled() {
    context();
    let words: Vec<u32> = (0..64).map(|i| i * 0x0101_0101).collect();
    let row = array(Format::UNSIGNED_INT32, 1, [64, 0, 0], 0, &bytes_of(&words));
    let point = sampling(Mode::CLAMP, Filter::POINT, AS_INTEGERS);
    let handle = texture(&of_array(row), &point);
    let body = "tex.1d.v4.u32.f32 {r0,r1,r2,r3}, [h, c0];";
    let results = run(body, handle, &[at(&[5.0]), at(&[63.5])]);
    assert_eq!(results, [[words[5], 0, 0, 0], [words[63], 0, 0, 0]]);
    let body = "tex.1d.v4.s32.f32 {r0,r1,r2,r3}, [h, {c0}];";
    assert_eq!(run(body, handle, &[at(&[9.75])])[0][0], words[9]);
    // A buffer of two-channel 16-bit integers.
    let memory = allocate(256);
    let shorts: Vec<i16> = (0..128).map(|i| 50 - i).collect();
    assert_eq!(cu!(cuMemcpyHtoD_v2(memory => u64, shorts.as_ptr() => *const i16, 256 => usize)), 0);
    let mut linear =
        CUDA_RESOURCE_DESC { resType: CUresourcetype::LINEAR, ..CUDA_RESOURCE_DESC::default() };
    linear.res.linear.devPtr = memory;
    linear.res.linear.format = Format::SIGNED_INT16;
    linear.res.linear.numChannels = 2;
    linear.res.linear.sizeInBytes = 256;
    let handle = texture(&linear, &point);
    let body = "tex.1d.v4.s32.s32 {r0,r1,r2,r3}, [h, {c0}];";
    let results = run(body, handle, &[[0, 0, 0, 0], [63, 0, 0, 0], [64, 0, 0, 0]]);
    let signed = |value: i32| value as u32;
    assert_eq!(results[..2], [[50, 49, 0, 0], [signed(-76), signed(-77), 0, 0]]);
    assert_eq!(results[2][..2], [0, 0], "outside a buffer is zero");
    // A pitched plane of floats, filtered.
    let memory = allocate(512 * 4);
    let plane: Vec<f32> = (0..512).map(|i| i as f32).collect();
    assert_eq!(cu!(cuMemcpyHtoD_v2(memory => u64, plane.as_ptr() => *const f32, 2048 => usize)), 0);
    let mut pitched =
        CUDA_RESOURCE_DESC { resType: CUresourcetype::PITCH2D, ..CUDA_RESOURCE_DESC::default() };
    pitched.res.pitch2D = CUDA_RESOURCE_DESC_v1_res_pitch2D {
        devPtr: memory,
        format: Format::FLOAT,
        numChannels: 1,
        width: 16,
        height: 4,
        pitchInBytes: 512,
    };
    let handle = texture(&pitched, &sampling(Mode::CLAMP, Filter::LINEAR, 0));
    let body = "tex.2d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1}];";
    let results = run(body, handle, &[at(&[2.5, 1.5]), at(&[3.0, 2.0])]);
    assert_eq!(floats(&results), [130.0, 194.5]);
}

#[test]
fn integers_are_read_as_they_are_or_as_fractions() {
    context();
    let texels = [0u8, 51, 255, 128, 1, 2, 3, 4];
    let image = array(Format::UNSIGNED_INT8, 4, [2, 1, 0], 0, &texels);
    let body = "tex.2d.v4.u32.s32 {r0,r1,r2,r3}, [h, {c0,c1}];";
    let integers = texture(&of_array(image), &sampling(Mode::CLAMP, Filter::POINT, AS_INTEGERS));
    assert_eq!(run(body, integers, &[[0; 4], [1, 0, 0, 0]]), [[0, 51, 255, 128], [1, 2, 3, 4]]);
    let fractions = texture(&of_array(image), &sampling(Mode::CLAMP, Filter::POINT, 0));
    let body = "tex.2d.v4.f32.s32 {r0,r1,r2,r3}, [h, {c0,c1}];";
    let want = [0.0, 51.0 / 255.0, 1.0, 128.0 / 255.0f32].map(f32::to_bits);
    assert_eq!(run(body, fractions, &[[0; 4]]), [want]);
    let shorts = [-32768i16, 32767, -32767, 0];
    let image = array(Format::SIGNED_INT16, 2, [2, 1, 0], 0, &bytes_of(&shorts));
    let fractions = texture(&of_array(image), &sampling(Mode::CLAMP, Filter::POINT, 0));
    let want = [[-1.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0f32]].map(|t| t.map(f32::to_bits));
    assert_eq!(run(body, fractions, &[[0; 4], [1, 0, 0, 0]]), want);
    // 1.5, -2, the smallest subnormal, 65504
    let halves = [0x3e00u16, 0xc000, 0x0001, 0x7bff];
    let image = array(Format::HALF, 4, [1, 1, 0], 0, &bytes_of(&halves));
    let handle = texture(&of_array(image), &sampling(Mode::CLAMP, Filter::POINT, 0));
    let want = [1.5, -2.0, 2f32.powi(-24), 65504.0].map(f32::to_bits);
    assert_eq!(run(body, handle, &[[0; 4]]), [want]);
}

#[test]
fn volumes_layers_and_cubes_are_sampled() {
    context();
    let texels: Vec<f32> = (0..64).map(|i| (i * i % 97) as f32 * 8.0).collect();
    let volume = array(Format::FLOAT, 1, [4, 4, 4], 0, &bytes_of(&texels));
    let linear = sampling(Mode::CLAMP, Filter::LINEAR, 0);
    let handle = texture(&of_array(volume), &linear);
    let body = "tex.3d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1,c2,c3}];";
    let results =
        run(body, handle, &[at(&[1.5, 2.5, 3.5]), at(&[2.0, 2.0, 2.0]), at(&[0.0, 9.0, 1.5])]);
    let texel = |x: usize, y: usize, z: usize| texels[z * 16 + y * 4 + x];
    let middle: f32 = (0..8).map(|c| texel(1 + c % 2, 1 + c / 2 % 2, 1 + c / 4)).sum();
    assert_eq!(floats(&results), [texel(1, 2, 3), middle / 8.0, texel(0, 3, 1)]);

    let layers = array(Format::FLOAT, 1, [4, 4, 4], LAYERED, &bytes_of(&texels));
    let handle = texture(&of_array(layers), &linear);
    let body = "tex.a2d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1,c2,c3}];";
    let place = |layer: u32, x: f32, y: f32| [layer, x.to_bits(), y.to_bits(), 0];
    let results = run(body, handle, &[place(2, 1.5, 0.5), place(3, 1.0, 1.0), place(9, 0.5, 0.5)]);
    let corner = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(x, y)| texel(x, y, 3)).iter().sum::<f32>();
    assert_eq!(
        floats(&results),
        [texel(1, 0, 2), corner / 4.0, texel(0, 0, 3)],
        "the last layer is the limit"
    );

    let rows = array(Format::FLOAT, 1, [16, 0, 4], LAYERED, &bytes_of(&texels));
    let handle = texture(&of_array(rows), &linear);
    let body = "tex.a1d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1}];";
    let results = run(body, handle, &[place(1, 3.5, 0.0), place(2, 8.0, 0.0)]);
    assert_eq!(floats(&results), [texels[19], (texels[39] + texels[40]) / 2.0]);

    // Each face's texels are ten times its number, plus the place in it.
    let faces: Vec<f32> = (0..24).map(|i| (i / 4 * 10 + i % 4) as f32).collect();
    let cube = array(Format::FLOAT, 1, [2, 2, 6], CUBEMAP, &bytes_of(&faces));
    let handle = texture(&of_array(cube), &sampling(Mode::CLAMP, Filter::POINT, NORMALIZED));
    let body = "tex.cube.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1,c2,c3}];";
    let (s, t) = (0.5, 0.25);
    let directions =
        [[1.0, s, t], [-1.0, s, t], [s, 1.0, t], [s, -1.0, t], [s, t, 1.0], [s, t, -1.0]];
    let results = run(body, handle, &directions.map(|d| at(&d)));
    // By the guide's table: (-z, -y), (z, -y), (x, z), (x, -z), (x, -y), (-x, -y), each from -1 to 1.
    assert_eq!(floats(&results), [0.0, 11.0, 23.0, 31.0, 41.0, 50.0]);
    let two: Vec<f32> = (0..48).map(|i| i as f32).collect();
    let cubes = array(Format::FLOAT, 1, [2, 2, 12], CUBEMAP | LAYERED, &bytes_of(&two));
    let handle = texture(&of_array(cubes), &sampling(Mode::CLAMP, Filter::POINT, NORMALIZED));
    let body = "tex.acube.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1,c2,c3}];";
    let direction = |layer: u32| [layer, (-1f32).to_bits(), s.to_bits(), t.to_bits()];
    assert_eq!(floats(&run(body, handle, &[direction(0), direction(1)])), [5.0, 29.0]);
}

#[test]
fn levels_are_chosen_blended_and_found_by_gradients() {
    context();
    let asked = descriptor(Format::FLOAT, 1, [8, 8, 0], 0);
    let mut mipmapped = 0usize;
    assert_eq!(
        cu!(cuMipmappedArrayCreate(&mut mipmapped => *mut usize, &asked => *const CUDA_ARRAY3D_DESCRIPTOR, 4 => u32)),
        0
    );
    for level in 0..4u32 {
        let mut array = 0usize;
        let code = cu!(cuMipmappedArrayGetLevel(&mut array => *mut usize, mipmapped => usize, level => u32));
        assert_eq!(code, 0);
        let side = 8usize >> level;
        let texels = vec![(level * 100) as f32; side * side];
        fill(array, 4, [side, side, 0], &bytes_of(&texels));
    }
    let mut resource = CUDA_RESOURCE_DESC {
        resType: CUresourcetype::MIPMAPPED_ARRAY,
        ..CUDA_RESOURCE_DESC::default()
    };
    resource.res.mipmap.hMipmappedArray = CUmipmappedArray(mipmapped);
    let texture_of = |filter| {
        let sampling = CUDA_TEXTURE_DESC {
            mipmapFilterMode: filter,
            maxMipmapLevelClamp: 3.0,
            ..sampling(Mode::CLAMP, Filter::LINEAR, NORMALIZED)
        };
        texture(&resource, &sampling)
    };
    let levels = [0.0, 0.25, 1.0, 1.5, 2.75, 9.0].map(|level| at(&[0.5, 0.5, level]));
    let body = "tex.level.2d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c1}], c2;";
    let blended = run(body, texture_of(Filter::LINEAR), &levels);
    assert_eq!(floats(&blended), [0.0, 25.0, 100.0, 150.0, 275.0, 300.0]);
    let nearest = [0.0, 0.25, 1.0, 1.75, 2.75, 9.0].map(|level| at(&[0.5, 0.5, level]));
    let nearest = run(body, texture_of(Filter::POINT), &nearest);
    assert_eq!(floats(&nearest), [0.0, 0.0, 100.0, 200.0, 300.0, 300.0]);
    // One texel a step is level 0, two are level 1.
    let body =
        "mov.b32 r0, 0; tex.grad.2d.v4.f32.f32 {r0,r1,r2,r3}, [h, {c0,c0}], {c1,r0}, {r0,c2};";
    let steps = [(1.0, 1.0), (2.0, 1.0), (1.0, 4.0), (0.0, 0.0)];
    let steps = steps.map(|(dx, dy)| at(&[0.5, dx / 8.0, dy / 8.0]));
    let by_gradients = run(body, texture_of(Filter::LINEAR), &steps);
    assert_eq!(floats(&by_gradients), [0.0, 100.0, 200.0, 0.0]);
}

#[test]
fn four_texels_are_gathered() {
    context();
    let texels: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let image = array(Format::FLOAT, 4, [4, 4, 0], GATHER, &bytes_of(&texels));
    let handle = texture(&of_array(image), &sampling(Mode::CLAMP, Filter::POINT, 0));
    for (component, name) in ["r", "g", "b", "a"].iter().enumerate() {
        let body = format!("tld4.{name}.2d.v4.f32.f32 {{r0,r1,r2,r3}}, [h, {{c0,c1}}];");
        let results = run(&body, handle, &[at(&[2.0, 1.0]), at(&[4.0, 4.0])]);
        let texel = |x: usize, y: usize| texels[(y * 4 + x) * 4 + component].to_bits();
        // From the lower left, against the clock's hands.
        let want = [texel(1, 1), texel(2, 1), texel(2, 0), texel(1, 0)];
        assert_eq!(results, [want, [texel(3, 3); 4]], "{name}");
    }
}

#[test]
fn properties_are_told() {
    context();
    let image = array(Format::SIGNED_INT16, 2, [8, 4, 0], SURFACE, &[0; 128]);
    let handle = texture(&of_array(image), &sampling(Mode::WRAP, Filter::LINEAR, NORMALIZED));
    let ask = |query: &str, handle| run(&format!("{query}.b32 r0, [h];"), handle, &[[0; 4]])[0][0];
    assert_eq!(ask("txq.width", handle), 8);
    assert_eq!(ask("txq.height", handle), 4);
    let surface = surface(image);
    assert_eq!(ask("suq.width", surface), 8);
    assert_eq!(ask("suq.height", surface), 4);
    let volume = array(Format::FLOAT, 1, [4, 2, 3], 0, &[0; 96]);
    let handle = texture(&of_array(volume), &sampling(Mode::CLAMP, Filter::POINT, 0));
    assert_eq!(ask("txq.depth", handle), 3);
}

#[test]
fn surfaces_are_read_and_written_by_bytes() {
    context();
    let bytes: Vec<u8> = (0..=255).collect();
    let extent = [16, 4, 0];
    let image = array(Format::UNSIGNED_INT32, 1, extent, SURFACE, &bytes);
    let handle = surface(image);
    let place = |x: i32, y: i32| [x as u32, y as u32, 0, 0];
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let inputs = [place(0, 0), place(60, 3)];
    for bounds in ["trap", "clamp", "zero"] {
        let results = run(&format!("suld.b.2d.b32.{bounds} r0, [h, {{c0,c1}}];"), handle, &inputs);
        assert_eq!([results[0][0], results[1][0]], [word(0), word(252)], "{bounds}");
    }
    let outside = [place(-4, 1), place(64, 0), place(0, 4), place(8, -1)];
    let clamped = run("suld.b.2d.b32.clamp r0, [h, {c0,c1}];", handle, &outside);
    let clamped: Vec<u32> = clamped.iter().map(|words| words[0]).collect();
    assert_eq!(clamped, [word(64), word(60), word(192), word(8)]);
    let zeros = run("mov.b32 r0, 7; suld.b.2d.b32.zero r0, [h, {c0,c1}];", handle, &outside);
    assert!(zeros.iter().all(|words| words[0] == 0), "{zeros:?}");
    // Every width; 16-bit registers take the small ones.
    let narrow = "suld.b.2d.b8.trap s0, [h, {c0,c1}]; suld.b.2d.v2.b8.trap {s1,s2}, [h, {c0,c1}]; suld.b.2d.b16.trap s3, [h, {c0,c1}];
        suld.b.2d.v4.b8.trap {s4,s5,s6,s7}, [h, {c0,c1}]; cvt.u32.u16 r0, s0; mov.b32 r1, {s1,s2}; cvt.u32.u16 r2, s3; mov.b32 r3, {s5,s7};";
    assert_eq!(
        run(narrow, handle, &[place(4, 1)]),
        [[68, 69 << 16 | 68, 69 << 8 | 68, 71 << 16 | 69]]
    );
    let wide = "suld.b.2d.v4.b32.trap {r0,r1,r2,r3}, [h, {c0,c1}];";
    assert_eq!(run(wide, handle, &[place(16, 1)]), [[word(80), word(84), word(88), word(92)]]);
    let double =
        "suld.b.2d.v2.b64.trap {w0,w1}, [h, {c0,c1}]; mov.b64 {r0,r1}, w0; mov.b64 {r2,r3}, w1;";
    assert_eq!(run(double, handle, &[place(16, 1)]), [[word(80), word(84), word(88), word(92)]]);
    // Stores: what they change shows in the array.
    let mut want = bytes.clone();
    let mut put = |body: &str, input: [u32; 4], at: usize, written: &[u8]| {
        run(body, handle, &[input]);
        want[at..at + written.len()].copy_from_slice(written);
        assert_eq!(contents(image, 4, extent), want, "{body}");
    };
    let value = 0xa1b2_c3d4u32;
    let with = |x: i32, y: i32| [x as u32, y as u32, value, 0x1111_2222];
    put("sust.b.2d.b32.trap [h, {c0,c1}], c2;", with(8, 2), 136, &value.to_le_bytes());
    put("cvt.u16.u32 s0, c2; sust.b.2d.b8.trap [h, {c0,c1}], s0;", with(7, 0), 7, &[0xd4]);
    let pair = "mov.b32 {s0,s1}, c2; sust.b.2d.v2.b16.clamp [h, {c0,c1}], {s0,s1};";
    put(pair, with(12, 0), 12, &value.to_le_bytes());
    put("sust.b.2d.b32.clamp [h, {c0,c1}], c2;", with(96, 9), 252, &value.to_le_bytes());
    put("sust.b.2d.b32.zero [h, {c0,c1}], c2;", with(96, 9), 0, &[]);
    let four = [value.to_le_bytes(), 0x1111_2222u32.to_le_bytes()].concat().repeat(2);
    put("sust.b.2d.v4.b32.trap [h, {c0,c1}], {c2,c3,c2,c3};", with(32, 3), 224, &four);
    put("mov.b64 w0, {c2,c3}; sust.b.2d.b64.trap [h, {c0,c1}], w0;", with(0, 3), 192, &four[..8]);
}

#[test]
fn surfaces_of_every_geometry_are_reached() {
    context();
    let words: Vec<u32> = (0..64).map(|i| i + 1000).collect();
    let bytes = bytes_of(&words);
    let both = |geometry: &str,
                coordinates: &str,
                image: usize,
                input: [u32; 4],
                at: usize,
                extent| {
        let handle = surface(image);
        let body = format!(
            "suld.b.{geometry}.b32.trap r0, [h, {coordinates}]; add.u32 r1, r0, 1; sust.b.{geometry}.b32.trap [h, {coordinates}], r1;"
        );
        assert_eq!(run(&body, handle, &[input])[0][0], words[at], "{geometry}");
        let mut want = words.clone();
        want[at] += 1;
        assert_eq!(contents(image, 4, extent), bytes_of(&want), "{geometry}");
    };
    let integers =
        |extent, flags| array(Format::UNSIGNED_INT32, 1, extent, flags | SURFACE, &bytes);
    both("1d", "{c0}", integers([64, 0, 0], 0), [20 * 4, 0, 0, 0], 20, [64, 1, 1]);
    both("3d", "{c0,c1,c2,c2}", integers([4, 4, 4], 0), [2 * 4, 1, 3, 0], 54, [4, 4, 4]);
    both("a1d", "{c0,c1}", integers([16, 0, 4], LAYERED), [3, 5 * 4, 0, 0], 53, [16, 1, 4]);
    both("a2d", "{c0,c1,c2,c2}", integers([4, 4, 4], LAYERED), [2, 4, 3, 0], 45, [4, 4, 4]);
}

#[test]
fn formatted_stores_convert_to_the_surface() {
    context();
    let store = |format, channels, values: [u32; 4]| {
        let texel_bytes = channels as usize * channel_bytes(format);
        let image = array(format, channels, [4, 1, 0], SURFACE, &vec![0xee; 4 * texel_bytes]);
        // Three coordinates are free for values; the place is (1, 0).
        let body =
            "mov.u32 r0, 1; mov.u32 r1, 0; sust.p.2d.v4.b32.trap [h, {r0,r1}], {c0,c1,c2,c3};";
        run(body, surface(image), &[values]);
        contents(image, texel_bytes, [4, 1, 0])[texel_bytes..2 * texel_bytes].to_vec()
    };
    let words = [1, 2, 0x1_0005, u32::MAX];
    assert_eq!(store(Format::UNSIGNED_INT32, 4, words), bytes_of(&words));
    assert_eq!(store(Format::UNSIGNED_INT16, 4, words), bytes_of(&[1u16, 2, 0xffff, 0xffff]));
    assert_eq!(store(Format::UNSIGNED_INT8, 2, [300, 7, 0, 0]), [255, 7]);
    let signed = [-200i32, 300, -3, 4].map(|value| value as u32);
    assert_eq!(store(Format::SIGNED_INT8, 4, signed), [0x80, 127, 0xfd, 4]);
    assert_eq!(store(Format::FLOAT, 1, [1.5f32.to_bits(), 0, 0, 0]), bytes_of(&[1.5f32]));
    let floats = [1.5f32, -2.0, 0.1, 1e6].map(f32::to_bits);
    assert_eq!(store(Format::HALF, 4, floats), bytes_of(&[0x3e00u16, 0xc000, 0x2e66, 0x7bff]));
    let special = [f32::INFINITY, f32::NAN, -1e9, f32::NEG_INFINITY].map(f32::to_bits);
    assert_eq!(store(Format::HALF, 4, special), bytes_of(&[0x7c00u16, 0x7e00, 0xfbff, 0xfc00]));
    let fractions = [0.5f32, 2.0, -1.0, 0.1].map(f32::to_bits);
    assert_eq!(store(Format::UNORM_INT8X4, 4, fractions), [127, 255, 0, 25]);
    let fractions = [0.5f32, -2.0, -0.5, 0.1].map(f32::to_bits);
    assert_eq!(store(Format::SNORM_INT8X4, 4, fractions), [63, 0x81, 0xc1, 13]);
}

/// A fault ends the life of its context.
fn assert_faults(body: &str) {
    context();
    let image = array(Format::UNSIGNED_INT32, 1, [8, 4, 0], SURFACE, &[0; 128]);
    let body = format!("mov.b64 w0, 0; {body}");
    let (code, _) = try_run(&body, surface(image), &[[32, 0, 0, 0]]);
    assert_eq!(code, 700, "{body}");
}

#[test]
fn loads_outside_a_surface_trap() {
    assert_faults("suld.b.2d.b32.trap r0, [h, {c0,c1}];");
}

#[test]
fn stores_outside_a_surface_trap() {
    assert_faults("sust.b.2d.b32.trap [h, {c0,c1}], c0;");
}

/// A device answers a dead handle in many ways; here it is always a fault.
#[test]
fn dead_handles_of_surfaces_and_textures_are_faults() {
    assert_faults("suld.b.2d.b32.zero r0, [w0, {c0,c1}];");
    assert_faults("tex.2d.v4.f32.s32 {r0,r1,r2,r3}, [w0, {c0,c1}];");
    assert_faults("txq.width.b32 r0, [w0];");
}

/// Variables of opaque types are not supported: the kernel that uses one is refused, with its name in the log.
#[test]
fn texture_variables_are_refused_by_name() {
    context();
    let ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.global .texref image;
.visible .entry uses(.param .u64 p) { .reg .b64 d; .reg .f32 f<4>; .reg .s32 x; mov.s32 x, 0; ld.param.u64 d, [p];
    tex.1d.v4.f32.s32 {f0,f1,f2,f3}, [image, {x}]; st.global.f32 [d], f0; ret; }
.visible .entry other() { ret; }\n";
    let text = CString::new(ptx).unwrap();
    let (mut module, mut found) = (0usize, 0usize);
    assert_eq!(cu!(cuModuleLoadData(&mut module => *mut usize, text.as_ptr() => *const c_char)), 0);
    for (name, code) in [(c"uses", 801), (c"other", 0)] {
        assert_eq!(
            cu!(cuModuleGetFunction(&mut found => *mut usize, module => usize, name.as_ptr() => *const c_char)),
            code
        );
    }
}
