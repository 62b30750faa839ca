//! Arrays, and the texture and surface objects that read them; see [`super::command`].
//!
//! Arrays have numbers, as streams have. Texture and surface objects are the driver's own values,
//! since kernels get them as parameters.

use super::command::wire_struct;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Arrays, mipmapped ones and their levels have numbers below this, and above 0.
pub const MAX_ARRAYS: u32 = 1 << 20;
/// [`ArrayEnd::array`] of memory.
pub const NO_ARRAY: u32 = 0;
/// [`TextureCreate::object`]: a texture object.
pub const TEXTURE: u32 = 0;
/// [`TextureCreate::object`]: a surface object.
pub const SURFACE: u32 = 1;

wire_struct! {
    /// See [`super::command::Opcode::ArrayCreate`]: `CUDA_ARRAY3D_DESCRIPTOR`, and more.
    struct ArrayCreate {
        /// Texels.
        width: u64,
        /// Rows, or 0.
        height: u64,
        /// Slices or layers, or 0.
        depth: u64,
        /// `CUarray_format`.
        format: u32,
        /// Of a texel.
        channels: u32,
        /// `CUDA_ARRAY3D_*`.
        flags: u32,
        /// Of a mipmapped array; 0: no mipmapped array.
        levels: u32,
        /// Number.
        array: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::ArrayDestroy`] and [`super::command::Opcode::ArrayMemory`].
    struct ArrayNumber {
        /// Number.
        array: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`super::command::Opcode::ArrayMemory`].
    struct ArrayMemoryReply {
        /// Bytes of memory that it needs.
        size_bytes: u64,
        /// Their alignment, in bytes.
        alignment_bytes: u64,
    }
    /// See [`super::command::Opcode::ArrayLevel`]. Levels end with their mipmapped array.
    struct ArrayLevel {
        /// Number of the mipmapped array.
        mipmapped: u32,
        /// Which level.
        level: u32,
        /// Number that the level gets.
        array: u32,
        /// Zero.
        reserved: u32,
    }
    /// One end of an [`ArrayCopy`].
    struct ArrayEnd {
        /// Memory: first byte.
        address: u64,
        /// Memory: bytes from row to row.
        pitch_bytes: u64,
        /// Memory: rows from slice to slice.
        rows: u64,
        /// Array: first byte of the row.
        x_bytes: u64,
        /// Array: first row.
        y: u64,
        /// Array: first slice or layer.
        z: u64,
        /// Number of the array, or [`NO_ARRAY`].
        array: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::ArrayCopy`].
    struct ArrayCopy {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// To.
        destination: ArrayEnd,
        /// From.
        source: ArrayEnd,
        /// Bytes of a row.
        width_bytes: u64,
        /// Rows of a slice.
        height: u64,
        /// Slices.
        depth: u64,
    }
    /// See [`super::command::Opcode::TextureCreate`]: `CUDA_RESOURCE_DESC`, and for textures
    /// `CUDA_TEXTURE_DESC` and perhaps `CUDA_RESOURCE_VIEW_DESC` as they are in memory.
    struct TextureCreate {
        /// [`TEXTURE`] or [`SURFACE`].
        object: u32,
        /// `CUresourcetype`.
        resource: u32,
        /// Number of an array or mipmapped array.
        array: u32,
        /// `CUarray_format` of memory.
        format: u32,
        /// Channels of memory.
        channels: u32,
        /// 1 if there is a view, else 0.
        has_view: u32,
        /// Memory: first byte.
        address: u64,
        /// Linear memory: its length.
        size_bytes: u64,
        /// Pitched memory: texels of a row.
        width: u64,
        /// Pitched memory: rows.
        height: u64,
        /// Pitched memory: bytes from row to row.
        pitch_bytes: u64,
        /// `CUDA_TEXTURE_DESC`.
        texture: [u32; 26],
        /// `CUDA_RESOURCE_VIEW_DESC`.
        view: [u32; 28],
    }
    /// Answer to [`TextureCreate`], and see [`super::command::Opcode::TextureDestroy`].
    struct TextureHandle {
        /// What kernels are given.
        handle: u64,
        /// [`TEXTURE`] or [`SURFACE`].
        object: u32,
        /// Zero.
        reserved: u32,
    }
}

impl TextureHandle {
    /// What it is known by: textures and surfaces have handles of their own.
    pub fn key(&self) -> u64 {
        self.handle ^ u64::from(self.object) << 63
    }
}
