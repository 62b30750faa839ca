//! Arrays: shapes, copies to and from memory, levels; texture and surface objects as descriptions.

mod support;

use std::ffi::c_void;

use cuda_abi::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY2D, CUDA_MEMCPY3D,
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_v1_res_pitch2D, CUDA_TEXTURE_DESC, CUarray,
    CUarray_format, CUfilter_mode, CUmemorytype, CUmipmappedArray, CUresourcetype,
};
use support::{allocate, context, read, stream};

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;

fn shape(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CUarray_format::UNSIGNED_INT32,
        NumChannels: 1,
        Flags: flags,
    }
}

fn create(asked: &CUDA_ARRAY3D_DESCRIPTOR) -> (u32, usize) {
    let mut array = 0usize;
    let code = cu!(cuArray3DCreate_v2(
        &mut array => *mut usize, asked => *const CUDA_ARRAY3D_DESCRIPTOR,
    ));
    (code, array)
}

fn array(width: usize, height: usize, depth: usize) -> usize {
    let (code, array) = create(&shape(width, height, depth, 0));
    assert_eq!(code, 0);
    array
}

#[test]
fn a_rectangle_goes_into_an_array_and_comes_out_elsewhere() {
    context();
    let array = array(16, 8, 0);
    let source: Vec<u32> = (0..128).collect();
    // All of it from the host, then columns 4 to 7 of rows 2 to 4 to device memory with a pitch.
    let whole = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: source.as_ptr().cast(),
        srcPitch: 64,
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: CUarray(array),
        WidthInBytes: 64,
        Height: 8,
        ..CUDA_MEMCPY2D::default()
    };
    assert_eq!(cu!(cuMemcpy2D_v2(&whole => *const CUDA_MEMCPY2D)), 0);
    let memory = allocate(4096);
    let part = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::ARRAY,
        srcArray: CUarray(array),
        srcXInBytes: 16,
        srcY: 2,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: memory,
        dstPitch: 32,
        WidthInBytes: 16,
        Height: 3,
        ..CUDA_MEMCPY2D::default()
    };
    let stream = stream();
    assert_eq!(cu!(cuMemcpy2DAsync_v2(&part => *const CUDA_MEMCPY2D, stream => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    for row in 0..3u32 {
        let first = (row + 2) * 16 + 4;
        let words = read(memory + u64::from(row) * 32, 4);
        assert_eq!(words, (first..first + 4).collect::<Vec<_>>());
    }
    let beyond = CUDA_MEMCPY2D { srcY: 6, ..part };
    assert_eq!(cu!(cuMemcpy2D_v2(&beyond => *const CUDA_MEMCPY2D)), 1, "a row too many");
    let beside = CUDA_MEMCPY2D { srcXInBytes: 52, ..part };
    assert_eq!(cu!(cuMemcpy2D_v2(&beside => *const CUDA_MEMCPY2D)), 1, "a texel too wide");
    assert_eq!(cu!(cuArrayDestroy(array => usize)), 0);
    assert_eq!(cu!(cuMemcpy2D_v2(&part => *const CUDA_MEMCPY2D)), 400);
}

#[test]
fn volumes_and_rows_are_copied_too() {
    context();
    let (volume, row) = (array(4, 4, 4), array(64, 0, 0));
    let source: Vec<u32> = (100..164).collect();
    let whole = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: source.as_ptr().cast(),
        srcPitch: 16,
        srcHeight: 4,
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: CUarray(volume),
        WidthInBytes: 16,
        Height: 4,
        Depth: 4,
        ..CUDA_MEMCPY3D::default()
    };
    assert_eq!(cu!(cuMemcpy3D_v2(&whole => *const CUDA_MEMCPY3D)), 0);
    // The last slice, through a node of a graph.
    let memory = allocate(64);
    let slice = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::ARRAY,
        srcArray: CUarray(volume),
        srcZ: 3,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: memory,
        dstPitch: 16,
        WidthInBytes: 16,
        Height: 4,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let (mut graph, mut node, mut executable) = (0usize, 0usize, 0usize);
    let none = std::ptr::null::<usize>();
    assert_eq!(cu!(cuGraphCreate(&mut graph => *mut usize, 0 => u32)), 0);
    assert_eq!(
        cu!(cuGraphAddMemcpyNode(
            &mut node => *mut usize, graph => usize, none => *const usize, 0 => usize, &slice => *const CUDA_MEMCPY3D, 0 => usize,
        )),
        0
    );
    let mut have = CUDA_MEMCPY3D::default();
    assert_eq!(cu!(cuGraphMemcpyNodeGetParams(node => usize, &mut have => *mut CUDA_MEMCPY3D)), 0);
    assert_eq!((have.srcArray.0, have.srcZ, have.dstDevice), (volume, 3, memory));
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&mut executable => *mut usize, graph => usize, 0 => u64)),
        0
    );
    let stream = stream();
    assert_eq!(cu!(cuGraphLaunch(executable => usize, stream => usize)), 0);
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(read(memory, 16), (148..164).collect::<Vec<_>>());
    // A row, by offsets in bytes.
    assert_eq!(
        cu!(cuMemcpyHtoA_v2(row => usize, 32 => usize, source.as_ptr() => *const u32, 64 => usize)),
        0
    );
    let mut words = [0u32; 4];
    assert_eq!(
        cu!(cuMemcpyAtoH_v2(words.as_mut_ptr() => *mut u32, row => usize, 40 => usize, 16 => usize)),
        0
    );
    assert_eq!(words, [102, 103, 104, 105]);
    assert_eq!(
        cu!(cuMemcpyAtoH_v2(words.as_mut_ptr() => *mut u32, row => usize, 248 => usize, 16 => usize)),
        1
    );
}

#[test]
fn shapes_are_told_and_impossible_ones_refused() {
    context();
    let plane =
        CUDA_ARRAY_DESCRIPTOR { Width: 5, Height: 3, Format: CUarray_format::HALF, NumChannels: 2 };
    let (mut array, mut have) = (0usize, CUDA_ARRAY3D_DESCRIPTOR::default());
    assert_eq!(
        cu!(cuArrayCreate_v2(&mut array => *mut usize, &plane => *const CUDA_ARRAY_DESCRIPTOR)),
        0
    );
    assert_eq!(
        cu!(cuArray3DGetDescriptor_v2(&mut have => *mut CUDA_ARRAY3D_DESCRIPTOR, array => usize)),
        0
    );
    assert_eq!((have.Width, have.Height, have.Depth, have.Format), (5, 3, 0, CUarray_format::HALF));
    for (asked, code) in [
        (shape(0, 1, 0, 0), 1),
        (shape(4, 0, 4, 0), 1),
        (shape(4, 0, 4, LAYERED), 0),
        (shape(4, 4, 5, CUBEMAP), 1),
        (shape(4, 4, 6, CUBEMAP), 0),
        (shape(4, 4, 12, CUBEMAP | LAYERED), 0),
        (shape(4, 8, 6, CUBEMAP), 1),
        (shape(1 << 20, 1, 0, 0), 1),
        (CUDA_ARRAY3D_DESCRIPTOR { NumChannels: 3, ..shape(4, 4, 0, 0) }, 1),
        (CUDA_ARRAY3D_DESCRIPTOR { Format: CUarray_format::BC1_UNORM, ..shape(4, 4, 0, 0) }, 801),
    ] {
        let (got, array) = create(&asked);
        assert_eq!(got, code, "{asked:?}");
        if code == 0 {
            assert_eq!(cu!(cuArrayDestroy(array => usize)), 0);
        }
    }
}

#[test]
fn levels_halve_until_one_texel() {
    context();
    let asked = shape(16, 4, 0, 0);
    let mut mipmapped = 0usize;
    assert_eq!(
        cu!(cuMipmappedArrayCreate(&mut mipmapped => *mut usize, &asked => *const CUDA_ARRAY3D_DESCRIPTOR, 9 => u32)),
        0
    );
    let level = |number: u32| {
        let mut array = 0usize;
        let code = cu!(cuMipmappedArrayGetLevel(&mut array => *mut usize, mipmapped => usize, number => u32));
        (code, array)
    };
    let sizes = (0..5).map(|number| {
        let mut have = CUDA_ARRAY3D_DESCRIPTOR::default();
        let (code, array) = level(number);
        assert_eq!(code, 0);
        assert_eq!(level(number).1, array, "the same each time");
        assert_eq!(
            cu!(cuArray3DGetDescriptor_v2(&mut have => *mut CUDA_ARRAY3D_DESCRIPTOR, array => usize)),
            0
        );
        (have.Width, have.Height)
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [(16, 4), (8, 2), (4, 1), (2, 1), (1, 1)]);
    assert_eq!(level(5).0, 1);
    assert_eq!(cu!(cuArrayDestroy(level(1).1 => usize)), 400, "a level is no array of its own");
    let first = level(0).1;
    assert_eq!(cu!(cuMipmappedArrayDestroy(mipmapped => usize)), 0);
    let mut have = CUDA_ARRAY3D_DESCRIPTOR::default();
    assert_eq!(
        cu!(cuArray3DGetDescriptor_v2(&mut have => *mut CUDA_ARRAY3D_DESCRIPTOR, first => usize)),
        400
    );
}

#[test]
fn textures_remember_what_they_were_made_of() {
    context();
    let (code, image) =
        create(&CUDA_ARRAY3D_DESCRIPTOR { Format: CUarray_format::FLOAT, ..shape(8, 8, 0, 0) });
    assert_eq!(code, 0);
    let mut resource =
        CUDA_RESOURCE_DESC { resType: CUresourcetype::ARRAY, ..CUDA_RESOURCE_DESC::default() };
    resource.res.array.hArray = CUarray(image);
    let mut sampling =
        CUDA_TEXTURE_DESC { filterMode: CUfilter_mode::LINEAR, flags: 2, ..Default::default() };
    let no_view = std::ptr::null::<c_void>();
    let make = |resource: &CUDA_RESOURCE_DESC, sampling: &CUDA_TEXTURE_DESC| {
        let mut texture = 0u64;
        let code = cu!(cuTexObjectCreate(
            &mut texture => *mut u64, resource => *const CUDA_RESOURCE_DESC, sampling => *const CUDA_TEXTURE_DESC,
            no_view => *const c_void,
        ));
        (code, texture)
    };
    let (code, texture) = make(&resource, &sampling);
    assert_eq!(code, 0);
    let mut have = CUDA_RESOURCE_DESC::default();
    assert_eq!(
        cu!(cuTexObjectGetResourceDesc(&mut have => *mut CUDA_RESOURCE_DESC, texture => u64)),
        0
    );
    // SAFETY: the type says that this member is there.
    assert_eq!(unsafe { have.res.array.hArray.0 }, image);
    let mut asked = CUDA_TEXTURE_DESC::default();
    assert_eq!(
        cu!(cuTexObjectGetTextureDesc(&mut asked => *mut CUDA_TEXTURE_DESC, texture => u64)),
        0
    );
    assert_eq!((asked.filterMode, asked.flags), (CUfilter_mode::LINEAR, 2));
    assert_eq!(cu!(cuTexObjectDestroy(texture => u64)), 0);
    assert_eq!(cu!(cuTexObjectDestroy(texture => u64)), 1);
    // Integers are not filtered, unless they are read as fractions.
    let integers = array(8, 8, 0);
    resource.res.array.hArray = CUarray(integers);
    assert_eq!(make(&resource, &sampling).0, 1);
    sampling.filterMode = CUfilter_mode::POINT;
    assert_eq!(make(&resource, &sampling).0, 0);
    sampling.flags = 1 << 20;
    assert_eq!(make(&resource, &sampling).0, 1);
    // Surfaces are of arrays only.
    let mut surface = 0u64;
    assert_eq!(
        cu!(cuSurfObjectCreate(&mut surface => *mut u64, &resource => *const CUDA_RESOURCE_DESC)),
        0
    );
    assert_eq!(cu!(cuSurfObjectDestroy(surface => u64)), 0);
    resource.resType = CUresourcetype::MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = CUmipmappedArray(integers);
    assert_eq!(
        cu!(cuSurfObjectCreate(&mut surface => *mut u64, &resource => *const CUDA_RESOURCE_DESC)),
        1
    );
    assert_eq!(make(&resource, &CUDA_TEXTURE_DESC::default()).0, 1, "no mipmapped array");
    // Linear memory must be there.
    resource.resType = CUresourcetype::LINEAR;
    resource.res.linear.devPtr = allocate(256);
    resource.res.linear.format = CUarray_format::UNSIGNED_INT8;
    resource.res.linear.numChannels = 4;
    resource.res.linear.sizeInBytes = 256;
    assert_eq!(make(&resource, &CUDA_TEXTURE_DESC::default()).0, 0);
    let mut pitched = resource;
    pitched.resType = CUresourcetype::PITCH2D;
    pitched.res.pitch2D = CUDA_RESOURCE_DESC_v1_res_pitch2D {
        devPtr: allocate(1024),
        format: CUarray_format::FLOAT,
        numChannels: 1,
        width: 16,
        height: 16,
        pitchInBytes: 64,
    };
    assert_eq!(make(&pitched, &CUDA_TEXTURE_DESC::default()).0, 0);
    for pitch in [32, 1 << 32, usize::MAX] {
        pitched.res.pitch2D.pitchInBytes = pitch;
        assert_eq!(make(&pitched, &CUDA_TEXTURE_DESC::default()).0, 1, "a pitch of {pitch}");
    }
    resource.res.linear.devPtr = 0x10;
    assert_eq!(make(&resource, &CUDA_TEXTURE_DESC::default()).0, 1);
}
