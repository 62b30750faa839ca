//! Texture and surface objects: what their handles stand for.

use cuda_abi::types::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC};

/// What a texture object was made of.
#[derive(Clone, Copy)]
pub(crate) struct TextureObject {
    pub(crate) resource: CUDA_RESOURCE_DESC,
    pub(crate) texture: CUDA_TEXTURE_DESC,
    pub(crate) view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

/// What a surface object was made of.
#[derive(Clone, Copy)]
pub(crate) struct SurfaceObject {
    pub(crate) resource: CUDA_RESOURCE_DESC,
}
