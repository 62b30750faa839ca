//! Texture instructions in kernels, through the driver's texture objects.
//!
//! Coordinates are chosen so that weights and sums are exact. The expected values were checked on
//! an H200: there, with NVIDIA's driver (580) in softcuda's place, this file passes test by test,
//! but for that of texture variables.

mod objects;
mod support;

use std::ffi::{CString, c_char};

use cuda_abi::types::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_v1_res_pitch2D,
    CUDA_TEXTURE_DESC, CUaddress_mode as Mode, CUarray_format as Format, CUfilter_mode as Filter,
    CUmipmappedArray, CUresourcetype,
};
use objects::{
    AS_INTEGERS, CUBEMAP, GATHER, LAYERED, NORMALIZED, SURFACE, array, at, bytes_of, descriptor,
    fill, floats, of_array, run, sampling, surface, texture,
};
use support::{allocate, context};

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
    let by_number = "tex.1d.v4.u32.s32 {r0,r1,r2,r3}, [h, {c0}];";
    assert_eq!(run(by_number, handle, &[[5, 0, 0, 0]]), [[0; 4]], "no line of memory");
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
    let by_fraction = "tex.1d.v4.s32.f32 {r0,r1,r2,r3}, [h, {c0}];";
    assert_eq!(run(by_fraction, handle, &[at(&[5.5])])[0][..2], [0, 0], "no line of an array");
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
    // By the guide's table: (-z, -y), (z, -y), (x, z), (x, -z), (x, -y), (-x, -y), each from -1 to
    // 1.
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

/// Variables of opaque types are not supported: the kernel that uses one is refused, with its name
/// in the log.
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
