//! Texture and surface objects: what kernels are given to read arrays and memory through.

use cuda_abi::types::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode,
    CUarray_format as Format, CUdevice, CUfilter_mode, CUresourceViewFormat as ViewFormat,
    CUresourcetype, CUresult, CUsurfObject, CUtexObject,
};
use std::sync::Arc;

use super::array::texel;
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, driver};
use crate::api::objects::{SurfaceObject, TextureObject};
use crate::api::out;
use crate::device::properties::limits;
use crate::device::textures::format::{ReadMode, Texel};
use crate::device::textures::image::{Image, Shape};
use crate::device::textures::sample::{
    Address, Backing, Coding, Filter, Sampler, Texture, Units, is_layered,
};

/// Flags of textures.
const READ_AS_INTEGER: u32 = 1;
const NORMALIZED_COORDINATES: u32 = 2;
const SRGB: u32 = 0x10;
/// Trilinear optimisation off, seamless cube maps: nothing to do for either.
const KNOWN_FLAGS: u32 = 0x73;

/// No memory is that large; keeps sizes from wrapping around.
const LARGEST_PITCH_BYTES: u64 = 1 << 40;

api! {
    fn cuTexObjectCreate(pTexObject: *mut CUtexObject, pResDesc: *const CUDA_RESOURCE_DESC, pTexDesc: *const CUDA_TEXTURE_DESC, pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC) {
        let (driver, _) = current()?;
        // SAFETY: the caller's structures; the last may be NULL.
        let (resource, texture, view) = unsafe {
            let view = if pResViewDesc.is_null() { None } else { Some(out::read(pResViewDesc)?) };
            (out::read(pResDesc)?, out::read(pTexDesc)?, view)
        };
        if pTexObject.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (levels, backing) = images(driver, &resource)?;
        let levels = match &view {
            Some(view) => viewed(levels, view)?,
            None => levels,
        };
        let sampler = sampler(&texture)?;
        let is_float = levels[0].texel.channel.is_float(sampler.read);
        if sampler.filter == Filter::Linear && !is_float {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let handle = driver.engine.textures.add_texture(Texture { levels, backing, sampler });
        let object = Arc::new(TextureObject { resource, texture, view });
        driver.texture_objects.insert(handle as usize, object);
        // SAFETY: the caller's pointer.
        unsafe { out::write(pTexObject, handle) }
    }

    fn cuTexObjectDestroy(texObject: CUtexObject) {
        let (driver, context) = current()?;
        driver.texture_objects.remove(texObject as usize).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let _ = driver.engine.synchronize_context(context.id);
        driver.engine.textures.remove(texObject);
        Ok(())
    }

    fn cuTexObjectGetResourceDesc(pResDesc: *mut CUDA_RESOURCE_DESC, texObject: CUtexObject) {
        let found = texture_object(driver()?, texObject)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pResDesc, found.resource) }
    }

    fn cuTexObjectGetTextureDesc(pTexDesc: *mut CUDA_TEXTURE_DESC, texObject: CUtexObject) {
        let found = texture_object(driver()?, texObject)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pTexDesc, found.texture) }
    }

    fn cuTexObjectGetResourceViewDesc(pResViewDesc: *mut CUDA_RESOURCE_VIEW_DESC, texObject: CUtexObject) {
        let view = texture_object(driver()?, texObject)?.view.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pResViewDesc, view) }
    }

    fn cuSurfObjectCreate(pSurfObject: *mut CUsurfObject, pResDesc: *const CUDA_RESOURCE_DESC) {
        let (driver, _) = current()?;
        // SAFETY: the caller's structure.
        let resource = unsafe { out::read(pResDesc)? };
        if pSurfObject.is_null() || resource.resType != CUresourcetype::ARRAY {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (levels, _) = images(driver, &resource)?;
        let handle = driver.engine.textures.add_surface(levels[0]);
        driver.surface_objects.insert(handle as usize, Arc::new(SurfaceObject { resource }));
        // SAFETY: the caller's pointer.
        unsafe { out::write(pSurfObject, handle) }
    }

    fn cuSurfObjectDestroy(surfObject: CUsurfObject) {
        let (driver, context) = current()?;
        driver.surface_objects.remove(surfObject as usize).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let _ = driver.engine.synchronize_context(context.id);
        driver.engine.textures.remove(surfObject);
        Ok(())
    }

    fn cuSurfObjectGetResourceDesc(pResDesc: *mut CUDA_RESOURCE_DESC, surfObject: CUsurfObject) {
        let found = driver()?.surface_objects.find(surfObject as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pResDesc, found.resource) }
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(maxWidthInElements: *mut usize, format: Format, numChannels: u32, dev: CUdevice) {
        driver()?.device(dev)?;
        texel(format, numChannels)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(maxWidthInElements, limits::TEXTURE_BUFFER_TEXELS as usize) }
    }
}

fn texture_object(driver: &Driver, handle: CUtexObject) -> Answer<Arc<TextureObject>> {
    driver.texture_objects.find(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// The images of a resource, largest first.
fn images(driver: &Driver, resource: &CUDA_RESOURCE_DESC) -> Answer<(Vec<Image>, Backing)> {
    const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
    if resource.flags != 0 {
        return Err(INVALID);
    }
    let accessible = driver.space.accessible().snapshot();
    // SAFETY: the type says which member the caller filled in; all are plain numbers.
    unsafe {
        match resource.resType {
            CUresourcetype::ARRAY => {
                let array = driver.arrays.find(resource.res.array.hArray.0).ok_or(INVALID)?;
                Ok((vec![array.image], Backing::Array))
            }
            CUresourcetype::MIPMAPPED_ARRAY => {
                let handle = resource.res.mipmap.hMipmappedArray.0;
                let array = driver.mipmapped_arrays.find(handle).ok_or(INVALID)?;
                let levels = array.levels.iter().map(|level| driver.arrays.get(level.0));
                let levels = levels.map(|level| Ok(level?.image)).collect::<Answer<_>>()?;
                Ok((levels, Backing::Array))
            }
            CUresourcetype::LINEAR => {
                let linear = resource.res.linear;
                let texel = texel(linear.format, linear.numChannels)?;
                let (asked_bytes, texel_bytes) =
                    (linear.sizeInBytes as u64, u64::from(texel.bytes()));
                if asked_bytes / texel_bytes > u64::from(limits::TEXTURE_BUFFER_TEXELS) {
                    return Err(INVALID);
                }
                // It may be longer than the memory: kernels read zeros there.
                let size_bytes = accessible.bytes_from(linear.devPtr, asked_bytes);
                let width = u32::try_from(size_bytes / texel_bytes).ok();
                let extent = [width.filter(|width| *width > 0).ok_or(INVALID)?, 1, 1];
                Ok((vec![plane(linear.devPtr, extent, size_bytes, texel)], Backing::Buffer))
            }
            CUresourcetype::PITCH2D => {
                let pitched = resource.res.pitch2D;
                let texel = texel(pitched.format, pitched.numChannels)?;
                let side = |size: usize| {
                    u32::try_from(size)
                        .ok()
                        .filter(|size| (1..=limits::TEXTURE_EXTENT).contains(size))
                };
                let extent =
                    [side(pitched.width).ok_or(INVALID)?, side(pitched.height).ok_or(INVALID)?, 1];
                let row_bytes = pitched.pitchInBytes as u64;
                if row_bytes > LARGEST_PITCH_BYTES {
                    return Err(INVALID);
                }
                let image = plane(pitched.devPtr, extent, row_bytes, texel);
                let is_fine = row_bytes >= u64::from(extent[0]) * u64::from(texel.bytes())
                    && accessible.covers(image.base, image.size_bytes());
                if is_fine { Ok((vec![image], Backing::Array)) } else { Err(INVALID) }
            }
            _ => Err(INVALID),
        }
    }
}

fn plane(base: u64, extent: [u32; 3], row_bytes: u64, texel: Texel) -> Image {
    let slice_bytes = row_bytes.saturating_mul(u64::from(extent[1]));
    Image { base, extent, row_bytes, slice_bytes, texel, shape: Shape::Plain }
}

/// Part of the levels and layers of a resource, perhaps as another format of the same size.
fn viewed(levels: Vec<Image>, view: &CUDA_RESOURCE_VIEW_DESC) -> Answer<Vec<Image>> {
    const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
    let range = view.firstMipmapLevel as usize..=view.lastMipmapLevel as usize;
    let mut levels = levels.get(range).ok_or(INVALID)?.to_vec();
    let texel = view_texel(view.format, levels.first().ok_or(INVALID)?.texel)?;
    for image in &mut levels {
        if texel.bytes() != image.texel.bytes() {
            return Err(INVALID);
        }
        image.texel = texel;
        if is_layered(image.shape) && view.lastLayer > 0 {
            if view.firstLayer > view.lastLayer || view.lastLayer >= image.extent[2] {
                return Err(INVALID);
            }
            image.base += u64::from(view.firstLayer) * image.slice_bytes;
            image.extent[2] = view.lastLayer - view.firstLayer + 1;
        }
    }
    Ok(levels)
}

/// The texel of a view's format; 801 for the compressed ones.
fn view_texel(format: ViewFormat, own: Texel) -> Answer<Texel> {
    let (first, format_of) = match format.0 {
        0 => return Ok(own),
        1..=3 => (1, Format::UNSIGNED_INT8),
        4..=6 => (4, Format::SIGNED_INT8),
        7..=9 => (7, Format::UNSIGNED_INT16),
        10..=12 => (10, Format::SIGNED_INT16),
        13..=15 => (13, Format::UNSIGNED_INT32),
        16..=18 => (16, Format::SIGNED_INT32),
        19..=21 => (19, Format::HALF),
        22..=24 => (22, Format::FLOAT),
        25..=34 => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    texel(format_of, 1 << (format.0 - first))
}

fn sampler(asked: &CUDA_TEXTURE_DESC) -> Answer<Sampler> {
    if asked.flags & !KNOWN_FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let has = |flag: u32| asked.flags & flag != 0;
    let mut address = [Address::Clamp; 3];
    for (to, from) in address.iter_mut().zip(asked.addressMode) {
        *to = match from {
            CUaddress_mode::WRAP => Address::Wrap,
            CUaddress_mode::CLAMP => Address::Clamp,
            CUaddress_mode::MIRROR => Address::Mirror,
            CUaddress_mode::BORDER => Address::Border,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
    }
    Ok(Sampler {
        address,
        filter: filter(asked.filterMode)?,
        level_filter: filter(asked.mipmapFilterMode)?,
        units: if has(NORMALIZED_COORDINATES) { Units::Normalized } else { Units::Texels },
        read: if has(READ_AS_INTEGER) { ReadMode::Element } else { ReadMode::NormalizedFloat },
        coding: if has(SRGB) { Coding::Srgb } else { Coding::Linear },
        level_bias: asked.mipmapLevelBias,
        level_range: [asked.minMipmapLevelClamp, asked.maxMipmapLevelClamp],
        border: asked.borderColor,
    })
}

fn filter(mode: CUfilter_mode) -> Answer<Filter> {
    match mode {
        CUfilter_mode::POINT => Ok(Filter::Point),
        CUfilter_mode::LINEAR => Ok(Filter::Linear),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
