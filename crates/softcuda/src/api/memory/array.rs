//! Arrays and mipmapped arrays: texels in a layout of the driver's own, here row by row in device
//! memory.
//!
//! Compressed and planar formats, sparse and deferred arrays are absent (801).

use std::sync::Arc;

use cuda_abi::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY_MEMORY_REQUIREMENTS,
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1, CUarray, CUarray_format as Format,
    CUdevice, CUmipmappedArray, CUresult,
};

use crate::api::answer::Answer;
use crate::api::driver::{Driver, current};
use crate::api::objects::{Array, ArrayOwner, Context, MipmappedArray};
use crate::api::out;
use crate::api::table::fresh_handle;
use crate::device::properties::limits;
use crate::device::textures::format::{Channel, Texel};
use crate::device::textures::image::{Image, Shape};

/// Flags of arrays.
const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
/// Layered, surface, cube map, gather, depth texture and color attachment: the last three change
/// nothing.
const KNOWN_FLAGS: u32 = 0x3f;
/// Flags that ask for memory later.
const SPARSE_OR_DEFERRED: u32 = 0xc0;

api! {
    fn cuArrayCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR) {
        // SAFETY: the caller's structure and pointer.
        unsafe {
            let asked = out::read(pAllocateArray)?;
            let asked = CUDA_ARRAY3D_DESCRIPTOR {
                Width: asked.Width,
                Height: asked.Height,
                Format: asked.Format,
                NumChannels: asked.NumChannels,
                ..CUDA_ARRAY3D_DESCRIPTOR::default()
            };
            create(pHandle, asked)
        }
    }

    fn cuArrayCreate(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY_DESCRIPTOR_v1) {
        // SAFETY: the caller's structure and pointer.
        unsafe {
            let asked = out::read(pAllocateArray)?;
            let asked = CUDA_ARRAY3D_DESCRIPTOR {
                Width: asked.Width as usize,
                Height: asked.Height as usize,
                Format: asked.Format,
                NumChannels: asked.NumChannels,
                ..CUDA_ARRAY3D_DESCRIPTOR::default()
            };
            create(pHandle, asked)
        }
    }

    fn cuArray3DCreate_v2(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR) {
        // SAFETY: the caller's structure and pointer.
        unsafe { create(pHandle, out::read(pAllocateArray)?) }
    }

    fn cuArray3DCreate(pHandle: *mut CUarray, pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR_v1) {
        // SAFETY: the caller's structure and pointer.
        unsafe {
            let asked = out::read(pAllocateArray)?;
            let asked = CUDA_ARRAY3D_DESCRIPTOR {
                Width: asked.Width as usize,
                Height: asked.Height as usize,
                Depth: asked.Depth as usize,
                Format: asked.Format,
                NumChannels: asked.NumChannels,
                Flags: asked.Flags,
            };
            create(pHandle, asked)
        }
    }

    fn cuArrayDestroy(hArray: CUarray) {
        let (driver, _) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let array = driver.arrays.get(hArray.0)?;
        if array.owner != ArrayOwner::Itself {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let _stall = driver.wait_for_work(array.context_id);
        driver.arrays.remove(hArray.0)?;
        driver.space.free(array.image.base, |_| true)?;
        Ok(())
    }

    fn cuArrayGetDescriptor_v2(pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR, hArray: CUarray) {
        let asked = current()?.0.arrays.get(hArray.0)?.asked;
        let plane = CUDA_ARRAY_DESCRIPTOR {
            Width: asked.Width,
            Height: asked.Height,
            Format: asked.Format,
            NumChannels: asked.NumChannels,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(pArrayDescriptor, plane) }
    }

    fn cuArray3DGetDescriptor_v2(pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, hArray: CUarray) {
        let asked = current()?.0.arrays.get(hArray.0)?.asked;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pArrayDescriptor, asked) }
    }

    fn cuArrayGetDescriptor(pArrayDescriptor: *mut CUDA_ARRAY_DESCRIPTOR_v1, hArray: CUarray) {
        let asked = current()?.0.arrays.get(hArray.0)?.asked;
        let plane = CUDA_ARRAY_DESCRIPTOR_v1 {
            Width: short(asked.Width)?,
            Height: short(asked.Height)?,
            Format: asked.Format,
            NumChannels: asked.NumChannels,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(pArrayDescriptor, plane) }
    }

    fn cuArray3DGetDescriptor(pArrayDescriptor: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, hArray: CUarray) {
        let asked = current()?.0.arrays.get(hArray.0)?.asked;
        let old = CUDA_ARRAY3D_DESCRIPTOR_v1 {
            Width: short(asked.Width)?,
            Height: short(asked.Height)?,
            Depth: short(asked.Depth)?,
            Format: asked.Format,
            NumChannels: asked.NumChannels,
            Flags: asked.Flags,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(pArrayDescriptor, old) }
    }

    fn cuArrayGetMemoryRequirements(memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice) {
        let (driver, _) = current()?;
        driver.device(device)?;
        let size = driver.arrays.get(array.0)?.image.size_bytes() as usize;
        let needed = CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: 512, ..CUDA_ARRAY_MEMORY_REQUIREMENTS::default() };
        // SAFETY: the caller's pointer.
        unsafe { out::write(memoryRequirements, needed) }
    }

    fn cuMipmappedArrayCreate(pHandle: *mut CUmipmappedArray, pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR, numMipmapLevels: u32) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(pMipmappedArrayDesc)? };
        if pHandle.is_null() || numMipmapLevels == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let array = create_mipmapped(driver, &context, &asked, numMipmapLevels)?;
        let handle = fresh_handle();
        driver.mipmapped_arrays.insert(handle, Arc::new(array));
        // SAFETY: the caller's pointer.
        unsafe { out::write(pHandle, CUmipmappedArray(handle)) }
    }

    fn cuMipmappedArrayDestroy(hMipmappedArray: CUmipmappedArray) {
        let (driver, _) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let array = driver.mipmapped_arrays.remove(hMipmappedArray.0)?;
        let _stall = driver.wait_for_work(array.context_id);
        for level in &array.levels {
            let _ = driver.arrays.remove(level.0);
        }
        driver.space.free(array.address, |_| true)?;
        Ok(())
    }

    fn cuMipmappedArrayGetLevel(pLevelArray: *mut CUarray, hMipmappedArray: CUmipmappedArray, level: u32) {
        let array = current()?.0.mipmapped_arrays.get(hMipmappedArray.0)?;
        let found = array.levels.get(level as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pLevelArray, *found) }
    }

    fn cuMipmappedArrayGetMemoryRequirements(memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray, device: CUdevice) {
        let (driver, _) = current()?;
        driver.device(device)?;
        let size = driver.mipmapped_arrays.get(mipmap.0)?.size_bytes as usize;
        let needed = CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment: 512, ..CUDA_ARRAY_MEMORY_REQUIREMENTS::default() };
        // SAFETY: the caller's pointer.
        unsafe { out::write(memoryRequirements, needed) }
    }
}

/// An extent in the structures of the API's first version.
fn short(extent: usize) -> Answer<u32> {
    u32::try_from(extent).map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// The texel of a format: 1 for what is no format, 801 for what is compressed or planar.
pub(crate) fn texel(format: Format, channels: u32) -> Answer<Texel> {
    let channel = match format {
        Format::UNSIGNED_INT8 => Channel::Unsigned8,
        Format::UNSIGNED_INT16 => Channel::Unsigned16,
        Format::UNSIGNED_INT32 => Channel::Unsigned32,
        Format::SIGNED_INT8 => Channel::Signed8,
        Format::SIGNED_INT16 => Channel::Signed16,
        Format::SIGNED_INT32 => Channel::Signed32,
        Format::HALF => Channel::Half,
        Format::FLOAT => Channel::Float,
        Format::UNORM_INT8X1 | Format::UNORM_INT8X2 | Format::UNORM_INT8X4 => Channel::Unorm8,
        Format::UNORM_INT16X1 | Format::UNORM_INT16X2 | Format::UNORM_INT16X4 => Channel::Unorm16,
        Format::SNORM_INT8X1 | Format::SNORM_INT8X2 | Format::SNORM_INT8X4 => Channel::Snorm8,
        Format::SNORM_INT16X1 | Format::SNORM_INT16X2 | Format::SNORM_INT16X4 => Channel::Snorm16,
        Format(80..=255) => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    match channels {
        1 | 2 | 4 => Ok(Texel { channel, channels }),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// An image of the descriptor's shape at address 0.
fn plan(asked: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer<Image> {
    const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
    if asked.Flags & SPARSE_OR_DEFERRED != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let texel = texel(asked.Format, asked.NumChannels)?;
    let shape = match (asked.Flags & LAYERED != 0, asked.Flags & CUBEMAP != 0) {
        (false, false) => Shape::Plain,
        (true, false) => Shape::Layered,
        (false, true) => Shape::Cube,
        (true, true) => Shape::LayeredCube,
    };
    let is_consistent = match shape {
        Shape::Plain => asked.Height > 0 || asked.Depth == 0,
        Shape::Layered => asked.Depth > 0,
        Shape::Cube => asked.Width == asked.Height && asked.Depth == 6,
        Shape::LayeredCube => {
            asked.Width == asked.Height && asked.Depth > 0 && asked.Depth.is_multiple_of(6)
        }
    };
    if asked.Width == 0 || !is_consistent || asked.Flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID);
    }
    let mut extent = [0u32; 3];
    for (to, from) in extent.iter_mut().zip([asked.Width, asked.Height, asked.Depth]) {
        *to = u32::try_from(from.max(1)).map_err(|_| INVALID)?;
        if *to > limits::TEXTURE_EXTENT {
            return Err(INVALID);
        }
    }
    let row_bytes = u64::from(extent[0]) * u64::from(texel.bytes());
    let slice_bytes = row_bytes * u64::from(extent[1]);
    Ok(Image { base: 0, extent, row_bytes, slice_bytes, texel, shape })
}

/// # Safety
/// As for [`out::write`].
unsafe fn create(pointer: *mut CUarray, asked: CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    let (driver, context) = current()?;
    driver.graphs.captures.refuse_unsafe_call()?;
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let planned = plan(&asked)?;
    let base = allocate(driver, &context, planned.size_bytes())?;
    let image = Image { base, ..planned };
    let array = Array { image, asked, owner: ArrayOwner::Itself, context_id: context.id };
    let handle = fresh_handle();
    driver.arrays.insert(handle, Arc::new(array));
    // SAFETY: by the caller's promise.
    unsafe { out::write(pointer, CUarray(handle)) }
}

fn allocate(driver: &Driver, context: &Context, size_bytes: u64) -> Answer<u64> {
    let account = &driver.device(context.device as i32)?.account;
    Ok(driver.space.allocate(context.device, account, context.id, size_bytes)?)
}

/// All levels in one allocation, each half as large as the one before.
fn create_mipmapped(
    driver: &Driver,
    context: &Context,
    asked: &CUDA_ARRAY3D_DESCRIPTOR,
    level_count: u32,
) -> Answer<MipmappedArray> {
    let whole = plan(asked)?;
    let longest = match whole.shape {
        Shape::Plain => whole.extent.iter().copied().max(),
        _ => whole.extent[..2].iter().copied().max(),
    };
    // No more levels than it takes to come down to one texel.
    let level_count = level_count.min(longest.unwrap_or(1).ilog2() + 1);
    let mut planned = Vec::new();
    let mut size_bytes = 0u64;
    for level in 0..level_count {
        let half = |size: usize| if size == 0 { 0 } else { (size >> level).max(1) };
        let depth = if whole.shape == Shape::Plain { half(asked.Depth) } else { asked.Depth };
        let smaller = CUDA_ARRAY3D_DESCRIPTOR {
            Width: half(asked.Width),
            Height: half(asked.Height),
            Depth: depth,
            ..*asked
        };
        let image = plan(&smaller)?;
        let offset = size_bytes.next_multiple_of(512);
        size_bytes = offset + image.size_bytes();
        planned.push((image, smaller, offset));
    }
    let address = allocate(driver, context, size_bytes)?;
    let level = |(image, asked, offset): (Image, CUDA_ARRAY3D_DESCRIPTOR, u64)| {
        let image = Image { base: address + offset, ..image };
        let (owner, context_id) = (ArrayOwner::MipmappedArray, context.id);
        let handle = fresh_handle();
        driver.arrays.insert(handle, Arc::new(Array { image, asked, owner, context_id }));
        CUarray(handle)
    };
    let levels = planned.into_iter().map(level).collect();
    Ok(MipmappedArray { levels, address, size_bytes, context_id: context.id })
}
