//! What an array is, and a mipmapped one.

use crate::context::Context;
use cuda_abi::types::{CUDA_ARRAY3D_DESCRIPTOR, CUarray_format};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Flags of arrays whose depth counts no slices.
pub(super) const CUBEMAP_OR_LAYERED: u32 = 1 | 4;

/// An array, or a level of a mipmapped one.
pub(crate) struct Array {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) number: u32,
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    pub(super) owner: Owner,
}

/// Whom an array ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Itself,
    MipmappedArray,
}

/// A mipmapped array.
pub(crate) struct MipmappedArray {
    pub(crate) token: usize,
    pub(super) context: Arc<Context>,
    pub(crate) number: u32,
    pub(super) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    pub(super) levels: Mutex<BTreeMap<u32, Arc<Array>>>,
}

/// A box inside an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corner {
    pub(crate) x_bytes: u64,
    pub(crate) y: u64,
    pub(crate) z: u64,
}

/// Bytes of a texel: 1 to 16; `None` for compressed and unknown formats.
pub(crate) fn texel_bytes(format: CUarray_format, channels: u32) -> Option<u32> {
    use CUarray_format as F;
    let channel = match format {
        F::UNSIGNED_INT8 | F::SIGNED_INT8 => 1,
        F::UNSIGNED_INT16 | F::SIGNED_INT16 | F::HALF => 2,
        F::UNSIGNED_INT32 | F::SIGNED_INT32 | F::FLOAT => 4,
        F::UNORM_INT8X1 | F::UNORM_INT8X2 | F::UNORM_INT8X4 => 1,
        F::SNORM_INT8X1 | F::SNORM_INT8X2 | F::SNORM_INT8X4 => 1,
        F::UNORM_INT16X1 | F::UNORM_INT16X2 | F::UNORM_INT16X4 => 2,
        F::SNORM_INT16X1 | F::SNORM_INT16X2 | F::SNORM_INT16X4 => 2,
        _ => return None,
    };
    matches!(channels, 1 | 2 | 4).then_some(channel * channels)
}

impl Array {
    /// Bytes of a texel; `None` for formats that only the driver knows.
    pub(crate) fn texel_bytes(&self) -> Option<u32> {
        texel_bytes(self.descriptor.Format, self.descriptor.NumChannels)
    }

    /// Whether a box lies inside, in whole texels, as far as the format is known.
    pub(crate) fn contains(&self, at: Corner, width_bytes: u64, height: u64, depth: u64) -> bool {
        let Some(texel) = self.texel_bytes().map(u64::from) else { return true };
        let fits = |from: u64, length: u64, side: u64| {
            from.checked_add(length).is_some_and(|end| end <= side)
        };
        let side = |side: usize| side.max(1) as u64;
        at.x_bytes.is_multiple_of(texel)
            && width_bytes.is_multiple_of(texel)
            && fits(at.x_bytes, width_bytes, side(self.descriptor.Width) * texel)
            && fits(at.y, height, side(self.descriptor.Height))
            && fits(at.z, depth, side(self.descriptor.Depth))
    }
}
