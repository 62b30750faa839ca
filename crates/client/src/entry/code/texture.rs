//! Texture and surface objects.

use crate::client::{Client, run};
use crate::copy::arrays;
use crate::copy::texture::Object;
use crate::entry::arguments::not_null;
use crate::result::Result;
use crate::thread::current;
use cuda_abi::types::*;
use link::wire::array::{SURFACE, TEXTURE, TextureCreate, TextureHandle};
use link::wire::command::Opcode;
use zerocopy::IntoBytes;

/// The resource in the executor's numbers.
fn question(client: &Client, resource: &CUDA_RESOURCE_DESC, object: u32) -> Result<TextureCreate> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    if resource.flags != 0 {
        return Err(invalid);
    }
    let mut asked = TextureCreate { object, resource: resource.resType.0, ..Default::default() };
    // SAFETY: the type says which member the caller filled in; all are plain numbers.
    unsafe {
        match resource.resType {
            CUresourcetype::ARRAY => {
                asked.array = arrays::get(client, resource.res.array.hArray.0)?.number;
            }
            CUresourcetype::MIPMAPPED_ARRAY => {
                let handle = resource.res.mipmap.hMipmappedArray.0;
                asked.array = arrays::get_mipmapped(client, handle)?.number;
            }
            CUresourcetype::LINEAR => {
                let linear = resource.res.linear;
                let size_bytes = linear.sizeInBytes as u64;
                // The driver does not mind one that is longer than the memory, as long as no kernel
                // reads there. What is beyond may be another client's: here kernels read zeros.
                let reached_bytes = match client.memory.device_reach(linear.devPtr, size_bytes) {
                    Ok(_) => size_bytes,
                    Err(_) => client.memory.device_reach(linear.devPtr, 1)?.left(linear.devPtr),
                };
                asked.address = linear.devPtr;
                asked.format = linear.format.0;
                asked.channels = linear.numChannels;
                asked.size_bytes = reached_bytes.min(size_bytes);
            }
            CUresourcetype::PITCH2D => {
                let pitched = resource.res.pitch2D;
                client.memory.device_reach(pitched.devPtr, 1)?;
                asked.address = pitched.devPtr;
                asked.format = pitched.format.0;
                asked.channels = pitched.numChannels;
                asked.width = pitched.width as u64;
                asked.height = pitched.height as u64;
                asked.pitch_bytes = pitched.pitchInBytes as u64;
            }
            _ => return Err(invalid),
        }
    }
    Ok(asked)
}

/// The words of a description.
///
/// # Safety
/// `T` has no padding and consists of so many words.
unsafe fn words<T: Copy, const N: usize>(value: &T) -> [u32; N] {
    const { assert!(size_of::<T>() == N * 4) };
    // SAFETY: the caller's promise.
    unsafe { (&raw const *value).cast::<[u32; N]>().read_unaligned() }
}

fn create(
    client: &Client,
    object: u32,
    resource: CUDA_RESOURCE_DESC,
    texture: CUDA_TEXTURE_DESC,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
) -> Result<u64> {
    let context = current::owner()?;
    let (backend, id) = context.backend()?;
    let mut asked = question(client, &resource, object)?;
    if object == TEXTURE {
        let known = CUDA_TEXTURE_DESC { reserved: [0; 12], ..texture };
        // SAFETY: 26 words.
        asked.texture = unsafe { words(&known) };
        if let Some(view) = view {
            let mut known = CUDA_RESOURCE_VIEW_DESC { reserved: [0; 16], ..Default::default() };
            known.format = view.format;
            (known.width, known.height, known.depth) = (view.width, view.height, view.depth);
            known.firstMipmapLevel = view.firstMipmapLevel;
            known.lastMipmapLevel = view.lastMipmapLevel;
            (known.firstLayer, known.lastLayer) = (view.firstLayer, view.lastLayer);
            // SAFETY: 28 words; the padding after the format is that of a default value, which is
            // all zeros.
            asked.view = unsafe { words(&known) };
            asked.has_view = 1;
        }
    }
    let reply: TextureHandle =
        backend.session.call_for(id, Opcode::TextureCreate, &[asked.as_bytes()])?;
    client.textures.add(reply.handle, Object { context, object, resource, texture, view });
    Ok(reply.handle)
}

pub(crate) unsafe fn cuTexObjectCreate(
    pTexObject: *mut CUtexObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
    pTexDesc: *const CUDA_TEXTURE_DESC,
    pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    run(|client| {
        not_null(pTexObject)?;
        not_null(pResDesc)?;
        not_null(pTexDesc)?;
        // SAFETY: not null, or looked at; the caller's structures.
        let (resource, texture, view) =
            unsafe { (pResDesc.read(), pTexDesc.read(), pResViewDesc.as_ref().copied()) };
        put!(pTexObject, create(client, TEXTURE, resource, texture, view)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuTexObjectDestroy(texObject: CUtexObject) -> CUresult {
    run(|client| client.textures.destroy(texObject, TEXTURE))
}

pub(crate) unsafe fn cuTexObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    texObject: CUtexObject,
) -> CUresult {
    run(|client| {
        put!(pResDesc, client.textures.find(texObject, TEXTURE)?.resource);
        Ok(())
    })
}

pub(crate) unsafe fn cuTexObjectGetTextureDesc(
    pTexDesc: *mut CUDA_TEXTURE_DESC,
    texObject: CUtexObject,
) -> CUresult {
    run(|client| {
        put!(pTexDesc, client.textures.find(texObject, TEXTURE)?.texture);
        Ok(())
    })
}

pub(crate) unsafe fn cuTexObjectGetResourceViewDesc(
    pResViewDesc: *mut CUDA_RESOURCE_VIEW_DESC,
    texObject: CUtexObject,
) -> CUresult {
    run(|client| {
        let view = client.textures.find(texObject, TEXTURE)?.view;
        put!(pResViewDesc, view.ok_or(CUresult::ERROR_INVALID_VALUE)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuSurfObjectCreate(
    pSurfObject: *mut CUsurfObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
) -> CUresult {
    run(|client| {
        not_null(pSurfObject)?;
        not_null(pResDesc)?;
        // SAFETY: not null; the caller's structure.
        let resource = unsafe { pResDesc.read() };
        if resource.resType != CUresourcetype::ARRAY {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let texture = CUDA_TEXTURE_DESC::default();
        put!(pSurfObject, create(client, SURFACE, resource, texture, None)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuSurfObjectDestroy(surfObject: CUsurfObject) -> CUresult {
    run(|client| client.textures.destroy(surfObject, SURFACE))
}

pub(crate) unsafe fn cuSurfObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    surfObject: CUsurfObject,
) -> CUresult {
    run(|client| {
        put!(pResDesc, client.textures.find(surfObject, SURFACE)?.resource);
        Ok(())
    })
}
