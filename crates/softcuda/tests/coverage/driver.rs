//! Cases that need a texture or surface: run through the driver's interface, each in a context of
//! its own, since a fault ends a context.

use std::ffi::{CString, c_char, c_void};

use cuda_abi::types::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC, CUaddress_mode,
    CUarray, CUarray_format, CUfilter_mode, CUmemorytype, CUmipmappedArray, CUresourcetype,
};
use softcuda::exec::FaultKind;

use crate::case::{Case, Outcome, compare};
use crate::cu;
use crate::support::{allocate, context};

/// What handle number one, the first word of `blob`, names.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) kind: ObjectKind,
    /// Extents as `cuArray3DCreate` has them.
    pub(crate) extent: [usize; 3],
    /// Flags of the array.
    pub(crate) flags: u32,
    pub(crate) format: CUarray_format,
    /// Channels of four bytes each.
    pub(crate) channels: u32,
    /// Texels of each level.
    pub(crate) levels: Vec<Vec<u8>>,
}

/// See [`Object`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// Filtered by weights; its coordinates are in texels.
    Linear,
    /// The nearest texel; integers stay integers.
    Point,
    /// As `Point`, of a line of memory.
    Buffer,
    /// As `Point`, with coordinates from 0 to 1.
    PointNormalized,
    Surface,
}

const AS_INTEGERS: u32 = 1;
const NORMALIZED: u32 = 2;
/// The driver's code of a fault.
const ILLEGAL_ADDRESS: u32 = 700;

impl Object {
    fn texel_bytes(&self) -> usize {
        self.channels as usize * 4
    }

    /// A copy between host memory at `bytes` and all of an array of these extents.
    fn whole(&self, array: usize, extent: [usize; 3], bytes: *mut u8) -> CUDA_MEMCPY3D {
        let [width, height, depth] = extent.map(|n| n.max(1));
        CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::HOST,
            srcHost: bytes.cast_const().cast(),
            srcPitch: width * self.texel_bytes(),
            srcHeight: height,
            dstMemoryType: CUmemorytype::ARRAY,
            dstArray: CUarray(array),
            WidthInBytes: width * self.texel_bytes(),
            Height: height,
            Depth: depth,
            ..CUDA_MEMCPY3D::default()
        }
    }

    fn descriptor(&self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.extent[0],
            Height: self.extent[1],
            Depth: self.extent[2],
            Format: self.format,
            NumChannels: self.channels,
            Flags: self.flags,
        }
    }

    fn fill(&self, array: usize, extent: [usize; 3], texels: &[u8]) {
        let copy = self.whole(array, extent, texels.as_ptr().cast_mut());
        assert_eq!(cu!(cuMemcpy3D_v2(&copy => *const CUDA_MEMCPY3D)), 0);
    }

    /// What lies in the array.
    fn contents(&self, array: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; self.levels[0].len()];
        let to = self.whole(array, self.extent, bytes.as_mut_ptr());
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

    /// The handle and the array behind it (that of level 0), if there is one.
    fn create(&self) -> (u64, usize) {
        let asked = self.descriptor();
        let mut resource = CUDA_RESOURCE_DESC::default();
        let mut array = 0usize;
        if self.kind == ObjectKind::Buffer {
            resource.resType = CUresourcetype::LINEAR;
            resource.res.linear.devPtr = upload(&self.levels[0]);
            resource.res.linear.format = self.format;
            resource.res.linear.numChannels = self.channels;
            resource.res.linear.sizeInBytes = self.levels[0].len();
        } else if self.levels.len() == 1 {
            let code = cu!(cuArray3DCreate_v2(&mut array => *mut usize, &asked => *const CUDA_ARRAY3D_DESCRIPTOR));
            assert_eq!(code, 0, "{asked:?}");
            self.fill(array, self.extent, &self.levels[0]);
            resource.resType = CUresourcetype::ARRAY;
            resource.res.array.hArray = CUarray(array);
        } else {
            let (mut mipmapped, count) = (0usize, self.levels.len() as u32);
            let code = cu!(cuMipmappedArrayCreate(
                &mut mipmapped => *mut usize, &asked => *const CUDA_ARRAY3D_DESCRIPTOR, count => u32
            ));
            assert_eq!(code, 0, "{asked:?}");
            for (level, texels) in self.levels.iter().enumerate() {
                let code = cu!(cuMipmappedArrayGetLevel(
                    &mut array => *mut usize, mipmapped => usize, level as u32 => u32
                ));
                assert_eq!(code, 0);
                self.fill(array, self.extent.map(|n| n >> level), texels);
            }
            resource.resType = CUresourcetype::MIPMAPPED_ARRAY;
            resource.res.mipmap.hMipmappedArray = CUmipmappedArray(mipmapped);
        }
        let mut handle = 0u64;
        let code = if self.kind == ObjectKind::Surface {
            cu!(cuSurfObjectCreate(&mut handle => *mut u64, &resource => *const CUDA_RESOURCE_DESC))
        } else {
            let (filter, flags) = match self.kind {
                ObjectKind::Linear => (CUfilter_mode::LINEAR, 0),
                ObjectKind::PointNormalized => (CUfilter_mode::POINT, NORMALIZED),
                _ => (CUfilter_mode::POINT, AS_INTEGERS),
            };
            let sampling = CUDA_TEXTURE_DESC {
                addressMode: [CUaddress_mode::CLAMP; 3],
                filterMode: filter,
                flags,
                mipmapFilterMode: CUfilter_mode::POINT,
                maxMipmapLevelClamp: 8.0,
                ..Default::default()
            };
            let no_view = std::ptr::null::<c_void>();
            cu!(cuTexObjectCreate(
                &mut handle => *mut u64, &resource => *const CUDA_RESOURCE_DESC,
                &sampling => *const CUDA_TEXTURE_DESC, no_view => *const c_void,
            ))
        };
        assert_eq!(code, 0);
        (handle, array)
    }
}

fn upload(bytes: &[u8]) -> u64 {
    let address = allocate(bytes.len());
    let code =
        cu!(cuMemcpyHtoD_v2(address => u64, bytes.as_ptr() => *const u8, bytes.len() => usize));
    assert_eq!(code, 0);
    address
}

/// Runs a case with an object: its output, and what lies in a surface, are what is expected.
pub(crate) fn run(case: &Case, object: &Object, text: &str) -> Outcome {
    let context = context();
    let outcome = launch(case, object, text);
    assert_eq!(cu!(cuCtxDestroy_v2(context => usize)), 0);
    outcome
}

fn launch(case: &Case, object: &Object, text: &str) -> Outcome {
    let text = CString::new(text).expect("no NUL");
    let (mut module, mut function) = (0usize, 0usize);
    let code = cu!(cuModuleLoadData(&mut module => *mut usize, text.as_ptr() => *const c_char));
    if code != 0 {
        return Outcome::Refused(format!("the module is refused with {code}"));
    }
    let code = cu!(cuModuleGetFunction(
        &mut function => *mut usize, module => usize, c"k".as_ptr() => *const c_char
    ));
    if code != 0 {
        return Outcome::Refused(format!("the kernel is refused with {code}"));
    }
    let (handle, array) = object.create();
    let (input, output) = (upload(&case.input), upload(&case.output));
    let mut blob = [0u64; 32];
    blob[0] = handle;
    let mut arguments: [*const c_void; 3] =
        [(&raw const input).cast(), (&raw const output).cast(), blob.as_ptr().cast()];
    let [bx, by, bz] = case.block;
    let code = cu!(cuLaunchKernel(
        function => usize,
        1 => u32, 1 => u32, 1 => u32,
        bx => u32, by => u32, bz => u32,
        0 => u32,
        0 => usize,
        arguments.as_mut_ptr() => *mut *const c_void,
        std::ptr::null_mut() => *mut c_void,
    ));
    assert_eq!(code, 0);
    match (cu!(cuCtxSynchronize()), &case.expected) {
        (ILLEGAL_ADDRESS, Err(FaultKind::IllegalAddress)) => Outcome::Right,
        (0, Ok(expected)) => {
            let mut got = vec![0u8; case.output.len()];
            let code = cu!(cuMemcpyDtoH_v2(
                got.as_mut_ptr() => *mut u8, output => u64, got.len() => usize
            ));
            assert_eq!(code, 0);
            if object.kind == ObjectKind::Surface {
                got.extend(object.contents(array));
            }
            let words: Vec<u64> = got
                .chunks_exact(8)
                .map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")))
                .collect();
            compare(expected, &words)
        }
        (code, _) => Outcome::Wrong(format!("it ended with {code}")),
    }
}
