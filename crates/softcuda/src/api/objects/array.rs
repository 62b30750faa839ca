//! Arrays and mipmapped arrays: what their handles stand for.

use cuda_abi::types::{CUDA_ARRAY3D_DESCRIPTOR, CUarray};

use crate::device::textures::image::Image;

/// An array, or one level of a mipmapped one: `CUarray`.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) image: Image,
    pub(crate) asked: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) owner: ArrayOwner,
    pub(crate) context_id: u64,
}

/// Whose memory an array has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayOwner {
    Itself,
    MipmappedArray,
}

/// A mipmapped array: `CUmipmappedArray`.
#[derive(Debug)]
pub(crate) struct MipmappedArray {
    pub(crate) levels: Vec<CUarray>,
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
    pub(crate) context_id: u64,
}
